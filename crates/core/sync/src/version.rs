//! Versions of words that many workers read and change.
//!
//! A reader loads the version, then the words, then checks whether the version is unchanged. A worker that has computed
//! new words from those makes the version busy by a compare-and-swap from that version, stores the words, and stores
//! the next version. No step in between waits. A version also has a generation: an odd one has content.
//!
//! ```text
//!   version   generation : 32, changes : 31, busy : 1
//!   change    load ── words ── compute ── swap: busy ── store words ── store: next
//! ```

use crate::sync::{AtomicU64, Ordering, fence};

const BUSY: u64 = 1;
const GENERATION: u64 = 0xffff_ffff << 32;
const NEXT_GENERATION: u64 = 1 << 32;
/// Spins on a busy version: some hundred nanoseconds, in which a running worker has finished.
const SPINS_MAX: u32 = 64;

/// A version, as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version(u64);

impl Version {
    /// The current version.
    #[inline]
    #[must_use]
    pub fn of(word: &AtomicU64) -> Self {
        Self(word.load(Ordering::Acquire))
    }

    /// The current version, if no worker is changing the words; `None` if one is, for longer than a change takes.
    #[inline]
    #[must_use]
    pub fn quiet(word: &AtomicU64) -> Option<Self> {
        for _ in 0..SPINS_MAX {
            let version = Self::of(word);
            if !version.is_busy() {
                return Some(version);
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Whether there is content.
    #[inline]
    #[must_use]
    pub fn is_live(self) -> bool {
        self.0 & NEXT_GENERATION != 0
    }

    /// Whether a worker changes the words.
    #[inline]
    #[must_use]
    pub fn is_busy(self) -> bool {
        self.0 & BUSY != 0
    }

    /// The version that was published last. While a worker changes the words, [`Self::take`] fails from here.
    #[inline]
    #[must_use]
    pub fn published(self) -> Self {
        Self(self.0 & !BUSY)
    }

    /// The generation.
    #[inline]
    #[must_use]
    pub fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Whether both have the same generation.
    #[inline]
    #[must_use]
    pub fn is_same_generation(self, other: Self) -> bool {
        (self.0 ^ other.0) & GENERATION == 0
    }

    /// Whether the words that were read since belong to this version.
    #[inline]
    #[must_use]
    pub fn is_still(self, word: &AtomicU64) -> bool {
        fence(Ordering::Acquire);
        word.load(Ordering::Relaxed) == self.0
    }

    /// Whether the words that were read since, and that are constant within a generation, belong to this one.
    #[inline]
    #[must_use]
    pub fn is_still_generation(self, word: &AtomicU64) -> bool {
        fence(Ordering::Acquire);
        Self(word.load(Ordering::Relaxed)).is_same_generation(self)
    }

    /// Takes the words: only the caller changes them until it calls [`Self::give_back`] or [`Self::end`]. Returns false
    /// if the version has changed.
    #[inline]
    #[must_use]
    pub fn take(self, word: &AtomicU64) -> bool {
        // Earlier reads belong to the version that the swap finds.
        fence(Ordering::Acquire);
        let swap = word.compare_exchange(self.0, self.0 | BUSY, Ordering::Acquire, Ordering::Relaxed);
        // A reader that sees a later store also sees the busy version.
        fence(Ordering::Release);
        swap.is_ok()
    }

    /// Publishes the next version, with all stored words. Also ends the change of a dead worker.
    #[inline]
    pub fn give_back(self, word: &AtomicU64) {
        let next = self.0 & GENERATION | (self.0 & !BUSY).wrapping_add(2) & !GENERATION;
        word.store(next, Ordering::Release);
    }

    /// Begins the next generation: the content of a taken version has ended, or that of a vacant one begins.
    pub fn end(self, word: &AtomicU64) {
        word.store((self.0 & GENERATION).wrapping_add(NEXT_GENERATION), Ordering::Release);
        // Later stores to the words are not visible before.
        fence(Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_taken_once_and_generations_take_turns() {
        let word = AtomicU64::new(0);
        let vacant = Version::of(&word);
        assert!(!vacant.is_live());
        vacant.end(&word);
        let first = Version::of(&word);
        assert!(first.is_live() && !first.is_same_generation(vacant) && first.is_still(&word));
        assert!(first.take(&word) && !first.take(&word));
        assert!(Version::of(&word).published() == first && !Version::of(&word).published().take(&word));
        assert_eq!((Version::quiet(&word), Version::of(&word).is_busy()), (None, true));
        assert!(!first.is_still(&word) && first.is_still_generation(&word));
        first.give_back(&word);
        let second = Version::quiet(&word).expect("it was given back");
        assert!(second != first && second.is_same_generation(first) && !first.take(&word));
        assert!(second.take(&word));
        second.end(&word);
        assert!(!Version::of(&word).is_live() && !second.is_still_generation(&word));
    }

    #[test]
    fn changes_do_not_run_into_the_generation() {
        let word = AtomicU64::new(NEXT_GENERATION | 0xffff_fffe);
        let last = Version::of(&word);
        assert!(last.take(&word));
        last.give_back(&word);
        assert_eq!(word.load(Ordering::Relaxed), NEXT_GENERATION);
    }
}
