//! Connection tracking and address translation, as Open vSwitch's action `ct` has them.
//!
//! **Purpose.** [`ConntrackTable::track`] is `ct(...)`. Its input is a packet's header image, the packet's state from
//! earlier actions ([`CtMetadata`]) and a request ([`CtRequest`]). Its output is the packet's new state and the changes
//! of its headers ([`CtVerdict`]). Connections have zones, marks, labels, helpers (FTP, TFTP) and timeout policies. TCP
//! windows are enforced as strictly as in Linux's nf_conntrack; states and numbers have the same names.
//!
//! **Contract.** Time is an argument, in milliseconds. There is no clock, socket, thread or `unsafe`. No packet makes
//! it panic. Only a commit creates a connection. A packet is changed once in each zone. Checksums are updated
//! incrementally, and a partial one stays partial, so a GSO frame of 64 KiB stays whole. Everything is bounded:
//! connections in all, for each zone and for each port ([`CtBounds`]), chains of the index, tries for a port, steps of
//! a sweep. When there is no room, half-open and closing connections of the port with most of them are evicted. Memory
//! is taken as the table fills, and is not given back. The index grows by one bucket at a time. A connection takes less
//! than 300 bytes, its part of the index included. Each reason to refuse a request has a name ([`CtRefusal`]) and a
//! counter.
//!
//! **Not checked.** [`ConntrackTable::track`] treats fragments as invalid: a caller reassembles them first
//! (`lasthop-reassembly`). Checksums are verified where the whole packet is in the image; otherwise the caller states the
//! result ([`ChecksumState`]). SCTP chunks behind the image are not seen, and its CRC is not verified. GRE has no ports
//! here. A line of FTP that does not begin its segment is not read. At most eight addresses of a range are tried for
//! one packet. The kernel changes some source ports against port shadowing; this crate does not.
//!
//! **Threading.** Workers share a [`ConntrackTable`]. Packets of known connections take no lock, even if different
//! workers handle the two directions. Commits, ends, helpers and ICMP errors take the lock of their zone's shard.
//! `docs/design/conntrack.md` has the rules and their limits.
//!
//! ```text
//!   image, layers ─> tuple ─> keyed hash ─> index ──> place: words ─ tcp, sctp, udp ─> state bits ──┐
//!                               (without a lock)     │  ^                                           │
//!                                     expectations ──┤  │ commit: nat ── crowd                      ├─> verdict
//!                                                    │  │         limits ── eviction                │
//!                        time ─> sweep ─> wheel ─────┘  └─ places, as the table fills               │
//!                                                    └──── helper, edit ── patches, splice ─────────┘
//! ```
//!
//! # Examples
//!
//! ```
//! use lasthop_conntrack::{
//!     ConntrackTable, CtBounds, CtCommit, CtMetadata, CtRequest, PacketImage,
//! };
//! use lasthop_flow::ct_state::{ESTABLISHED, NEW, REPLY, TRACKED};
//!
//! /// A datagram between two hosts of 10.0.0.0/24, whose addresses end in these numbers.
//! fn datagram(from: u8, to: u8) -> [u8; 42] {
//!     let mut frame = [0; 42];
//!     frame[12..18].copy_from_slice(&[8, 0, 0x45, 0, 0, 28]);
//!     (frame[22], frame[23]) = (64, 17);
//!     frame[26..34].copy_from_slice(&[10, 0, 0, from, 10, 0, 0, to]);
//!     frame[34..40].copy_from_slice(&[4, from, 4, to, 0, 8]);
//!     frame
//! }
//!
//! let table = ConntrackTable::new(CtBounds::default(), 0);
//! let state = |frame: [u8; 42], request: &CtRequest, now_ms| {
//!     let image = PacketImage::parse(&frame, 42, Default::default(), 1).unwrap();
//!     table.track(&image, &CtMetadata::default(), request, now_ms).metadata.state
//! };
//! let commit = CtRequest { commit: CtCommit::Yes, ..CtRequest::default() };
//! assert_eq!(state(datagram(1, 2), &commit, 0), TRACKED | NEW);
//! assert_eq!(state(datagram(2, 1), &CtRequest::default(), 1), TRACKED | ESTABLISHED | REPLY);
//! assert_eq!(table.len(), 1);
//! ```
#![forbid(unsafe_code)]

mod adjust;
mod adopt;
mod adoption;
mod begun;
mod bounds;
mod connection;
mod conntrack_table;
mod crowded_ranges;
mod dry_run;
mod established;
mod eviction;
mod expect;
mod first_packets;
mod hash;
mod index;
mod kept;
mod links;
mod memory;
mod nat;
mod place;
mod places;
mod policy;
mod progress;
mod real_table;
mod record;
mod request;
mod sctp;
mod shard;
mod table;
mod tcp;
mod touched;
mod tracker;
mod usual;
mod wheel;

pub use adoption::CtAdopted;
pub use bounds::{CT_BATCH_MAX, CtBounds, CtCounters, CtRefusal};
pub use connection::CtId;
pub use conntrack_table::ConntrackTable;
pub use dry_run::{CtDryRun, CtTrial};
pub use lasthop_ct_packet::{
    ChecksumState, CtHelper, CtPatch, CtRewrites, CtSplice, CtTuple, Direction, HELPER_IMAGE_BYTES, IpBytes,
    PacketImage,
};
pub use policy::{CtPolicy, POLICIES_MAX};
pub use record::{CtProtocol, CtRecord};
pub use request::{CtCommit, CtMetadata, CtRequest, CtVerdict};
pub use sctp::SctpState;
pub use tcp::{TCP_TIMEOUTS, TcpPolicy, TcpState, TcpTimeout};
pub use usual::{
    BEGINNING_STATE, NewTuples, USUAL_STATE, UnusualVerdict, UsualEnds, UsualPacket, UsualPacket4,
    UsualPacket6, UsualVerdict, UsualZone, WINDOW4_BYTES, WINDOW6_BYTES,
};
