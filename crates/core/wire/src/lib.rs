//! Parsing of frames: headers, checksums, segmentation, flow keys, and offload metadata.
//!
//! **Purpose.** [`Offload`] is the virtio-net header. [`Layers`] finds the headers in the first bytes of a frame.
//! [`Sum`] computes Internet checksums over pieces in any split. [`Segmentation`] cuts a TSO or USO frame into segments
//! for a receiver that did not negotiate that; [`Coalesced`] joins TCP segments again. [`key::extract`] makes a flow table's [`Key`] from a packet's first
//! bytes. [`tunnel`] reads and writes the headers of Geneve, VXLAN, GRE and ERSPAN. [`too_big`] makes ICMP answers to packets
//! that are too long for their path. [`crc32c`] updates SCTP's checksum after a
//! change. [`dhcp`] reads the addresses that DHCP servers give. [`check_partial`] checks the bounds of a sender's checksum offload. [`flow_hash`] selects a receive queue.
//! [`mix`] is the arithmetic of keyed hashes, and of numbers that look random.
//!
//! **Contract.** All functions are pure: no allocation, no clock, no state. No function panics on any frame, image or
//! offload; [`Segmentation::write_header`] names the one condition on its caller's buffers. Loops over received bytes
//! are bounded: two VLAN tags, [`headers::EXTENSION_HEADERS_MAX`] extension headers, [`gso::SEGMENTS_MAX`] segments.
//!
//! **Not checked.** Checksums of received frames; Ethernet padding; the meaning of IP and TCP options, except source
//! routes, which change the pseudo header; the Home Address option of Mobile IPv6, which changes it, too. The IPv4
//! header's checksum is neither verified nor repaired, except in segments, where it is computed anew, and before they are joined.
//!
//! **Threading.** There is no shared state; all functions may be called from any thread.
//!
//! ```text
//!             l3_offset           l4_offset          header_len                                  IP's end
//!   Ethernet  | VLAN | IP, options | TCP, options    | payload 0 | payload 1 | ... | last payload | padding
//!   `---------------- head ------------------------'   gso_size    gso_size          the rest       dropped
//!   `---- written anew for each segment -----------'
//! ```
//!
//! # Examples
//!
//! ```
//! use lasthop_wire::{HeaderError, Layers};
//!
//! // IPv4 and UDP behind a VLAN tag.
//! let mut frame = [0; 46];
//! frame[12..18].copy_from_slice(&[0x81, 0, 0, 5, 8, 0]);
//! (frame[18], frame[21], frame[27]) = (0x45, 28, 17);
//! let layers = Layers::parse(&frame).unwrap();
//! assert_eq!((layers.l3_offset, layers.l4_offset, layers.l4_proto), (18, 38, 17));
//! assert_eq!(Layers::parse(&frame[..30]), Err(HeaderError::Truncated));
//! ```

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod checksum;
pub mod coalesce;
pub mod crc32c;
pub mod dhcp;
pub mod flow;
pub mod fragment;
pub mod gso;
pub mod hash;
pub mod headers;
pub mod key;
pub mod mix;
pub mod too_big;
pub mod tunnel;
pub mod vnet;

pub use checksum::{Sum, check_partial};
pub use coalesce::{Coalesced, TcpSegment};
pub use flow::flow_hash;
pub use fragment::{Fragment, FragmentFault, Fragmentation};
pub use gso::{GsoError, Segmentation};
pub use hash::PacketHash;
pub use headers::{HeaderError, Layers, Network};
pub use key::{Key, Metadata};
pub use tunnel::{OuterHeader, TunnelFault};
pub use vnet::Offload;
