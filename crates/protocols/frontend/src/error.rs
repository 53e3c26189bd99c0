//! Errors of guests.

use std::io;

use lasthop_guestmem::{MappingError, StaleSegment};
use lasthop_ring::{DriverRingError, RingError};
use lasthop_vhost::front::FrontError;
use thiserror::Error;

/// Why a guest cannot start, or continue.
#[derive(Debug, Error)]
pub enum GuestError {
    /// Options that contradict each other.
    #[error("a guest cannot be made as asked for: {0}")]
    Options(String),
    /// The back end offers fewer queue pairs than requested.
    #[error("the back end serves {offered} queues, {wanted} queue pairs were asked for")]
    TooFewQueues {
        /// The back end's offer.
        offered: u64,
        /// The number in the options.
        wanted: u16,
    },
    /// The vhost-user session failed.
    #[error(transparent)]
    Front(#[from] FrontError),
    /// There is no memory for the guest.
    #[error(transparent)]
    Memory(#[from] MappingError),
    /// The back end violated the rules of a ring.
    #[error("the back end broke the rules of ring {0}: {1}")]
    Ring(u16, DriverRingError),
    /// A ring cannot be at its address.
    #[error(transparent)]
    Place(#[from] RingError),
    /// The back end wrote an invalid frame into a receive buffer.
    #[error("the back end delivered a broken frame to ring {0}: {1}")]
    BrokenFrame(u16, &'static str),
    /// An address outside the guest's memory.
    #[error(transparent)]
    Outside(#[from] StaleSegment),
    /// A frame that does not fit a transmit buffer.
    #[error("a frame of {0} bytes does not fit a transmit buffer; raise tx_slot_bytes")]
    FrameTooLong(usize),
    /// More descriptors for one frame than an indirect table holds.
    #[error("a frame in {0} descriptors, at most 64 are possible")]
    TooManyParts(usize),
    /// There is no such queue pair.
    #[error("queue pair {0} does not exist")]
    NoSuchQueue(u16),
    /// The back end closed the connection.
    #[error("the back end closed the connection")]
    HungUp,
    /// A system call failed.
    #[error("the guest failed: {0}")]
    System(#[from] io::Error),
}

impl From<rustix::io::Errno> for GuestError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::System(errno.into())
    }
}
