//! A process that holds the memory of a switch process until after its end.
//!
//! The last thread of a process that dies takes all mappings apart before its end is reported. That takes longer
//! the more of guests' memory it has touched in small pages, a millisecond and more for each 10 MiB, and guests would wait for
//! it. So there is a process that shares the memory and does nothing: the threads let go of it at once, and it is taken apart
//! while the next switch process is at work.
//!
//! ```text
//!   switch process ── memory ── keeper           has one descriptor: the reading end of a pipe
//!        │  └── writing end of the pipe            and the sandbox of the switch process
//!        x  killed: threads end, then their descriptors ──> end of file ──> keeper ends, and the memory with it
//! ```

use std::io::{self, PipeReader, PipeWriter};

use lasthop_runtime::sandbox::Spent;

use super::sys;

/// The pipe whose end tells the keeper of the end.
#[derive(Debug)]
pub(super) struct Keeper {
    reader: PipeReader,
    writer: PipeWriter,
}

impl Keeper {
    /// Before the process gives up making pipes.
    pub(super) fn prepare() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        Ok(Self { reader, writer })
    }

    /// Starts it, inside the sandbox, without the calls that are `spent`: it shares memory with the switch process, and must not have
    /// more calls than that, or ends. It lives for as long as the returned value, which is to be kept until the process ends.
    pub(super) fn start(self, spent: Option<&'static Spent>) -> io::Result<PipeWriter> {
        sys::keep_memory(self.reader.into(), move || spent.is_none_or(Spent::is_taken_away))?;
        Ok(self.writer)
    }
}
