use std::io;
use std::path::PathBuf;

use lasthop_frontend::GuestError;
use thiserror::Error;

/// Why a measurement failed.
#[derive(Debug, Error)]
pub enum BenchError {
    /// A command-line argument is invalid, or contradicts another one.
    #[error("{0}")]
    Request(String),
    /// A back end is not installed or cannot run here; the others continue.
    #[error("{name} cannot run here: {why}")]
    Missing {
        /// The back end.
        name: String,
        /// The reason, as it states it.
        why: String,
    },
    /// A back end ended, or did not become ready.
    #[error("{name} failed: {why}")]
    Backend {
        /// The back end.
        name: String,
        /// Its last output.
        why: String,
    },
    /// There is no socket where one was expected.
    #[error("{0} is not there, or no process serves it: {1}")]
    Socket(PathBuf, io::Error),
    /// A guest of the bench failed.
    #[error("{backend}: {error}")]
    Guest {
        /// The back end it was attached to.
        backend: String,
        /// Why.
        error: GuestError,
    },
    /// A guest of another program failed.
    #[error("testpmd as a guest: {0}")]
    StockGuest(String),
    /// No frame arrived.
    #[error("{backend} passed no frame of \"{workload}\" within {seconds} s")]
    NothingPassed {
        /// The back end.
        backend: String,
        /// The work that was tried.
        workload: String,
        /// The time limit.
        seconds: u64,
    },
    /// The user interrupted the run.
    #[error("interrupted; everything that was started has been ended")]
    Interrupted,
    /// A system call failed.
    #[error("the bench failed: {0}")]
    System(#[from] io::Error),
}

impl From<rustix::io::Errno> for BenchError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::System(errno.into())
    }
}
