//! The bare algorithm of a single-copy switch, and less than that: two ceilings to measure against. NOT a switch.
//!
//! **This trusts its guests blindly.** Buffer addresses are used as they come: a guest that gives a wrong one, or a
//! receive buffer shorter than a frame, has this process read and write memory that is not the guest's. So it serves only
//! guests of the process that it runs in, those of `lasthop-bench`; nothing else may use this crate, no socket that a
//! stranger can reach may lead here, and no option of the switch turns it on.
//!
//! **Purpose.** A figure for a switch means little alone. [`Limit`] is a switch without all that makes it safe and useful
//! (checks, translation, learning, counters): nothing that copies once on one core can be much faster. [`Null`] passes ring
//! entries and no bytes: no back end at all can be faster, so this is the limit of the traffic generator itself.
//!
//! **Contract.** A [`Lane`] leads from one guest's transmit ring to another's receive ring. [`poll`] moves up to
//! [`BATCH_FRAMES`] frames at a time, in order, none lost: frames without a receive buffer wait in their transmit ring. A
//! frame is one descriptor, so is a receive buffer. After each call everything taken is completed. Kicks are ignored,
//! since it polls; calls are due when [`End::needs_signal`] says so.
//!
//! **Not checked.** All of it, but that a guest has one memory region (else it is refused), and the indices of a ring, by
//! whose check a [`Lane`] faults. Debug builds assert that buffers lie in the guest's memory.
//!
//! **Threading.** One thread has all lanes.
//!
//! ```text
//!   transmit ring                                                                receive ring
//!   heads -> descriptors -> [ snapshot 96 bytes, hash of the MAC, table ] -+
//!              data -------------------------------------------------------+-> copy -> used entries, one index store
//!   used entries, one index store <-- after that
//!
//!   Null:  heads -> descriptors (lengths) ------------------------------------------> used entries, one index store
//! ```

mod lane;
mod limit;
mod memory;
mod null;
#[cfg(test)]
mod tests;

pub use lane::{End, Lane, Pass, poll};
pub use limit::Limit;
pub use memory::NotOneRegion;
pub use null::Null;

/// Frames that are moved at a time.
pub const BATCH_FRAMES: u16 = 32;
/// Bytes of each transmit buffer that must be readable, however short the frame: snapshots have one size.
pub const SNAPSHOT_BYTES: usize = 96;
