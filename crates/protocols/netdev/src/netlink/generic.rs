//! Generic netlink: families, XDP features, and ethtool's features and channels.

use rustix::io::Errno;
use rustix::net::netlink;

use super::message::{NESTED, Netlink, attributes, find, put, text, u16_at, u32_at, u64_at};

/// Bytes of `struct genlmsghdr`.
const HEADER_BYTES: usize = 4;
/// The family that lists the others, and its requests (linux/genetlink.h).
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
    pub(super) const GET_FEATURES: u8 = 11;
    pub(super) const GET_CHANNELS: u8 = 17;
    /// The attribute with the active features, and those inside it.
    pub(super) const ATTRIBUTE_ACTIVE: u16 = 4;
    pub(super) const SET_BITS: u16 = 3;
    pub(super) const BIT_NAME: u16 = 2;
    /// The kernel's name for ethtool's `rxvlan`.
    pub(super) const TAKES_TAGS_OUT: &str = "rx-vlan-hw-parse";
    pub(super) const ATTRIBUTE_HEADER: u16 = 1;
    /// Attributes inside `ATTRIBUTE_HEADER`.
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

/// Whether the driver of interface `index` reports zero copy for XDP sockets. Kernels before 6.3 do not: false.
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

/// The attributes that name the interface for the family "ethtool".
fn about(index: u32) -> Vec<u8> {
    let (mut header, mut attributes) = (Vec::new(), Vec::new());
    put(&mut header, ethtool::HEADER_INDEX, &index.to_ne_bytes());
    put(&mut attributes, ethtool::ATTRIBUTE_HEADER | NESTED, &header);
    attributes
}

/// Whether interface `index` removes VLAN tags from received frames and reports them separately; false for a driver
/// that does not tell.
pub(crate) fn takes_tags_out(index: u32) -> bool {
    let ask = || Family::find("ethtool")?.ask(ethtool::GET_FEATURES, &about(index));
    let answer = ask().unwrap_or_default();
    let active = find(&answer, ethtool::ATTRIBUTE_ACTIVE).and_then(|set| find(set, ethtool::SET_BITS));
    let name = |bit: &[u8]| find(bit, ethtool::BIT_NAME).map(text);
    let mut bits = attributes(active.unwrap_or_default());
    bits.any(|(_, bit)| name(bit).as_deref() == Some(ethtool::TAKES_TAGS_OUT))
}

/// Number of active receive queues of interface `index`; 1 for a driver that does not tell.
pub(crate) fn channels(index: u32) -> u32 {
    let ask = || -> Result<u32, Errno> {
        let answer = Family::find("ethtool")?.ask(ethtool::GET_CHANNELS, &about(index))?;
        let count = |kind| find(&answer, kind).and_then(|value| u32_at(value, 0)).unwrap_or(0);
        Ok(count(ethtool::ATTRIBUTE_RX_COUNT) + count(ethtool::ATTRIBUTE_COMBINED_COUNT))
    };
    ask().unwrap_or(0).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The loopback interface exists everywhere, and has none of these.
    const LOOPBACK: u32 = 1;

    #[test]
    fn the_loopback_interface_has_neither_zero_copy_nor_several_queues() {
        assert!(!has_zero_copy(LOOPBACK));
        assert!(!takes_tags_out(LOOPBACK));
        assert_eq!(channels(LOOPBACK), 1);
        assert!(!takes_tags_out(u32::MAX) && !has_zero_copy(u32::MAX));
    }

    /// Compared with ethtool, for all interfaces of this machine.
    #[test]
    fn tags_are_taken_out_where_ethtool_says_so() {
        for entry in std::fs::read_dir("/sys/class/net").unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            let Ok(told) = std::process::Command::new("ethtool").args(["-k", &name]).output() else { return };
            let told = String::from_utf8(told.stdout).unwrap();
            let Ok(found) = super::super::interface(&name) else { continue };
            let is_on = told.lines().any(|line| line.starts_with("rx-vlan-offload: on"));
            assert_eq!(takes_tags_out(found.index), is_on, "{name}");
        }
    }
}
