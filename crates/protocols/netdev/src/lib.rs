//! Opens network devices, in the privileged process.
//!
//! **Purpose.** The supervisor opens packet sockets, taps and XDP sockets, makes all settings that need a privilege,
//! and passes the descriptors on to the driver process, which opens nothing.
//!
//! **Contract.** An [`OpenedDevice`](lasthop_device::OpenedDevice) needs no privilege to be used. A device that cannot
//! be opened is an [`OpenError`] with its remedy. Closing its descriptors restores the device; the gate of an uplink
//! ([`Gate`]) must be dropped, too.
//!
//! **Not checked.** Whether another process uses the device: the kernel reports that where it matters.
//!
//! **Threading.** None. Calls ask the kernel and return; none waits for the network.
//!
//! ```text
//!   supervisor                                   driver process
//!   packet, tap, Uplink ──> OpenedDevice ──────> Driver::attach (lasthop-driver)
//!      └ netlink, lasthop-bpf: facts about the device, programs at it
//! ```
//!
//! # Examples
//!
//! ```no_run
//! use lasthop_netdev::{PacketOptions, packet};
//!
//! // As root: a packet socket for each queue, for a driver process.
//! let opened = packet("eth1", PacketOptions::default())?;
//! println!("{:?}", opened.facts);
//! # Ok::<(), lasthop_netdev::OpenError>(())
//! ```

#![deny(unsafe_code)] // files called sys.rs alone may have some

mod error;
mod features;
mod gate;
mod link;
pub mod links;
mod netlink;
mod packet;
mod programs;
mod raw;
mod sys;
mod tap;
mod udp;
mod uplink;
mod xdp;
mod xdp_error;
mod xdp_memory;

pub use error::OpenError;
pub use gate::Gate;
pub use link::{ethernet_device, mtu_bytes, set_address, set_mtu};
pub use netlink::tap_namespace_id;
pub use packet::{PacketOptions, packet};
pub use raw::tunnel;
pub use tap::{TapOptions, TrafficLimits, set_carrier, tap};
pub use udp::{Coalescing, PortClaim, coalesces, release_udp_port};
pub use uplink::{Uplink, UplinkOptions};
pub use xdp::XdpDevice;
pub use xdp_error::XdpError;
