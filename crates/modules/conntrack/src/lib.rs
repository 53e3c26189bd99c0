//! Connection tracking and address translation, as Open vSwitch's action `ct` has them.
//!
//! **Purpose.** [`Tracker::track`] is `ct(...)`. Its input is a packet's header image, the packet's state
//! from earlier actions ([`CtMetadata`]) and a request ([`CtRequest`]). Its output is the packet's new state
//! and the changes of its headers ([`CtVerdict`]). Connections have zones, marks, labels, helpers (FTP, TFTP)
//! and timeout policies. TCP is held against its windows as strictly as Linux's nf_conntrack does it; states
//! and numbers have its names. **The data path does not use this crate yet.**
//!
//! **Contract.** Time is an argument, in milliseconds. There is no clock, socket, thread or `unsafe`. No
//! packet makes it panic. Only a commit remembers anything. A packet is changed once in each zone. Checksums
//! follow by differences, and a partial one stays partial: a frame of 64 KiB stays one. Everything is
//! bounded: connections in all, for each zone and for each port ([`CtBounds`]), chains of the index, tries
//! for a port, steps of a sweep. When there is no room, half-open and closing connections go first, of the
//! port that has most of them. Memory is allocated as the table fills, a slab or a piece of the index at a
//! time. Nothing is rehashed at once, and allocated memory is kept. A connection takes less than 300 bytes,
//! its part of the index included. Each reason to refuse a request has a name ([`CtRefusal`]) and a counter.
//!
//! **Not checked.** Fragments are invalid here: a caller that wants them tracked has to reassemble them
//! first. Checksums are verified where the whole packet is in the image, else the caller has to say
//! ([`ChecksumState`]). SCTP chunks behind the image are not seen, and its CRC is not verified. GRE has no
//! ports here. A line of FTP that does not begin its segment is not read. Of a range of addresses eight are
//! tried for one packet. A source port far below a high destination port is kept, which the kernel changes
//! against port shadowing.
//!
//! **Threading.** A [`Tracker`] belongs to one thread at a time. The state of a connection stays within its
//! zone: tuples, the ports of its translation, limits and expectations have the zone in them. So zones can be
//! spread over several trackers. That is not enough for one busy zone on several workers. The remedy is
//! prepared and not built: protocol states are small values that functions without side effects advance,
//! slabs never move, references are 32-bit numbers, and names have generations. So look-ups need no lock over
//! words that are loaded one by one, as in the flow table. A connection then needs a bit that says that one
//! worker advances it; a worker that finds it set may let the packet pass unchecked. Only commits and ends
//! need the lock of a zone's writer.
//!
//! ```text
//!   image, layers ─> tuple ─> keyed hash ─> index ──> connection ─ tcp, sctp, udp ─> state bits ─┐
//!                                  (linear hashing)      │  ^                                      │
//!                                       expectations ────┤  │ commit: nat ── crowd                 ├─> verdict
//!                                                        │  │         limits ── accounts           │
//!                          time ─> sweep ─> wheel ───────┘  └─ slabs, as the table fills           │
//!                                                        └──── helper, edit ── patches, splice ────┘
//! ```
#![forbid(unsafe_code)]

mod accounts;
mod adjust;
mod connection;
mod crowd;
mod edit;
mod expect;
mod hash;
mod helper;
mod index;
mod nat;
mod packet;
mod policy;
mod progress;
mod related;
mod request;
mod sctp;
mod slabs;
mod table;
mod tcp;
mod tracker;
mod tuple;
mod wheel;

pub use connection::CtId;
pub use edit::{CtPatch, CtRewrites, CtSplice};
pub use helper::{CtHelper, HELPER_IMAGE_BYTES};
pub use packet::{ChecksumState, PacketImage};
pub use policy::CtPolicy;
pub use request::{CtCommit, CtMetadata, CtRequest, CtVerdict};
pub use sctp::SctpState;
pub use table::{CtBounds, CtCounters, CtRefusal};
pub use tcp::{TCP_TIMEOUTS, TcpPolicy, TcpState, TcpTimeout};
pub use tracker::{CtProtocol, CtRecord, POLICIES_MAX, Tracker};
pub use tuple::{CtTuple, Direction, IpBytes};
