//! Sharing a core with other threads: a thread that busy-polls offers its core now and then, and polls little on one that
//! others compute on.
//!
//! A thread that yields its core to one that computes gets it back at the end of that one's slice, some milliseconds later,
//! and packets wait as long. A thread that sleeps is woken by the next packet, and runs at once, since it has used less than
//! its share. So a core is **scarce** for a while after such a yield: its thread polls there for a moment only, then sleeps.
//!
//! ```text
//!   offer ── away 3 ms ──> back ── scarce for 48 ms ──> poll, offer ── away again ──> scarce for 96 ms, then for twice as long
//!                                                                  └─ back at once ─> polls as usual
//! ```

/// Time that a thread polls without work before it yields its core.
const BLIND_NS: u64 = 20_000;
/// If the core comes back later than this, another thread wanted it.
const WANTED_NS: u64 = 10_000;
/// If the core comes back later than this, a thread had it that does not sleep soon, such as a process that computes. A
/// guest that answers sleeps sooner.
const OCCUPIED_NS: u64 = 500_000;
/// The core is scarce for this many times as long as it was away. This doubles each time when it happens again soon.
const SCARCE_TIMES_MIN: u64 = 16;
/// The upper limit of that: one part in this many of the time is lost to yields.
const SCARCE_TIMES_MAX: u64 = 512;
/// The longest time for which a core is scarce after one yield. So polling begins again that soon on a core that is free.
const SCARCE_NS_MAX: u64 = 2_000_000_000;
/// The longest poll on a core that is scarce: guests that poll post their next packets within it. It is short beside the
/// slices of others, so the thread still uses less than its share.
const SCARCE_LOOK_NS: u64 = 10_000;

/// Makes a thread that polls without work yield its core regularly, and detects whether other threads took it, and for how
/// long.
///
/// Time is in ns, of any monotonic clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct CoreYield {
    /// The time at which the last yield returned.
    back_ns: u64,
    /// Until when the core is scarce.
    scarce_until_ns: u64,
    /// For how many times as long as it was away.
    scarce_times: u64,
    polls_on_any: bool,
}

/// The return of a core that was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreReturn {
    /// When it came back, in ns.
    pub at_ns: u64,
    /// Whether another thread had taken it.
    pub was_taken: bool,
    /// Whether it is scarce from now on.
    pub is_scarce: bool,
}

impl CoreYield {
    /// With `polls_on_any`, no core is ever scarce: the thread polls beside threads that compute as well.
    #[must_use]
    pub fn new(polls_on_any: bool) -> Self {
        Self { polls_on_any, ..Self::default() }
    }

    /// Whether a thread that polls without work should offer its core, in a round that began at `now_ns`.
    #[inline]
    #[must_use]
    pub fn is_due(&self, now_ns: u64) -> bool {
        !self.is_scarce(now_ns) && now_ns.saturating_sub(self.back_ns) >= BLIND_NS
    }

    /// Whether the core is scarce: the thread should poll for a moment at most, and not yield.
    #[inline]
    #[must_use]
    pub fn is_scarce(&self, now_ns: u64) -> bool {
        now_ns < self.scarce_until_ns
    }

    /// How long to poll at `now_ns`, where that would be `look_ns` on a core that is not scarce; in ns.
    #[inline]
    #[must_use]
    pub fn look_ns(&self, now_ns: u64, look_ns: u64) -> u64 {
        if self.is_scarce(now_ns) { look_ns.min(SCARCE_LOOK_NS) } else { look_ns }
    }

    /// Yields the core by `offer`.
    pub fn offer(&mut self, clock_ns: impl Fn() -> u64, offer: impl FnOnce()) -> CoreReturn {
        let offered_ns = clock_ns();
        offer();
        let at_ns = clock_ns();
        let away_ns = at_ns.saturating_sub(offered_ns);
        let is_scarce = away_ns >= OCCUPIED_NS && !self.polls_on_any;
        if is_scarce {
            self.grow_scarce(offered_ns, at_ns);
        }
        self.back_ns = at_ns;
        CoreReturn { at_ns, was_taken: away_ns > WANTED_NS, is_scarce }
    }

    fn grow_scarce(&mut self, offered_ns: u64, back_ns: u64) {
        let away_ns = back_ns - offered_ns;
        let free_ns = offered_ns.saturating_sub(self.scarce_until_ns);
        self.scarce_times = match free_ns < away_ns.saturating_mul(SCARCE_TIMES_MIN) {
            true => (2 * self.scarce_times).clamp(SCARCE_TIMES_MIN, SCARCE_TIMES_MAX),
            false => SCARCE_TIMES_MIN,
        };
        let scarce_ns = away_ns.saturating_mul(self.scarce_times).min(SCARCE_NS_MAX);
        self.scarce_until_ns = back_ns.saturating_add(scarce_ns);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    /// The slice of a thread that computes.
    const SLICE_NS: u64 = 3_000_000;

    /// Yields the core at `now_ns`, if that is due; it comes back after `away_ns`.
    fn ask(core_yield: &mut CoreYield, now_ns: u64, away_ns: u64) -> Option<CoreReturn> {
        let clock_ns = Cell::new(now_ns);
        core_yield
            .is_due(now_ns)
            .then(|| core_yield.offer(|| clock_ns.get(), || clock_ns.set(now_ns.saturating_add(away_ns))))
    }

    fn back(at_ns: u64, was_taken: bool) -> Option<CoreReturn> {
        Some(CoreReturn { at_ns, was_taken, is_scarce: false })
    }

    #[test]
    fn a_core_is_wanted_if_it_comes_back_late() {
        let first = |away_ns| ask(&mut CoreYield::default(), BLIND_NS, away_ns);
        assert_eq!(first(WANTED_NS), back(BLIND_NS + WANTED_NS, false));
        assert_eq!(first(WANTED_NS + 1), back(BLIND_NS + WANTED_NS + 1, true));
    }

    #[test]
    fn a_core_is_offered_now_and_then_after_it_came_back() {
        let mut core_yield = CoreYield::default();
        assert_eq!(ask(&mut core_yield, BLIND_NS - 1, 1), None);
        assert_eq!(ask(&mut core_yield, BLIND_NS, 50_000), back(BLIND_NS + 50_000, true));
        assert_eq!(ask(&mut core_yield, 2 * BLIND_NS + 50_000 - 1, 50_000), None);
        assert_eq!(ask(&mut core_yield, 2 * BLIND_NS + 50_000, 1), back(2 * BLIND_NS + 50_001, false));
        assert_eq!(ask(&mut core_yield, 0, 1), None, "a clock that goes back does no harm");
    }

    #[test]
    fn guests_that_answer_make_no_core_scarce() {
        let mut core_yield = CoreYield::default();
        for now_ns in (BLIND_NS..100_000_000).step_by(1_000_000) {
            let taken = ask(&mut core_yield, now_ns, OCCUPIED_NS - 1).expect("due");
            assert!(taken.was_taken && !taken.is_scarce && !core_yield.is_scarce(taken.at_ns));
        }
    }

    /// Time of `whole_ns` that is lost to yields on a core that another thread always computes on, and the time for which
    /// it was scarce last.
    fn lost_beside(core_yield: &mut CoreYield, start_ns: u64, whole_ns: u64, slice_ns: u64) -> (u64, u64) {
        let (mut now_ns, mut lost_ns, mut last_ns) = (start_ns, 0, 0);
        while now_ns < start_ns + whole_ns {
            let back = ask(core_yield, now_ns + BLIND_NS, slice_ns).expect("due");
            assert!(back.is_scarce && core_yield.is_scarce(back.at_ns));
            assert_eq!(core_yield.look_ns(back.at_ns, 200_000), SCARCE_LOOK_NS);
            assert_eq!(core_yield.look_ns(back.at_ns, 1), 1);
            assert_eq!(ask(core_yield, back.at_ns + BLIND_NS, slice_ns), None, "no yield meanwhile");
            lost_ns += slice_ns;
            last_ns = core_yield.scarce_until_ns - back.at_ns;
            assert!(!core_yield.is_scarce(back.at_ns + last_ns));
            now_ns = back.at_ns + last_ns;
        }
        (lost_ns, last_ns)
    }

    #[test]
    fn a_core_beside_a_thread_that_computes_is_polled_on_less_and_less() {
        let mut core_yield = CoreYield::default();
        let (_, first_ns) = lost_beside(&mut core_yield, 1_000_000_000, 1, SLICE_NS);
        assert_eq!(first_ns, SCARCE_TIMES_MIN * SLICE_NS);
        let free_ns = core_yield.scarce_until_ns;
        let (lost_ns, last_ns) = lost_beside(&mut core_yield, free_ns, 60_000_000_000, SLICE_NS);
        assert_eq!(last_ns, SCARCE_TIMES_MAX * SLICE_NS);
        let doublings = u64::from((SCARCE_TIMES_MAX / SCARCE_TIMES_MIN).ilog2());
        assert!(lost_ns <= (doublings + 1) * SLICE_NS + 60_000_000_000 / SCARCE_TIMES_MAX, "{lost_ns}");
    }

    #[test]
    fn a_core_that_was_free_in_between_is_scarce_for_a_short_time_again() {
        let mut core_yield = CoreYield::default();
        lost_beside(&mut core_yield, 0, 10_000_000_000, SLICE_NS);
        let free_ns = core_yield.scarce_until_ns + SCARCE_TIMES_MIN * SLICE_NS;
        let (_, scarce_ns) = lost_beside(&mut core_yield, free_ns, 1, SLICE_NS);
        assert_eq!(scarce_ns, SCARCE_TIMES_MIN * SLICE_NS);
        let (_, scarce_ns) = lost_beside(&mut core_yield, free_ns * 2, 1, 10_000_000_000);
        assert_eq!(scarce_ns, SCARCE_NS_MAX, "as after the stop of a machine");
    }

    #[test]
    fn with_polls_on_any_core_none_is_scarce() {
        let mut core_yield = CoreYield::new(true);
        let taken = ask(&mut core_yield, BLIND_NS, SLICE_NS).expect("due");
        assert!(taken.was_taken && !taken.is_scarce && !core_yield.is_scarce(taken.at_ns));
    }

    proptest! {
        /// A core is scarce for at most two seconds at a time, whatever the clock says.
        #[test]
        fn no_core_is_scarce_for_long(times in prop::collection::vec((any::<u64>(), any::<u64>()), 0..200)) {
            let mut core_yield = CoreYield::default();
            for (now_ns, away_ns) in times {
                if let Some(back) = ask(&mut core_yield, now_ns, away_ns) {
                    prop_assert!(!back.is_scarce || core_yield.scarce_until_ns - back.at_ns <= SCARCE_NS_MAX);
                }
            }
        }
    }
}
