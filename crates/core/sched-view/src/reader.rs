//! Reading the view.

use std::io;
use std::os::fd::BorrowedFd;

use lasthop_bpf::ReadWords;
use lasthop_sched::{CpuState, ThreadState};

use crate::layout::{CPUS_MAX, ENTRY_WORDS, Slot, VIEW_WORDS, WAITING_WORD, cpu_state, thread_state};

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
