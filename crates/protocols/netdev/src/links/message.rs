//! Messages of rtnetlink(7) without a socket: the kernel's events of devices, and requests to it.

use std::net::IpAddr;

use crate::netlink::message::{aligned, find, put};

/// Length, kind, flags, number, port (linux/netlink.h, `struct nlmsghdr`).
const HEAD_BYTES: usize = 16;
/// Family, type, index, flags, mask of flags (linux/rtnetlink.h, `struct ifinfomsg`).
const LINK_BYTES: usize = 16;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWQDISC: u16 = 36;
const RTM_DELQDISC: u16 = 37;

const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_CREATE: u16 = 0x400;

const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_SLAVE_KIND: u16 = 4;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

/// Family, index, handle, parent, info (linux/rtnetlink.h, `struct tcmsg`).
const QUEUE_BYTES: usize = 20;
const TCA_KIND: u16 = 1;

/// The administrative state is up (linux/if.h).
const IFF_UP: u32 = 1;
/// The driver has a carrier.
const IFF_LOWER_UP: u32 = 1 << 16;

const AF_UNSPEC: u8 = 0;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// A network device of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkDevice {
    /// The kernel's number for it, which stays if its name changes.
    pub index: u32,
    /// Its name in this namespace.
    pub name: String,
    /// Whether the operator set it up.
    pub is_up: bool,
    /// Whether it is up and has a carrier.
    pub has_link: bool,
    /// Its MTU in bytes.
    pub mtu_bytes: u32,
    /// Whether it is a port of a Linux bridge.
    pub is_of_bridge: bool,
}

/// A limit on a device's traffic (tc(8)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficLimit {
    /// On frames that it receives.
    Policing,
    /// On frames that it sends.
    Qos,
}

impl TrafficLimit {
    /// The limit of a queueing discipline; `None` if that only orders its packets.
    fn of_kind(kind: &[u8]) -> Option<Self> {
        match kind {
            b"ingress" => Some(Self::Policing),
            b"htb" | b"hfsc" => Some(Self::Qos),
            _ => None,
        }
    }
}

/// A limit that was set on a device, or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limited {
    /// The device's index.
    pub index: u32,
    /// The kind of limit.
    pub limit: TrafficLimit,
    /// Whether it was set; otherwise it was removed.
    pub is_set: bool,
}

/// An event or answer of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LinkMessage {
    /// The present state of a device.
    Device(LinkDevice),
    /// The device with this index is gone, or in another network namespace.
    Gone(u32),
    /// A limit was set on a device, or removed.
    Limited(Limited),
    /// The request with this number is done, or was refused with this error number.
    Done { number: u32, errno: Option<i32> },
    /// The list of all devices is complete.
    AllTold,
}

/// Reads the events in `bytes`; skips messages about other things than devices.
pub(super) fn read(mut bytes: &[u8]) -> impl Iterator<Item = LinkMessage> {
    let mut messages = std::iter::from_fn(move || {
        let head = bytes.first_chunk::<HEAD_BYTES>()?;
        let [a, b, c, d, e, f, _, _, i, j, k, l, ..] = *head;
        let len = u32::from_ne_bytes([a, b, c, d]) as usize;
        let payload = bytes.get(HEAD_BYTES..len)?;
        bytes = bytes.get(aligned(len)..).unwrap_or_default();
        Some((u16::from_ne_bytes([e, f]), u32::from_ne_bytes([i, j, k, l]), payload))
    });
    std::iter::from_fn(move || {
        messages.by_ref().find_map(|(kind, number, payload)| news(kind, number, payload))
    })
}

fn news(kind: u16, number: u32, payload: &[u8]) -> Option<LinkMessage> {
    match kind {
        // A bridge also reports its ports, under its own family: one that left it is not gone.
        RTM_NEWLINK | RTM_DELLINK if payload.first() != Some(&AF_UNSPEC) => None,
        RTM_NEWLINK => device(payload).map(LinkMessage::Device),
        RTM_DELLINK => Some(LinkMessage::Gone(word(payload, 4)?)),
        RTM_NEWQDISC => limited(payload, true).map(LinkMessage::Limited),
        RTM_DELQDISC => limited(payload, false).map(LinkMessage::Limited),
        NLMSG_DONE => Some(LinkMessage::AllTold),
        NLMSG_ERROR => {
            let errno = -(word(payload, 0)? as i32);
            Some(LinkMessage::Done { number, errno: (errno != 0).then_some(errno) })
        }
        _ => None,
    }
}

fn device(payload: &[u8]) -> Option<LinkDevice> {
    let (index, flags) = (word(payload, 4)?, word(payload, 8)?);
    let attributes = payload.get(LINK_BYTES..)?;
    let name = find(attributes, IFLA_IFNAME)?.split(|byte| *byte == 0).next()?;
    Some(LinkDevice {
        index,
        name: String::from_utf8_lossy(name).into_owned(),
        is_up: flags & IFF_UP != 0,
        has_link: flags & IFF_UP != 0 && flags & IFF_LOWER_UP != 0,
        mtu_bytes: find(attributes, IFLA_MTU).and_then(|value| word(value, 0)).unwrap_or(0),
        is_of_bridge: is_of_bridge(attributes),
    })
}

fn is_of_bridge(attributes: &[u8]) -> bool {
    let kind = find(attributes, IFLA_LINKINFO).and_then(|info| find(info, IFLA_INFO_SLAVE_KIND));
    kind.is_some_and(|kind| kind.strip_suffix(b"\0").unwrap_or(kind) == b"bridge")
}

fn limited(payload: &[u8], is_set: bool) -> Option<Limited> {
    let kind = find(payload.get(QUEUE_BYTES..)?, TCA_KIND)?.split(|byte| *byte == 0).next()?;
    Some(Limited { index: word(payload, 4)?, limit: TrafficLimit::of_kind(kind)?, is_set })
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_ne_bytes(*word))
}

/// The request for all devices.
pub(super) fn dump(number: u32) -> Vec<u8> {
    finish(RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP, number, &link(0, 0))
}

/// The request to remove a virtual device.
pub(super) fn remove(number: u32, index: u32) -> Vec<u8> {
    finish(RTM_DELLINK, NLM_F_REQUEST, number, &link(index, 0))
}

/// The request to add an address to a device, which may have it already.
pub(super) fn add_address(number: u32, index: u32, address: IpAddr, len_bits: u8) -> Vec<u8> {
    let (family, bytes) = match address {
        IpAddr::V4(address) => (AF_INET, address.octets().to_vec()),
        IpAddr::V6(address) => (AF_INET6, address.octets().to_vec()),
    };
    // Family, prefix length, flags, scope, index (linux/if_addr.h, `struct ifaddrmsg`).
    let mut payload = vec![family, len_bits, 0, 0];
    payload.extend_from_slice(&index.to_ne_bytes());
    put(&mut payload, IFA_LOCAL, &bytes);
    put(&mut payload, IFA_ADDRESS, &bytes);
    finish(RTM_NEWADDR, NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE, number, &payload)
}

/// The fixed part of a message with flags to set.
fn link(index: u32, flags: u32) -> Vec<u8> {
    [0, index, flags, flags].iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn finish(kind: u16, flags: u16, number: u32, payload: &[u8]) -> Vec<u8> {
    let len = (HEAD_BYTES + payload.len()) as u32;
    let mut message = len.to_ne_bytes().to_vec();
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(&flags.to_ne_bytes());
    message.extend_from_slice(&number.to_ne_bytes());
    message.extend_from_slice(&[0; 4]); // to the kernel
    message.extend_from_slice(payload);
    message
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn told(kind: u16, index: u32, flags: u32, name: &str) -> Vec<u8> {
        let mut payload = link(index, flags);
        put(&mut payload, IFLA_IFNAME, format!("{name}\0").as_bytes());
        put(&mut payload, IFLA_MTU, &9000_u32.to_ne_bytes());
        finish(kind, 0, 7, &payload)
    }

    /// As a bridge tells of its port.
    fn of_bridge(mut message: Vec<u8>) -> Vec<u8> {
        message[HEAD_BYTES] = 7; // AF_BRIDGE
        message
    }

    #[test]
    fn devices_are_told_with_their_link_and_mtu() {
        let bytes = [
            told(RTM_NEWLINK, 3, IFF_UP | IFF_LOWER_UP, "eth1"),
            told(RTM_NEWLINK, 4, IFF_LOWER_UP, "eth2"),
            finish(99, 0, 0, &[1, 2, 3]),
            of_bridge(told(RTM_NEWLINK, 3, IFF_UP, "eth1")),
            of_bridge(told(RTM_DELLINK, 4, IFF_UP, "eth2")),
            told(RTM_DELLINK, 3, 0, "eth1"),
            finish(NLMSG_ERROR, 0, 8, &(-19_i32).to_ne_bytes()),
            finish(NLMSG_ERROR, 0, 9, &[0; 4]),
            finish(NLMSG_DONE, 0, 10, &[0; 4]),
        ];
        let device = |index, name: &str, is_up| {
            let name = name.to_owned();
            LinkMessage::Device(LinkDevice {
                index,
                name,
                is_up,
                has_link: is_up,
                mtu_bytes: 9000,
                is_of_bridge: false,
            })
        };
        // The kernel pads to even lengths.
        let bytes: Vec<u8> = bytes
            .into_iter()
            .flat_map(|mut message| {
                message.resize(aligned(message.len()), 0);
                message
            })
            .collect();
        let expected = [
            device(3, "eth1", true),
            device(4, "eth2", false),
            LinkMessage::Gone(3),
            LinkMessage::Done { number: 8, errno: Some(19) },
            LinkMessage::Done { number: 9, errno: None },
            LinkMessage::AllTold,
        ];
        assert_eq!(read(&bytes).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn limits_are_told_and_other_disciplines_are_not() {
        let told = |kind: u16, index: u32, discipline: &str| {
            let mut payload = [0, index, 0, 0, 0].map(u32::to_ne_bytes).concat();
            put(&mut payload, TCA_KIND, format!("{discipline}\0").as_bytes());
            finish(kind, 0, 0, &payload)
        };
        let bytes = [
            told(RTM_NEWQDISC, 3, "ingress"),
            told(RTM_NEWQDISC, 4, "fq_codel"),
            told(RTM_NEWQDISC, 4, "clsact"),
            told(RTM_NEWQDISC, 4, "htb"),
            told(RTM_DELQDISC, 3, "ingress"),
            finish(RTM_NEWQDISC, 0, 0, &[0; 8]),
        ]
        .concat();
        let limited = |index, limit, is_set| LinkMessage::Limited(Limited { index, limit, is_set });
        let expected = [
            limited(3, TrafficLimit::Policing, true),
            limited(4, TrafficLimit::Qos, true),
            limited(3, TrafficLimit::Policing, false),
        ];
        assert_eq!(read(&bytes).collect::<Vec<_>>(), expected);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_skipped(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(read(&bytes).count() <= bytes.len());
        }
    }
}
