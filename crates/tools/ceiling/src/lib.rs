//! The bare algorithm of a single-copy switch, and less than that: two upper limits for comparison. NOT a switch.
//!
//! **This trusts its guests blindly.** Buffer addresses are not checked: if a guest gives a wrong one, or a receive
//! buffer shorter than a frame, this process reads and writes memory outside the guest's. So it serves only guests
//! within its own process, those of `lasthop-bench`. No other program may use this crate, no socket for strangers may
//! lead here, and no option of the switch enables it.
//!
//! **Purpose.** A switch's figure means little alone. [`Limit`] is a switch without all that makes it safe and useful
//! (checks, translation, learning, counters): no switch that copies once on one core can be much faster. [`Null`]
//! passes ring entries but no bytes: no back end can be faster, so this is the limit of the traffic generator itself.
//!
//! **Contract.** A [`Lane`] leads from one guest's transmit ring to another's receive ring. [`poll`] moves up to
//! [`BATCH_FRAMES`] frames at a time, in order, none lost: frames without a receive buffer wait in their transmit ring.
//! A frame is one descriptor, so is a receive buffer. After each call all fetched frames are completed. It polls;
//! kicks are suppressed but between [`End::arm_kicks`] and [`End::suppress_kicks`]. A call is due when [`End::needs_signal`] returns true.
//!
//! **Not checked.** Everything except two things: a guest with more than one memory region is refused, and invalid
//! indices of a ring stop a [`Lane`]. Debug builds assert that buffers are in the guest's memory.
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

/// Frames in a batch.
pub const BATCH_FRAMES: u16 = 32;
/// Bytes of each transmit buffer that must be readable, even for shorter frames: snapshots have a fixed size.
pub const SNAPSHOT_BYTES: usize = 96;
