//! Delayed signals: a receiver that runs is told of several batches at once (Hyper-Switch, 3.3):
//! `lasthop_sched::notify`.
//!
//! ```text
//!   a ring is to be signalled ──notify: now──────────────> signalled
//!                             └─notify: later─> delayed ───┬─ each round: now? ──> signalled, if still wanted
//!                                                          ├─ a thread of the guest goes to sleep: the worker wakes
//!                                                          └─ 50 us after its first packet
//! ```
//!
//! A delayed signal is sent in the end, also when the ring stops, the policy is turned off, or the worker rests. It is
//! omitted only if its guest has taken the packets, or polls, by the ring's own event index or flag. Packets are in the
//! ring before: a delay changes no order.

use std::collections::HashMap;

use lasthop_module_api::PortId;
use lasthop_sched::bounds::NOTIFY_DELAY_MAX_NS;

/// A delayed signal of a receive ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DelayedSignal {
    pub(crate) port: PortId,
    pub(crate) index: u16,
    /// Time of the first packet that it is for.
    pub(crate) first_ns: u64,
}

/// The delayed signals of a worker: at most one for each of its rings.
#[derive(Debug, Default)]
pub(crate) struct DelayedSignals {
    signals: Vec<DelayedSignal>,
    /// Time of each ring's last signal, while the policy is on.
    signalled: HashMap<(PortId, u16), u64>,
}

impl DelayedSignals {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.signals.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.signals.len()
    }

    /// The time at which the oldest signal has to be sent.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        self.signals.iter().map(|delayed| delayed.first_ns.saturating_add(NOTIFY_DELAY_MAX_NS)).min()
    }

    /// The delayed signal of this ring.
    pub(crate) fn find(&self, port: PortId, index: u16) -> Option<DelayedSignal> {
        self.signals.iter().find(|delayed| (delayed.port, delayed.index) == (port, index)).copied()
    }

    /// Delays a signal, unless one of that ring is delayed already.
    pub(crate) fn delay(&mut self, signal: DelayedSignal) {
        if self.find(signal.port, signal.index).is_none() {
            self.signals.push(signal);
        }
    }

    /// Takes a signal that `is_due` selects.
    pub(crate) fn take_if(
        &mut self,
        mut is_due: impl FnMut(&Self, &DelayedSignal) -> bool,
    ) -> Option<DelayedSignal> {
        let at = self.signals.iter().position(|signal| is_due(self, signal))?;
        Some(self.signals.swap_remove(at))
    }

    /// Notes that a ring was signalled.
    pub(crate) fn note(&mut self, port: PortId, index: u16, now_ns: u64) {
        self.signalled.insert((port, index), now_ns);
    }

    /// Time of a ring's last signal, if known.
    pub(crate) fn signalled_ns(&self, port: PortId, index: u16) -> Option<u64> {
        self.signalled.get(&(port, index)).copied()
    }

    /// Removes a ring's state.
    pub(crate) fn forget(&mut self, port: PortId, index: u16) {
        self.signals.retain(|delayed| (delayed.port, delayed.index) != (port, index));
        self.signalled.remove(&(port, index));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ring_has_one_signal_that_is_due_after_its_first_packet() {
        let mut signals = DelayedSignals::default();
        let signal = |index, first_ns| DelayedSignal { port: PortId(1), index, first_ns };
        assert_eq!(signals.due_ns(), None);
        for signal in [signal(0, 100), signal(2, 50), signal(0, 70)] {
            signals.delay(signal);
        }
        assert_eq!(signals.due_ns(), Some(50 + NOTIFY_DELAY_MAX_NS));
        assert_eq!(signals.find(PortId(1), 0), Some(signal(0, 100)), "the first one counts");
        assert_eq!(signals.take_if(|_, delayed| delayed.first_ns > 60), Some(signal(0, 100)));
        assert_eq!(signals.take_if(|_, delayed| delayed.first_ns > 60), None);
        signals.note(PortId(1), 2, 90);
        assert_eq!(signals.signalled_ns(PortId(1), 2), Some(90));
        signals.forget(PortId(1), 2);
        assert!(signals.is_empty() && signals.signalled_ns(PortId(1), 2).is_none());
    }
}
