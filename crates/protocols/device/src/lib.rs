//! Network devices, as the processes tell each other of them.
//!
//! **Purpose.** Plain values that the opener (`lasthop-netdev`), the driver (`lasthop-driver`) and the reports share: facts
//! about an opened device, its counters, the host's part of it.
//!
//! **Contract.** Values are JSON between the processes: a renamed field changes the version of the kept state. Every frame that
//! a driver takes is counted at its end ([`DriverCounters::is_conserved`]).
//!
//! **Not checked.** Whether facts are true: only the supervisor makes them.
//!
//! **Threading.** None: plain values.
//!
//! ```text
//!   netdev (supervisor) ── DeviceFacts, descriptors ──> driver process ── DriverCounters ──> reports
//!                                                          └ a dropped frame: DeviceDropReason
//! ```
//!
//! # Examples
//!
//! ```
//! use lasthop_device::{DeviceDropReason, DriverCounters};
//!
//! let mut counters = DriverCounters::default();
//! counters.from_device.count(60);
//! counters.from_device.count(1514);
//! counters.to_switch.count(60);
//! assert!(!counters.is_conserved());
//! counters.drop(DeviceDropReason::Truncated);
//! assert!(counters.is_conserved());
//! ```
#![forbid(unsafe_code)]

mod counters;
mod facts;
mod xdp_memory;

pub use counters::{DeviceDropReason, DriverCounters, FrameCount};
pub use facts::{
    Backend, DeviceFacts, Host, OpenedDevice, PacketRing, TunnelFacts, TunnelKind, TunnelSocket, XdpFacts,
    host_tap,
};
pub use xdp_memory::{
    XDP_FRAMES, XDP_HEADROOM_BYTES, XDP_LINK_BYTES, XDP_MTU_BYTES_MAX, xdp_queue_bytes, xdp_slot_bytes,
};
