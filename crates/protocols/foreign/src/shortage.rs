//! Sockets for which the system has no memory now (ENOBUFS), although they claim room: waiting for room would
//! return at once, and each try would fail.

use std::time::{Duration, Instant};

/// The first pause.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// The longest one: memory may be short for long.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// How long one socket is left alone: each time twice as long.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shortage {
    until: Option<Instant>,
    pause: Duration,
}

impl Shortage {
    /// There was no memory; the pause until the next try.
    pub fn hit(&mut self, now: Instant) -> Duration {
        self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        self.until = Some(now + self.pause);
        self.pause
    }

    /// Something was sent.
    pub fn end(&mut self) {
        *self = Self::default();
    }

    /// The time of the next try, if one is due.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.until
    }

    /// Whether a pause is over; then it is forgotten, and its length is not.
    pub fn take_over(&mut self, now: Instant) -> bool {
        self.until.take_if(|until| *until <= now).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_bound_until_something_is_sent() {
        let (mut shortage, now) = (Shortage::default(), Instant::now());
        assert!(shortage.due().is_none() && !shortage.take_over(now));
        assert_eq!((shortage.hit(now), shortage.due()), (PAUSE_MIN, Some(now + PAUSE_MIN)));
        assert!(!shortage.take_over(now), "it is not over");
        assert!(shortage.take_over(now + PAUSE_MIN) && shortage.due().is_none());
        assert_eq!(shortage.hit(now), 2 * PAUSE_MIN);
        (0..20).for_each(|_| assert!(shortage.hit(now) <= PAUSE_MAX));
        assert_eq!(shortage.hit(now), PAUSE_MAX);
        shortage.end();
        assert!(shortage.due().is_none());
        assert_eq!(shortage.hit(now), PAUSE_MIN);
    }
}
