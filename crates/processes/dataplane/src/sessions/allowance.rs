//! Limits the time that a front end's requests take: CPU time of its session's thread, and time of the workers.

use std::time::{Duration, Instant};

/// The charge for a change of a ring: it interrupts each worker two or three times, anywhere in its work.
const CHANGE: Duration = Duration::from_micros(500);
/// Time that may be taken at once. A front end may start, reset and start 32 rings some twenty times in a row, or send
/// many memory regions one by one, at full speed.
const BURST: Duration = Duration::from_secs(2);
/// In the long run it may take one part in this many of the time: 200 changes a second, or 32 rings stopped and started
/// three times a second.
const SHARE: u32 = 10;

/// A thread that took more than this recently gets a lower priority than all others, and pauses after each turn for as
/// long as the charge: a start takes less, even with 32 rings.
const MODEST: Duration = Duration::from_millis(100);

/// Largest excess, which costs 20 s of waiting, even if a single turn took longer.
const EXCESS_MAX: Duration = Duration::from_secs(2);

/// The time that the front end of one vnic has taken recently.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    /// The time that it took and has not compensated by waiting.
    taken: Duration,
    as_of: Instant,
    /// The end of the pause after its last turn.
    paced_until: Instant,
}

impl Allowance {
    pub(super) fn new(now: Instant) -> Self {
        Self { taken: Duration::ZERO, as_of: now, paced_until: now }
    }

    /// Charges CPU time of the thread, and `changes` that workers were told of.
    pub(super) fn charge(&mut self, now: Instant, time: Duration, changes: u64) {
        let changes = CHANGE.saturating_mul(u32::try_from(changes).unwrap_or(u32::MAX));
        let turn = time.saturating_add(changes);
        self.taken = self.taken_at(now).saturating_add(turn).min(BURST + EXCESS_MAX);
        self.as_of = now;
        if self.is_immodest(now) {
            self.paced_until = now + turn.min(EXCESS_MAX);
        }
    }

    /// How long it has to wait; `None` if it need not.
    pub(super) fn pause(&self, now: Instant) -> Option<Duration> {
        let excess = self.taken_at(now).saturating_sub(BURST).saturating_mul(SHARE);
        Some(excess.max(self.paced_until.saturating_duration_since(now))).filter(|pause| !pause.is_zero())
    }

    /// Whether it has taken so much that others have priority.
    pub(super) fn is_immodest(&self, now: Instant) -> bool {
        self.taken_at(now) > MODEST
    }

    /// The time taken, as of the last charge.
    #[cfg(test)]
    pub(super) fn taken(&self) -> Duration {
        self.taken
    }

    fn taken_at(&self, now: Instant) -> Duration {
        self.taken.saturating_sub(now.saturating_duration_since(self.as_of) / SHARE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_not_slowed_down_much_and_restarts_without_end_are() {
        let start = Instant::now();
        let mut allowance = Allowance::new(start);
        for number in 0..20 {
            // 33 rings are stopped and started, in 10 ms each time.
            allowance.charge(start, Duration::from_millis(10), 66);
            let pause = (number > 1).then_some(Duration::from_millis(10) + 66 * CHANGE);
            assert_eq!(allowance.pause(start), pause, "{number}");
        }
        assert!(allowance.is_immodest(start));
        let mut now = start;
        let mut changes = 0_u64;
        while now < start + Duration::from_secs(60) {
            allowance.charge(now, Duration::ZERO, 66);
            changes += 66;
            now += allowance.pause(now).unwrap_or_default();
        }
        assert!((11_000..=16_000).contains(&changes), "{changes} in a minute");
        assert_eq!(allowance.pause(now), None, "it has waited");
    }

    #[test]
    fn a_start_gives_way_to_nobody() {
        let start = Instant::now();
        let mut allowance = Allowance::new(start);
        (0..2).for_each(|_| allowance.charge(start, Duration::from_millis(10), 66));
        assert!(!allowance.is_immodest(start));
    }

    #[test]
    fn long_turns_are_charged_too() {
        let start = Instant::now();
        let mut allowance = Allowance::new(start);
        allowance.charge(start, BURST + Duration::from_secs(1), 0);
        assert_eq!(allowance.pause(start), Some(Duration::from_secs(10)));
        assert_eq!(allowance.pause(start + Duration::from_secs(10)), None);
        allowance.charge(start, Duration::from_secs(600), 0);
        assert_eq!(allowance.pause(start), Some(Duration::from_secs(20)), "at most");
    }
}
