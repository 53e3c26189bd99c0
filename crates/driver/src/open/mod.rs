//! What runs where the privileges are: devices are opened, and everything is set on their descriptors.

mod bpf;
mod host;
mod netlink;
mod xdp;

pub use host::Host;
pub use xdp::{XdpDevice, XdpError};
