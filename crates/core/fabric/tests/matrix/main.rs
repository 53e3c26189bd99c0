//! Every guest with every other: for all negotiated features, the receiver gets the sender's bytes, segmented and
//! summed as it needs, behind a virtio-net header that describes them.
//!
//! The reference is an independent implementation: etherparse writes packets, their segments and their checksums;
//! `header.rs` writes virtio-net headers; received frames are compared byte by byte. No code of `lasthop-wire` is used.
//!
//! ```text
//!   packet.rs   a packet in parts; its segments; its bytes, the checksum complete or partial
//!   model.rs    what a guest with given features sends, and what another one is to receive
//!   peer.rs     rings and buffers in any layout, on either side
//!   product.rs  all features with all others, for each of the packets in samples.rs
//!   random.rs   random packets, layouts, buffers
//!   room.rs     receivers that take large frames and have no room for them
//!   bad.rs      senders that lie
//! ```

#[path = "../support/mod.rs"]
mod support;

mod bad;
mod header;
mod model;
mod packet;
mod peer;
mod product;
mod random;
mod room;
mod samples;
