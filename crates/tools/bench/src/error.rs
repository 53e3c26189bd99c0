use std::io;
use std::path::PathBuf;

use lasthop_frontend::GuestError;
use thiserror::Error;

/// Why there is no measurement.
#[derive(Debug, Error)]
pub enum BenchError {
    /// A word of the command line that means nothing, or does not go with another.
    #[error("{0}")]
    Request(String),
    /// A back end is not installed or not possible here; the others go on.
    #[error("{name} cannot run here: {why}")]
    Missing {
        /// The back end.
        name: String,
        /// Its own words.
        why: String,
    },
    /// A back end ended, or never got ready.
    #[error("{name} failed: {why}")]
    Backend {
        /// The back end.
        name: String,
        /// Its last output.
        why: String,
    },
    /// No socket where one was expected.
    #[error("{0} is not there, or no process serves it: {1}")]
    Socket(PathBuf, io::Error),
    /// A guest of the bench could not go on.
    #[error("{backend}: {error}")]
    Guest {
        /// The back end it was attached to.
        backend: String,
        /// Why.
        error: GuestError,
    },
    /// A guest that others wrote did not do as it was told.
    #[error("testpmd as a guest: {0}")]
    StockGuest(String),
    /// Nothing arrived at all.
    #[error("{backend} passed no frame of \"{workload}\" within {seconds} s")]
    NothingPassed {
        /// The back end.
        backend: String,
        /// The work that was tried.
        workload: String,
        /// How long.
        seconds: u64,
    },
    /// The user wants no more.
    #[error("interrupted; everything that was started has been ended")]
    Interrupted,
    /// The system refused.
    #[error("the bench failed: {0}")]
    System(#[from] io::Error),
}

impl From<rustix::io::Errno> for BenchError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::System(errno.into())
    }
}
