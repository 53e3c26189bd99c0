use crate::{BATCH_PACKETS_MAX, DropReason, PORTS_MAX, PortId};

/// One copy of one packet of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output {
    /// Index of the packet in the batch.
    pub packet: u16,
    /// Index of the header image to deliver with; the packet's own unless an action made another one.
    pub image: u16,
    /// Where it goes.
    pub port: PortId,
    /// Deliver at most this many bytes; `u32::MAX` is the whole frame.
    pub truncate_len_bytes: u32,
}

/// What a module decided for a batch. Room for a flood of every packet to every port is there from the start.
#[derive(Debug)]
pub struct Verdicts {
    outputs: Vec<Output>,
    drops: Vec<(u16, DropReason)>,
    lost: u32,
}

impl Default for Verdicts {
    fn default() -> Self {
        Self {
            outputs: Vec::with_capacity(BATCH_PACKETS_MAX * PORTS_MAX),
            drops: Vec::with_capacity(BATCH_PACKETS_MAX),
            lost: 0,
        }
    }
}

impl Verdicts {
    /// Sends packet `packet` of the batch to `port`, whole and unchanged.
    #[inline]
    pub fn output(&mut self, packet: usize, port: PortId) {
        let packet = packet as u16; // below BATCH_PACKETS_MAX
        self.push(Output { packet, image: packet, port, truncate_len_bytes: u32::MAX });
    }

    /// Sends a copy as described; beyond the room for outputs it is lost and the fabric counts `verdict_overflow`.
    #[inline]
    pub fn push(&mut self, output: Output) {
        debug_assert!(usize::from(output.packet) < BATCH_PACKETS_MAX);
        if self.outputs.len() < self.outputs.capacity() {
            self.outputs.push(output);
        } else {
            self.lost += 1;
        }
    }

    /// Drops packet `packet` of the batch for `reason`.
    #[inline]
    pub fn drop_packet(&mut self, packet: usize, reason: DropReason) {
        if self.drops.len() < self.drops.capacity() {
            self.drops.push((packet as u16, reason));
        }
    }

    /// All copies, in the order in which they were decided.
    #[must_use]
    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    /// All drops: packet index and reason.
    #[must_use]
    pub fn drops(&self) -> &[(u16, DropReason)] {
        &self.drops
    }

    /// Copies that there was no room for.
    #[must_use]
    pub fn lost(&self) -> u32 {
        self.lost
    }

    /// Forgets everything; keeps the room.
    pub fn clear(&mut self) {
        self.lost = 0;
        self.outputs.clear();
        self.drops.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_beyond_the_room_are_counted() {
        let mut verdicts = Verdicts::default();
        for _ in 0..BATCH_PACKETS_MAX * PORTS_MAX + 3 {
            verdicts.output(0, PortId(1));
        }
        assert_eq!((verdicts.outputs().len(), verdicts.lost()), (BATCH_PACKETS_MAX * PORTS_MAX, 3));
        verdicts.clear();
        assert_eq!((verdicts.outputs().len(), verdicts.lost()), (0, 0));
    }
}
