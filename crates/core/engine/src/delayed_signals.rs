//! Signals to receivers that run, and are told of several batches at once (Hyper-Switch, 3.3): `lasthop_sched::notify`.
//!
//! ```text
//!   a ring is to be signalled ──notify: now──────────────> signalled
//!                             └─notify: later─> held back ─┬─ each round: now? ──> signalled
//!                                                          └─ 50 us after its first packet
//! ```
//!
//! A signal that the ring itself asks for is never left out: one that is held back is sent in the end, also when the ring
//! stops, the policy is turned off, or the worker rests.

use std::collections::HashMap;

use lasthop_module_api::PortId;
use lasthop_sched::bounds::NOTIFY_DELAY_MAX_NS;

/// A receive ring that is to be signalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DelayedSignal {
    pub(crate) port: PortId,
    pub(crate) index: u16,
    /// When it was to be signalled first.
    pub(crate) first_ns: u64,
}

/// The signals that a worker holds back: one for each of its rings at most.
#[derive(Debug, Default)]
pub(crate) struct DelayedSignals {
    held: Vec<DelayedSignal>,
    /// When each ring was signalled last, while the policy is used.
    signalled: HashMap<(PortId, u16), u64>,
}

impl DelayedSignals {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// When the oldest signal has to be sent.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        self.held.iter().map(|held| held.first_ns.saturating_add(NOTIFY_DELAY_MAX_NS)).min()
    }

    /// The signal of this ring that is held back.
    pub(crate) fn find(&self, port: PortId, index: u16) -> Option<DelayedSignal> {
        self.held.iter().find(|held| (held.port, held.index) == (port, index)).copied()
    }

    /// Holds a signal back, unless the ring's is already.
    pub(crate) fn hold(&mut self, signal: DelayedSignal) {
        if self.find(signal.port, signal.index).is_none() {
            self.held.push(signal);
        }
    }

    /// A signal that is to be sent, once.
    pub(crate) fn take_if(
        &mut self,
        mut is_due: impl FnMut(&Self, &DelayedSignal) -> bool,
    ) -> Option<DelayedSignal> {
        let at = self.held.iter().position(|signal| is_due(self, signal))?;
        Some(self.held.swap_remove(at))
    }

    /// A ring is signalled.
    pub(crate) fn note(&mut self, port: PortId, index: u16, now_ns: u64) {
        self.signalled.insert((port, index), now_ns);
    }

    /// When a ring was signalled last, if that is known.
    pub(crate) fn signalled_ns(&self, port: PortId, index: u16) -> Option<u64> {
        self.signalled.get(&(port, index)).copied()
    }

    /// The ring is gone.
    pub(crate) fn forget(&mut self, port: PortId, index: u16) {
        self.held.retain(|held| (held.port, held.index) != (port, index));
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
            signals.hold(signal);
        }
        assert_eq!(signals.due_ns(), Some(50 + NOTIFY_DELAY_MAX_NS));
        assert_eq!(signals.find(PortId(1), 0), Some(signal(0, 100)), "the first one counts");
        assert_eq!(signals.take_if(|_, held| held.first_ns > 60), Some(signal(0, 100)));
        assert_eq!(signals.take_if(|_, held| held.first_ns > 60), None);
        signals.note(PortId(1), 2, 90);
        assert_eq!(signals.signalled_ns(PortId(1), 2), Some(90));
        signals.forget(PortId(1), 2);
        assert!(signals.is_empty() && signals.signalled_ns(PortId(1), 2).is_none());
    }
}
