//! Parsing of frames: headers, checksums, segmentation, flow keys, and offload metadata.
//!
//! **Purpose.** [`Offload`] is the virtio-net header. [`Layers`] finds the headers in the first bytes of a frame, [`Sum`]
//! computes Internet checksums over pieces in any split, [`Segmentation`] cuts a TSO or USO frame into segments towards a
//! receiver that did not negotiate that, [`key::extract`] makes
//! a flow table's [`Key`] of a packet's first bytes, [`tunnel`] reads and writes the headers of Geneve and VXLAN, [`crc32c`] follows changes under SCTP's checksum, [`check_partial`] bounds a sender's checksum offload, and [`flow_hash`] picks a
//! receive queue.
//!
//! **Contract.** Everything is a pure function of its arguments: no allocation, no clock, no state. No function panics
//! on any frame, image or offload; [`Segmentation::write_header`] names the one condition on its caller's buffers.
//! Loops over wire bytes are bounded: two VLAN tags, [`headers::EXTENSION_HEADERS_MAX`] extension headers,
//! [`gso::SEGMENTS_MAX`] segments.
//!
//! **Not checked.** Checksums that a frame arrives with, Ethernet padding, the meaning of IP and TCP options (but for
//! source routes, which change the pseudo header), the Home Address option of Mobile IPv6 (which does too). The IPv4
//! header's own checksum is neither verified nor repaired, except in segments, where it is computed anew.
//!
//! **Threading.** Nothing is shared; everything may be used from any thread.
//!
//! ```text
//!             l3_offset           l4_offset          header_len                                  IP's end
//!   Ethernet  | VLAN | IP, options | TCP, options    | payload 0 | payload 1 | ... | last payload | padding
//!   `---------------- head ------------------------'   gso_size    gso_size          the rest       dropped
//!   `---- written anew for each segment -----------'
//! ```

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod checksum;
pub mod crc32c;
pub mod flow;
pub mod fragment;
pub mod gso;
pub mod hash;
pub mod headers;
pub mod key;
pub mod tunnel;
pub mod vnet;

pub use checksum::{Sum, check_partial};
pub use flow::flow_hash;
pub use fragment::{Fragment, FragmentFault, Fragmentation};
pub use gso::{GsoError, Segmentation};
pub use hash::PacketHash;
pub use headers::{HeaderError, Layers, Network};
pub use key::{Key, Metadata};
pub use tunnel::{OuterHeader, TunnelFault};
pub use vnet::Offload;
