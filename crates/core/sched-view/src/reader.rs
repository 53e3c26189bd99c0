//! The view in the switch process: reading it, and requests to be woken when a thread goes to sleep.

use std::io;
use std::os::fd::BorrowedFd;

use lasthop_bpf::{ReadWords, WritableWords};
use lasthop_sched::{CpuState, ThreadState};

use crate::layout::{
    CPUS_MAX, ENTRY_WORDS, Slot, VIEW_WORDS, WAITING_WORD, WAKE_UP_WORDS, WAKERS_MAX, cpu_state, thread_state,
};

/// The view, mapped read-only: each query is a load or two.
#[derive(Debug)]
pub struct ViewReader(ReadWords);

impl ViewReader {
    /// Maps the descriptor of a [`ViewWriter`](crate::ViewWriter), in its process or another one.
    ///
    /// # Errors
    /// Errors of mmap(2).
    pub fn map(view: BorrowedFd<'_>) -> io::Result<Self> {
        ReadWords::map(view, VIEW_WORDS).map(Self)
    }

    /// A CPU at `now_ns` of CLOCK_MONOTONIC; `None` if it is unknown, as for an offline CPU.
    #[inline]
    #[must_use]
    pub fn cpu(&self, number: u16, now_ns: u64) -> Option<CpuState> {
        if u32::from(number) >= CPUS_MAX {
            return None;
        }
        let at = usize::from(number) * ENTRY_WORDS;
        cpu_state(self.0.load(at)?, self.0.load(at + WAITING_WORD)?, now_ns)
    }

    /// A tracked thread at `now_ns` of CLOCK_MONOTONIC; `None` if it is gone, or has no state yet.
    #[inline]
    #[must_use]
    pub fn thread(&self, slot: Slot, now_ns: u64) -> Option<ThreadState> {
        thread_state(slot, self.word(slot)?, now_ns)
    }

    pub(crate) fn word(&self, slot: Slot) -> Option<u64> {
        self.0.load(slot.word())
    }
}

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
