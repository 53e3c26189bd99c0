use std::ops::{Deref, DerefMut};

use crate::sync::{AtomicBool, Cell, Ordering, full_fence};
use crate::{Bounded, Turns};

/// A thing `T` that one worker at a time works on, and a queue of `R` for what others leave there meanwhile.
///
/// A claim is one atomic exchange, a release one store and a fence; nobody ever waits, but may look a bounded number of times.
#[derive(Debug)]
pub struct Desk<T, R> {
    taken: AtomicBool,
    owned: Cell<T>,
    left: Bounded<R>,
    turns: Turns,
}

// SAFETY: `owned` is reached only through a `Claim`, of which there is one at a time; values of both types move between
// threads but are never shared.
unsafe impl<T: Send, R: Send> Send for Desk<T, R> {}
// SAFETY: as above.
unsafe impl<T: Send, R: Send> Sync for Desk<T, R> {}

/// The right to work at a desk, until it is released. Dropping it releases it too, but then nobody looks again.
#[must_use = "a desk that is not released is lost"]
pub struct Claim<'a, T, R>(&'a Desk<T, R>);

impl<T, R> Desk<T, R> {
    /// A free desk with room for at least `entries` to be left.
    #[must_use]
    pub fn new(owned: T, entries: usize) -> Self {
        let left = Bounded::new(entries);
        Self { taken: AtomicBool::new(false), owned: Cell::new(owned), left, turns: Turns::default() }
    }

    /// Takes the desk, unless it is taken.
    #[inline]
    pub fn claim(&self) -> Option<Claim<'_, T, R>> {
        let won = self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        won.is_ok().then(|| Claim(self))
    }

    /// As [`Self::claim`]; if it is taken, looks `looks` times more, for a holder that is soon done.
    #[inline]
    pub fn claim_soon(&self, looks: u32) -> Option<Claim<'_, T, R>> {
        for _ in 0..looks {
            // Only a look: an exchange would take the line away from the holder each time.
            if !self.taken.load(Ordering::Relaxed) {
                break;
            }
            std::hint::spin_loop();
        }
        self.claim()
    }

    /// Leaves something for the holder. [`Self::claim_again`] has to follow, once for all that is left.
    ///
    /// # Errors
    /// Gives it back when too much was left already.
    #[inline]
    pub fn leave(&self, value: R) -> Result<(), R> {
        self.left.push(value)
    }

    /// After something was left or a turn finished: takes the desk if it is free. If not, its holder will look.
    #[inline]
    pub fn claim_again(&self) -> Option<Claim<'_, T, R>> {
        full_fence();
        self.claim()
    }

    /// Whether something was left, or the oldest turn is finished.
    #[inline]
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.left.is_empty() || self.turns.is_due()
    }

    /// The order of work that goes on without the claim.
    #[inline]
    #[must_use]
    pub fn turns(&self) -> &Turns {
        &self.turns
    }
}

impl<T, R> Claim<'_, T, R> {
    /// The oldest thing left.
    #[inline]
    pub fn take_left(&mut self) -> Option<R> {
        self.0.left.pop()
    }

    /// Whether nothing is left, in particular nothing of what this thread left: what it does now overtakes nothing.
    #[inline]
    #[must_use]
    pub fn is_clear(&self) -> bool {
        self.0.left.is_drained()
    }

    /// Gives the desk up and looks once more. True: there is work again; claim it, or see to it later.
    #[inline]
    #[must_use]
    pub fn release(self) -> bool {
        let desk = self.0;
        drop(self);
        full_fence();
        desk.has_work()
    }
}

impl<T, R> Deref for Claim<'_, T, R> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: there is one claim at a time, and the reference borrows it.
        self.0.owned.with_mut(|owned| unsafe { &*owned })
    }
}

impl<T, R> DerefMut for Claim<'_, T, R> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: there is one claim at a time, and the reference borrows it exclusively.
        self.0.owned.with_mut(|owned| unsafe { &mut *owned })
    }
}

impl<T, R> Drop for Claim<'_, T, R> {
    #[inline]
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_claim_at_a_time_and_what_was_left_is_found_at_release() {
        let desk = Desk::new(7, 4);
        let mut claim = desk.claim().unwrap();
        *claim += 1;
        assert!(desk.claim().is_none());
        desk.leave('a').unwrap();
        assert!(desk.claim_again().is_none());
        assert!(claim.release(), "something was left");
        let mut claim = desk.claim().unwrap();
        assert_eq!((*claim, claim.take_left(), claim.take_left()), (8, Some('a'), None));
        assert!(desk.claim_soon(3).is_none(), "it ends although the desk stays taken");
        assert!(claim.is_clear() && !claim.release());
        assert!(desk.claim_soon(3).is_some());
    }

    #[test]
    fn threads_serve_all_that_is_left() {
        const EACH: u64 = if cfg!(miri) { 50 } else { 10_000 };
        let desk: Desk<u64, u64> = Desk::new(0, 8);
        let serve = |first: Option<Claim<'_, u64, u64>>| {
            let mut next = first;
            while let Some(mut claim) = next {
                while let Some(value) = claim.take_left() {
                    *claim += value;
                }
                next = claim.release().then(|| desk.claim()).flatten();
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        while desk.leave(1).is_err() {
                            serve(desk.claim());
                        }
                        serve(desk.claim_again());
                    }
                });
            }
        });
        assert_eq!(*desk.claim().unwrap(), 3 * EACH);
    }
}
