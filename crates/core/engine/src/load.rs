//! The load of workers, and the thread that serves each worker because of it.

/// Time over which a load is measured: several times as long as a round seems to take if another process had the core
/// meanwhile ([`ROUND_NS_MAX`]).
const WINDOW_NS: u64 = 4_000_000;
/// Load of a worker, in percent, below which it gets no thread of its own.
const WORTH_A_THREAD: u64 = 5;
/// A worker returns to the first thread if their common load is below this, in percent.
const ROOM: u64 = 30;
/// Shortest stay of a worker with its own thread; doubled each time that it has to go there again soon.
const STAY_NS: u64 = 10_000_000;
/// The longest such time.
const STAY_NS_MAX: u64 = 1_280_000_000;

/// No round takes longer than this, in ns, unless its core was taken away.
const ROUND_NS_MAX: u64 = 1_000_000;

/// Which thread serves which worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gathering {
    /// The first thread serves all workers that have little to do.
    #[default]
    ByLoad,
    /// Each worker has its own thread.
    Never,
    /// Workers move as often as they can, for tests.
    Restless,
}

/// A worker's load: the share of its thread's CPU time that rounds with packets took, in the last complete window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    since_ns: u64,
    busy_ns: u64,
    lost_ns: u64,
    percent: u64,
}

impl Load {
    /// Adds the time of a round; returns how much of it the thread cannot have had a core.
    pub(crate) fn add(&mut self, round_ns: u64) -> u64 {
        let busy_ns = round_ns.min(ROUND_NS_MAX);
        self.busy_ns += busy_ns;
        round_ns - busy_ns
    }

    /// Subtracts time in which the thread had no core, so that a worker on a shared core can have full load.
    pub(crate) fn lose(&mut self, lost_ns: u64) {
        self.lost_ns += lost_ns;
    }

    /// How long the thread may have had a core since the window began.
    fn had_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.since_ns + self.lost_ns)
    }

    pub(crate) fn percent(&self) -> u64 {
        self.percent
    }

    /// Whether a window is complete.
    pub(crate) fn is_over(&self, now_ns: u64) -> bool {
        self.had_ns(now_ns) >= WINDOW_NS
    }

    /// Begins another window if one is complete.
    pub(crate) fn begin(&mut self, now_ns: u64) {
        if self.is_over(now_ns) {
            self.percent = 100 * self.busy_ns / self.had_ns(now_ns);
        }
        (self.since_ns, self.busy_ns, self.lost_ns) = (now_ns, 0, 0);
    }
}

impl Gathering {
    /// The worker that leaves the first thread if one does: the busiest one. Loads are in percent; `None` for a worker that
    /// stays.
    pub(crate) fn worker_to_move(self, loads: impl Iterator<Item = (Option<usize>, u64)>) -> Option<usize> {
        let worth = match self {
            Self::ByLoad => WORTH_A_THREAD,
            Self::Never | Self::Restless => 0,
        };
        let movable = loads.filter(|(_, percent)| *percent >= worth);
        movable.filter_map(|(number, percent)| Some((percent, number?))).max().map(|(_, number)| number)
    }

    /// Whether that worker leaves. `is_apart`: what the workers have to do together, and idle CPUs, require it.
    pub(crate) fn leaves(self, is_apart: impl FnOnce() -> bool) -> bool {
        match self {
            Self::ByLoad => is_apart(),
            Self::Never | Self::Restless => true,
        }
    }

    /// Whether a worker may return to the first thread, by its own load and that thread's, in percent.
    pub(crate) fn may_come_back(self, stay: MoveDamping, now_ns: u64, own: u64, first: u64) -> bool {
        match self {
            Self::ByLoad => stay.is_over(now_ns) && own + first < ROOM,
            Self::Never => false,
            Self::Restless => true,
        }
    }
}

/// How long a worker stays with its thread: one that moves to and fro moves less and less often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MoveDamping {
    came_ns: u64,
    stay_ns: u64,
}

impl Default for MoveDamping {
    fn default() -> Self {
        Self { came_ns: 0, stay_ns: STAY_NS }
    }
}

impl MoveDamping {
    /// Notes a move to its own thread.
    pub(crate) fn leave(&mut self, now_ns: u64) {
        let was_short = now_ns.saturating_sub(self.came_ns) < 8 * self.stay_ns;
        self.stay_ns = if was_short { STAY_NS_MAX.min(2 * self.stay_ns) } else { STAY_NS };
        self.came_ns = now_ns;
    }

    fn is_over(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.came_ns) >= self.stay_ns
    }

    /// Notes its return.
    pub(crate) fn come_back(&mut self, now_ns: u64) {
        self.came_ns = now_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_sched::{SharedThread, separate};

    const MS: u64 = 1_000_000;

    #[test]
    fn a_load_is_that_of_the_last_window() {
        let mut load = Load::default();
        load.begin(MS);
        load.add(MS);
        assert!(!load.is_over(4 * MS));
        assert!(load.is_over(5 * MS));
        load.begin(11 * MS);
        assert_eq!(load.percent(), 10);
        load.add(MS / 4);
        load.begin(13 * MS);
        assert_eq!(load.percent(), 10, "too short to tell");
        load.add(MS);
        load.add(MS);
        load.add(MS);
        load.begin(43 * MS);
        assert_eq!(load.percent(), 10, "sleep counts");
        load.begin(100 * MS);
        assert_eq!(load.percent(), 0);
    }

    #[test]
    fn only_time_with_a_core_counts() {
        let mut load = Load::default();
        let round = |load: &mut Load, round_ns| {
            let lost_ns = load.add(round_ns);
            load.lose(lost_ns);
        };
        load.begin(MS);
        round(&mut load, 6 * MS);
        assert!(!load.is_over(9 * MS), "one round that was interrupted does not make a load");
        load.begin(10 * MS);
        assert_eq!(load.percent(), 25);
        (0..5).for_each(|_| round(&mut load, 4 * MS));
        load.begin(30 * MS);
        assert_eq!(load.percent(), 100, "it was busy whenever it had the core");
    }

    #[test]
    fn the_busiest_leaves_a_crowd() {
        let leaves = |loads: &[(Option<usize>, u64)]| {
            let load_percent = loads.iter().map(|(_, percent)| percent).sum();
            let is_apart = || separate(SharedThread { load_percent, saturated_ns: 0 }, None).is_apart();
            let busiest = Gathering::ByLoad.worker_to_move(loads.iter().copied());
            busiest.filter(|_| Gathering::ByLoad.leaves(is_apart))
        };
        assert_eq!(leaves(&[(None, 30), (Some(1), 30)]), None, "no crowd");
        assert_eq!(leaves(&[(None, 20), (Some(1), 15), (Some(2), 30)]), Some(2));
        assert_eq!(leaves(&[(None, 95), (Some(1), 4)]), None, "it would gain nothing");
        assert_eq!(leaves(&[(None, 95), (Some(1), 5)]), Some(1));
        assert_eq!(leaves(&[(None, 95)]), None);
    }

    #[test]
    fn a_worker_that_is_sent_to_and_fro_moves_ever_more_rarely() {
        let (mut stay, mut now_ns, mut stays) = (MoveDamping::default(), 10_000 * MS, Vec::new());
        let may_come_back =
            |stay: MoveDamping, now_ns, own, first| Gathering::ByLoad.may_come_back(stay, now_ns, own, first);
        for _ in 0..12 {
            stay.leave(now_ns);
            let since = now_ns;
            while !may_come_back(stay, now_ns, 5, 20) {
                assert!(!may_come_back(stay, now_ns + 100_000 * MS, 10, 20), "too busy");
                now_ns += MS;
            }
            stays.push((now_ns - since) / MS);
            stay.come_back(now_ns);
            now_ns += MS;
        }
        assert_eq!(stays, [10, 20, 40, 80, 160, 320, 640, 1280, 1280, 1280, 1280, 1280]);
        stay.leave(now_ns + 20_000 * MS);
        assert!(may_come_back(stay, now_ns + 20_010 * MS, 0, 0), "it had been quiet for long");
    }
}
