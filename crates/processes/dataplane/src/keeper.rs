//! A process that holds the memory of a switch process until after its end.
//!
//! The last thread of a dying process unmaps all its memory before its end is reported. That takes longer the more of
//! guests' memory it has touched in small pages, a millisecond and more for each 10 MiB, and guests would have to wait.
//! So another process shares the memory and does nothing: the threads release it at once, and it is unmapped while the
//! next switch process is running.
//!
//! ```text
//!   switch process ── memory ── keeper           has one descriptor: the reading end of a pipe
//!        │  └── writing end of the pipe            and the sandbox of the switch process
//!        x  killed: threads end, then their descriptors ──> end of file ──> keeper ends, and the memory with it
//! ```

use std::io::{self, PipeReader, PipeWriter};

use lasthop_runtime::sandbox::Spent;

use super::sys;

/// The pipe by which the keeper learns of the end.
#[derive(Debug)]
pub(super) struct Keeper {
    reader: PipeReader,
    writer: PipeWriter,
}

impl Keeper {
    /// Creates the pipe, while the process may still do so.
    pub(super) fn prepare() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        Ok(Self { reader, writer })
    }

    /// Starts the keeper in the sandbox, without the system calls in `spent`: it shares memory with the switch process,
    /// and must have no more calls than that one. It lives until the returned value is dropped; keep that until the
    /// process ends.
    pub(super) fn start(self, spent: Option<&'static Spent>) -> io::Result<PipeWriter> {
        sys::keep_memory(self.reader.into(), move || spent.is_none_or(Spent::is_taken_away))?;
        Ok(self.writer)
    }
}
