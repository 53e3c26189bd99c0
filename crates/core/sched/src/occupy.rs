//! Yield: whether a thread that polls without packets keeps its CPU.

use crate::bounds::{DISTRUST_NS, OFFER_NS};
use crate::state::CpuState;

/// The last time that a thread offered its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastOffer {
    /// The time since the CPU came back, in ns.
    pub age_ns: u64,
    /// Whether another thread took it.
    pub was_taken: bool,
}

/// A thread's decision about its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occupancy {
    /// The thread keeps its CPU.
    Keep,
    /// The thread offers its CPU by sched_yield.
    Offer,
}

/// Decides by the state of the thread's own CPU (`None` without a view) and its last offer, if there was one.
///
/// If the count of waiting threads is too high, the cost is an offer every 20 us, as without a view. If it is too low,
/// those threads wait at most a millisecond, and no longer than the kernel's time slices.
#[must_use]
pub fn occupy(own: Option<&CpuState>, last: Option<LastOffer>) -> Occupancy {
    let is_older_than = |ns: u64| last.is_none_or(|offer| offer.age_ns >= ns);
    let is_due = match own {
        None => is_older_than(OFFER_NS),
        Some(cpu) if cpu.waiting == 0 => is_older_than(DISTRUST_NS),
        Some(_) => last.is_none_or(|offer| offer.was_taken) || is_older_than(OFFER_NS),
    };
    if is_due { Occupancy::Offer } else { Occupancy::Keep }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Occupant;

    fn cpu(waiting: u32) -> CpuState {
        CpuState { occupant: Occupant::Thread(1), waiting }
    }

    fn offer(age_ns: u64, was_taken: bool) -> Option<LastOffer> {
        Some(LastOffer { age_ns, was_taken })
    }

    #[test]
    fn without_a_view_it_is_offered_every_20_us() {
        assert_eq!(occupy(None, offer(OFFER_NS - 1, true)), Occupancy::Keep);
        assert_eq!(occupy(None, offer(OFFER_NS, false)), Occupancy::Offer);
    }

    #[test]
    fn it_is_offered_at_once_if_something_waits() {
        assert_eq!(occupy(Some(&cpu(1)), None), Occupancy::Offer);
        assert_eq!(occupy(Some(&cpu(1)), offer(0, true)), Occupancy::Offer);
        assert_eq!(occupy(Some(&cpu(1)), offer(0, false)), Occupancy::Keep, "the count is wrong");
        assert_eq!(occupy(Some(&cpu(1)), offer(OFFER_NS, false)), Occupancy::Offer);
    }

    #[test]
    fn it_is_hardly_ever_offered_if_nothing_waits() {
        assert_eq!(occupy(Some(&cpu(0)), offer(OFFER_NS, true)), Occupancy::Keep);
        assert_eq!(occupy(Some(&cpu(0)), offer(DISTRUST_NS, false)), Occupancy::Offer);
    }
}
