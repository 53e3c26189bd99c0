//! A lock for flat combining: its holder also serves the queued work of other threads.

use std::ops::{Deref, DerefMut};

use crate::sync::{AtomicBool, Cell, Ordering, full_fence};
use crate::{Bounded, PublishOrder};

/// A lock around a `T`, with a queue of `R` for threads that find it taken (flat combining).
///
/// To lock is one atomic exchange. To release is one store and a fence. No thread waits; it may spin a
/// bounded number of times.
#[derive(Debug)]
pub struct CombiningLock<T, R> {
    taken: AtomicBool,
    owned: Cell<T>,
    queue: Bounded<R>,
    publish_order: PublishOrder,
    /// Used by one thread only: nothing is ever queued.
    is_alone: bool,
}

// SAFETY: `owned` is accessed only through a `CombiningGuard`, of which there is one at a time; values of both types
// move between threads but are never shared.
unsafe impl<T: Send, R: Send> Send for CombiningLock<T, R> {}
// SAFETY: as above.
unsafe impl<T: Send, R: Send> Sync for CombiningLock<T, R> {}

/// The right to use the locked value until it is released. Dropping it unlocks too, but does not check for queued work.
#[must_use = "a lock that is not released is lost"]
pub struct CombiningGuard<'a, T, R>(&'a CombiningLock<T, R>);

impl<T, R> CombiningLock<T, R> {
    /// A free lock whose queue has room for at least `entries`. With 0, a single thread uses it, which neither queues
    /// values nor finishes pieces.
    #[must_use]
    pub fn new(owned: T, entries: usize) -> Self {
        let (queue, is_alone) = (Bounded::new(entries), entries == 0);
        Self {
            is_alone,
            taken: AtomicBool::new(false),
            owned: Cell::new(owned),
            queue,
            publish_order: PublishOrder::default(),
        }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<CombiningGuard<'_, T, R>> {
        let won = self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        won.is_ok().then(|| CombiningGuard(self))
    }

    /// As [`Self::try_lock`]; if it is taken, spins for up to `looks` loads, as the holder may be done soon.
    #[inline]
    pub fn try_lock_spinning(&self, looks: u32) -> Option<CombiningGuard<'_, T, R>> {
        for _ in 0..looks {
            // Only a load: each exchange would take the cache line from the holder.
            if !self.taken.load(Ordering::Relaxed) {
                break;
            }
            std::hint::spin_loop();
        }
        self.try_lock()
    }

    /// Queues a value for the holder. [`Self::try_lock_again`] must follow, once for several values.
    ///
    /// # Errors
    /// Returns the value if the queue is full, or if the lock belongs to a single thread.
    #[inline]
    pub fn enqueue(&self, value: R) -> Result<(), R> {
        if self.is_alone { Err(value) } else { self.queue.push(value) }
    }

    /// Takes the lock if it is free, after a value was queued or a piece finished. If it is taken, its holder will
    /// check.
    #[inline]
    pub fn try_lock_again(&self) -> Option<CombiningGuard<'_, T, R>> {
        full_fence();
        self.try_lock()
    }

    /// Whether a value is queued, or the oldest piece is finished.
    #[inline]
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.queue.is_empty() || self.publish_order.is_due()
    }

    /// The order in which work outside the lock is published.
    #[inline]
    #[must_use]
    pub fn publish_order(&self) -> &PublishOrder {
        &self.publish_order
    }
}

impl<T, R> CombiningGuard<'_, T, R> {
    /// Takes the oldest queued value.
    #[inline]
    pub fn dequeue(&mut self) -> Option<R> {
        self.0.queue.pop()
    }

    /// Whether the queue is empty, including this thread's own entries: then its next work overtakes nothing.
    #[inline]
    #[must_use]
    pub fn is_clear(&self) -> bool {
        self.0.is_alone || self.0.queue.is_drained()
    }

    /// Unlocks and checks again for queued work. Returns true if there is some: lock again, or have it served later.
    #[inline]
    #[must_use]
    pub fn release(self) -> bool {
        let lock = self.0;
        drop(self);
        if lock.is_alone {
            return false;
        }
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
    fn of_one_thread_alone_nothing_is_queued() {
        let lock = CombiningLock::new(7, 0);
        let guard = lock.try_lock().unwrap();
        assert!(lock.try_lock().is_none() && lock.enqueue('a') == Err('a'));
        assert!(guard.is_clear() && !guard.release());
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn one_holder_at_a_time_and_queued_values_are_found_at_release() {
        let lock = CombiningLock::new(7, 4);
        let mut guard = lock.try_lock().unwrap();
        *guard += 1;
        assert!(lock.try_lock().is_none());
        lock.enqueue('a').unwrap();
        assert!(lock.try_lock_again().is_none());
        assert!(guard.release(), "a value is queued");
        let mut guard = lock.try_lock().unwrap();
        assert_eq!((*guard, guard.dequeue(), guard.dequeue()), (8, Some('a'), None));
        assert!(lock.try_lock_spinning(3).is_none(), "it ends although the lock stays taken");
        assert!(guard.is_clear() && !guard.release());
        assert!(lock.try_lock_spinning(3).is_some());
    }

    #[test]
    fn threads_serve_all_queued_values() {
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
