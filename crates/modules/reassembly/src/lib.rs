//! Fragments that wait for the others of their packet (RFC 791, RFC 8200 4.5, RFC 5722).
//!
//! **Purpose.** An action `ct` needs a whole packet, since later fragments have no ports. [`FragmentPool::take`] queues each fragment, a copy
//! in memory of its own, and returns the [`WholePacket`] with the last one.
//!
//! **Contract.** Each fragment is queued, part of a whole packet, or lost for a reason ([`FragmentLoss`]). [`FragmentBounds`] limit fragments
//! and bytes of each source (the port that they came in by), of each zone, and in all. A source at its limit loses its own oldest datagram.
//! A zone or the pool at its limit loses the oldest datagram of the source that holds most bytes there. So a flooding source takes nothing
//! from sources that hold less. Time is an argument, in milliseconds. No frame makes it panic.
//!
//! **Not checked.** Checksums of transport headers: the owner of the whole packet does that.
//!
//! **Threading.** A pool belongs to one thread.
//!
//! ```text
//!   frame of a fragment ─> parse ─> datagram of its addresses, identification, zone, source ─┬─ more to come: queued
//!                            │                                                               ├─ all there: the whole packet
//!                            └─ a fault: lost                                                └─ overlap: all of it is lost
//! ```
#![forbid(unsafe_code)]

mod bounds;
mod datagram;
mod pool;

pub use bounds::{DATAGRAM_FRAGMENTS_MAX, FragmentBounds, FragmentShare};
pub use datagram::WholePacket;
pub use pool::{FragmentLoss, FragmentPlace, FragmentPool, LostFragments};
