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
//!
//! # Examples
//!
//! ```
//! use lasthop_reassembly::{FragmentBounds, FragmentPlace, FragmentPool};
//!
//! /// A fragment of 64 bytes of a UDP datagram over IPv4, which begins at this multiple of 64 bytes.
//! fn fragment(number: u16, has_more: bool) -> Vec<u8> {
//!     let mut frame = vec![0; 14 + 20 + 64];
//!     frame[12..20].copy_from_slice(&[8, 0, 0x45, 0, 0, 84, 0, 1]);
//!     frame[20..22].copy_from_slice(&(u16::from(has_more) << 13 | number * 8).to_be_bytes());
//!     (frame[22], frame[23]) = (64, 17);
//!     frame
//! }
//!
//! let mut pool = FragmentPool::new(FragmentBounds::default());
//! let place = FragmentPlace { datapath: 1, zone: 0, source: 7 };
//! let mut lost = Vec::new();
//! assert!(pool.take(place, fragment(1, false), 0, &mut lost).is_none());
//! let whole = pool.take(place, fragment(0, true), 1, &mut lost);
//! assert!(whole.is_some() && lost.is_empty());
//! ```
#![forbid(unsafe_code)]

mod bounds;
mod datagram;
mod pool;

pub use bounds::{DATAGRAM_FRAGMENTS_MAX, FragmentBounds, FragmentShare};
pub use datagram::WholePacket;
pub use pool::{FragmentLoss, FragmentPlace, FragmentPool, LostFragments};
