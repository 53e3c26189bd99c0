//! Sockets for which the system has no memory at present (ENOBUFS), although they look writable: waiting for room would
//! return at once, and each send would fail.

use std::time::{Duration, Instant};

/// The first pause.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// The longest pause: memory may be short for long.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// The pause of one socket, which doubles each time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shortage {
    until: Option<Instant>,
    pause: Duration,
}

impl Shortage {
    /// Notes a lack of memory; returns the pause until the next attempt.
    pub fn hit(&mut self, now: Instant) -> Duration {
        self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        self.until = Some(now + self.pause);
        self.pause
    }

    /// Notes a successful send.
    pub fn end(&mut self) {
        *self = Self::default();
    }

    /// The time of the next attempt, if one is pending.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.until
    }

    /// Whether a pause is over; it is then forgotten, but not its length.
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
