//! Received frames in the ring of a packet socket.
//!
//! ```text
//!    slots   [ .. | held | next | next + 1 | .. ]
//!                   ours   ours, if it has a frame; else the kernel fills it
//! ```
//!
//! The slot before the next one is held back: the kernel calls the socket readable as long as the slot before the one that it fills is ours
//! (`packet_poll`). So each of its signals is an event of an edge-triggered epoll, also that of a frame which it dropped.
//!
//! That matters, because the ring can stop for good. A frame whose offloads have no virtio-net header, such as segments of
//! SCTP, takes the next slot from the kernel and never fills it (`tpacket_rcv` of Linux 6.18, version 2 of the ring). The kernel then drops all
//! further frames, and only counts them. [`FrameRing::is_stopped`] notices it by that.

use std::os::fd::BorrowedFd;

use lasthop_device::PacketRing;
use lasthop_wire::vnet::HEADER_BYTES_LEGACY;
use rustix::io::Errno;

use super::sys::{FrameSlot, FrameSlots};
use crate::aux::{TAG_BYTES, tag_of};

/// A frame that the kernel received. The next one comes after [`FrameRing::release`].
#[derive(Debug)]
pub(super) enum Arrival<'a> {
    /// It is here.
    Short(Short<'a>),
    /// It is longer than a slot, and waits at the socket.
    Long,
    /// It is longer than a slot, and found the socket full.
    Lost,
}

/// A frame in its slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Short<'a> {
    /// Its virtio-net header without the number of buffers.
    pub(super) header: &'a [u8],
    /// The frame.
    pub(super) frame: &'a [u8],
    /// The tag that the kernel removed.
    pub(super) tag: Option<[u8; TAG_BYTES]>,
}

/// The ring of a packet socket, and the next slot that the kernel fills.
#[derive(Debug)]
pub(super) struct FrameRing {
    slots: FrameSlots,
    next: u32,
    /// The value of `next` when the kernel had dropped a frame although the ring was empty afterwards.
    suspect: Option<u32>,
}

impl FrameRing {
    /// The ring of a socket that nothing was read from, and whose last slot is held.
    ///
    /// # Errors
    /// Errors of mmap(2); `PROTO` for a ring that no supervisor makes.
    pub(super) fn of_socket(
        socket: BorrowedFd<'_>,
        ring: PacketRing,
        header_bytes: u8,
    ) -> Result<Self, Errno> {
        // Linux writes this one directly before the frame, also if the socket has the longer one.
        if usize::from(header_bytes) != HEADER_BYTES_LEGACY {
            return Err(Errno::PROTO);
        }
        Ok(Self { slots: FrameSlots::of_socket(socket, ring)?, next: 0, suspect: None })
    }

    /// The next frame, if there is one.
    #[inline]
    pub(super) fn next(&self) -> Option<Arrival<'_>> {
        self.slots.get(self.next).map(|slot| arrival(&slot))
    }

    /// Number of frames that wait at the socket before the next short one, up to `max`.
    pub(super) fn longs(&self, max: usize) -> usize {
        let ahead = 0..(max as u32).min(self.slots.count() - 1); // a batch, and without the slot that is held
        let slots = ahead.map_while(|ahead| self.slots.get(self.next.wrapping_add(ahead)));
        slots.take_while(|slot| matches!(arrival(slot), Arrival::Long)).count()
    }

    /// Ends the use of the slots of the next `count` frames. The kernel gets all but the last one, and the one that was held.
    #[inline]
    pub(super) fn release(&mut self, count: usize) {
        for _ in 0..count {
            self.slots.release(self.next.wrapping_sub(1));
            self.next = self.next.wrapping_add(1);
        }
    }

    /// Whether the kernel fills no slot any more. `has_lost`: whether it has dropped frames since the last call. A drop alone may have been for
    /// lack of room. If the ring was empty at the last call, and no frame has come since, there was room.
    pub(super) fn is_stopped(&mut self, has_lost: bool) -> bool {
        if !has_lost || self.slots.get(self.next).is_some() {
            return false;
        }
        self.suspect.replace(self.next) == Some(self.next)
    }
}

fn arrival<'a>(slot: &FrameSlot<'a>) -> Arrival<'a> {
    let header = &slot.header;
    if header.tp_status & libc::TP_STATUS_COPY != 0 {
        return Arrival::Long;
    }
    let frame_at = usize::from(header.tp_mac);
    let place = frame_at.saturating_sub(HEADER_BYTES_LEGACY)..frame_at + header.tp_snaplen as usize;
    let bytes = slot.bytes(place).filter(|_| header.tp_snaplen == header.tp_len);
    match bytes.and_then(|bytes| bytes.split_at_checked(HEADER_BYTES_LEGACY)) {
        Some((vnet, frame)) => {
            let tag = tag_of(header.tp_status, header.tp_vlan_tci, header.tp_vlan_tpid);
            Arrival::Short(Short { header: vnet, frame, tag })
        }
        None => Arrival::Lost,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use lasthop_device::PacketRing;

    use super::*;

    const SLOT_BYTES: u32 = 256;
    const SLOTS: u32 = 4;
    const MAC: u16 = 78;

    /// A file in place of the socket, to which the test writes as the kernel does.
    struct Kernel {
        file: OwnedFd,
        next: u32,
    }

    impl Kernel {
        fn new() -> Self {
            let file = lasthop_guestmem::memfd("lasthop-ring-test", u64::from(SLOTS * SLOT_BYTES)).unwrap();
            // As the supervisor leaves it.
            rustix::io::pwrite(
                &file,
                &libc::TP_STATUS_USER.to_ne_bytes(),
                u64::from((SLOTS - 1) * SLOT_BYTES),
            )
            .unwrap();
            Self { file, next: 0 }
        }

        fn ring(&self) -> FrameRing {
            let ring = PacketRing { slots: SLOTS, slot_bytes: SLOT_BYTES };
            FrameRing::of_socket(self.file.as_fd(), ring, HEADER_BYTES_LEGACY as u8).unwrap()
        }

        /// Puts a frame into the next slot, unless that is taken.
        fn receive(
            &mut self,
            status: u32,
            (mac, len, snaplen): (u16, u32, u32),
            tag: [u16; 2],
            bytes: &[u8],
        ) -> bool {
            let at = u64::from(self.next % SLOTS * SLOT_BYTES);
            let mut owner = [0; 4];
            rustix::io::pread(&self.file, &mut owner, at).unwrap();
            if owner != [0; 4] {
                return false;
            }
            let words =
                [status, len, snaplen, u32::from(mac), 0, 0, u32::from(tag[0]) | u32::from(tag[1]) << 16, 0];
            let header: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            rustix::io::pwrite(&self.file, &header, at).unwrap();
            rustix::io::pwrite(&self.file, bytes, at + u64::from(MAC) - 10).unwrap();
            self.next += 1;
            true
        }

        fn short(&mut self, frame: &[u8]) -> bool {
            let len = frame.len() as u32;
            self.receive(libc::TP_STATUS_USER, (MAC, len, len), [0; 2], &[&[9; 10], frame].concat())
        }
    }

    #[test]
    fn frames_come_in_order_and_their_slots_go_back() {
        let mut kernel = Kernel::new();
        let mut ring = kernel.ring();
        assert!(ring.next().is_none());
        for round in 0..3 {
            (1..SLOTS as u8).for_each(|number| assert!(kernel.short(&[10 * round + number; 64])));
            assert!(!kernel.short(&[0; 64]), "one is held, and the others are taken");
            for number in 1..SLOTS as u8 {
                let Some(Arrival::Short(short)) = ring.next() else { panic!("{round} {number}") };
                assert_eq!((short.header, short.frame), (&[9; 10][..], &[10 * round + number; 64][..]));
                assert_eq!(short.tag, None);
                ring.release(1);
            }
            assert!(ring.next().is_none());
        }
    }

    /// The kernel drops frames of a full ring, too.
    #[test]
    fn a_ring_has_stopped_if_frames_are_lost_while_it_is_empty() {
        let mut kernel = Kernel::new();
        let mut ring = kernel.ring();
        assert!(kernel.short(&[0; 64]));
        assert!(!ring.is_stopped(true), "it has a frame");
        ring.release(1);
        assert!(!ring.is_stopped(false) && !ring.is_stopped(false), "no frame was lost");
        assert!(!ring.is_stopped(true), "it may have been full before");
        assert!(!ring.is_stopped(false));
        assert!(kernel.short(&[0; 64]));
        ring.release(1);
        assert!(!ring.is_stopped(true), "a frame has come since");
        assert!(ring.is_stopped(true));
    }

    #[test]
    fn a_removed_tag_is_told() {
        let mut kernel = Kernel::new();
        let valid = libc::TP_STATUS_USER | 1 << 4;
        assert!(kernel.receive(valid, (MAC, 64, 64), [5, 0x88a8], &[0; 74]));
        assert!(kernel.receive(valid | 1 << 6, (MAC, 64, 64), [5, 0x88a8], &[0; 74]));
        let mut ring = kernel.ring();
        for tag in [[0x81, 0, 0, 5], [0x88, 0xa8, 0, 5]] {
            assert!(
                matches!(ring.next(), Some(Arrival::Short(Short { tag: Some(told), .. })) if told == tag)
            );
            ring.release(1);
        }
    }

    #[test]
    fn long_frames_are_counted_up_to_the_next_short_one() {
        let mut kernel = Kernel::new();
        let long = libc::TP_STATUS_USER | libc::TP_STATUS_COPY;
        assert!(kernel.receive(long, (MAC, 5000, 178), [0; 2], &[0; 188]));
        assert!(kernel.receive(long, (MAC, 5000, 178), [0; 2], &[0; 188]));
        assert!(kernel.short(&[1; 64]));
        let mut ring = kernel.ring();
        assert!(matches!(ring.next(), Some(Arrival::Long)));
        assert_eq!((ring.longs(1), ring.longs(32)), (1, 2));
        ring.release(2);
        assert!(matches!(ring.next(), Some(Arrival::Short(_))));
        assert_eq!(ring.longs(32), 0);
        ring.release(1);
        (1..SLOTS).for_each(|_| assert!(kernel.receive(long, (MAC, 5000, 178), [0; 2], &[0; 188])));
        assert_eq!(ring.longs(32), 3, "the slot that is held was one of them");
    }

    #[test]
    fn a_frame_that_is_not_whole_in_its_slot_is_lost() {
        let mut kernel = Kernel::new();
        for place in [(MAC, 5000, 178), (MAC, 179, 179), (u16::MAX, u32::MAX, u32::MAX)] {
            assert!(kernel.receive(libc::TP_STATUS_USER, place, [0; 2], &[0; 100]));
        }
        let mut ring = kernel.ring();
        for _ in 1..SLOTS {
            assert!(matches!(ring.next(), Some(Arrival::Lost)));
            ring.release(1);
        }
        assert!(kernel.receive(libc::TP_STATUS_USER, (40, 60, 60), [0; 2], &[0; 100]));
        assert!(matches!(ring.next(), Some(Arrival::Lost)), "its header is not there");
    }

    #[test]
    fn rings_that_no_supervisor_makes_are_refused() {
        let file = Kernel::new().file;
        for (slots, slot_bytes) in
            [(0, 256), (1, 256), (3, 256), (4, 0), (4, 100), (1 << 31, 1 << 31), (1 << 20, 2048)]
        {
            let ring = FrameRing::of_socket(file.as_fd(), PacketRing { slots, slot_bytes }, 10);
            assert_eq!(ring.unwrap_err(), Errno::PROTO, "{slots} {slot_bytes}");
        }
        let ring = PacketRing { slots: SLOTS, slot_bytes: SLOT_BYTES };
        assert_eq!(FrameRing::of_socket(file.as_fd(), ring, 12).unwrap_err(), Errno::PROTO);
    }
}
