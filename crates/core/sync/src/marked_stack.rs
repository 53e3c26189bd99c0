//! A stack of numbers, each at most once: places that have to be checked again.
//!
//! Any worker pushes a number after a change. One consumer at a time takes numbers and handles their changes. The owner
//! provides a word for each number: 0 if it is not in the stack, otherwise the number below it.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// In a number's word: the number is the last one.
const LAST: u64 = u32::MAX as u64;

/// The top of the stack, as number + 1.
#[derive(Debug)]
pub struct MarkedStack(AtomicU32);

/// Numbers that the consumer has taken from the stack together, as number + 1; 0: none.
#[derive(Debug, Default)]
pub struct Marked(u32);

impl Default for MarkedStack {
    fn default() -> Self {
        Self(AtomicU32::new(0))
    }
}

impl MarkedStack {
    /// Whether the stack is empty; this may change at once.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Pushes `number`, whose word is `word`, unless it is in the stack. Must be called after the change.
    pub fn push(&self, number: u32, word: &AtomicU64) {
        // Either this thread sees that the consumer has taken the number, or the consumer sees the change.
        fence(Ordering::SeqCst);
        if word.compare_exchange(0, LAST, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return;
        }
        let mut top = self.0.load(Ordering::Relaxed);
        loop {
            word.store(if top == 0 { LAST } else { u64::from(top) }, Ordering::Relaxed);
            let swap = self.0.compare_exchange(top, number + 1, Ordering::Release, Ordering::Relaxed);
            match swap {
                Ok(_) => return,
                Err(other) => top = other,
            }
        }
    }

    /// Takes the next number. The consumer reads the change after this. `word_of` returns the word of a number.
    pub fn take<'a>(
        &self,
        marked: &mut Marked,
        word_of: impl FnOnce(u32) -> Option<&'a AtomicU64>,
    ) -> Option<u32> {
        if marked.0 == 0 {
            if self.is_empty() {
                return None;
            }
            marked.0 = self.0.swap(0, Ordering::Acquire);
        }
        let number = marked.0.checked_sub(1)?;
        let below = word_of(number)?.swap(0, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        marked.0 = if below == LAST { 0 } else { below as u32 };
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_there_once_until_they_are_taken() {
        let words: Vec<AtomicU64> = (0..5).map(|_| AtomicU64::new(0)).collect();
        let (stack, mut marked) = (MarkedStack::default(), Marked::default());
        let push = |number: usize| stack.push(number as u32, &words[number]);
        [3, 1, 3, 0].into_iter().for_each(push);
        let mut take = || stack.take(&mut marked, |number| words.get(number as usize));
        assert_eq!(take(), Some(0));
        [0, 1, 4].into_iter().for_each(push);
        assert_eq!([take(), take(), take(), take(), take()], [Some(1), Some(3), Some(4), Some(0), None]);
        assert!(stack.is_empty() && words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
    }
}
