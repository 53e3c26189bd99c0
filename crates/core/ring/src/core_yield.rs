//! Yields the core of a thread that polls without work, and detects that another thread wanted it.

/// How long a thread without work looks around before it offers its core to others.
const BLIND_NS: u64 = 20_000;
/// If the core comes back later than this, another thread wanted it.
const WANTED_NS: u64 = 10_000;

/// That a thread which looks around without work offers its core to others now and then, and notices whether one took it.
///
/// Time is a number of ns of any clock that does not go back.
#[derive(Clone, Copy, Debug, Default)]
pub struct CoreYield {
    /// When the core came back last.
    back_ns: u64,
}

impl CoreYield {
    /// In a round that began at `now_ns`: yields the core by `offer` when it is time to. Returns whether
    /// another thread took it.
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

    /// Whether a core that is offered at `now_ns`, if it is, and is away for `away_ns` was wanted; and whether it was offered.
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
