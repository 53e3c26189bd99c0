//! A shared map in this process's memory, as words of 64 bits.

use std::io;
use std::os::fd::BorrowedFd;

use crate::sys::Mapping;

/// Words that this process can only read. Each is read atomically: the earlier or the later state of a change. Two
/// reads may see two states.
#[derive(Debug)]
pub struct ReadWords(Mapping);

impl ReadWords {
    /// Maps the first `words` words of a shared map, by a descriptor that may come from another process.
    ///
    /// # Errors
    /// Errors of mmap(2): the map is shorter, or cannot be mapped.
    pub fn map(map: BorrowedFd<'_>, words: usize) -> io::Result<Self> {
        Mapping::new(map, words, false).map(Self)
    }

    /// The word of the given number; `None` if there is none.
    #[inline]
    #[must_use]
    pub fn load(&self, index: usize) -> Option<u64> {
        self.0.load(index)
    }
}

/// Words that this process reads and writes. Other writers' changes to a word are lost if they come between a load and a store of it.
#[derive(Debug)]
pub struct WritableWords(Mapping);

impl WritableWords {
    /// Maps the first `words` words of a shared map.
    ///
    /// # Errors
    /// Errors of mmap(2); EACCES for a map that is read-only.
    pub fn map(map: BorrowedFd<'_>, words: usize) -> io::Result<Self> {
        Mapping::new(map, words, true).map(Self)
    }

    /// The word of the given number; `None` if there is none.
    #[inline]
    #[must_use]
    pub fn load(&self, index: usize) -> Option<u64> {
        self.0.load(index)
    }

    /// Sets the word of the given number; returns false if there is none.
    pub fn store(&self, index: usize, value: u64) -> bool {
        self.0.store(index, value)
    }

    /// The number of words.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }
}
