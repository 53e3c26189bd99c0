use std::ops::{Deref, DerefMut};

use crate::sync::{AtomicBool, Cell, Ordering, full_fence};
use crate::{Bounded, PublishOrder};

/// A thing `T` that one worker at a time works on, and a queue of `R` for what others leave there meanwhile.
///
/// A guard is one atomic exchange, a release one store and a fence; nobody ever waits, but may look a bounded number of times.
#[derive(Debug)]
pub struct CombiningLock<T, R> {
    taken: AtomicBool,
    owned: Cell<T>,
    left: Bounded<R>,
    publish_order: PublishOrder,
}

// SAFETY: `owned` is reached only through a `CombiningGuard`, of which there is one at a time; values of both types move between
// threads but are never shared.
unsafe impl<T: Send, R: Send> Send for CombiningLock<T, R> {}
// SAFETY: as above.
unsafe impl<T: Send, R: Send> Sync for CombiningLock<T, R> {}

/// The right to work at a lock, until it is released. Dropping it releases it too, but then nobody looks again.
#[must_use = "a lock that is not released is lost"]
pub struct CombiningGuard<'a, T, R>(&'a CombiningLock<T, R>);

impl<T, R> CombiningLock<T, R> {
    /// A free lock with room for at least `entries` to be left.
    #[must_use]
    pub fn new(owned: T, entries: usize) -> Self {
        let left = Bounded::new(entries);
        Self {
            taken: AtomicBool::new(false),
            owned: Cell::new(owned),
            left,
            publish_order: PublishOrder::default(),
        }
    }

    /// Takes the lock, unless it is taken.
    #[inline]
    pub fn try_lock(&self) -> Option<CombiningGuard<'_, T, R>> {
        let won = self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        won.is_ok().then(|| CombiningGuard(self))
    }

    /// As [`Self::try_lock`]; if it is taken, looks `looks` times more, for a holder that is soon done.
    #[inline]
    pub fn try_lock_spinning(&self, looks: u32) -> Option<CombiningGuard<'_, T, R>> {
        for _ in 0..looks {
            // Only a look: an exchange would take the line away from the holder each time.
            if !self.taken.load(Ordering::Relaxed) {
                break;
            }
            std::hint::spin_loop();
        }
        self.try_lock()
    }

    /// Leaves something for the holder. [`Self::try_lock_again`] has to follow, once for all that is left.
    ///
    /// # Errors
    /// Gives it back when too much was left already.
    #[inline]
    pub fn enqueue(&self, value: R) -> Result<(), R> {
        self.left.push(value)
    }

    /// After something was left or a turn finished: takes the lock if it is free. If not, its holder will look.
    #[inline]
    pub fn try_lock_again(&self) -> Option<CombiningGuard<'_, T, R>> {
        full_fence();
        self.try_lock()
    }

    /// Whether something was left, or the oldest turn is finished.
    #[inline]
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.left.is_empty() || self.publish_order.is_due()
    }

    /// The order of work that goes on without the guard.
    #[inline]
    #[must_use]
    pub fn publish_order(&self) -> &PublishOrder {
        &self.publish_order
    }
}

impl<T, R> CombiningGuard<'_, T, R> {
    /// The oldest thing left.
    #[inline]
    pub fn dequeue(&mut self) -> Option<R> {
        self.0.left.pop()
    }

    /// Whether nothing is left, in particular nothing of what this thread left: what it does now overtakes nothing.
    #[inline]
    #[must_use]
    pub fn is_clear(&self) -> bool {
        self.0.left.is_drained()
    }

    /// Gives the lock up and looks once more. True: there is work again; guard it, or see to it later.
    #[inline]
    #[must_use]
    pub fn release(self) -> bool {
        let lock = self.0;
        drop(self);
        full_fence();
        lock.has_work()
    }
}

impl<T, R> Deref for CombiningGuard<'_, T, R> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: there is one guard at a time, and the reference borrows it.
        self.0.owned.with_mut(|owned| unsafe { &*owned })
    }
}

impl<T, R> DerefMut for CombiningGuard<'_, T, R> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: there is one guard at a time, and the reference borrows it exclusively.
        self.0.owned.with_mut(|owned| unsafe { &mut *owned })
    }
}

impl<T, R> Drop for CombiningGuard<'_, T, R> {
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
        let lock = CombiningLock::new(7, 4);
        let mut guard = lock.try_lock().unwrap();
        *guard += 1;
        assert!(lock.try_lock().is_none());
        lock.enqueue('a').unwrap();
        assert!(lock.try_lock_again().is_none());
        assert!(guard.release(), "something was left");
        let mut guard = lock.try_lock().unwrap();
        assert_eq!((*guard, guard.dequeue(), guard.dequeue()), (8, Some('a'), None));
        assert!(lock.try_lock_spinning(3).is_none(), "it ends although the lock stays taken");
        assert!(guard.is_clear() && !guard.release());
        assert!(lock.try_lock_spinning(3).is_some());
    }

    #[test]
    fn threads_serve_all_that_is_left() {
        const EACH: u64 = if cfg!(miri) { 50 } else { 10_000 };
        let lock: CombiningLock<u64, u64> = CombiningLock::new(0, 8);
        let serve = |first: Option<CombiningGuard<'_, u64, u64>>| {
            let mut next = first;
            while let Some(mut guard) = next {
                while let Some(value) = guard.dequeue() {
                    *guard += value;
                }
                next = guard.release().then(|| lock.try_lock()).flatten();
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        while lock.enqueue(1).is_err() {
                            serve(lock.try_lock());
                        }
                        serve(lock.try_lock_again());
                    }
                });
            }
        });
        assert_eq!(*lock.try_lock().unwrap(), 3 * EACH);
    }
}
