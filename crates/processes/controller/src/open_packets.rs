//! Counts, by port, packets that the switch has to execute and has not acknowledged.

use std::collections::BTreeMap;

/// A datapath, and the number of one of its ports.
pub(crate) type InputPort = (i32, Option<u32>);

/// Number of such packets by port.
#[derive(Debug, Default)]
pub(crate) struct OpenPackets(BTreeMap<InputPort, usize>);

impl OpenPackets {
    pub(crate) fn of(&self, port: InputPort) -> usize {
        self.0.get(&port).copied().unwrap_or_default()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn enter(&mut self, port: InputPort) {
        *self.0.entry(port).or_default() += 1;
    }

    pub(crate) fn leave(&mut self, port: InputPort) {
        let left = self.of(port).saturating_sub(1);
        match left {
            0 => _ = self.0.remove(&port),
            _ => _ = self.0.insert(port, left),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_without_packets_take_no_room() {
        let (mut open, port) = (OpenPackets::default(), (1, Some(2)));
        (0..2).for_each(|_| open.enter(port));
        assert_eq!((open.of(port), open.of((1, Some(3)))), (2, 0));
        (0..3).for_each(|_| open.leave(port));
        assert!(open.0.is_empty());
    }
}
