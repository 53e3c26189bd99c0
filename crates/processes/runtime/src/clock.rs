//! Deadlines and the time: the earliest of several, a pause that doubles, and the clock of flows' counters.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// CLOCK_MONOTONIC in nanoseconds, the clock of flows' counters.
pub fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    // Neither is ever negative.
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// The same in milliseconds.
#[must_use]
pub fn now_ms() -> u64 {
    now_ns() / 1_000_000
}

/// The earlier of two deadlines.
pub fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

/// A pause that doubles from `first` to `last`.
#[derive(Clone, Copy, Debug)]
pub struct Pause {
    first: Duration,
    last: Duration,
    next: Duration,
}

impl Pause {
    /// A pause of `first` that doubles, up to `last`.
    pub const fn new(first: Duration, last: Duration) -> Self {
        Self { first, last, next: first }
    }

    /// The present pause; the next one is twice as long.
    pub fn take(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.last);
        pause
    }

    /// Resets it to the shortest.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_doubles_up_to_its_limit_and_starts_again() {
        let ms = Duration::from_millis;
        let mut pause = Pause::new(ms(100), ms(300));
        assert_eq!(
            [pause.take(), pause.take(), pause.take(), pause.take()],
            [ms(100), ms(200), ms(300), ms(300)]
        );
        pause.reset();
        assert_eq!(pause.take(), ms(100));
    }

    #[test]
    fn the_earlier_deadline_wins_and_none_never_does() {
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        assert_eq!(earlier(Some(later), Some(now)), Some(now));
        assert_eq!(earlier(None, Some(later)), Some(later));
        assert_eq!(earlier(None, None), None);
    }
}
