//! Every guest with every other: whatever a sender and a receiver negotiated, the receiver gets the sender's bytes, cut and
//! summed as far as it wants them to be, behind a virtio-net header that says so.
//!
//! The judge is an independent implementation: packets, their segments and their checksums are written by etherparse, the
//! virtio-net headers by `header.rs`, and what arrives is compared byte by byte. Nothing of `lasthop-wire` is used.
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
