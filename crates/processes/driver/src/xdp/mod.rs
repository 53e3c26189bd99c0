//! AF_XDP: frames pass between the kernel and memory that is the vNIC's, without a system call or a copy of ours.
//!
//! ```text
//!   device ──> [frame's place] ──published where it lies──> switch ──copies once──> guest
//!   device <── [frame's place] <──copied there once──────── switch
//! ```
//!
//! `sys` maps rings, `rings` is their arithmetic, `socket` binds, `frames` knows the owner of each frame,
//! `umem` is the exchange with the kernel, `queue` joins it to the vNIC.

mod entry;
mod frames;
mod partial;
mod queue;
mod rings;
mod socket;
mod sys;
mod umem;

pub use queue::XdpQueue;

/// Bytes of the virtio-net header in front of a frame (virtio 1.2, 5.1.6).
const HEADER: u32 = lasthop_wire::vnet::HEADER_BYTES as u32;
