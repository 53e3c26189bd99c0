use rustix::io::Errno;
use rustix::net::netlink;

use super::message::{Netlink, find, put, u16_at, u32_at, u64_at};

/// Bytes of `struct genlmsghdr`.
const HEADER_BYTES: usize = 4;
/// The family that knows the others, and what it is asked (linux/genetlink.h).
mod controller {
    pub(super) const FAMILY: u16 = 16;
    pub(super) const GET_FAMILY: u8 = 3;
    pub(super) const ATTRIBUTE_ID: u16 = 1;
    pub(super) const ATTRIBUTE_NAME: u16 = 2;
}
/// The family "netdev" (linux/netdev.h).
mod netdev {
    pub(super) const GET_DEVICE: u8 = 1;
    pub(super) const ATTRIBUTE_INDEX: u16 = 1;
    pub(super) const ATTRIBUTE_XDP_FEATURES: u16 = 3;
    pub(super) const XSK_ZEROCOPY: u64 = 8;
}
/// The family "ethtool" (linux/ethtool_netlink.h).
mod ethtool {
    pub(super) const GET_CHANNELS: u8 = 17;
    pub(super) const ATTRIBUTE_HEADER: u16 = 1;
    /// In `ATTRIBUTE_HEADER`.
    pub(super) const HEADER_INDEX: u16 = 1;
    pub(super) const ATTRIBUTE_RX_COUNT: u16 = 6;
    pub(super) const ATTRIBUTE_COMBINED_COUNT: u16 = 9;
}

/// A generic netlink family.
struct Family {
    netlink: Netlink,
    id: u16,
}

impl Family {
    fn find(name: &str) -> Result<Self, Errno> {
        let netlink = Netlink::open(Some(netlink::GENERIC))?;
        let mut body = vec![controller::GET_FAMILY, 1, 0, 0];
        put(&mut body, controller::ATTRIBUTE_NAME, format!("{name}\0").as_bytes());
        let answer = netlink.ask(controller::FAMILY, &body)?;
        let id = answer.get(HEADER_BYTES..).and_then(|found| find(found, controller::ATTRIBUTE_ID));
        let id = id.and_then(|id| u16_at(id, 0)).ok_or(Errno::PROTO)?;
        Ok(Self { netlink, id })
    }

    /// The attributes of the answer.
    fn ask(&self, command: u8, attributes: &[u8]) -> Result<Vec<u8>, Errno> {
        let body = [&[command, 1, 0, 0], attributes].concat();
        let answer = self.netlink.ask(self.id, &body)?;
        Ok(answer.get(HEADER_BYTES..).unwrap_or_default().to_vec())
    }
}

/// Whether the driver of interface `index` says that XDP sockets need no copy with it. Kernels before 6.3 do not say: false.
pub(crate) fn has_zero_copy(index: u32) -> bool {
    let ask = || -> Result<bool, Errno> {
        let mut attributes = Vec::new();
        put(&mut attributes, netdev::ATTRIBUTE_INDEX, &index.to_ne_bytes());
        let answer = Family::find("netdev")?.ask(netdev::GET_DEVICE, &attributes)?;
        let features = find(&answer, netdev::ATTRIBUTE_XDP_FEATURES).and_then(|value| u64_at(value, 0));
        Ok(features.unwrap_or(0) & netdev::XSK_ZEROCOPY != 0)
    };
    ask().unwrap_or(false)
}

/// Receive queues of interface `index` that are in use; 1 for a driver that does not say.
pub(crate) fn channels(index: u32) -> u32 {
    let ask = || -> Result<u32, Errno> {
        let (mut header, mut attributes) = (Vec::new(), Vec::new());
        put(&mut header, ethtool::HEADER_INDEX, &index.to_ne_bytes());
        put(&mut attributes, ethtool::ATTRIBUTE_HEADER | 0x8000, &header);
        let answer = Family::find("ethtool")?.ask(ethtool::GET_CHANNELS, &attributes)?;
        let count = |kind| find(&answer, kind).and_then(|value| u32_at(value, 0)).unwrap_or(0);
        Ok(count(ethtool::ATTRIBUTE_RX_COUNT) + count(ethtool::ATTRIBUTE_COMBINED_COUNT))
    };
    ask().unwrap_or(0).max(1)
}
