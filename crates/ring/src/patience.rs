/// Sources whose habits are kept apart; others share one with somebody.
const HABITS: usize = 64;
/// The short look, as a part of the longest.
const SHORT: u64 = 4;
/// Trust is a number up to this; from half of it on it is acted upon.
const TRUST_MAX: u8 = 4;

/// How long a thread looks for more before it goes to sleep: as long as that has been paying lately.
///
/// What follows a packet depends on where it came from. After a request comes the answer, from another source and soon;
/// after the answer, with a client that takes its time, comes nothing for long. So what follows is remembered by source:
///
/// ```text
///   nothing for long              do not look, sleep
///   the next one, at once         look for a quarter of the time
///   an answer from elsewhere      look for all of the time
/// ```
///
/// A stream in one direction is no reason for a long look, whatever its pace: nobody waits for the one who moves it. For each
/// long look in vain there were two answers within the time, for each two short ones there was something within its time, but for
/// the first few; so what is spent on looking has been worth it, and even traffic that is too sparse costs nothing.
///
/// Time is a number of ns of any clock that does not go back.
#[derive(Clone, Debug)]
pub struct Patience {
    short_ns: u64,
    long_ns: u64,
    habits: [Habit; HABITS],
    last_source: usize,
    last_ns: u64,
}

/// What follows packets of one source.
#[derive(Clone, Copy, Debug)]
struct Habit {
    /// That something does within the short time.
    soon: u8,
    /// That an answer does within the long time.
    answer: u8,
}

impl Habit {
    fn expects_something_soon(self) -> bool {
        self.soon >= TRUST_MAX / 2
    }

    fn expects_an_answer(self) -> bool {
        self.answer >= TRUST_MAX / 2
    }
}

fn grown(trust: u8, by: u8) -> u8 {
    TRUST_MAX.min(trust + by)
}

impl Patience {
    /// Looks for `max_ns` at most; 0: never.
    #[must_use]
    pub fn new(max_ns: u64) -> Self {
        let habit = Habit { soon: TRUST_MAX, answer: 0 };
        Self {
            short_ns: max_ns / SHORT,
            long_ns: max_ns,
            habits: [habit; HABITS],
            last_source: 0,
            last_ns: 0,
        }
    }

    /// How long to look after the last packets, in ns.
    #[inline]
    #[must_use]
    pub fn ns(&self) -> u64 {
        match self.habits[self.last_source] {
            habit if habit.expects_an_answer() => self.long_ns,
            habit if habit.expects_something_soon() => self.short_ns,
            _ => 0,
        }
    }

    /// Packets came from `source`, any number that tells sources apart.
    #[inline]
    pub fn found(&mut self, source: usize, now_ns: u64) {
        let source = source % HABITS;
        let gap_ns = now_ns.saturating_sub(self.last_ns);
        self.learn(source != self.last_source, gap_ns);
        (self.last_source, self.last_ns) = (source, now_ns);
    }

    /// After packets of the last source, more came after `gap_ns`, as an answer from elsewhere or not.
    #[inline]
    fn learn(&mut self, is_answer: bool, gap_ns: u64) {
        let (short_ns, long_ns) = (self.short_ns, self.long_ns);
        let habit = &mut self.habits[self.last_source];
        if gap_ns < short_ns {
            habit.soon = grown(habit.soon, 2);
            return;
        }
        // Who slept meanwhile hears of it late: a sleep and a wake-up take about as long as a short look.
        let reach_ns = if habit.expects_an_answer() { long_ns } else { long_ns + short_ns };
        habit.soon = habit.soon.saturating_sub(1);
        habit.answer = if is_answer && gap_ns < reach_ns {
            grown(habit.answer, 1)
        } else {
            habit.answer.saturating_sub(2)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAX_NS: u64 = 200_000;

    /// A thread that serves packets from sources, each a gap after the last one, on a clock of its own.
    #[derive(Debug)]
    struct Thread {
        patience: Patience,
        now_ns: u64,
        /// Time spent on looking.
        looked_ns: u64,
        sleeps: usize,
        /// Long and short looks after which nothing came in time.
        in_vain: [u64; 2],
    }

    impl Thread {
        fn new(max_ns: u64) -> Self {
            Self { patience: Patience::new(max_ns), now_ns: 0, looked_ns: 0, sleeps: 0, in_vain: [0; 2] }
        }

        fn meet(&mut self, source: usize, gap_ns: u64) {
            let look_ns = self.patience.ns();
            self.looked_ns += look_ns.min(gap_ns);
            if gap_ns >= look_ns {
                self.sleeps += 1;
                self.in_vain[usize::from(look_ns < MAX_NS)] += u64::from(look_ns > 0);
            }
            self.now_ns += gap_ns;
            self.patience.found(source, self.now_ns);
        }

        /// Sleeps for a round of `steps` once it knows them, and the time that it looks in a round.
        fn steady(mut self, steps: &[(usize, u64)]) -> (usize, u64) {
            let round =
                |thread: &mut Self| steps.iter().for_each(|(source, gap_ns)| thread.meet(*source, *gap_ns));
            (0..10).for_each(|_| round(&mut self));
            let (sleeps, looked_ns) = (self.sleeps, self.looked_ns);
            round(&mut self);
            (self.sleeps - sleeps, self.looked_ns - looked_ns)
        }
    }

    fn steady(steps: &[(usize, u64)]) -> (usize, u64) {
        Thread::new(MAX_NS).steady(steps)
    }

    #[test]
    fn answers_are_waited_for_and_pauses_are_not() {
        assert_eq!(steady(&[(1, 150_000), (2, 30_000)]), (0, 180_000), "back to back");
        assert_eq!(steady(&[(1, 1_000_000), (2, 150_000)]), (1, 150_000), "with a pause after the answer");
        assert_eq!(steady(&[(1, 1_000_000), (2, 30_000)]), (1, 30_000), "answered at once");
        assert_eq!(
            steady(&[(1, 150_000), (2, 150_000), (3, 150_000), (4, 150_000)]),
            (0, 600_000),
            "by way of others"
        );
        assert_eq!(steady(&[(1, 300_000), (2, 300_000)]), (2, 0), "too late");
    }

    #[test]
    fn a_stream_in_one_direction_is_looked_for_only_if_it_is_dense() {
        assert_eq!(steady(&[(1, 1_000_000)]), (1, 0));
        assert_eq!(steady(&[(1, 100_000)]), (1, 0));
        assert_eq!(steady(&[(1, 40_000)]), (0, 40_000));
        assert_eq!(steady(&[(1, 40_000), (1, 100_000)]), (1, 90_000), "in pairs");
    }

    #[test]
    fn who_is_to_sleep_at_once_does_and_who_starts_looks_for_a_moment() {
        assert_eq!(Thread::new(0).steady(&[(1, 10), (2, 10)]), (2, 0));
        assert_eq!(Patience::new(MAX_NS).ns(), MAX_NS / 4);
    }

    #[test]
    fn an_answer_that_came_late_since_everybody_slept_is_waited_for() {
        let mut patience = Patience::new(MAX_NS);
        for round in 0..2 {
            patience.found(1, round * 10_000_000);
            patience.found(2, round * 10_000_000 + MAX_NS + 20_000);
        }
        patience.found(1, 20_000_000);
        assert_eq!(patience.ns(), MAX_NS);
    }

    proptest! {
        /// What is spent in vain was earned before, whatever comes when.
        #[test]
        fn looks_in_vain_are_paid_for(steps in prop::collection::vec((0..4_usize, 0..2 * MAX_NS), 0..2000)) {
            let mut thread = Thread::new(MAX_NS);
            let (mut answers, mut soon, mut last) = (0, 0, 0);
            for (source, gap_ns) in steps {
                thread.meet(source, gap_ns);
                answers += u64::from(source != last && (MAX_NS / 4..MAX_NS + MAX_NS / 4).contains(&gap_ns));
                soon += u64::from(gap_ns < MAX_NS / 4);
                last = source;
            }
            let [long, short] = thread.in_vain;
            prop_assert!(2 * long <= answers, "{long} long looks in vain, {answers} answers");
            prop_assert!(short <= 2 * soon + 4 * u64::from(TRUST_MAX), "{short} short looks in vain, {soon} soon");
        }

        /// A clock that stands still, jumps or goes back does no harm.
        #[test]
        fn any_clock_will_do(times in prop::collection::vec((any::<usize>(), any::<u64>()), 0..200), max_ns in 0..=10_000_000_u64) {
            let mut patience = Patience::new(max_ns);
            for (source, now_ns) in times {
                patience.found(source, now_ns);
                prop_assert!(patience.ns() <= max_ns);
            }
        }
    }
}
