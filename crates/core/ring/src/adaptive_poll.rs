//! Adaptive polling: how long a thread busy-polls before it sleeps, learned from recent gaps between packets. Meanwhile it
//! yields its core now and then ([`crate::CoreYield`]).

/// Number of sources with a history of their own; further sources share one.
const HABITS: usize = 64;
/// The short poll is this part of the longest.
const SHORT: u64 = 4;
/// Combinations of the last two pauses, each long or short.
const COURSES: usize = 4;
/// The upper limit of trust. From half of it on, a prediction is used.
const TRUST_MAX: u8 = 4;
/// At most one part in this many of the time is spent on polling in vain.
const VAIN: u64 = 4;
/// In addition, this many of the longest polls may be in vain.
const VAIN_LOOKS: u64 = 8;

/// Predicts how long a thread should busy-poll before it sleeps, from recent gaps between packets.
///
/// The next packet depends on the source of the last one, and on the gap before it. A request is followed soon by an
/// answer from another source. The answer of a slow client is followed by a long gap, or by an acknowledgement and then
/// a gap. So the next gap is predicted from the source and the last two gaps, as a processor predicts branches:
///
/// ```text
///   nothing for long              do not poll, sleep
///   the next one, at once         poll for a quarter of the time
///   an answer from elsewhere      poll for all of the time
/// ```
///
/// A stream in one direction never causes a long poll, at any rate: its sender does not wait for an answer. Each long
/// poll in vain was preceded by an answer in time; each two short ones by a packet in time, except the first few. So
/// polling has paid off before, and sparse traffic costs nothing. For any arrival times, at most a quarter of the time
/// and eight of the longest polls are spent in vain.
///
/// Time is in ns, of any monotonic clock.
#[derive(Clone, Debug)]
pub struct AdaptivePoll {
    short_ns: u64,
    long_ns: u64,
    /// By source and course.
    predictors: [[Predictor; COURSES]; HABITS],
    last: Last,
    /// Time that may still be spent on polling in vain.
    credit_ns: u64,
}

/// The last packets.
#[derive(Clone, Copy, Debug, Default)]
struct Last {
    source: usize,
    /// Which of the last two gaps were short; the later one is the lower bit.
    course: usize,
    at_ns: u64,
}

/// Predictions about the packets that follow those of one source.
#[derive(Clone, Copy, Debug)]
struct Predictor {
    /// Trust that a packet arrives within the short poll.
    soon: u8,
    /// Trust that an answer arrives within the long poll.
    answer: u8,
}

impl Predictor {
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

impl AdaptivePoll {
    /// Polls for at most `max_ns`; 0 for never.
    #[must_use]
    pub fn new(max_ns: u64) -> Self {
        let predictor = Predictor { soon: TRUST_MAX, answer: 0 };
        Self {
            short_ns: max_ns / SHORT,
            long_ns: max_ns,
            predictors: [[predictor; COURSES]; HABITS],
            last: Last::default(),
            credit_ns: VAIN_LOOKS * max_ns,
        }
    }

    /// Duration of a short poll, in ns.
    #[must_use]
    pub fn short_ns(&self) -> u64 {
        self.short_ns
    }

    /// Duration of the poll after the last packets, in ns.
    #[inline]
    #[must_use]
    pub fn ns(&self) -> u64 {
        let look_ns = match self.predictors[self.last.source][self.last.course] {
            predictor if predictor.expects_an_answer() => self.long_ns,
            predictor if predictor.expects_something_soon() => self.short_ns,
            _ => 0,
        };
        look_ns.min(self.credit_ns)
    }

    /// Called when packets arrive from `source`, any number that identifies a source.
    #[inline]
    pub fn found(&mut self, source: usize, now_ns: u64) {
        let source = source % HABITS;
        let gap_ns = now_ns.saturating_sub(self.last.at_ns);
        self.pay(gap_ns);
        self.learn(source != self.last.source, gap_ns);
        let is_short = gap_ns < self.long_ns + self.short_ns;
        let course = (2 * self.last.course + usize::from(is_short)) % COURSES;
        self.last = Last { source, course, at_ns: now_ns };
    }

    /// Charges the time that was polled in vain before packets arrived after `gap_ns`.
    #[inline]
    fn pay(&mut self, gap_ns: u64) {
        let look_ns = self.ns();
        let vain_ns = if gap_ns < look_ns { 0 } else { look_ns };
        self.credit_ns = (self.credit_ns - vain_ns + gap_ns / VAIN).min(VAIN_LOOKS * self.long_ns);
    }

    /// Learns that packets arrived `gap_ns` after the last ones. `is_answer`: they came from another source.
    #[inline]
    fn learn(&mut self, is_answer: bool, gap_ns: u64) {
        let (short_ns, long_ns) = (self.short_ns, self.long_ns);
        let predictor = &mut self.predictors[self.last.source][self.last.course];
        if gap_ns < short_ns {
            predictor.soon = grown(predictor.soon, 2);
            return;
        }
        // A thread that slept sees the packet late: sleep and wake-up take about as long as a short poll.
        let reach_ns = if predictor.expects_an_answer() { long_ns } else { long_ns + short_ns };
        predictor.soon = predictor.soon.saturating_sub(1);
        predictor.answer = if is_answer && gap_ns < reach_ns {
            grown(predictor.answer, 1)
        } else {
            predictor.answer.saturating_sub(1)
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX_NS: u64 = 200_000;
    const SHORT_NS: u64 = MAX_NS / SHORT;

    /// A thread that receives packets from sources, each some gap after the last one, on a clock of its own.
    #[derive(Debug)]
    struct Thread {
        adaptive_poll: AdaptivePoll,
        now_ns: u64,
        /// Time spent polling.
        looked_ns: u64,
        sleeps: usize,
        /// Number of long and short polls in which no packet arrived.
        in_vain: [u64; 2],
        /// Time spent on polls in vain.
        vain_ns: u64,
    }

    impl Thread {
        fn new(max_ns: u64) -> Self {
            Self {
                adaptive_poll: AdaptivePoll::new(max_ns),
                now_ns: 0,
                looked_ns: 0,
                sleeps: 0,
                in_vain: [0; 2],
                vain_ns: 0,
            }
        }

        fn meet(&mut self, source: usize, gap_ns: u64) {
            let look_ns = self.adaptive_poll.ns();
            self.looked_ns += look_ns.min(gap_ns);
            if gap_ns >= look_ns {
                self.sleeps += 1;
                self.in_vain[0] += u64::from(look_ns == MAX_NS);
                self.in_vain[1] += u64::from(look_ns == SHORT_NS);
                self.vain_ns += look_ns;
            }
            self.now_ns += gap_ns;
            self.adaptive_poll.found(source, self.now_ns);
        }

        /// The number of sleeps in a round of `steps` after ten rounds, and the time spent polling in it.
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
        assert_eq!(steady(&[(1, 1_000_000), (2, 190_000)]), (1, 190_000), "answered late");
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
    fn requests_and_acknowledgements_are_predicted_apart() {
        assert_eq!(steady(&[(1, 3_000_000), (2, 150_000), (1, 100_000)]), (1, 250_000));
        assert_eq!(steady(&[(1, 3_000_000), (2, 150_000), (1, 100_000), (1, 3_000_000)]), (2, 250_000));
    }

    #[test]
    fn without_polling_time_it_sleeps_and_at_first_it_polls_briefly() {
        assert_eq!(Thread::new(0).steady(&[(1, 10), (2, 10)]), (2, 0));
        assert_eq!(AdaptivePoll::new(MAX_NS).ns(), SHORT_NS);
    }

    #[test]
    fn an_answer_delayed_by_sleepers_is_polled_for() {
        let mut adaptive_poll = AdaptivePoll::new(MAX_NS);
        for round in 1..4 {
            adaptive_poll.found(1, round * 10_000_000);
            adaptive_poll.found(2, round * 10_000_000 + MAX_NS + 20_000);
        }
        adaptive_poll.found(1, 40_000_000);
        assert_eq!(adaptive_poll.ns(), MAX_NS);
    }

    #[test]
    fn habits_that_change_as_they_are_learned_cost_a_quarter_of_the_time() {
        let mut thread = Thread::new(MAX_NS);
        for _ in 0..10_000 {
            // Each expected answer arrives just too late.
            let look_ns = thread.adaptive_poll.ns();
            let other = 1 - thread.adaptive_poll.last.source;
            thread.meet(other, look_ns.max(SHORT_NS));
        }
        assert!(thread.vain_ns <= thread.now_ns / VAIN + VAIN_LOOKS * MAX_NS);
    }

    proptest! {
        /// The time spent in vain was earned before, for any arrival times.
        #[test]
        fn looks_in_vain_are_paid_for(steps in prop::collection::vec((0..4_usize, 0..2 * MAX_NS), 0..2000)) {
            let mut thread = Thread::new(MAX_NS);
            let (mut answers, mut soon, mut last) = (0, 0, 0);
            for (source, gap_ns) in steps {
                thread.meet(source, gap_ns);
                answers += u64::from(source != last && (SHORT_NS..MAX_NS + SHORT_NS).contains(&gap_ns));
                soon += u64::from(gap_ns < SHORT_NS);
                last = source;
            }
            let [long, short] = thread.in_vain;
            prop_assert!(long <= answers, "{long} long looks in vain, {answers} answers");
            prop_assert!(short <= 2 * soon + 16 * u64::from(TRUST_MAX), "{short} short looks in vain, {soon} soon");
            let allowed_ns = thread.now_ns / VAIN + VAIN_LOOKS * MAX_NS;
            prop_assert!(thread.vain_ns <= allowed_ns, "{} of {allowed_ns} ns in vain", thread.vain_ns);
        }

        /// A clock that stands still, jumps or goes back does not break it.
        #[test]
        fn any_clock_will_do(times in prop::collection::vec((any::<usize>(), any::<u64>()), 0..200), max_ns in 0..=10_000_000_u64) {
            let mut adaptive_poll = AdaptivePoll::new(max_ns);
            for (source, now_ns) in times {
                adaptive_poll.found(source, now_ns);
                prop_assert!(adaptive_poll.ns() <= max_ns);
            }
        }
    }
}
