//! How much of the time work takes, and which thread serves a worker because of it.

/// Time over which a load is taken: several times as long as a round seems to take if another process had the core meanwhile
/// ([`ROUND_NS_MAX`]).
const WINDOW_NS: u64 = 4_000_000;
/// A thread that serves several workers gives one away beyond this load in percent: there is as much to come before it is late.
const CROWDED: u64 = 60;
/// A worker with less than this, in percent, is not worth a thread of its own.
const WORTH_A_THREAD: u64 = 5;
/// A worker comes back to the first thread if together they have less than this, in percent.
const ROOM: u64 = 30;
/// How long a worker stays with its own thread at least; doubled each time that it has to go there again soon.
const STAY_NS: u64 = 10_000_000;
/// And at most.
const STAY_NS_MAX: u64 = 1_280_000_000;

/// No round takes longer than this, in ns, unless its core was taken away.
const ROUND_NS_MAX: u64 = 1_000_000;

/// Which thread serves which worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gathering {
    /// The first thread serves all that have little to do.
    #[default]
    ByLoad,
    /// Each worker has its own.
    Never,
    /// Workers go to and fro as often as they can, to show that it does no harm.
    Restless,
}

/// How much of the time that a worker's thread had a core work took, by the last window that is over.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    since_ns: u64,
    busy_ns: u64,
    lost_ns: u64,
    percent: u64,
}

impl Load {
    /// Enters a round that took so long; returned is how much of that the thread cannot have had a core.
    pub(crate) fn add(&mut self, round_ns: u64) -> u64 {
        let busy_ns = round_ns.min(ROUND_NS_MAX);
        self.busy_ns += busy_ns;
        round_ns - busy_ns
    }

    /// Its thread had no core for so long: a worker that shares its core with others can be busy all the time that it has it.
    pub(crate) fn lose(&mut self, lost_ns: u64) {
        self.lost_ns += lost_ns;
    }

    /// For how long its thread may have had a core since the window began.
    fn had_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.since_ns + self.lost_ns)
    }

    pub(crate) fn percent(&self) -> u64 {
        self.percent
    }

    /// Whether a window is over.
    pub(crate) fn is_over(&self, now_ns: u64) -> bool {
        self.had_ns(now_ns) >= WINDOW_NS
    }

    /// Ends a window, if it is over, and begins another one.
    pub(crate) fn begin(&mut self, now_ns: u64) {
        if self.is_over(now_ns) {
            self.percent = 100 * self.busy_ns / self.had_ns(now_ns);
        }
        (self.since_ns, self.busy_ns, self.lost_ns) = (now_ns, 0, 0);
    }
}

impl Gathering {
    /// Which of the workers of the first thread goes to its own: the busiest, if together they have more to do than is good.
    /// Loads are in percent; `None`: that one stays.
    pub(crate) fn worker_to_move(
        self,
        loads: impl Iterator<Item = (Option<usize>, u64)> + Clone,
    ) -> Option<usize> {
        let total: u64 = loads.clone().map(|(_, percent)| percent).sum();
        let (crowded, worth) = match self {
            Self::ByLoad => (total > CROWDED, WORTH_A_THREAD),
            Self::Never | Self::Restless => (true, 0),
        };
        if !crowded {
            return None;
        }
        let movable = loads.filter(|(_, percent)| *percent >= worth);
        movable.filter_map(|(number, percent)| Some((percent, number?))).max().map(|(_, number)| number)
    }

    /// Whether a worker may come back to the first thread, with loads of its own and of that one, in percent.
    pub(crate) fn may_come_back(self, stay: MoveDamping, now_ns: u64, own: u64, first: u64) -> bool {
        match self {
            Self::ByLoad => stay.is_over(now_ns) && own + first < ROOM,
            Self::Never => false,
            Self::Restless => true,
        }
    }
}

/// How long a worker stays at its thread: one that is sent to and fro moves more and more rarely.
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
    /// It goes to its own thread.
    pub(crate) fn leave(&mut self, now_ns: u64) {
        let was_short = now_ns.saturating_sub(self.came_ns) < 8 * self.stay_ns;
        self.stay_ns = if was_short { STAY_NS_MAX.min(2 * self.stay_ns) } else { STAY_NS };
        self.came_ns = now_ns;
    }

    fn is_over(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.came_ns) >= self.stay_ns
    }

    /// It comes back.
    pub(crate) fn come_back(&mut self, now_ns: u64) {
        self.came_ns = now_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let leaves = |loads: &[(Option<usize>, u64)]| Gathering::ByLoad.worker_to_move(loads.iter().copied());
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
