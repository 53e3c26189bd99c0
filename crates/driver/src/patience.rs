/// How much longer than at first a thread may look around in vain.
const GROWTH_MAX: u64 = 4;

/// How long a lane without frames is looked at. Where sleep turns out to be short, as between question and answer of a guest
/// that takes its time, it was not worth going to: the next look is twice as long, up to four times the first one. After a
/// long sleep it is as short as at first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    first_ns: u64,
    now_ns: u64,
}

impl Patience {
    pub(crate) fn new(first_ns: u64) -> Self {
        Self { first_ns, now_ns: first_ns }
    }

    /// How long a lane without frames is looked at, in ns.
    pub(crate) fn ns(self) -> u64 {
        self.now_ns
    }

    /// The thread has slept.
    pub(crate) fn slept(&mut self, ns: u64) {
        let max_ns = GROWTH_MAX * self.first_ns;
        self.now_ns = if ns < max_ns { max_ns.min(2 * self.now_ns) } else { self.first_ns };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_by_short_sleeps_and_is_gone_with_a_long_one() {
        let mut patience = Patience::new(50);
        let after = |patience: &mut Patience, slept: u64| {
            patience.slept(slept);
            patience.ns()
        };
        assert_eq!([10, 199, 0, 10].map(|slept| after(&mut patience, slept)), [100, 200, 200, 200]);
        assert_eq!([200, 10].map(|slept| after(&mut patience, slept)), [50, 100]);
        let mut none = Patience::new(0);
        assert_eq!([0, 10].map(|slept| after(&mut none, slept)), [0, 0]);
    }
}
