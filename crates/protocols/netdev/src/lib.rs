//! Opening network devices, in the process that may.
//!
//! **Purpose.** The supervisor opens packet sockets, taps and XDP sockets, sets everything on them that needs a privilege,
//! and passes the descriptors on to the driver process, which opens nothing.
//!
//! **Contract.** An [`OpenedDevice`](lasthop_device::OpenedDevice) needs no privilege to be used. A device that cannot be
//! opened is an [`OpenError`] with its remedy. A device is left as it was found when its descriptors are closed; the gate of an
//! uplink ([`Gate`]) goes with them.
//!
//! **Not checked.** Whether another process uses the device: the kernel says so where it matters.
//!
//! **Threading.** None. Calls ask the kernel and return; none waits for a network.
//!
//! ```text
//!   supervisor                                   driver process
//!   packet, tap, Uplink ──> OpenedDevice ──────> Driver::attach (lasthop-driver)
//!      └ netlink, lasthop-bpf: facts about the device, programs at it
//! ```

#![deny(unsafe_code)] // files called sys.rs alone may have some

mod bounds;
mod error;
mod features;
mod gate;
mod link;
pub mod links;
mod namespace;
mod netlink;
mod packet;
mod programs;
mod raw;
mod sys;
mod tap;
mod traffic_limits;
mod udp;
mod uplink;
mod xdp;

pub use error::OpenError;
pub use gate::Gate;
pub use link::{ethernet_device, mtu_bytes, set_address, set_mtu};
pub use namespace::tap_namespace_id;
pub use packet::{PacketOptions, packet};
pub use raw::tunnel;
pub use tap::{TapOptions, set_carrier, tap};
pub use traffic_limits::TrafficLimits;
pub use uplink::{Uplink, UplinkOptions};
pub use xdp::{XdpDevice, XdpError, lift_memory_lock};
