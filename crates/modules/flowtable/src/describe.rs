//! Describes packets for the control plane: converts key words back to fields.

use lasthop_flow::{
    Arp, CtKey, Ethernet, FlowKey, Icmp, Ipv4, Ipv6, NeighbourDiscovery, Nsh, NshContext, Ports, Tuple4,
    Tuple6, Vlan,
};
use lasthop_module_api::{IMAGE_FETCH_BYTES, Mac};
use lasthop_wire::headers::{
    ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_NSH, ETHERTYPE_RARP, ETHERTYPES_MPLS,
    ETHERTYPES_VLAN, PROTO_ICMP, PROTO_ICMPV6, PROTO_SCTP, PROTO_TCP, PROTO_UDP,
};
use lasthop_wire::key::{
    ETHERTYPE_802_2, FRAGMENT_LATER, Field, VLAN_PRESENT, ct_field, extract, field, nsh_field, wide_field,
};
use lasthop_wire::{Key, Metadata};

/// Neighbour solicitation and advertisement (RFC 4861, 4.3, 4.4).
const NEIGHBOUR_KINDS: [u8; 2] = [135, 136];
/// Bit 8 of an MPLS entry: bottom of stack (RFC 3032, 2.1).
const MPLS_BOTTOM: u32 = 0x100;

/// Returns the key of a frame for the control plane: a flow with exactly this key matches the frame. Headers beyond the
/// first 128 bytes are missing; no flow matches such a frame.
#[must_use]
pub fn describe(frame: &[u8], metadata: &Metadata) -> FlowKey {
    let mut key = Key::default();
    extract(&frame[..frame.len().min(IMAGE_FETCH_BYTES)], frame.len(), metadata, &mut key);
    unpack(&key)
}

/// Reads a field that fits the type.
fn number<T: TryFrom<u64> + Default>(key: &Key, place: Field) -> T {
    T::try_from(key.get(place)).unwrap_or_default()
}

fn mac(key: &Key, place: Field) -> Mac {
    let [_, _, address @ ..] = key.get(place).to_be_bytes();
    Mac(address)
}

/// With the groups that the Open vSwitch datapath tells of such a packet.
pub(crate) fn unpack(key: &Key) -> FlowKey {
    let mut told = FlowKey {
        recirc_id: Some(number(key, field::RECIRC_ID)),
        dp_hash: Some(number(key, field::DP_HASH)),
        priority: Some(number(key, field::PRIORITY)),
        mark: Some(number(key, field::MARK)),
        in_port: Some(number(key, field::IN_PORT)),
        ct: tracked(key),
        ..FlowKey::default()
    };
    let ethertype = number(key, field::ETH_TYPE);
    if key.get(field::NO_ETHERNET) == 0 {
        told.ethernet = Some(Ethernet { src: mac(key, field::ETH_SRC), dst: mac(key, field::ETH_DST) });
        put_tags(&mut told, key, ethertype);
    } else {
        told.ether_type = Some(ethertype);
    }
    match ethertype {
        ETHERTYPE_IPV4 => told.ipv4 = Some(ipv4(key)),
        ETHERTYPE_IPV6 => told.ipv6 = Some(ipv6(key)),
        ETHERTYPE_NSH => told.nsh = Some(nsh(key)),
        ETHERTYPE_ARP | ETHERTYPE_RARP => told.arp = Some(arp(key)),
        _ if ETHERTYPES_MPLS.contains(&ethertype) => put_mpls(&mut told, key),
        _ => {}
    }
    let is_ip = told.ipv4.is_some() || told.ipv6.is_some();
    if is_ip && number::<u8>(key, field::IP_FRAG) != FRAGMENT_LATER {
        put_transport(&mut told, key);
    }
    told
}

/// Adds state, zone, mark and labels, and the original direction if the packet has one of its own IP version.
fn tracked(key: &Key) -> CtKey {
    let (proto, ethertype) = (number(key, ct_field::PROTO), number::<u16>(key, field::ETH_TYPE));
    let (src_port, dst_port) = (number(key, ct_field::TP_SRC), number(key, ct_field::TP_DST));
    let tuple4 = || Tuple4 {
        src: number::<u32>(key, ct_field::IPV4_SRC).into(),
        dst: number::<u32>(key, ct_field::IPV4_DST).into(),
        src_port,
        dst_port,
        proto,
    };
    let tuple6 = || Tuple6 {
        src: key.get_wide(ct_field::IPV6_SRC).into(),
        dst: key.get_wide(ct_field::IPV6_DST).into(),
        src_port,
        dst_port,
        proto,
    };
    CtKey {
        state: Some(number(key, ct_field::STATE)),
        zone: Some(number(key, ct_field::ZONE)),
        mark: Some(number(key, ct_field::MARK)),
        labels: Some(key.get_wide(ct_field::LABELS).to_be_bytes()),
        tuple4: (proto != 0 && ethertype == ETHERTYPE_IPV4).then(tuple4),
        tuple6: (proto != 0 && ethertype == ETHERTYPE_IPV6).then(tuple6),
    }
}

/// Adds the tags and the EtherType behind them. A frame that ends behind a TPID has an empty tag.
fn put_tags(told: &mut FlowKey, key: &Key, ethertype: u16) {
    for (tpid, tci) in [(field::VLAN_TPID, field::VLAN_TCI), (field::CVLAN_TPID, field::CVLAN_TCI)] {
        let vlan = Vlan { tpid: number(key, tpid), tci: number(key, tci) };
        if vlan.tci & VLAN_PRESENT != 0 {
            let _ = told.vlans.try_push(vlan);
        }
    }
    if ETHERTYPES_VLAN.contains(&ethertype) {
        // A third tag is an EtherType like any other.
        let cut = Vlan { tpid: ethertype, tci: 0 };
        if told.vlans.try_push(cut).is_ok() {
            return;
        }
    }
    told.ether_type = Some(ethertype).filter(|ethertype| *ethertype != ETHERTYPE_802_2);
}

fn ipv4(key: &Key) -> Ipv4 {
    Ipv4 {
        src: number::<u32>(key, field::IPV4_SRC).into(),
        dst: number::<u32>(key, field::IPV4_DST).into(),
        proto: number(key, field::IP_PROTO),
        tos: number(key, field::IP_TOS),
        ttl: number(key, field::IP_TTL),
        frag: number(key, field::IP_FRAG),
    }
}

fn ipv6(key: &Key) -> Ipv6 {
    Ipv6 {
        src: key.get_wide(wide_field::IPV6_SRC).into(),
        dst: key.get_wide(wide_field::IPV6_DST).into(),
        label: number(key, field::IPV6_LABEL),
        proto: number(key, field::IP_PROTO),
        tclass: number(key, field::IP_TOS),
        hlimit: number(key, field::IP_TTL),
        frag: number(key, field::IP_FRAG),
    }
}

fn arp(key: &Key) -> Arp {
    Arp {
        sip: number::<u32>(key, field::IPV4_SRC).into(),
        tip: number::<u32>(key, field::IPV4_DST).into(),
        op: number(key, field::IP_PROTO),
        sha: mac(key, field::LL_SRC),
        tha: mac(key, field::LL_DST),
    }
}

fn put_mpls(told: &mut FlowKey, key: &Key) {
    for place in [field::MPLS_0, field::MPLS_1, field::MPLS_2] {
        let entry: u32 = number(key, place);
        let _ = told.mpls.try_push(entry);
        if entry & MPLS_BOTTOM != 0 || entry == 0 {
            break;
        }
    }
}

fn nsh(key: &Key) -> Nsh {
    let md_type = number(key, nsh_field::MD_TYPE);
    let context = key.get_wide(nsh_field::CONTEXT);
    let words = [96, 64, 32, 0].map(|shift| (context >> shift) as u32);
    Nsh {
        flags: number(key, nsh_field::FLAGS),
        ttl: number(key, nsh_field::TTL),
        md_type,
        next_proto: number(key, nsh_field::NEXT_PROTOCOL),
        path: number(key, nsh_field::PATH),
        context: if md_type == 1 { NshContext::Md1(words) } else { NshContext::None },
    }
}

fn put_transport(told: &mut FlowKey, key: &Key) {
    let ports = Some(Ports { src: number(key, field::TP_SRC), dst: number(key, field::TP_DST) });
    let icmp = Icmp { kind: number(key, field::TP_SRC), code: number(key, field::TP_DST) };
    match (number::<u8>(key, field::IP_PROTO), told.ipv6.is_some()) {
        (PROTO_TCP, _) => {
            (told.tcp, told.tcp_flags) = (ports, Some(number(key, field::TCP_FLAGS)));
        }
        (PROTO_UDP, _) => told.udp = ports,
        (PROTO_SCTP, _) => told.sctp = ports,
        (PROTO_ICMP, false) => told.icmp = Some(icmp),
        (PROTO_ICMPV6, true) => {
            told.icmpv6 = Some(icmp);
            told.nd = NEIGHBOUR_KINDS.contains(&icmp.kind).then(|| NeighbourDiscovery {
                target: key.get_wide(wide_field::ND_TARGET).into(),
                sll: mac(key, field::LL_SRC),
                tll: mac(key, field::LL_DST),
            });
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use lasthop_flow::Match;
    use lasthop_wire::key::{CT_WORDS, CtWords, LinkLayer};
    use proptest::prelude::*;

    use super::*;
    use crate::compact::Compact;

    const METADATA: Metadata = Metadata {
        recirc_id: 1,
        dp_hash: 2,
        priority: 3,
        mark: 4,
        in_port: 5,
        link: LinkLayer::Ethernet,
        ct: CtWords([0; CT_WORDS]),
    };

    fn frame(bytes: &[&[u8]]) -> Vec<u8> {
        [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1][..], &bytes.concat()].concat()
    }

    /// A flow with the key that is reported for a frame matches the frame.
    fn assert_matches(frame: &[u8]) -> FlowKey {
        assert_matches_of(frame, &METADATA)
    }

    fn assert_matches_of(frame: &[u8], metadata: &Metadata) -> FlowKey {
        let told = describe(frame, metadata);
        let compact = Compact::of(&Match { key: told.clone(), mask: None }).expect("it is supported");
        let mut key = Key::default();
        extract(&frame[..frame.len().min(IMAGE_FETCH_BYTES)], frame.len(), metadata, &mut key);
        assert_eq!(key.masked(&compact.mask), compact.key, "{told:?}");
        told
    }

    #[test]
    fn the_reported_key_of_a_packet_matches_it() {
        const V4: [u8; 20] = [0x45, 4, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let told = assert_matches(&frame(&[&[8, 0], &V4, &[0, 7, 0, 53, 0, 8, 0, 0]]));
        assert_eq!(told.udp, Some(Ports { src: 7, dst: 53 }));
        assert_eq!((told.in_port, told.mark, told.vlans.len()), (Some(5), Some(4), 0));
        let tagged = frame(&[&[0x81, 0, 0x20, 9], &[8, 0], &V4, &[0, 7, 0, 53, 0, 8, 0, 0]]);
        assert_eq!(assert_matches(&tagged).vlans[..], [Vlan { tpid: 0x8100, tci: 0x3009 }]);
        let told = assert_matches(&frame(&[&[0x81, 0]]));
        assert_eq!((&told.vlans[..], told.ether_type), (&[Vlan { tpid: 0x8100, tci: 0 }][..], None));
        let told = assert_matches(&frame(&[&[0, 40], &[0x42, 0x42, 3, 0, 0, 0, 0, 0]]));
        assert_eq!(told.ether_type, None, "an 802.2 header");
        let arp = [0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 2, 0, 0, 0, 0, 2, 10, 0, 0, 2];
        let told = assert_matches(&frame(&[&[8, 6], &arp])).arp.expect("ARP");
        assert_eq!((told.op, told.tip, told.tha), (2, [10, 0, 0, 2].into(), Mac([2, 0, 0, 0, 0, 2])));
        let told = assert_matches(&frame(&[&[0x88, 0x47], &[0, 1, 0, 64, 0, 2, 1, 64, 0x45]]));
        assert_eq!(told.mpls[..], [0x1_0040, 0x2_0140]);
    }

    #[test]
    fn service_headers_and_packets_without_ethernet_header_are_told() {
        let base = [0x2f, 0xc6, 1, 3, 0, 0, 1, 0xfe];
        let header = [&base[..], &[0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4]].concat();
        let told = assert_matches(&frame(&[&[0x89, 0x4f], &header])).nsh.expect("a service header");
        assert_eq!((told.flags, told.ttl, told.path), (2, 63, 0x1fe));
        assert_eq!((told.next_proto, told.context), (3, NshContext::Md1([1, 2, 3, 4])));
        let bare = assert_matches_of(&header, &Metadata { link: LinkLayer::None(0x894f), ..METADATA });
        assert_eq!((bare.ethernet, bare.ether_type, bare.nsh.is_some()), (None, Some(0x894f), true));
        let cut = assert_matches(&frame(&[&[0x89, 0x4f], &header[..20]]));
        assert_eq!(cut.nsh, Some(Nsh::default()));
    }

    #[test]
    fn neighbour_discovery_is_told() {
        let ip = [0x60, 0, 0, 0, 0, 32, 58, 255];
        let body = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &[0xfe; 16], &[1, 1, 2, 0, 0, 0, 0, 1]].concat();
        let told = assert_matches(&frame(&[&[0x86, 0xdd], &ip, &[0xfd; 32], &body]));
        let nd = told.nd.expect("a solicitation");
        assert_eq!((nd.target, nd.sll, nd.tll), ([0xfe; 16].into(), Mac([2, 0, 0, 0, 0, 1]), Mac([0; 6])));
    }

    proptest! {
        #[test]
        fn any_packet_matches_its_reported_key(
            ethertype in prop::sample::select(vec![
                [8, 0], [0x86, 0xdd], [8, 6], [0x81, 0], [0x88, 0xa8], [0x88, 0x47], [0x89, 0x4f], [0, 9], [0x88, 0xb5],
            ]),
            proto in prop::sample::select(vec![1, 6, 17, 58, 132, 44, 0, 200]),
            is_sound in any::<bool>(),
            mut rest in prop::collection::vec(any::<u8>(), 0..150),
        ) {
            let sound: &[(usize, u8)] = match ethertype {
                [8, 0] => &[(0, 0x45), (6, 0), (7, 0), (9, proto)],
                [0x86, 0xdd] => &[(0, 0x60), (6, proto)],
                [0x89, 0x4f] => &[(0, 0), (1, 6), (2, 1)],
                _ => &[],
            };
            for (at, byte) in sound.iter().filter(|_| is_sound) {
                if let Some(place) = rest.get_mut(*at) {
                    *place = *byte;
                }
            }
            assert_matches(&frame(&[&ethertype, &rest]));
        }
    }
}
