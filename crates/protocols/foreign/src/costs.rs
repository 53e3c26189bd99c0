use std::time::{Duration, Instant};

/// CPU time that closes for one port may take at once: that of a guest with 64 GiB in small pages, which are then
/// freed.
const BURST: Duration = Duration::from_secs(5);
/// In the long run they may take one part in this many of the time.
const SHARE: u32 = 10;
/// Largest excess, which costs a port 20 s of waiting.
const EXCESS_MAX: Duration = Duration::from_secs(2);

/// The CPU time that closes for one port have taken recently.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Costs {
    /// CPU time at the last charge.
    taken: Duration,
    as_of: Option<Instant>,
}

impl Costs {
    pub(crate) fn charge(&mut self, now: Instant, time: Duration) {
        self.taken = self.taken_at(now).saturating_add(time).min(BURST + EXCESS_MAX);
        self.as_of = Some(now);
    }

    /// How long the port has to wait; `None` if it need not.
    pub(crate) fn excess(&self, now: Instant) -> Option<Duration> {
        let excess = self.taken_at(now).checked_sub(BURST).filter(|excess| !excess.is_zero())?;
        Some(excess.saturating_mul(SHARE))
    }

    fn taken_at(&self, now: Instant) -> Duration {
        let since = self.as_of.map_or(Duration::ZERO, |as_of| now.saturating_duration_since(as_of));
        self.taken.saturating_sub(since / SHARE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closes_may_take_some_time_at_once_and_a_tenth_of_it_in_the_long_run() {
        let (mut costs, start) = (Costs::default(), Instant::now());
        costs.charge(start, BURST);
        assert_eq!(costs.excess(start), None);
        costs.charge(start, Duration::from_secs(1));
        assert_eq!(costs.excess(start), Some(Duration::from_secs(10)));
        assert_eq!(costs.excess(start + Duration::from_secs(10)), None);
        let (mut now, mut taken) = (start, Duration::ZERO);
        while now < start + Duration::from_secs(600) {
            costs.charge(now, Duration::from_millis(100));
            taken += Duration::from_millis(100);
            now += costs.excess(now).unwrap_or_default();
        }
        assert!(taken <= Duration::from_secs(61), "{taken:?} in ten minutes");
    }

    #[test]
    fn one_close_that_takes_long_is_waited_for_within_bounds() {
        let (mut costs, start) = (Costs::default(), Instant::now());
        costs.charge(start, Duration::from_secs(600));
        assert_eq!(costs.excess(start), Some(Duration::from_secs(20)));
    }
}
