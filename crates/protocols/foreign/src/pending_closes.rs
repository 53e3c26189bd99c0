use std::time::{Duration, Instant};

use crate::Origin;

/// How long a port is held after a connection whose descriptors took long to close.
const HOLD: Duration = Duration::from_secs(60);
/// Largest number of a port's connections with stuck descriptors. With as many the port is held until one of them is
/// finished: each occupies a closing thread and up to some 900 descriptors.
const STUCK_MAX: usize = 4;

/// Descriptors of a port's earlier connections that are not closed yet.
#[derive(Debug)]
pub struct PendingCloses {
    name: String,
    origins: Vec<Origin>,
    /// When a close of any connection was last found to take too long.
    slow_at: Option<Instant>,
    /// CPU time of closes, of finished connections, that was not taken yet.
    spent: Duration,
    costs: Costs,
}

/// Why no connection is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldReason {
    /// Closes took long recently. The port is held for this time.
    For(Duration),
    /// The number of connections whose descriptors do not close.
    Stuck(usize),
    /// Closes took more CPU time than the port may use. The port is held for this time.
    Costly(Duration),
}

impl PendingCloses {
    /// A port without connections; `name` is for the log: "vnic a".
    #[must_use]
    pub fn new(name: &str) -> Self {
        let (origins, slow_at, spent, costs) = Default::default();
        Self { name: name.to_owned(), origins, slow_at, spent, costs }
    }

    /// The origin of the next connection.
    pub fn begin(&mut self) -> Origin {
        self.forget_finished();
        let origin = Origin::new(&self.name);
        self.origins.push(origin.clone());
        origin
    }

    /// Why the next connection is not accepted, if it is not.
    pub fn held(&mut self, now: Instant) -> Option<HoldReason> {
        self.forget_finished();
        let stuck = self.origins.iter().filter(|origin| origin.is_overdue() && origin.waiting() > 0).count();
        if stuck >= STUCK_MAX {
            return Some(HoldReason::Stuck(stuck));
        }
        let left = HOLD.checked_sub(now.saturating_duration_since(self.slow_at?))?;
        (!left.is_zero()).then_some(HoldReason::For(left))
    }

    /// Like [`Self::held`], for a process that does not charge the CPU time of closes otherwise. Also applies to the
    /// present connection, whose descriptors come and go.
    pub fn held_for_costs(&mut self, now: Instant) -> Option<HoldReason> {
        let live: Duration = self.origins.iter().map(Origin::take_spent).sum();
        let spent = live + self.take_spent();
        self.costs.charge(now, spent);
        self.costs.excess(now).map(HoldReason::Costly)
    }

    /// Forgets finished connections, except for the time of a slow close.
    fn forget_finished(&mut self) {
        for origin in &self.origins {
            self.slow_at = self.slow_at.max(origin.slow_at());
        }
        let spent = &mut self.spent;
        self.origins.retain(|origin| {
            let is_through = origin.waiting() == 0 && !origin.is_in_use();
            *spent += if is_through { origin.take_spent() } else { Duration::ZERO };
            !is_through
        });
    }

    /// The CPU time of closes since the last call, for finished connections.
    pub fn take_spent(&mut self) -> Duration {
        self.forget_finished();
        std::mem::take(&mut self.spent)
    }
}

impl std::fmt::Display for HoldReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::For(left) => {
                let left = left.as_secs() + 1;
                write!(f, "descriptors of its front end took long to close; it is held for {left} s")
            }
            Self::Costly(left) => {
                let left = left.as_secs() + 1;
                write!(
                    f,
                    "closing descriptors of its front ends took too much CPU time; it is held for {left} s"
                )
            }
            Self::Stuck(count) => write!(
                f,
                "descriptors of {count} of its front ends do not close; it is held until they do, or until the switch process is replaced"
            ),
        }
    }
}

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
