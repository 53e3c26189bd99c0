//! Converts keys of the control interface to the words that packets are compared by.

use lasthop_flow::{
    CtKey, FlowKey, Group as _, Ipv4, Ipv6, Match, Nsh, NshContext, Tunnel, TunnelOptions, Tuple4, Tuple6,
    Vlan, outer_header, outer_header_mask,
};
use lasthop_module_api::Mac;
use lasthop_wire::Key;
use lasthop_wire::key::{
    CtWords, ETHERTYPE_802_2, Field, VLAN_PRESENT, ct_field, field, nsh_field, tunnel_field, wide_field,
};

use crate::UnsupportedFlow;

/// A flow's match, as a key and a mask in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Compact {
    /// The required bits; zero where the mask is zero.
    pub(crate) key: Key,
    pub(crate) mask: Key,
}

/// A group of fields in a key or in a mask.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Key,
    Mask,
}

impl Compact {
    /// Reads a match as the Open vSwitch datapath does: fields that the mask lacks match anything, except tags, which
    /// must equal those of the key. Without a mask every field of the key must match.
    pub(crate) fn of(matching: &Match) -> Result<Self, UnsupportedFlow> {
        let mut key = pack(&matching.key, Side::Key)?;
        let exact;
        let masked_by = match &matching.mask {
            Some(mask) => mask,
            None => {
                exact = ones_of(&matching.key);
                &exact
            }
        };
        let mut mask = pack(masked_by, Side::Mask)?;
        key.put(field::NO_ETHERNET, u64::from(matching.key.ethernet.is_none()));
        mask.put(field::NO_ETHERNET, 1);
        // No flow is meant for a packet whose fields are missing.
        mask.put(field::UNREAD, 1);
        let is_cut = matching.key.vlans.iter().any(|vlan| vlan.tci & VLAN_PRESENT == 0);
        if is_cut || (matching.mask.is_none() && matching.key.ether_type.is_none()) {
            mask.put(field::ETH_TYPE, u64::MAX);
        }
        for (place, tag) in [field::VLAN_TCI, field::CVLAN_TCI].into_iter().zip([0, 1]) {
            if masked_by.vlans.len() <= tag {
                mask.put(place, u64::MAX);
            }
        }
        Ok(Self { key: key.masked(&mask), mask })
    }
}

/// Returns a mask with all bits of the fields that a key has.
fn ones_of(key: &FlowKey) -> FlowKey {
    fn ones<T: lasthop_flow::Group>(group: Option<T>) -> Option<T> {
        group.map(|_| T::ones())
    }
    FlowKey {
        recirc_id: key.recirc_id.map(|_| u32::MAX),
        dp_hash: key.dp_hash.map(|_| u32::MAX),
        priority: key.priority.map(|_| u32::MAX),
        in_port: key.in_port.map(|_| u32::MAX),
        mark: key.mark.map(|_| u32::MAX),
        ct: ones_of_ct(&key.ct),
        ethernet: ones(key.ethernet),
        vlans: key.vlans.iter().map(|_| Vlan { tpid: u16::MAX, tci: u16::MAX }).collect(),
        ether_type: key.ether_type.map(|_| u16::MAX),
        ipv4: ones(key.ipv4),
        ipv6: ones(key.ipv6),
        arp: ones(key.arp),
        mpls: key.mpls.iter().map(|_| u32::MAX).collect(),
        nsh: key.nsh.as_ref().map(|_| ones_of_nsh()),
        tcp: ones(key.tcp),
        tcp_flags: key.tcp_flags.map(|_| u16::MAX),
        udp: ones(key.udp),
        sctp: ones(key.sctp),
        icmp: ones(key.icmp),
        icmpv6: ones(key.icmpv6),
        nd: ones(key.nd),
        tunnel: key.tunnel.as_deref().map(ones_of_tunnel).map(Box::new),
    }
}

fn ones_of_ct(key: &CtKey) -> CtKey {
    CtKey {
        state: key.state.map(|_| u32::MAX),
        zone: key.zone.map(|_| u16::MAX),
        mark: key.mark.map(|_| u32::MAX),
        labels: key.labels.map(|_| [u8::MAX; 16]),
        tuple4: key.tuple4.map(|_| Tuple4::ones()),
        tuple6: key.tuple6.map(|_| Tuple6::ones()),
    }
}

/// Sets all bits of a tunnel's header: fields that a key lacks are zero in packets.
fn ones_of_tunnel(key: &Tunnel) -> Tunnel {
    let four = Some(u32::MAX.into());
    let six = Some(u128::MAX.into());
    Tunnel {
        id: Some(u64::MAX),
        ipv4_src: four,
        ipv4_dst: four,
        ipv6_src: six,
        ipv6_dst: six,
        tos: Some(u8::MAX),
        ttl: Some(u8::MAX),
        dont_fragment: true,
        csum: true,
        oam: true,
        tp_src: Some(u16::MAX),
        tp_dst: Some(u16::MAX),
        options: ones_of_options(&key.options),
        is_info_bridge: false,
    }
}

fn ones_of_options(key: &TunnelOptions) -> TunnelOptions {
    match key {
        TunnelOptions::VxlanGbp(_) => TunnelOptions::VxlanGbp(Some(u32::MAX)),
        TunnelOptions::Geneve(bytes) => TunnelOptions::Geneve(vec![u8::MAX; bytes.len()]),
        TunnelOptions::Erspan(bytes) => TunnelOptions::Erspan(vec![u8::MAX; bytes.len()]),
        TunnelOptions::None => TunnelOptions::Geneve(Vec::new()),
    }
}

fn ones_of_nsh() -> Nsh {
    let context = NshContext::Md1([u32::MAX; 4]);
    Nsh { flags: u8::MAX, ttl: u8::MAX, md_type: u8::MAX, next_proto: u8::MAX, path: u32::MAX, context }
}

fn mac(address: Mac) -> u64 {
    address.0.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn pack(from: &FlowKey, side: Side) -> Result<Key, UnsupportedFlow> {
    let mut key = Key::default();
    let metadata = [
        (field::RECIRC_ID, from.recirc_id),
        (field::DP_HASH, from.dp_hash),
        (field::PRIORITY, from.priority),
        (field::MARK, from.mark),
        (field::IN_PORT, from.in_port),
    ];
    for (place, number) in metadata {
        key.put(place, u64::from(number.unwrap_or(0)));
    }
    put_tracked(&mut key, &from.ct);
    put_link(&mut key, from, side);
    if let Some(ip) = from.ipv4 {
        put_ipv4(&mut key, ip);
    }
    if let Some(ip) = from.ipv6 {
        put_ipv6(&mut key, ip);
    }
    if let Some(arp) = from.arp {
        key.put(field::IP_PROTO, u64::from(arp.op));
        key.put(field::IPV4_SRC, u64::from(u32::from(arp.sip)));
        key.put(field::IPV4_DST, u64::from(u32::from(arp.tip)));
        key.put(field::LL_SRC, mac(arp.sha));
        key.put(field::LL_DST, mac(arp.tha));
    }
    for (place, entry) in [field::MPLS_0, field::MPLS_1, field::MPLS_2].into_iter().zip(&from.mpls) {
        key.put(place, u64::from(*entry));
    }
    if let Some(header) = &from.nsh {
        put_nsh(&mut key, header);
    }
    put_transport(&mut key, from);
    if let Some(tunnel) = &from.tunnel {
        put_tunnel(&mut key, tunnel, side)?;
    }
    Ok(key)
}

/// Sets the presence bit of a tunnel: a mask with a tunnel also matches on its presence.
fn put_tunnel(key: &mut Key, tunnel: &Tunnel, side: Side) -> Result<(), UnsupportedFlow> {
    match side {
        Side::Key => key.put_tunnel(&outer_header(tunnel)?),
        Side::Mask => {
            let (mask, options_len) = outer_header_mask(tunnel)?;
            key.put_tunnel(&mask);
            key.put(tunnel_field::OPTIONS_LEN, options_len);
        }
    }
    Ok(())
}

/// The words of a packet with these fields of connection tracking.
#[must_use]
pub fn tracked(key: &FlowKey) -> CtWords {
    let mut words = Key::default();
    put_tracked(&mut words, &key.ct);
    CtWords::of(&words)
}

fn put_tracked(key: &mut Key, from: &CtKey) {
    key.put(ct_field::STATE, from.state.unwrap_or(0).into());
    key.put(ct_field::ZONE, from.zone.unwrap_or(0).into());
    key.put(ct_field::MARK, from.mark.unwrap_or(0).into());
    key.put_wide(ct_field::LABELS, u128::from_be_bytes(from.labels.unwrap_or_default()));
    let four = from.tuple4.map(|tuple| (tuple.src_port, tuple.dst_port, tuple.proto));
    let six = from.tuple6.map(|tuple| (tuple.src_port, tuple.dst_port, tuple.proto));
    let (src_port, dst_port, proto) = four.or(six).unwrap_or_default();
    key.put(ct_field::TP_SRC, src_port.into());
    key.put(ct_field::TP_DST, dst_port.into());
    key.put(ct_field::PROTO, proto.into());
    if let Some(tuple) = from.tuple4 {
        key.put(ct_field::IPV4_SRC, u32::from(tuple.src).into());
        key.put(ct_field::IPV4_DST, u32::from(tuple.dst).into());
    }
    if let Some(tuple) = from.tuple6 {
        key.put_wide(ct_field::IPV6_SRC, tuple.src.to_bits());
        key.put_wide(ct_field::IPV6_DST, tuple.dst.to_bits());
    }
}

fn put_nsh(key: &mut Key, header: &Nsh) {
    let fields: [(Field, u32); 5] = [
        (nsh_field::FLAGS, header.flags.into()),
        (nsh_field::TTL, header.ttl.into()),
        (nsh_field::MD_TYPE, header.md_type.into()),
        (nsh_field::NEXT_PROTOCOL, header.next_proto.into()),
        (nsh_field::PATH, header.path),
    ];
    fields.iter().for_each(|(place, number)| key.put(*place, u64::from(*number)));
    if let NshContext::Md1(words) = header.context {
        let context = words.iter().fold(0, |context, word| context << 32 | u128::from(*word));
        key.put_wide(nsh_field::CONTEXT, context);
    }
}

fn put_link(key: &mut Key, from: &FlowKey, side: Side) {
    if let Some(ethernet) = from.ethernet {
        key.put(field::ETH_SRC, mac(ethernet.src));
        key.put(field::ETH_DST, mac(ethernet.dst));
    }
    let places = [(field::VLAN_TPID, field::VLAN_TCI), (field::CVLAN_TPID, field::CVLAN_TCI)];
    let mut ethertype = from.ether_type;
    for ((tpid, tci), vlan) in places.into_iter().zip(&from.vlans) {
        // A frame that ends behind its TPID has that EtherType and no tag.
        if side == Side::Key && vlan.tci & VLAN_PRESENT == 0 {
            ethertype = ethertype.or(Some(vlan.tpid));
            break;
        }
        key.put(tpid, u64::from(vlan.tpid));
        key.put(tci, u64::from(vlan.tci));
    }
    let absent = if side == Side::Key { ETHERTYPE_802_2 } else { 0 };
    key.put(field::ETH_TYPE, u64::from(ethertype.unwrap_or(absent)));
}

fn put_ipv4(key: &mut Key, ip: Ipv4) {
    let fields: [(Field, u32); 6] = [
        (field::IPV4_SRC, ip.src.into()),
        (field::IPV4_DST, ip.dst.into()),
        (field::IP_PROTO, ip.proto.into()),
        (field::IP_TOS, ip.tos.into()),
        (field::IP_TTL, ip.ttl.into()),
        (field::IP_FRAG, ip.frag.into()),
    ];
    fields.iter().for_each(|(place, number)| key.put(*place, u64::from(*number)));
}

fn put_ipv6(key: &mut Key, ip: Ipv6) {
    key.put_wide(wide_field::IPV6_SRC, ip.src.to_bits());
    key.put_wide(wide_field::IPV6_DST, ip.dst.to_bits());
    let fields: [(Field, u32); 5] = [
        (field::IPV6_LABEL, ip.label),
        (field::IP_PROTO, ip.proto.into()),
        (field::IP_TOS, ip.tclass.into()),
        (field::IP_TTL, ip.hlimit.into()),
        (field::IP_FRAG, ip.frag.into()),
    ];
    fields.iter().for_each(|(place, number)| key.put(*place, u64::from(*number)));
}

/// A key has at most one of them.
fn put_transport(key: &mut Key, from: &FlowKey) {
    let ports = from.tcp.or(from.udp).or(from.sctp).map(|ports| (ports.src, ports.dst));
    let icmp = from.icmp.or(from.icmpv6).map(|icmp| (u16::from(icmp.kind), u16::from(icmp.code)));
    let (source, destination) = ports.or(icmp).unwrap_or_default();
    key.put(field::TP_SRC, u64::from(source));
    key.put(field::TP_DST, u64::from(destination));
    key.put(field::TCP_FLAGS, u64::from(from.tcp_flags.unwrap_or(0)));
    if let Some(nd) = from.nd {
        key.put_wide(wide_field::ND_TARGET, nd.target.to_bits());
        key.put(field::LL_SRC, mac(nd.sll));
        key.put(field::LL_DST, mac(nd.tll));
    }
}

#[cfg(test)]
mod tests {
    use lasthop_flow::{Ethernet, Ports};
    use lasthop_wire::Metadata;
    use lasthop_wire::key::extract;

    use super::*;

    fn udp() -> FlowKey {
        FlowKey {
            in_port: Some(3),
            ethernet: Some(Ethernet { src: Mac([2, 0, 0, 0, 0, 1]), dst: Mac([2, 0, 0, 0, 0, 2]) }),
            ether_type: Some(0x0800),
            ipv4: Some(Ipv4 {
                src: [10, 0, 0, 1].into(),
                dst: [10, 0, 0, 2].into(),
                proto: 17,
                tos: 4,
                ttl: 64,
                frag: 0,
            }),
            udp: Some(Ports { src: 1000, dst: 53 }),
            ..FlowKey::default()
        }
    }

    /// The key of the packet that `udp` describes, with these tags in front.
    fn packet(tags: &[u8]) -> Key {
        let ip = [0x45, 4, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let macs = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        let bytes = [&macs[..], tags, &[8, 0], &ip, &1000_u16.to_be_bytes(), &[0, 53, 0, 8, 0, 0]].concat();
        let mut key = Key::default();
        extract(&bytes, bytes.len(), &Metadata { in_port: 3, ..Metadata::default() }, &mut key);
        key
    }

    fn matches(matching: &Match, key: &Key) -> bool {
        let compact = Compact::of(matching).expect("it is supported");
        key.masked(&compact.mask) == compact.key
    }

    #[test]
    fn without_a_mask_all_that_the_key_has_counts() {
        let exact = |key| Match { key, mask: None };
        assert!(matches(&exact(udp()), &packet(&[])));
        assert!(!matches(&exact(udp()), &packet(&[0x81, 0, 0, 5])), "a tag is one thing more");
        let other = FlowKey { udp: Some(Ports { src: 1000, dst: 54 }), ..udp() };
        assert!(!matches(&exact(other), &packet(&[])));
        let l2 = FlowKey { ipv4: None, udp: None, ..udp() };
        assert!(matches(&exact(l2), &packet(&[])));
    }

    #[test]
    fn groups_absent_in_the_mask_match_anything() {
        let masked = |mask| Match { key: udp(), mask: Some(mask) };
        assert!(matches(&masked(FlowKey::default()), &packet(&[])));
        assert!(!matches(&masked(FlowKey::default()), &packet(&[0x81, 0, 0, 5])), "but for tags");
        let net = Some(Ipv4 { dst: [255, 255, 255, 0].into(), ..Ipv4::default() });
        let mask = FlowKey { ether_type: Some(0xffff), ipv4: net, ..FlowKey::default() };
        assert!(matches(&masked(mask.clone()), &packet(&[])));
        let elsewhere = Ipv4 { dst: [10, 0, 1, 2].into(), ..Ipv4::default() };
        let key = FlowKey { ipv4: Some(elsewhere), ..udp() };
        assert!(!matches(&Match { key, mask: Some(mask) }, &packet(&[])));
    }

    #[test]
    fn tags_match_as_far_as_the_mask_looks() {
        let mut key = udp();
        key.vlans.push(Vlan { tpid: 0x8100, tci: 0x1005 });
        assert!(matches(&Match { key: key.clone(), mask: None }, &packet(&[0x81, 0, 0, 5])));
        let mut mask = FlowKey::default();
        mask.vlans.push(Vlan { tpid: 0xffff, tci: 0x1fff });
        let matching = Match { key, mask: Some(mask) };
        assert!(matches(&matching, &packet(&[0x81, 0, 0xe0, 5])), "priority is not looked at");
        assert!(!matches(&matching, &packet(&[0x81, 0, 0, 6])));
        assert!(!matches(&matching, &packet(&[])));
    }

    #[test]
    fn a_frame_that_ends_behind_its_tpid_is_one_of_these() {
        let cut = |tpid| FlowKey {
            vlans: [Vlan { tpid, tci: 0 }].into_iter().collect(),
            ether_type: None,
            ipv4: None,
            udp: None,
            ..udp()
        };
        let mask = FlowKey {
            vlans: [Vlan { tpid: 0xffff, tci: 0x1000 }].into_iter().collect(),
            ..FlowKey::default()
        };
        let matching = |tpid| Match { key: cut(tpid), mask: Some(mask.clone()) };
        let mut frame = Key::default();
        let bytes = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x81, 0, 1];
        extract(&bytes, bytes.len(), &Metadata { in_port: 3, ..Metadata::default() }, &mut frame);
        assert!(matches(&matching(0x8100), &frame));
        assert!(!matches(&matching(0x88a8), &frame));
        assert!(!matches(&matching(0x8100), &packet(&[])), "and no other frame without tags");
    }

    fn geneve(id: u64, options: &[u8]) -> Box<Tunnel> {
        let options = TunnelOptions::Geneve(options.to_vec());
        let (ipv4_src, ipv4_dst) = (Some([10, 1, 0, 1].into()), Some([10, 1, 0, 2].into()));
        Box::new(Tunnel { id: Some(id), ipv4_src, ipv4_dst, ttl: Some(64), options, ..Tunnel::default() })
    }

    /// The key of the packet, received through this tunnel.
    fn tunnelled(tunnel: &Tunnel) -> Key {
        let mut key = packet(&[]);
        key.put_tunnel(&outer_header(tunnel).expect("it is supported"));
        key
    }

    #[test]
    fn tunnels_match_as_far_as_the_mask_looks() {
        let option = [1, 2, 0x80, 1, 0, 5, 0, 6];
        let key = FlowKey { tunnel: Some(geneve(7, &option)), ..udp() };
        let exact = Match { key: key.clone(), mask: None };
        assert!(matches(&exact, &tunnelled(&geneve(7, &option))));
        for other in [geneve(8, &option), geneve(7, &[1, 2, 0x80, 1, 0, 5, 0, 7]), geneve(7, &[])] {
            assert!(!matches(&exact, &tunnelled(&other)), "{other:?}");
        }
        assert!(!matches(&exact, &packet(&[])), "it came through none");
        let options = TunnelOptions::Geneve(vec![0, 0, 0, 0, 0xff, 0xff, 0, 0]);
        let mask = Tunnel { id: Some(u64::MAX), options, ..Tunnel::default() };
        let masked =
            Match { key, mask: Some(FlowKey { tunnel: Some(Box::new(mask)), ..FlowKey::default() }) };
        assert!(matches(&masked, &tunnelled(&geneve(7, &[1, 2, 0x80, 1, 0, 5, 0, 7]))));
        assert!(!matches(&masked, &tunnelled(&geneve(7, &[1, 2, 0x80, 1, 0, 4, 0, 7]))));
        assert!(!matches(&masked, &tunnelled(&geneve(7, &option[..4]))), "fewer options");
        let through_none = Match { key: udp(), mask: masked.mask };
        assert!(matches(&through_none, &packet(&[])));
        assert!(!matches(&through_none, &tunnelled(&geneve(0, &[]))));
    }

    #[test]
    fn options_of_erspan_match_as_far_as_the_mask_looks() {
        let erspan = |index: u8| {
            let options = TunnelOptions::Erspan(vec![1, 0, 0, 0, 0, 0, 0, index, 0, 0, 0, 0]);
            Box::new(Tunnel { options, ..*geneve(7, &[]) })
        };
        let key = FlowKey { tunnel: Some(erspan(7)), ..udp() };
        let exact = Match { key: key.clone(), mask: None };
        assert!(matches(&exact, &tunnelled(&erspan(7))));
        assert!(!matches(&exact, &tunnelled(&erspan(8))));
        let mask = Tunnel { id: Some(u64::MAX), ..Tunnel::default() };
        let mask = Some(FlowKey { tunnel: Some(Box::new(mask)), ..FlowKey::default() });
        assert!(matches(&Match { key, mask }, &tunnelled(&erspan(8))), "it does not look at options");
    }

    #[test]
    fn fields_that_no_packet_has_here_are_refused() {
        let refused = |tunnel| Compact::of(&Match { key: FlowKey { tunnel, ..udp() }, mask: None }).is_err();
        let erspan = Tunnel { options: TunnelOptions::Erspan(vec![0; 8]), ..Tunnel::default() };
        assert!(refused(Some(Box::new(erspan))));
        assert!(refused(Some(geneve(7, &[0; 68]))));
        let mask = FlowKey { tunnel: Some(Box::default()), ..FlowKey::default() };
        assert!(Compact::of(&Match { key: udp(), mask: Some(mask) }).is_ok());
    }
}
