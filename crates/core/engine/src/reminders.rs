//! Second signals of a worker, by the state of the host's scheduler where that is known.

use lasthop_fabric::RingId;
use lasthop_ring::SignalRetry;
use lasthop_sched::bounds::{REACTION_NS, SETTLE_NS};
use lasthop_sched::{Reminder, UnansweredSignal};

use crate::decision_trace::Judged;
use crate::worker::Worker;

impl Worker {
    /// Called when no packets came since `worked_ns`: signals the last signalled guest once more if it has not reacted.
    /// With a view it does so if the guest sleeps. Without one it does so once the guest has had time to react, if
    /// second signals have been worth it.
    #[inline]
    pub(crate) fn retry_signals(&mut self, now: u64, worked_ns: u64, signal_retry: &mut SignalRetry) {
        if self.scheduling.reminds() {
            self.remind(now, worked_ns, signal_retry);
        } else if let Some(ring) = self.signals.take_called(now) {
            self.retry_if_unanswered(ring, now, signal_retry);
        }
    }

    /// Whether a guest was signalled recently, and may soon be signalled again.
    pub(crate) fn is_reminding_soon(&self, now: u64) -> bool {
        self.scheduling.reminds()
            && self.signals.called().is_some_and(|(_, at_ns)| now.saturating_sub(at_ns) < SETTLE_NS)
    }

    fn remind(&mut self, now: u64, worked_ns: u64, signal_retry: &mut SignalRetry) {
        self.scheduling.note_answer(worked_ns);
        let Some((ring, at_ns)) = self.signals.called() else { return };
        let age_ns = now.saturating_sub(at_ns);
        if age_ns < SETTLE_NS || self.is_quiesced() {
            return; // another process may have the ring
        }
        let (reminder, judged) = self.scheduling.remind(UnansweredSignal { age_ns }, ring.port);
        match reminder {
            Reminder::Watch => self.spare(ring, (now, at_ns), judged),
            Reminder::GiveUp => {
                self.spare(ring, (now, at_ns), judged);
                self.signals.forget_called();
            }
            Reminder::Signal => {
                self.signals.forget_called();
                self.signal_sleeper(ring, now, judged);
            }
            Reminder::SignalByTrust => {
                self.signals.forget_called();
                self.retry_if_unanswered(ring, now, signal_retry);
            }
        }
    }

    /// Counts once that a guess would have signalled the guest again by now, although it is awake; it was signalled at
    /// `at_ns`.
    fn spare(&mut self, ring: RingId, (now, at_ns): (u64, u64), judged: Judged) {
        if now.saturating_sub(at_ns) < REACTION_NS || !self.scheduling.is_guess_due(at_ns) {
            return;
        }
        if self.fabric.is_unheeded(ring) {
            self.scheduling.note_spared(now, ring.port, judged);
        } else {
            self.signals.forget_called();
        }
        self.send_signals();
    }

    /// Signals a sleeping guest once more, unless it has reacted.
    fn signal_sleeper(&mut self, ring: RingId, now: u64, judged: Judged) {
        if self.fabric.is_unheeded(ring) && self.signal_guest(ring.port, 2 * ring.queue) {
            self.fabric.count_signal(ring.port);
            self.scheduling.note_reminder(now, ring.port, judged);
        }
        self.send_signals();
    }

    /// Signals a guest once more that has had time to react and has not, if that has been worth it.
    fn retry_if_unanswered(&mut self, ring: RingId, now: u64, signal_retry: &mut SignalRetry) {
        if self.is_quiesced() {
            return; // another worker may have the ring
        }
        let is_wanted = self.fabric.is_unheeded(ring) && signal_retry.is_worth_it(now);
        if is_wanted && self.signal_guest(ring.port, 2 * ring.queue) {
            self.fabric.count_signal(ring.port);
        }
        self.send_signals();
    }
}
