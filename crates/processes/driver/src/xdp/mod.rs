//! AF_XDP: frames pass between the kernel and the vNIC's memory, without a system call or a copy here.
//!
//! ```text
//!   device ──> [frame's slot] ──published in place──> switch ──copies once──> guest
//!   device <── [frame's slot] <──copied there once─── switch
//! ```
//!
//! `sys` maps rings, `rings` has their index arithmetic, `socket` binds, `frames` knows the holder of each frame,
//! `umem` exchanges frames with the kernel, and `queue` connects that with the vNIC.

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
