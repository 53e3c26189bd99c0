//! The mask under which every field that a key has is printed, and no other.

use lasthop_flow::{CtKey, FlowKey, Group, Nsh, NshContext, Vlan};

/// Every bit of each field; metadata that is zero, as most is, counts as absent.
pub(super) fn exact(key: &FlowKey) -> FlowKey {
    let number = |value: Option<u32>| value.filter(|value| *value != 0).map(|_| u32::MAX);
    let is_tracked = key.ct.state.is_some_and(|state| state != 0);
    FlowKey {
        recirc_id: key.recirc_id.map(|_| u32::MAX),
        dp_hash: number(key.dp_hash),
        priority: number(key.priority),
        in_port: key.in_port.map(|_| u32::MAX),
        mark: number(key.mark),
        tunnel: key.tunnel.clone(),
        ct: if is_tracked { exact_ct(&key.ct) } else { CtKey::default() },
        ethernet: ones(key.ethernet),
        vlans: key.vlans.iter().map(|_| Vlan { tpid: u16::MAX, tci: u16::MAX }).collect(),
        ether_type: key.ether_type.map(|_| u16::MAX),
        ipv4: ones(key.ipv4),
        ipv6: ones(key.ipv6),
        arp: ones(key.arp),
        mpls: key.mpls.iter().map(|_| u32::MAX).collect(),
        nsh: key.nsh.as_ref().map(|_| Nsh {
            flags: u8::MAX,
            ttl: u8::MAX,
            md_type: u8::MAX,
            next_proto: u8::MAX,
            path: u32::MAX,
            context: NshContext::Md1([u32::MAX; 4]),
        }),
        tcp: ones(key.tcp),
        tcp_flags: key.tcp_flags.filter(|flags| *flags != 0).map(|_| u16::MAX),
        udp: ones(key.udp),
        sctp: ones(key.sctp),
        icmp: ones(key.icmp),
        icmpv6: ones(key.icmpv6),
        nd: ones(key.nd),
    }
}

fn exact_ct(key: &CtKey) -> CtKey {
    CtKey {
        state: key.state.map(|_| u32::MAX),
        zone: key.zone.filter(|zone| *zone != 0).map(|_| u16::MAX),
        mark: key.mark.filter(|mark| *mark != 0).map(|_| u32::MAX),
        labels: key.labels.filter(|labels| *labels != [0; 16]).map(|_| [u8::MAX; 16]),
        tuple4: ones(key.tuple4),
        tuple6: ones(key.tuple6),
    }
}

fn ones<G: Group>(group: Option<G>) -> Option<G> {
    group.map(|_| G::ones())
}
