//! Decides whether a guest that ignored a signal gets a second one.

/// Packets within this time after a second signal count as its result.
const ANSWER_NS: u64 = 400_000;
/// The upper limit of trust. At zero, one second signal in [`TRIAL`] is sent as a trial.
const TRUST_MAX: u8 = 4;
const TRIAL: u8 = 16;

/// Decides whether guests that did not react to a signal are signalled again, depending on recent success.
///
/// Some guests lose a signal that arrives while they go to sleep, and sleep until their next timer. The second signal
/// saves them milliseconds, and their packets follow at once. For a guest that is only slow to react it costs one more
/// interrupt.
///
/// Time is in ns, of any monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct SignalRetry {
    trust: u8,
    /// Second signals that were not sent since trust ran out.
    spared: u8,
    /// Time of the last second signal, until packets arrive.
    sent_ns: Option<u64>,
}

impl Default for SignalRetry {
    fn default() -> Self {
        Self { trust: TRUST_MAX, spared: 0, sent_ns: None }
    }
}

impl SignalRetry {
    /// Called when a guest did not react. Returns whether to signal it again.
    pub fn is_worth_it(&mut self, now_ns: u64) -> bool {
        self.settle(false);
        if self.trust == 0 {
            self.spared = (self.spared + 1) % TRIAL;
            if self.spared > 0 {
                return false;
            }
        }
        self.sent_ns = Some(now_ns);
        true
    }

    /// Called when packets arrived.
    #[inline]
    pub fn found(&mut self, now_ns: u64) {
        if let Some(sent_ns) = self.sent_ns {
            self.settle(now_ns.saturating_sub(sent_ns) < ANSWER_NS);
        }
    }

    /// Learns from the last second signal, if there was one.
    fn settle(&mut self, has_paid: bool) {
        if self.sent_ns.take().is_some() {
            self.trust = if has_paid { TRUST_MAX.min(self.trust + 2) } else { self.trust.saturating_sub(1) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many of `rounds` guests without reaction are signalled again, if packets arrive `answer_ns` later.
    fn sent(signal_retry: &mut SignalRetry, rounds: u64, answer_ns: Option<u64>) -> usize {
        let round = |number: &u64| {
            let now_ns = number * 10_000_000;
            let is_sent = signal_retry.is_worth_it(now_ns);
            answer_ns.into_iter().for_each(|answer_ns| signal_retry.found(now_ns + answer_ns));
            is_sent
        };
        (1..=rounds).filter(round).count()
    }

    #[test]
    fn a_guest_that_wakes_by_it_is_always_signalled_again() {
        assert_eq!(sent(&mut SignalRetry::default(), 1000, Some(ANSWER_NS - 1)), 1000);
    }

    #[test]
    fn a_slow_guest_is_signalled_again_now_and_then() {
        for answer_ns in [Some(ANSWER_NS), None] {
            let mut signal_retry = SignalRetry::default();
            assert_eq!(sent(&mut signal_retry, 12, answer_ns), usize::from(TRUST_MAX));
            assert_eq!(sent(&mut signal_retry, 160, answer_ns), 10);
        }
    }

    #[test]
    fn one_trial_that_pays_is_enough() {
        let mut signal_retry = SignalRetry::default();
        sent(&mut signal_retry, 100, None);
        assert!(sent(&mut signal_retry, u64::from(TRIAL) + 100, Some(1)) >= 100);
    }

    #[test]
    fn packets_without_a_second_signal_teach_nothing() {
        let mut signal_retry = SignalRetry::default();
        (0..100).for_each(|number| signal_retry.found(number));
        assert_eq!(signal_retry.trust, TRUST_MAX);
    }
}
