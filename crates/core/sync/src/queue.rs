//! A bounded queue without locks, for several threads on each side.

use std::mem::MaybeUninit;

use crate::sync::{AtomicUsize, Cell, Ordering, places};

/// A bounded queue for any number of threads (Vyukov's: one turn number per place, no thread waits for another).
///
/// ```text
///   turn == position        free for the push of that position
///   turn == position + 1    filled, for the pop of that position
///   turn == position + len  free for the next lap
/// ```
///
/// Values of one thread are popped in the order in which it pushed them.
#[derive(Debug)]
pub struct Bounded<T> {
    turns: Box<[AtomicUsize]>,
    values: Box<[Cell<MaybeUninit<T>>]>,
    /// Position of the next push, on its own cache line, since pushers and the popper run on different cores.
    push_at: Padded,
    pop_at: Padded,
}

#[derive(Debug)]
#[repr(align(128))] // two lines: the adjacent one is prefetched along
struct Padded(AtomicUsize);

// SAFETY: the one thread that won a value's position moves it in, and the one that won the pop moves it out; nothing is
// shared in between, so it only has to be Send.
unsafe impl<T: Send> Send for Bounded<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Bounded<T> {}

impl<T> Bounded<T> {
    /// A queue for at least `entries` (rounded up to a power of two, at least 2).
    #[must_use]
    pub fn new(entries: usize) -> Self {
        let entries = entries.max(2).next_power_of_two();
        let turns = (0..entries).map(AtomicUsize::new).collect();
        let position = || Padded(AtomicUsize::new(0));
        Self { turns, values: places(entries), push_at: position(), pop_at: position() }
    }

    #[inline]
    fn turn(&self, position: usize) -> &AtomicUsize {
        &self.turns[position & (self.turns.len() - 1)]
    }

    #[inline]
    fn value(&self, position: usize) -> &Cell<MaybeUninit<T>> {
        &self.values[position & (self.values.len() - 1)]
    }

    /// Appends a value.
    ///
    /// # Errors
    /// Returns the value if the queue is full.
    #[inline]
    pub fn push(&self, value: T) -> Result<(), T> {
        let mut at = self.push_at.0.load(Ordering::Relaxed);
        loop {
            let turn = self.turn(at).load(Ordering::Acquire);
            if turn == at {
                match advance(&self.push_at, at) {
                    Ok(()) => {
                        // SAFETY: this thread won position `at`, and the slot is free until its turn is stored.
                        self.value(at).with_mut(|place| unsafe { (*place).write(value) });
                        self.turn(at).store(at.wrapping_add(1), Ordering::Release);
                        return Ok(());
                    }
                    Err(now) => at = now,
                }
            } else if turn.wrapping_sub(at) > usize::MAX / 2 {
                return Err(value); // still filled from the previous lap
            } else {
                at = self.push_at.0.load(Ordering::Relaxed);
            }
        }
    }

    /// Takes the oldest value.
    #[inline]
    pub fn pop(&self) -> Option<T> {
        let mut at = self.pop_at.0.load(Ordering::Relaxed);
        loop {
            let turn = self.turn(at).load(Ordering::Acquire);
            if turn == at.wrapping_add(1) {
                match advance(&self.pop_at, at) {
                    Ok(()) => {
                        // SAFETY: this thread won position `at`, which was filled by a push that the load acquired.
                        let value = self.value(at).with_mut(|place| unsafe { (*place).assume_init_read() });
                        self.turn(at).store(at.wrapping_add(self.turns.len()), Ordering::Release);
                        return Some(value);
                    }
                    Err(now) => at = now,
                }
            } else if turn == at {
                return None;
            } else {
                at = self.pop_at.0.load(Ordering::Relaxed);
            }
        }
    }

    /// Whether nothing can be popped now. An unfinished push of another thread does not count yet.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let at = self.pop_at.0.load(Ordering::Relaxed);
        self.turn(at).load(Ordering::Acquire) != at.wrapping_add(1)
    }

    /// Whether everything was popped that this thread has pushed. Unlike [`Self::is_empty`], this is false while a push
    /// before one of its own is unfinished.
    #[inline]
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.push_at.0.load(Ordering::Relaxed) == self.pop_at.0.load(Ordering::Relaxed)
    }
}

#[inline]
fn advance(position: &Padded, from: usize) -> Result<(), usize> {
    let to = from.wrapping_add(1);
    position.0.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).map(|_| ())
}

impl<T> Drop for Bounded<T> {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_order_refuses_when_full_and_goes_round() {
        let queue = Bounded::new(3);
        for lap in 0..10 {
            for number in 0..4 {
                assert_eq!(queue.push(lap * 4 + number), Ok(()));
            }
            assert_eq!(queue.push(99), Err(99));
            for number in 0..4 {
                assert!(!queue.is_empty() && !queue.is_drained());
                assert_eq!(queue.pop(), Some(lap * 4 + number));
            }
            assert!(queue.is_empty() && queue.is_drained());
            assert_eq!(queue.pop(), None);
        }
    }

    #[test]
    fn drops_the_rest() {
        let value = std::sync::Arc::new(());
        let queue = Bounded::new(4);
        queue.push(std::sync::Arc::clone(&value)).unwrap();
        drop(queue);
        assert_eq!(std::sync::Arc::strong_count(&value), 1);
    }

    #[test]
    fn threads_lose_nothing_and_keep_each_ones_order() {
        const EACH: u32 = if cfg!(miri) { 50 } else { 20_000 };
        let queue = Bounded::new(64);
        std::thread::scope(|scope| {
            for thread in 0..3_u32 {
                let queue = &queue;
                scope.spawn(move || {
                    for number in 0..EACH {
                        while queue.push((thread, number)).is_err() {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            let mut next = [0; 3];
            while next != [EACH; 3] {
                let Some((thread, number)) = queue.pop() else {
                    std::thread::yield_now();
                    continue;
                };
                assert_eq!(number, next[thread as usize]);
                next[thread as usize] += 1;
            }
        });
        assert!(queue.is_empty());
    }
}
