//! Userspace actions of executed packets: an upcall that results finds its action here.

use std::collections::VecDeque;

use lasthop_flow::Userspace;
use lasthop_flowtable::EXECUTED;

/// Packets whose actions are remembered; their upcalls arrive within one queue's length.
const PACKETS_MAX: usize = 4096;
/// Bytes of those actions, for one datapath: enough for usual ones, each with 1 KiB of the control plane's data.
const BYTES_MAX: usize = 4 << 20;

/// Userspace actions of a datapath's last packets, by number.
#[derive(Debug, Default)]
pub(super) struct Executed {
    all: VecDeque<(u32, Vec<Userspace>)>,
    bytes: usize,
    last: u32,
}

fn bytes_of(actions: &[Userspace]) -> usize {
    size_of_val(actions) + actions.iter().map(Userspace::bytes_behind).sum::<usize>()
}

impl Executed {
    /// Remembers the actions of a packet if there are any; returns their number.
    pub(super) fn remember(&mut self, actions: Vec<Userspace>) -> u32 {
        if actions.is_empty() {
            return 0;
        }
        self.last = ((self.last + 1) % EXECUTED).max(1);
        self.bytes += bytes_of(&actions);
        self.all.push_back((self.last, actions));
        while (self.all.len() > PACKETS_MAX || self.bytes > BYTES_MAX)
            && let Some((_, oldest)) = self.all.pop_front()
        {
            self.bytes -= bytes_of(&oldest);
        }
        self.last
    }

    /// One of a packet's actions, unless newer ones have replaced it.
    pub(super) fn find(&self, number: u32, step: usize) -> Option<&Userspace> {
        let (_, actions) = self.all.iter().rev().find(|(executed, _)| *executed == number)?;
        actions.get(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(len: usize) -> Vec<Userspace> {
        vec![Userspace { user_data: Some(vec![7; len]), ..Userspace::default() }]
    }

    #[test]
    fn the_last_ones_are_remembered_within_packets_and_bytes() {
        let mut executed = Executed::default();
        assert_eq!(executed.remember(Vec::new()), 0);
        let first = executed.remember(data(1));
        assert!(executed.find(first, 0).is_some() && executed.find(first, 1).is_none());
        let long: Vec<u32> = (0..300).map(|_| executed.remember(data(32 << 10))).collect();
        assert!(executed.bytes <= BYTES_MAX && executed.all.len() > 100);
        assert!(executed.find(first, 0).is_none() && executed.find(long[0], 0).is_none());
        assert!(executed.find(long[299], 0).is_some());
        (0..PACKETS_MAX).for_each(|_| assert_ne!(executed.remember(data(1)), 0));
        assert_eq!((executed.all.len(), executed.find(long[299], 0)), (PACKETS_MAX, None));
        let bytes: usize = executed.all.iter().map(|(_, actions)| bytes_of(actions)).sum();
        assert_eq!(executed.bytes, bytes);
    }
}
