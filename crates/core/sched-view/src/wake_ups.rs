//! Requests to be woken when a thread goes to sleep.

use std::io;
use std::os::fd::BorrowedFd;

use lasthop_bpf::WritableWords;

use crate::layout::{Slot, WAKE_UP_WORDS, WAKERS_MAX};

/// The requests, in memory that they share with the programs.
///
/// A request is forgotten by the event that it asks for. Of two workers' requests for one thread the later one counts.
/// So an event may be missing, also if the thread went to sleep in this moment: a timer has to be the bound.
#[derive(Debug)]
pub struct WakeUps(WritableWords);

impl WakeUps {
    /// Maps the first of [`ViewWriter::wake_up_descriptors`](crate::ViewWriter::wake_up_descriptors).
    ///
    /// # Errors
    /// Errors of mmap(2).
    pub fn map(wake_ups: BorrowedFd<'_>) -> io::Result<Self> {
        WritableWords::map(wake_ups, WAKE_UP_WORDS).map(Self)
    }

    /// Asks for one event in the queue of `worker` when the thread of `slot` goes to sleep. A worker above
    /// [`WAKERS_MAX`] gets none.
    #[inline]
    pub fn ask(&self, slot: Slot, worker: usize) {
        let (index, word) = (usize::from(slot.number()), worker as u64 + 1);
        // The programs read these words: an unchanged one keeps its cache line.
        if worker < WAKERS_MAX && self.0.load(index) != Some(word) {
            self.0.store(index, word);
        }
    }
}
