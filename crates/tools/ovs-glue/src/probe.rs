//! Changes requests about tunnel devices and offloaded flows, which go to the kernel.
//!
//! OVS asks the kernel for a device for each kind of tunnel and makes it a port of the datapath, which the switch would
//! not see. If such a device is impossible, OVS asks the datapath for a tunnel port. So these requests are sent with a
//! type that rtnetlink does not have, and the kernel answers EOPNOTSUPP. The same answer to the first of them, of kind
//! "ovs_geneve", tells OVS that this is not the kernel module of Open vSwitch's own tree, about which OVS 3.7 warns.
//!
//! With `other_config:hw-offload=true` OVS gives a flow to the traffic control of the port's device before it gives it to
//! the datapath. The kernel would take it, but the packets do not pass that device. Refused in the same way, the flow
//! comes to the datapath.

/// linux/rtnetlink.h.
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_NEWTFILTER: u16 = 44;
/// Larger than all existing types (`RTM_MAX`).
const NO_TYPE: u16 = 0x7fff;
/// linux/if_link.h.
const IFLA_IFNAME: u16 = 3;
/// linux/rtnetlink.h: the kind of a filter.
const TCA_KIND: u16 = 1;
/// The position of a message's type.
const TYPE: std::ops::Range<usize> = 4..6;
/// The message's header, and `struct ifinfomsg`.
const LINK_ATTRS_AT: usize = 16 + 16;
/// The message's header, and `struct tcmsg`.
const FILTER_ATTRS_AT: usize = 16 + 20;
/// The names of OVS's tunnel devices (lib/netdev-vport.c), some followed by a port number.
const NAMES: [&[u8]; 9] = [
    b"genev_sys",
    b"vxlan_sys",
    b"gre_sys",
    b"erspan_sys",
    b"ip6erspan_sys",
    b"ip6gre_sys",
    b"gtpu_sys",
    b"udp_sys",
    b"srv6_sys",
];

/// The changed request, if it is one of those.
pub(crate) fn changed(request: &[u8]) -> Option<Vec<u8>> {
    let is_refused = match word(request.get(TYPE)?) {
        RTM_NEWLINK | RTM_DELLINK => text(request, LINK_ATTRS_AT, IFLA_IFNAME).is_some_and(is_of_tunnel),
        // Policing uses filters of other kinds.
        RTM_NEWTFILTER => text(request, FILTER_ATTRS_AT, TCA_KIND) == Some(b"flower"),
        _ => false,
    };
    let mut changed = is_refused.then(|| request.to_vec())?;
    changed.get_mut(TYPE)?.copy_from_slice(&NO_TYPE.to_ne_bytes());
    Some(changed)
}

fn word(bytes: &[u8]) -> u16 {
    bytes.first_chunk().map_or(0, |word| u16::from_ne_bytes(*word))
}

/// The text of the first attribute of this kind, of those that begin at a position.
fn text(request: &[u8], attrs_at: usize, wanted: u16) -> Option<&[u8]> {
    let mut attrs = request.get(attrs_at..)?;
    while attrs.len() >= 4 {
        let (len, kind) = (usize::from(word(attrs)), word(&attrs[2..]));
        let value = attrs.get(4..len)?;
        if kind == wanted {
            return value.split(|byte| *byte == 0).next();
        }
        attrs = attrs.get(len.next_multiple_of(4)..)?;
    }
    None
}

fn is_of_tunnel(name: &[u8]) -> bool {
    let has_port = |rest: &[u8]| rest.is_empty() || rest.first() == Some(&b'_');
    NAMES.iter().any(|known| name.strip_prefix(*known).is_some_and(has_port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(kind: u16, name: &[u8]) -> Vec<u8> {
        request_with(kind, LINK_ATTRS_AT, IFLA_IFNAME, name)
    }

    /// A request in which another attribute comes before the text.
    fn request_with(kind: u16, attrs_at: usize, attr: u16, text: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; attrs_at];
        bytes[TYPE].copy_from_slice(&kind.to_ne_bytes());
        bytes.extend([8, 0, 13, 0, 1, 2, 3, 4]);
        bytes.extend(((text.len() + 5) as u16).to_ne_bytes());
        bytes.extend(attr.to_ne_bytes());
        bytes.extend([text, &[0]].concat());
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn only_what_is_about_tunnel_devices_is_changed() {
        for kind in [RTM_NEWLINK, RTM_DELLINK] {
            for name in [&b"genev_sys_6081"[..], b"vxlan_sys_4789", b"gre_sys", b"ip6gre_sys"] {
                assert_eq!(changed(&request(kind, name)).expect("a tunnel"), request(NO_TYPE, name));
            }
        }
        for (kind, name) in
            [(RTM_NEWLINK, &b"eth0"[..]), (RTM_NEWLINK, b"gre_system"), (18, b"gre_sys"), (19, b"gre_sys")]
        {
            assert_eq!(changed(&request(kind, name)), None, "{kind}");
        }
        let whole = request(RTM_NEWLINK, b"gre_sys");
        (0..whole.len() - 1).for_each(|len| drop(changed(&whole[..len])));
        let endless = [&whole[..LINK_ATTRS_AT], &[0; 8]].concat();
        assert_eq!(changed(&endless), None, "an attribute shorter than its header");
    }

    #[test]
    fn flows_are_not_given_to_traffic_control_and_policing_is() {
        let filter = |kind, text: &[u8]| request_with(kind, FILTER_ATTRS_AT, TCA_KIND, text);
        let flower = changed(&filter(RTM_NEWTFILTER, b"flower")).expect("a flow");
        assert_eq!(flower, filter(NO_TYPE, b"flower"));
        for kind in [&b"matchall"[..], b"basic", b"flow", b"flowers"] {
            assert_eq!(changed(&filter(RTM_NEWTFILTER, kind)), None, "{kind:?}");
        }
        assert_eq!(changed(&filter(45, b"flower")), None, "one that is removed");
    }

    /// The probe as Open vSwitch 3.7.1 sends it.
    #[rustfmt::skip]
    const PROBE: [u8; 104] = [
        0x68, 0x00, 0x00, 0x00, 0x10, 0x00, 0x05, 0x04, 0x02, 0x00, 0x00, 0x00, 0xca, 0x79, 0x65, 0xdb, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x13, 0x00, 0x03, 0x00, 0x67, 0x65, 0x6e, 0x65,
        0x76, 0x5f, 0x73, 0x79, 0x73, 0x5f, 0x36, 0x30, 0x38, 0x31, 0x00, 0x00, 0x08, 0x00, 0x04, 0x00, 0xe8, 0xfd, 0x00, 0x00,
        0x2c, 0x00, 0x12, 0x00, 0x0f, 0x00, 0x01, 0x00, 0x6f, 0x76, 0x73, 0x5f, 0x67, 0x65, 0x6e, 0x65, 0x76, 0x65, 0x00, 0x00,
        0x18, 0x00, 0x02, 0x00, 0x04, 0x00, 0x06, 0x00, 0x05, 0x00, 0x0a, 0x00, 0x01, 0x00, 0x00, 0x00, 0x06, 0x00, 0x05, 0x00,
        0x17, 0xc1, 0x00, 0x00,
    ];

    #[test]
    fn the_probe_of_a_stock_version_is_known() {
        assert_eq!(text(&PROBE, LINK_ATTRS_AT, IFLA_IFNAME), Some(&b"genev_sys_6081"[..]));
        let changed = changed(&PROBE).expect("it is the probe");
        assert_eq!((&changed[..4], &changed[6..]), (&PROBE[..4], &PROBE[6..]));
        assert_eq!(changed[TYPE], NO_TYPE.to_ne_bytes());
    }

    /// The running kernel gives the answer that OVS has to get.
    #[test]
    fn the_kernel_knows_no_such_request() {
        use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, recv, send, socket};
        let kernel = socket(AddressFamily::NETLINK, SocketType::RAW, None).expect("a socket");
        send(&kernel, &changed(&PROBE).expect("it is the probe"), SendFlags::empty()).expect("sent");
        let mut answer = [0; 256];
        let (len, _) = recv(&kernel, &mut answer[..], RecvFlags::empty()).expect("an answer");
        let errno = answer[..len]
            .get(16..20)
            .and_then(|bytes| bytes.first_chunk())
            .map(|bytes| i32::from_ne_bytes(*bytes));
        assert_eq!((word(&answer[TYPE]), errno), (2, Some(-95)), "NLMSG_ERROR with EOPNOTSUPP");
    }
}
