//! Yields the core of a thread that polls without work, and detects that another thread wanted it.

/// Time that a thread polls without work before it yields its core.
const BLIND_NS: u64 = 20_000;
/// If the core comes back later than this, another thread wanted it.
const WANTED_NS: u64 = 10_000;

/// Makes a thread that polls without work yield its core regularly, and detects whether another thread took it.
///
/// Time is in ns, of any monotonic clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct CoreYield {
    /// The time at which the last yield returned.
    back_ns: u64,
}

impl CoreYield {
    /// Called in a round that began at `now_ns`: yields the core by `offer` when it is due. Returns whether another
    /// thread took it.
    pub fn is_wanted(&mut self, now_ns: u64, clock_ns: impl Fn() -> u64, offer: impl FnOnce()) -> bool {
        if now_ns.saturating_sub(self.back_ns) < BLIND_NS {
            return false;
        }
        let offered_ns = clock_ns();
        offer();
        self.back_ns = clock_ns();
        self.back_ns.saturating_sub(offered_ns) > WANTED_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Whether a core that is yielded at `now_ns` and returns after `away_ns` counts as wanted; and whether it was
    /// yielded.
    fn ask(core_yield: &mut CoreYield, now_ns: u64, away_ns: u64) -> (bool, bool) {
        let clock_ns = Cell::new(now_ns);
        let is_wanted = core_yield.is_wanted(now_ns, || clock_ns.get(), || clock_ns.set(now_ns + away_ns));
        (is_wanted, clock_ns.get() > now_ns)
    }

    #[test]
    fn a_core_is_wanted_if_it_comes_back_late() {
        assert_eq!(ask(&mut CoreYield::default(), BLIND_NS, WANTED_NS), (false, true));
        assert_eq!(ask(&mut CoreYield::default(), BLIND_NS, WANTED_NS + 1), (true, true));
    }

    #[test]
    fn a_core_is_offered_now_and_then_after_it_came_back() {
        let mut core_yield = CoreYield::default();
        assert_eq!(ask(&mut core_yield, BLIND_NS - 1, 1), (false, false));
        assert_eq!(ask(&mut core_yield, BLIND_NS, 50_000), (true, true));
        assert_eq!(ask(&mut core_yield, 2 * BLIND_NS + 50_000 - 1, 50_000), (false, false));
        assert_eq!(ask(&mut core_yield, 2 * BLIND_NS + 50_000, 1), (false, true));
        assert_eq!(ask(&mut core_yield, 0, 1), (false, false), "a clock that goes back does no harm");
    }
}
