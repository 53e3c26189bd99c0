//! Opening devices, in the process that may: descriptors with everything set on them, for a process that may nothing.

mod bpf;
mod error;
mod features;
mod gate;
mod host;
mod link;
mod namespace;
mod netlink;
mod packet;
mod tap;
mod uplink;
mod xdp;

pub use error::OpenError;
pub use gate::{Gate, host_tap};
pub use host::Host;
pub use link::{ethernet_device, mtu_bytes, set_address, set_mtu};
pub use namespace::tap_namespace_id;
pub use packet::{PacketOptions, packet};
pub use tap::{TapOptions, set_carrier, tap};
pub use uplink::{Uplink, UplinkOptions};
pub use xdp::{XdpDevice, XdpError, lift_memory_lock};
