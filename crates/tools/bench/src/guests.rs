//! The guests of one back end: the bench's own, or those of other programs.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lasthop_frontend::GuestError;

use crate::stock::StockGuests;
use crate::work::{Done, GuestGroup, Tally};
use crate::{BenchError, DriverChoice, Workload};

/// Guests that are attached to a back end.
#[derive(Debug)]
pub(crate) enum Guests {
    /// Bare rings, driven by this thread.
    Rings(GuestGroup),
    /// Processes of testpmd.
    Stock(StockGuests),
}

impl Guests {
    /// Waits until frames pass between all guests that will send and receive. Returns false if they do not, or if
    /// `stop` was set.
    pub(crate) fn meet(
        &mut self,
        backend: &str,
        workload: &Workload,
        stop: &AtomicBool,
    ) -> Result<bool, BenchError> {
        match self {
            Self::Rings(guest_group) => {
                guest_group.meet(workload, stop).map_err(|error| of_ring(backend, error))
            }
            Self::Stock(guests) => guests.meet(),
        }
    }

    /// Sends from all addresses, so that the back end learns them, or begins traffic that continues by itself.
    pub(crate) fn begin(&mut self, backend: &str, workload: &Workload) -> Result<(), BenchError> {
        match self {
            Self::Rings(guest_group) => guest_group.learn(workload).map_err(|error| of_ring(backend, error)),
            Self::Stock(guests) => guests.begin(workload),
        }
    }

    /// Runs the workload for a while, and counts.
    pub(crate) fn work(
        &mut self,
        backend: &str,
        workload: &Workload,
        duration: Duration,
    ) -> Result<Done, BenchError> {
        match self {
            Self::Rings(guest_group) => {
                guest_group.work(workload, duration).map_err(|error| of_ring(backend, error))
            }
            Self::Stock(guests) => guests.work(duration),
        }
    }

    /// Ends traffic that continues by itself, and empties the rings.
    pub(crate) fn finish(&mut self) -> Result<(), BenchError> {
        match self {
            Self::Rings(_) => Ok(()),
            Self::Stock(guests) => guests.finish(),
        }
    }

    /// Empties the rings. Returns the frames that guests sent and received since they started, if they count them.
    pub(crate) fn drain(&mut self) -> Result<Option<Tally>, BenchError> {
        match self {
            Self::Rings(_) => Ok(None),
            Self::Stock(guests) => guests.drain().map(Some),
        }
    }

    /// The features and paths that a stock driver chose.
    pub(crate) fn choice(&self) -> Option<&DriverChoice> {
        match self {
            Self::Rings(_) => None,
            Self::Stock(guests) => guests.choice(),
        }
    }

    /// CPUs of the threads that send and receive; `generator` is the bench's own.
    pub(crate) fn cpus(&self, generator: usize) -> String {
        match self {
            Self::Rings(_) => generator.to_string(),
            Self::Stock(guests) => guests.cpus(),
        }
    }
}

fn of_ring(backend: &str, error: GuestError) -> BenchError {
    BenchError::Guest { backend: backend.to_owned(), error }
}
