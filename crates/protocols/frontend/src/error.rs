//! Errors of guests.

use std::io;

use lasthop_guestmem::{MappingError, StaleSegment};
use lasthop_ring::{DriverRingError, RingError};
use lasthop_vhost::front::FrontError;
use thiserror::Error;

/// The reason why a guest cannot start, or continue.
#[derive(Debug, Error)]
pub enum GuestError {
    /// Options that do not fit together.
    #[error("a guest cannot be made as asked for: {0}")]
    Options(String),
    /// The back end offers less than was asked for.
    #[error("the back end serves {offered} queues, {wanted} queue pairs were asked for")]
    TooFewQueues {
        /// The back end's offer.
        offered: u64,
        /// The number in the options.
        wanted: u16,
    },
    /// The vhost-user conversation failed.
    #[error(transparent)]
    Front(#[from] FrontError),
    /// Memory for the guest cannot be had.
    #[error(transparent)]
    Memory(#[from] MappingError),
    /// The back end broke the rules of a ring.
    #[error("the back end broke the rules of ring {0}: {1}")]
    Ring(u16, DriverRingError),
    /// A ring cannot lie where the layout puts it.
    #[error(transparent)]
    Place(#[from] RingError),
    /// The back end wrote an invalid frame into a receive buffer.
    #[error("the back end delivered a broken frame to ring {0}: {1}")]
    BrokenFrame(u16, &'static str),
    /// Outside the guest's memory.
    #[error(transparent)]
    Outside(#[from] StaleSegment),
    /// A frame that does not fit a transmit buffer.
    #[error("a frame of {0} bytes does not fit a transmit buffer; raise tx_slot_bytes")]
    FrameTooLong(usize),
    /// More descriptors for one frame than an indirect table holds.
    #[error("a frame in {0} descriptors, at most 64 are possible")]
    TooManyParts(usize),
    /// No such queue pair.
    #[error("queue pair {0} does not exist")]
    NoSuchQueue(u16),
    /// The back end closed the connection.
    #[error("the back end closed the connection")]
    HungUp,
    /// The system refused.
    #[error("the guest failed: {0}")]
    System(#[from] io::Error),
}

impl From<rustix::io::Errno> for GuestError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::System(errno.into())
    }
}
