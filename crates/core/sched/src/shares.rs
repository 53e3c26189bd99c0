//! Which thread gets the CPU share of an idle one: credit stealing (Liao and Bhuyan, 4.3).
//!
//! ```text
//!   Steal = Credit(idle) / (2 * Num(io))      an idle thread lends half of its credit, in equal parts, to those with packets
//!
//!   credit    1024  1024  1024  1024          worker0 has packets, the others have none
//!   weight    2560   512   512   512          the sum is the same
//! ```
//!
//! The weights count among threads of one group alone. So no tenant loses a share, whatever the loads are.

use crate::bounds::SHARE_GROWTH_MAX;

/// The load of a thread in the last period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThreadLoad {
    /// It hardly ran, and does not wait for a CPU: it lends half of its credit.
    #[default]
    Idle,
    /// It keeps its credit.
    Some,
    /// It moves packets: it gets a part of what idle threads lend.
    Io,
}

/// The CPU time of a thread in a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadUse {
    /// Length of the period.
    pub period_ns: u64,
    /// Time that the thread ran.
    pub used_ns: u64,
    /// At the period's end it had a CPU or waited for one.
    pub is_runnable: bool,
    /// It moves packets when it runs.
    pub does_io: bool,
}

impl ThreadUse {
    /// Its load. A tenth of the period makes a thread one of I/O. A fiftieth makes it busy: the kernel counts CPU time in
    /// ticks of 10 ms. A thread that waits for a CPU is not idle, even if it got none.
    #[must_use]
    pub const fn load(&self) -> ThreadLoad {
        if self.does_io && self.used_ns >= self.period_ns / 10 {
            ThreadLoad::Io
        } else if self.is_runnable || self.used_ns >= self.period_ns / 50 {
            ThreadLoad::Some
        } else {
            ThreadLoad::Idle
        }
    }
}

/// A thread with a share of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadShare {
    /// Its weight while nothing is lent.
    pub credit: u32,
    /// Its load in the last period.
    pub load: ThreadLoad,
    /// Its weight in the next period: the decision.
    pub weight: u32,
}

/// Decides the weights of the next period, and returns the sum that changes hands. It depends on the loads of the last
/// period alone, so a thread that was idle and has become busy has its whole credit again.
///
/// - The sum of the weights is the sum of the credits.
/// - No weight is below half of its thread's credit, or above [`SHARE_GROWTH_MAX`] times it. Idle threads keep what the
///   others have no room for.
pub fn steal_credit(threads: &mut [ThreadShare]) -> u64 {
    let half = |thread: &ThreadShare| u64::from(thread.credit / 2);
    let is = |load: ThreadLoad| move |thread: &&ThreadShare| thread.load == load;
    let lent: u64 = threads.iter().filter(is(ThreadLoad::Idle)).map(half).sum();
    let takers = threads.iter().filter(is(ThreadLoad::Io)).count() as u64;
    let part = lent.checked_div(takers).unwrap_or(0);
    let growth = |thread: &ThreadShare| {
        let most = thread.credit.saturating_mul(SHARE_GROWTH_MAX) - thread.credit;
        part.min(u64::from(most))
    };
    let taken: u64 = threads.iter().filter(is(ThreadLoad::Io)).map(growth).sum();
    let mut passed = 0;
    for thread in threads {
        let credit = u64::from(thread.credit);
        let weight = match thread.load {
            ThreadLoad::Some => credit,
            ThreadLoad::Io => credit + growth(thread),
            // In proportion to the credit. Differences of running sums, so that rounding loses nothing.
            ThreadLoad::Idle => {
                let before = part_of(taken, passed, lent);
                passed += half(thread);
                credit - (part_of(taken, passed, lent) - before)
            }
        };
        thread.weight = u32::try_from(weight).unwrap_or(u32::MAX);
    }
    taken
}

/// `sum * passed / whole`, which is `sum` at most; 0 of nothing.
fn part_of(sum: u64, passed: u64, whole: u64) -> u64 {
    let part = u128::from(sum) * u128::from(passed) / u128::from(whole.max(1));
    u64::try_from(part).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn threads(loads: &[ThreadLoad]) -> Vec<ThreadShare> {
        loads.iter().map(|load| ThreadShare { credit: 1024, load: *load, weight: 0 }).collect()
    }

    fn weights(mut threads: Vec<ThreadShare>) -> Vec<u32> {
        steal_credit(&mut threads);
        threads.iter().map(|thread| thread.weight).collect()
    }

    #[test]
    fn idle_threads_lend_half_of_their_credit_in_equal_parts() {
        use ThreadLoad::{Idle, Io, Some};
        assert_eq!(weights(threads(&[Io, Idle, Idle, Idle])), [2560, 512, 512, 512]);
        assert_eq!(weights(threads(&[Io, Io, Idle])), [1280, 1280, 512]);
        assert_eq!(weights(threads(&[Io, Some, Idle])), [1536, 1024, 512]);
        assert_eq!(weights(threads(&[Some, Idle])), [1024, 1024], "nobody takes");
        assert_eq!(weights(threads(&[Io, Io])), [1024, 1024], "nobody lends");
        assert_eq!(weights(Vec::new()), [0; 0]);
        let crowd = weights(threads(&[[Io].as_slice(), &[Idle; 63]].concat()));
        assert_eq!(crowd[0], 1024 * SHARE_GROWTH_MAX, "63 idle workers do not lend it 31 times its credit");
    }

    #[test]
    fn a_thread_that_waits_for_a_cpu_is_not_idle() {
        let of = |used_ns, is_runnable, does_io| {
            ThreadUse { period_ns: 1000, used_ns, is_runnable, does_io }.load()
        };
        assert_eq!(of(0, false, true), ThreadLoad::Idle);
        assert_eq!(of(0, true, true), ThreadLoad::Some);
        assert_eq!(of(20, false, true), ThreadLoad::Some);
        assert_eq!(of(100, false, true), ThreadLoad::Io);
        assert_eq!(of(1000, true, false), ThreadLoad::Some);
    }

    fn any_thread() -> impl Strategy<Value = ThreadShare> {
        let load = prop::sample::select(vec![ThreadLoad::Idle, ThreadLoad::Some, ThreadLoad::Io]);
        let credit = prop_oneof![4 => 1..100_000_u32, 1 => Just(0), 1 => (u32::MAX - 3)..u32::MAX];
        (credit, load).prop_map(|(credit, load)| ThreadShare { credit, load, weight: 7 })
    }

    proptest! {
        #[test]
        fn the_sum_is_kept_and_each_weight_has_its_bounds(
            mut threads in prop::collection::vec(any_thread(), 0..70),
            next in 0..70_usize,
        ) {
            let taken = steal_credit(&mut threads);
            let sum = |of: fn(&ThreadShare) -> u32| threads.iter().map(|thread| u64::from(of(thread))).sum::<u64>();
            prop_assert_eq!(sum(|thread| thread.weight), sum(|thread| thread.credit));
            let mut gained = 0;
            for thread in &threads {
                let ThreadShare { credit, load, weight } = *thread;
                prop_assert!(weight >= credit - credit / 2, "{:?} is below its floor", thread);
                prop_assert!(weight <= credit.saturating_mul(SHARE_GROWTH_MAX), "{:?} is above its ceiling", thread);
                prop_assert!(load == ThreadLoad::Io || weight <= credit, "{:?} takes", thread);
                prop_assert!(load != ThreadLoad::Some || weight == credit, "{:?} has changed", thread);
                gained += u64::from(weight.saturating_sub(credit));
            }
            prop_assert_eq!(gained, taken);
            // An idle thread that becomes busy has its credit after one period, whatever the others do.
            if let Some(thread) = threads.get_mut(next) {
                thread.load = ThreadLoad::Some;
                steal_credit(&mut threads);
                prop_assert_eq!(threads[next].weight, threads[next].credit);
            }
        }
    }
}
