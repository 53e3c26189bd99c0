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
    /// Number of frames by direction and holder.
    held: [[u32; 3]; 2],
    place_bytes: u32,
}

impl Frames {
    /// This process holds all frames.
    pub(super) fn new(place_bytes: u32) -> Self {
        let holders = vec![Holder::Us; 2 * XDP_FRAMES as usize].into();
        Self { holders, held: [[XDP_FRAMES, 0, 0]; 2], place_bytes }
    }

    pub(super) fn place_bytes(&self) -> u32 {
        self.place_bytes
    }

    /// Offset of a frame's slot in the UMEM.
    pub(super) fn place(&self, frame: u32) -> u32 {
        frame * self.place_bytes
    }

    /// The frame in whose slot `addr` is.
    pub(super) fn at(&self, addr: u64) -> Option<u32> {
        let frame = addr / u64::from(self.place_bytes);
        u32::try_from(frame).ok().filter(|frame| (*frame as usize) < self.holders.len())
    }

    /// Passes a frame of `way` on, if `from` holds it; returns whether it did.
    #[must_use]
    pub(super) fn pass(&mut self, frame: u32, way: Way, from: Holder, to: Holder) -> bool {
        let right_way = Self::of(way).contains(&frame);
        match self.holders.get_mut(frame as usize) {
            Some(holder) if right_way && *holder == from => {
                *holder = to;
                self.held[way as usize][from as usize] -= 1;
                self.held[way as usize][to as usize] += 1;
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

    /// Number of frames of `way` that a holder has.
    pub(super) fn held(&self, holder: Holder, way: Way) -> u32 {
        self.held[way as usize][holder as usize]
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
        let mut frames = Frames::new(2048);
        assert!(frames.pass(5, Way::Receiving, Holder::Us, Holder::Kernel));
        assert!(!frames.pass(5, Way::Receiving, Holder::Us, Holder::Kernel), "twice");
        assert!(!frames.pass(5, Way::Sending, Holder::Kernel, Holder::Us), "the other way's");
        assert!(!frames.pass(2 * XDP_FRAMES, Way::Sending, Holder::Us, Holder::Kernel), "none");
        assert_eq!(
            (frames.held(Holder::Kernel, Way::Receiving), frames.held(Holder::Us, Way::Receiving)),
            (1, XDP_FRAMES - 1)
        );
        assert_eq!(frames.held(Holder::Us, Way::Sending), XDP_FRAMES);
        assert!(frames.pass(5, Way::Receiving, Holder::Kernel, Holder::Switch));
        frames.recall_from_switch();
        assert_eq!(frames.held(Holder::Us, Way::Receiving), XDP_FRAMES);
    }

    #[test]
    fn an_address_is_a_frame_or_none() {
        let frames = Frames::new(2048);
        assert_eq!((frames.at(0), frames.at(2047), frames.at(2048)), (Some(0), Some(0), Some(1)));
        let end = u64::from(lasthop_device::xdp_queue_bytes(2048));
        assert_eq!(
            (frames.at(end - 1), frames.at(end), frames.at(u64::MAX)),
            (Some(2 * XDP_FRAMES - 1), None, None)
        );
    }
}
