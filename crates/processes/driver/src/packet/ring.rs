//! Received frames in the ring of a packet socket.

use std::os::fd::BorrowedFd;

use lasthop_device::PacketRing;
use rustix::io::Errno;

use super::sys::{Slot, Slots};
use crate::aux::{TAG_BYTES, tag_of};

/// A frame that the kernel received. The next one comes after [`Ring::release`].
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
#[derive(Debug)]
pub(super) struct Short<'a> {
    /// Its virtio-net header, as long as the kernel makes it, and the frame behind it.
    pub(super) bytes: &'a [u8],
    /// The tag that the kernel removed.
    pub(super) tag: Option<[u8; TAG_BYTES]>,
}

impl Short<'_> {
    /// Bytes of the frame, behind a header of `header_bytes`.
    #[inline]
    pub(super) fn frame_bytes(&self, header_bytes: u32) -> usize {
        self.bytes.len().saturating_sub(header_bytes as usize)
    }
}

/// The ring of a packet socket, and the next slot that the kernel fills.
#[derive(Debug)]
pub(super) struct Ring {
    slots: Slots,
    next: u32,
    header_bytes: usize,
}

impl Ring {
    /// The ring of a socket that nothing was read from.
    pub(super) fn of_socket(
        socket: BorrowedFd<'_>,
        ring: PacketRing,
        header_bytes: u8,
    ) -> Result<Self, Errno> {
        Ok(Self { slots: Slots::of_socket(socket, ring)?, next: 0, header_bytes: usize::from(header_bytes) })
    }

    /// The next frame, if there is one.
    #[inline]
    pub(super) fn next(&self) -> Option<Arrival<'_>> {
        self.slots.get(self.next).map(|slot| self.arrival(&slot))
    }

    #[inline]
    fn arrival<'a>(&self, slot: &Slot<'a>) -> Arrival<'a> {
        let header = &slot.header;
        if header.tp_status & libc::TP_STATUS_COPY != 0 {
            return Arrival::Long;
        }
        let frame_at = usize::from(header.tp_mac);
        let frame = frame_at.saturating_sub(self.header_bytes)..frame_at + header.tp_snaplen as usize;
        match slot.bytes(frame) {
            Some(bytes) if header.tp_snaplen == header.tp_len => {
                let tag = tag_of(header.tp_status, header.tp_vlan_tci, header.tp_vlan_tpid);
                Arrival::Short(Short { bytes, tag })
            }
            _ => Arrival::Lost,
        }
    }

    /// Number of frames that wait at the socket before the next short one, up to `max`.
    pub(super) fn longs(&self, max: usize) -> usize {
        let numbers = (0..max as u32).map(|ahead| self.next.wrapping_add(ahead)); // a batch
        let longs = numbers.map_while(|number| self.slots.get(number));
        longs.take_while(|slot| matches!(self.arrival(slot), Arrival::Long)).count()
    }

    /// Returns the slots of the next `count` frames to the kernel.
    #[inline]
    pub(super) fn release(&mut self, count: usize) {
        for _ in 0..count {
            self.slots.release(self.next);
            self.next = self.next.wrapping_add(1);
        }
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
            Self { file, next: 0 }
        }

        fn ring(&self) -> Ring {
            let ring = PacketRing { slots: SLOTS, slot_bytes: SLOT_BYTES };
            Ring::of_socket(self.file.as_fd(), ring, 12).unwrap()
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
            rustix::io::pwrite(&self.file, bytes, at + u64::from(MAC) - 12).unwrap();
            self.next += 1;
            true
        }

        fn short(&mut self, frame: &[u8]) -> bool {
            let len = frame.len() as u32;
            self.receive(libc::TP_STATUS_USER, (MAC, len, len), [0; 2], &[&[9; 12], frame].concat())
        }
    }

    #[test]
    fn frames_come_in_order_and_their_slots_go_back() {
        let mut kernel = Kernel::new();
        let mut ring = kernel.ring();
        assert!(ring.next().is_none());
        for round in 0..3 {
            (0..SLOTS as u8).for_each(|number| assert!(kernel.short(&[10 * round + number; 64])));
            assert!(!kernel.short(&[0; 64]), "all slots are taken");
            for number in 0..SLOTS as u8 {
                let Some(Arrival::Short(short)) = ring.next() else { panic!("{round} {number}") };
                assert_eq!(short.bytes, [&[9; 12][..], &[10 * round + number; 64]].concat());
                assert_eq!((short.frame_bytes(12), short.tag), (64, None));
                ring.release(1);
            }
            assert!(ring.next().is_none());
        }
    }

    #[test]
    fn a_removed_tag_is_told() {
        let mut kernel = Kernel::new();
        let valid = libc::TP_STATUS_USER | 1 << 4;
        assert!(kernel.receive(valid, (MAC, 64, 64), [5, 0x88a8], &[0; 76]));
        assert!(kernel.receive(valid | 1 << 6, (MAC, 64, 64), [5, 0x88a8], &[0; 76]));
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
        assert!(kernel.receive(long, (MAC, 5000, 178), [0; 2], &[0; 190]));
        assert!(kernel.receive(long, (MAC, 5000, 178), [0; 2], &[0; 190]));
        assert!(kernel.short(&[1; 64]));
        assert!(kernel.receive(long, (MAC, 5000, 178), [0; 2], &[0; 190]));
        let mut ring = kernel.ring();
        assert!(matches!(ring.next(), Some(Arrival::Long)));
        assert_eq!((ring.longs(1), ring.longs(32)), (1, 2));
        ring.release(2);
        assert!(matches!(ring.next(), Some(Arrival::Short(_))));
        assert_eq!(ring.longs(32), 0);
    }

    #[test]
    fn a_frame_that_is_not_whole_in_its_slot_is_lost() {
        let mut kernel = Kernel::new();
        for place in [(MAC, 5000, 178), (MAC, 179, 179), (40, 60, 60), (u16::MAX, u32::MAX, u32::MAX)] {
            assert!(kernel.receive(libc::TP_STATUS_USER, place, [0; 2], &[0; 100]));
        }
        let mut ring = kernel.ring();
        for _ in 0..SLOTS {
            assert!(matches!(ring.next(), Some(Arrival::Lost)));
            ring.release(1);
        }
    }

    #[test]
    fn rings_that_no_supervisor_makes_are_refused() {
        let file = Kernel::new().file;
        for (slots, slot_bytes) in [(0, 256), (3, 256), (4, 0), (4, 100), (1 << 31, 1 << 31), (1 << 20, 2048)]
        {
            let ring = Ring::of_socket(file.as_fd(), PacketRing { slots, slot_bytes }, 12);
            assert_eq!(ring.unwrap_err(), Errno::PROTO, "{slots} {slot_bytes}");
        }
    }
}
