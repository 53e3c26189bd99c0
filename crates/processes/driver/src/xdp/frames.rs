//! The owner of each frame of the UMEM.
//!
//! ```text
//!   one queue's arena = its UMEM      receiving frames 0..n, sending frames n..2n
//!
//!        ┌──> fill ring ──> kernel ──> receive ring ─┐          ┌─> completion ring ─> lent to the switch, to be written ─┐
//!        │    Kernel                                 v          │                      Switch                            v
//!      [reclaimed] <── switch's transmit ring <── [received]  kernel <── transmit ring <────────────────────────── [to be sent]
//!                      Switch                                 Kernel
//! ```
//!
//! Each ring has more entries than frames that may be in it, so none is ever full. Frames of one direction never serve
//! the other, so neither direction can starve the other.
//!
//! Frames that the kernel and the switch name are checked against this table: a frame that they do not hold is refused.

use lasthop_device::XDP_FRAMES;

/// Bytes of a cache line.
const LINE_BYTES: u32 = 64;
/// Most offsets of frames to send: lines that lie 2048 bytes apart fill the sets of a cache of 512 KiB with them.
const OFFSETS_MAX: u32 = 8;

/// The holder of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// This process.
    Us,
    /// The kernel, which receives into it or sends it.
    Kernel,
    /// The switch, in one of the vNIC's rings.
    Switch,
}

/// The direction of a frame, which never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From the device to the switch.
    Receiving,
    /// From the switch to the device.
    Sending,
}

/// The table of one queue's frames.
#[derive(Debug)]
pub(super) struct Frames {
    holders: Box<[Holder]>,
    /// Frames into which the kernel may receive.
    receivable: u32,
    /// Frames to which the switch may write.
    writable: u32,
    /// The logarithm of a slot's bytes, so that no address has to be divided.
    place_shift: u32,
    /// Number of offsets at which frames to send begin in their slots; a power of two.
    offsets: u32,
}

impl Frames {
    /// This process holds all frames. `place_bytes` is a power of two, as the kernel requires; a frame to send has at most
    /// `frame_bytes_max`.
    pub(super) fn new(place_bytes: u32, frame_bytes_max: u32) -> Self {
        debug_assert!(place_bytes.is_power_of_two());
        let spare_lines = place_bytes.saturating_sub(LINE_BYTES + frame_bytes_max) / LINE_BYTES;
        let offsets = 1 << (spare_lines + 1).ilog2().min(OFFSETS_MAX.ilog2());
        let holders = vec![Holder::Us; 2 * XDP_FRAMES as usize].into();
        Self { holders, receivable: 0, writable: 0, place_shift: place_bytes.trailing_zeros(), offsets }
    }

    pub(super) fn place_bytes(&self) -> u32 {
        1 << self.place_shift
    }

    /// Offset of a frame's slot in the UMEM.
    pub(super) fn place(&self, frame: u32) -> u32 {
        frame << self.place_shift
    }

    /// Offset in the UMEM of a frame to send, without its header. Slots are as far from each other as cache lines that share a few sets
    /// of the cache, so neighbours begin at different lines of their slots.
    pub(super) fn sending_at(&self, frame: u32) -> u32 {
        self.place(frame) + LINE_BYTES * (1 + frame % self.offsets)
    }

    /// Bytes for a frame to send, without its header.
    pub(super) fn sending_bytes(&self) -> u32 {
        self.place_bytes() - LINE_BYTES * self.offsets
    }

    /// The frame in whose slot `addr` is.
    pub(super) fn at(&self, addr: u64) -> Option<u32> {
        let frame = addr >> self.place_shift;
        u32::try_from(frame).ok().filter(|frame| (*frame as usize) < self.holders.len())
    }

    /// Passes a frame of `way` on, if `from` holds it; returns whether it did.
    #[must_use]
    pub(super) fn pass(&mut self, frame: u32, way: Way, from: Holder, to: Holder) -> bool {
        let right_way = Self::of(way).contains(&frame);
        match self.holders.get_mut(frame as usize) {
            Some(holder) if right_way && *holder == from => {
                *holder = to;
                let (count, counted) = match way {
                    Way::Receiving => (&mut self.receivable, Holder::Kernel),
                    Way::Sending => (&mut self.writable, Holder::Switch),
                };
                *count = *count + u32::from(to == counted) - u32::from(from == counted);
                true
            }
            _ => false,
        }
    }

    /// The frames of `way`.
    pub(super) fn of(way: Way) -> std::ops::Range<u32> {
        match way {
            Way::Receiving => 0..XDP_FRAMES,
            Way::Sending => XDP_FRAMES..2 * XDP_FRAMES,
        }
    }

    /// Number of frames into which the kernel may receive.
    pub(super) fn receivable(&self) -> u32 {
        self.receivable
    }

    /// Number of frames to which the switch may write.
    pub(super) fn writable(&self) -> u32 {
        self.writable
    }

    /// Takes back the frames of the former switch.
    pub(super) fn recall_from_switch(&mut self) {
        for way in [Way::Receiving, Way::Sending] {
            for frame in Self::of(way) {
                let _ = self.pass(frame, way, Holder::Switch, Holder::Us);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_passes_from_its_owner_in_its_direction_only() {
        let mut frames = Frames::new(2048, 1518);
        assert!(frames.pass(5, Way::Receiving, Holder::Us, Holder::Kernel));
        assert!(!frames.pass(5, Way::Receiving, Holder::Us, Holder::Kernel), "twice");
        assert!(!frames.pass(5, Way::Sending, Holder::Kernel, Holder::Us), "the other way's");
        assert!(!frames.pass(2 * XDP_FRAMES, Way::Sending, Holder::Us, Holder::Kernel), "none");
        assert!(frames.pass(XDP_FRAMES, Way::Sending, Holder::Us, Holder::Switch));
        assert_eq!((frames.receivable(), frames.writable()), (1, 1));
        assert!(frames.pass(5, Way::Receiving, Holder::Kernel, Holder::Switch));
        assert_eq!((frames.receivable(), frames.writable()), (0, 1));
        frames.recall_from_switch();
        assert_eq!((frames.receivable(), frames.writable()), (0, 0));
        for way in [Way::Receiving, Way::Sending] {
            assert!(
                Frames::of(way).all(|frame| frames.pass(frame, way, Holder::Us, Holder::Us)),
                "none is lost"
            );
        }
    }

    #[test]
    fn frames_to_send_fit_their_slots_at_each_offset() {
        for (place, frame_bytes_max, offsets) in
            [(2048, 1518, 8), (2048, 1792, 4), (2048, 1984, 1), (4096, 1793, 8), (4096, 3840, 4)]
        {
            let frames = Frames::new(place, frame_bytes_max);
            let begins = Frames::of(Way::Sending).map(|frame| frames.sending_at(frame) - frames.place(frame));
            let begins: std::collections::BTreeSet<u32> = begins.collect();
            assert_eq!(begins.len(), offsets, "{place}, {frame_bytes_max}");
            assert!(frames.sending_bytes() >= frame_bytes_max);
            assert!(
                begins.iter().all(|at| *at >= crate::xdp::HEADER && at + frames.sending_bytes() <= place)
            );
        }
    }

    #[test]
    fn an_address_is_a_frame_or_none() {
        let frames = Frames::new(2048, 1518);
        assert_eq!((frames.at(0), frames.at(2047), frames.at(2048)), (Some(0), Some(0), Some(1)));
        let end = u64::from(lasthop_device::xdp_queue_bytes(2048));
        assert_eq!(
            (frames.at(end - 1), frames.at(end), frames.at(u64::MAX)),
            (Some(2 * XDP_FRAMES - 1), None, None)
        );
    }
}
