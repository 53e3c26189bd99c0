//! Random keys, masks and actions.

use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use lasthop_flow::{
    Action, CheckLength, Conntrack, CtKey, FlowKey, Group, Hash, HashAlgorithm, Masked, MplsTag, Nat,
    NatRange, NatSource, Nsh, NshContext, Rewrite, SampleAction, Tunnel, TunnelOptions, Userspace,
    VLAN_PRESENT, Vlan,
};
use proptest::option::of;
use proptest::prelude::*;

pub(crate) fn group<G: Group + Debug>() -> impl Strategy<Value = G> {
    let len = G::default().to_image().as_ref().len();
    prop::collection::vec(any::<u8>(), len)
        .prop_map(|bytes| G::from_bytes(&bytes).expect("as many as it has"))
}

fn nsh() -> impl Strategy<Value = Nsh> {
    let context = prop_oneof![
        Just(NshContext::None),
        any::<[u32; 4]>().prop_map(NshContext::Md1),
        prop::collection::vec(any::<[u8; 4]>(), 0..=61).prop_map(|words| NshContext::Md2(words.concat())),
    ];
    (any::<[u8; 4]>(), any::<u32>(), context).prop_map(
        |([flags, ttl, md_type, next_proto], path, context)| Nsh {
            flags,
            ttl,
            md_type,
            next_proto,
            path,
            context,
        },
    )
}

/// A header whose type matches its contents.
fn to_push(nsh: Nsh) -> Nsh {
    let md_type = match nsh.context {
        NshContext::None => 3,
        NshContext::Md1(_) => 1,
        NshContext::Md2(_) => 2,
    };
    Nsh { md_type, ..nsh }
}

/// Class, type, length in words, data.
fn geneve_option() -> impl Strategy<Value = Vec<u8>> {
    (any::<[u8; 3]>(), prop::collection::vec(any::<[u8; 4]>(), 0..=19)).prop_map(|([a, b, c], data)| {
        let len = u8::try_from(data.len()).expect("a few words");
        [[a, b, c, len].as_slice(), data.as_flattened()].concat()
    })
}

fn options() -> impl Strategy<Value = TunnelOptions> {
    prop_oneof![
        Just(TunnelOptions::None),
        prop::collection::vec(geneve_option(), 0..4)
            .prop_map(|options| TunnelOptions::Geneve(options.concat())),
        any::<Option<u32>>().prop_map(TunnelOptions::VxlanGbp),
        any::<[u8; 12]>().prop_map(|bytes| TunnelOptions::Erspan(bytes.to_vec())),
    ]
}

pub(crate) fn tunnel() -> BoxedStrategy<Tunnel> {
    let addresses = (any::<[Option<u32>; 2]>(), any::<[Option<u128>; 2]>());
    let numbers = (any::<Option<u64>>(), any::<[Option<u8>; 2]>(), any::<[Option<u16>; 2]>());
    (addresses, numbers, any::<[bool; 3]>(), options())
        .prop_map(|(addresses, numbers, flags, options)| {
            let ([v4_src, v4_dst], [v6_src, v6_dst]) = addresses;
            let (id, [tos, ttl], [tp_src, tp_dst]) = numbers;
            let [dont_fragment, csum, oam] = flags;
            Tunnel {
                id,
                ipv4_src: v4_src.map(Ipv4Addr::from),
                ipv4_dst: v4_dst.map(Ipv4Addr::from),
                ipv6_src: v6_src.map(Ipv6Addr::from),
                ipv6_dst: v6_dst.map(Ipv6Addr::from),
                tos,
                ttl,
                dont_fragment,
                csum,
                oam,
                tp_src,
                tp_dst,
                options,
                // OVS's own interface uses this number for another attribute.
                is_info_bridge: false,
            }
        })
        .boxed()
}

fn ct_key() -> impl Strategy<Value = CtKey> {
    let numbers =
        (any::<Option<u32>>(), any::<Option<u16>>(), any::<Option<u32>>(), any::<Option<[u8; 16]>>());
    (numbers, of(group()), of(group())).prop_map(|((state, zone, mark, labels), tuple4, tuple6)| CtKey {
        state,
        zone,
        mark,
        labels,
        tuple4,
        tuple6,
    })
}

fn metadata() -> BoxedStrategy<FlowKey> {
    (any::<[Option<u32>; 5]>(), of(tunnel()), ct_key())
        .prop_map(|(numbers, tunnel, ct)| {
            let [recirc_id, dp_hash, priority, in_port, mark] = numbers;
            FlowKey {
                recirc_id,
                dp_hash,
                priority,
                in_port,
                mark,
                tunnel: tunnel.map(Box::new),
                ct,
                ..FlowKey::default()
            }
        })
        .boxed()
}

fn transport() -> BoxedStrategy<FlowKey> {
    let ports = (of(group()), of(group()), of(group()));
    let others = (of(group()), of(group()), of(group()), any::<Option<u16>>());
    (ports, others)
        .prop_map(|((tcp, udp, sctp), (icmp, icmpv6, nd, tcp_flags))| FlowKey {
            tcp,
            udp,
            sctp,
            icmp,
            icmpv6,
            nd,
            tcp_flags,
            ..FlowKey::default()
        })
        .boxed()
}

fn network() -> BoxedStrategy<FlowKey> {
    let fields = (of(group()), of(group()), of(group()), of(group()), of(nsh()));
    (fields, prop::collection::vec(any::<u32>(), 0..=3))
        .prop_map(|((ethernet, ipv4, ipv6, arp, nsh), mpls)| FlowKey {
            ethernet,
            ipv4,
            ipv6,
            arp,
            nsh,
            mpls: mpls.into_iter().collect(),
            ..FlowKey::default()
        })
        .boxed()
}

fn is_tag(ether_type: u16) -> bool {
    [0x8100, 0x88a8].contains(&ether_type)
}

/// Any key that can be encoded; few are valid.
pub(crate) fn key() -> BoxedStrategy<FlowKey> {
    let tag =
        (prop_oneof![Just(0x8100), Just(0x88a8)], any::<u16>()).prop_map(|(tpid, tci)| Vlan { tpid, tci });
    let ether_type = any::<Option<u16>>().prop_filter("no tag", |kind| !kind.is_some_and(is_tag));
    (metadata(), network(), transport(), prop::collection::vec(tag, 0..=2), ether_type)
        .prop_map(|(metadata, network, transport, vlans, ether_type)| FlowKey {
            recirc_id: metadata.recirc_id,
            dp_hash: metadata.dp_hash,
            priority: metadata.priority,
            in_port: metadata.in_port,
            mark: metadata.mark,
            tunnel: metadata.tunnel,
            ct: metadata.ct,
            vlans: vlans.into_iter().collect(),
            ether_type,
            ethernet: network.ethernet,
            ipv4: network.ipv4,
            ipv6: network.ipv6,
            arp: network.arp,
            nsh: network.nsh,
            mpls: network.mpls,
            ..transport
        })
        .boxed()
}

/// A key and a random mask of it; a tag's mask of zeros would not decode to itself.
pub(crate) fn key_and_mask() -> BoxedStrategy<(FlowKey, FlowKey)> {
    (key(), key(), any::<[(u16, u16); 2]>())
        .prop_map(|(key, mut mask, tags)| {
            let tags = tags.map(|(tpid, tci)| Vlan { tpid, tci: tci.max(1) });
            mask.vlans = tags.into_iter().take(key.vlans.len()).collect();
            (key, mask)
        })
        .boxed()
}

fn masked<G: Group + Debug>() -> impl Strategy<Value = Masked<G>> {
    (group::<G>(), prop_oneof![Just(G::ones()), group::<G>()])
        .prop_map(|(value, mask)| Masked { value: value.masked(mask), mask })
}

fn nsh_pair() -> impl Strategy<Value = Box<(Nsh, Nsh)>> {
    let plain = |nsh: Nsh, is_long: bool, words| Nsh {
        context: if is_long { NshContext::Md1(words) } else { NshContext::None },
        ..nsh
    };
    (nsh(), nsh(), any::<bool>(), any::<[[u32; 4]; 2]>()).prop_map(
        move |(value, mask, is_long, [one, two])| {
            Box::new((plain(value, is_long, one), plain(mask, is_long, two)))
        },
    )
}

fn rewrite() -> BoxedStrategy<Rewrite> {
    prop_oneof![
        masked().prop_map(Rewrite::Priority),
        masked().prop_map(Rewrite::Mark),
        masked().prop_map(Rewrite::Ethernet),
        masked().prop_map(Rewrite::Ipv4),
        masked().prop_map(Rewrite::Ipv6),
        masked().prop_map(Rewrite::Tcp),
        masked().prop_map(Rewrite::Udp),
        masked().prop_map(Rewrite::Sctp),
        masked().prop_map(Rewrite::Icmp),
        masked().prop_map(Rewrite::Icmpv6),
        masked().prop_map(Rewrite::Arp),
        masked().prop_map(Rewrite::Nd),
        masked().prop_map(Rewrite::Mpls),
        nsh_pair().prop_map(Rewrite::Nsh),
        tunnel().prop_map(|tunnel| Rewrite::Tunnel(Box::new(tunnel))),
    ]
    .boxed()
}

/// Cookies of ovs-vswitchd, and other bytes.
fn user_data() -> impl Strategy<Value = Vec<u8>> {
    let cookie = (1..6_u8, prop::collection::vec(any::<u8>(), 44..=44))
        .prop_map(|(kind, rest)| [[kind, 0, 0, 0].as_slice(), rest.as_slice()].concat());
    prop_oneof![prop::collection::vec(any::<u8>(), 0..64), cookie]
}

fn userspace() -> impl Strategy<Value = Userspace> {
    (any::<u32>(), of(user_data()), any::<Option<u32>>(), any::<bool>()).prop_map(
        |(port_id, user_data, egress_tunnel_port, has_actions)| Userspace {
            port_id,
            user_data,
            egress_tunnel_port,
            has_actions,
        },
    )
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<u32>().prop_map(|bits| Ipv4Addr::from(bits).into()),
        any::<u128>().prop_map(|bits| Ipv6Addr::from(bits).into())
    ]
}

fn nat() -> impl Strategy<Value = Nat> {
    let source = prop_oneof![Just(None), Just(Some(NatSource::Src)), Just(Some(NatSource::Dst))];
    let range = (of(address()), of(address()), any::<[Option<u16>; 2]>());
    (source, range, any::<[bool; 3]>()).prop_map(
        |(source, (ip_min, ip_max, [proto_min, proto_max]), [is_persistent, is_hashed, is_random])| Nat {
            source,
            range: NatRange { ip_min, ip_max, proto_min, proto_max },
            is_persistent,
            is_hashed,
            is_random,
        },
    )
}

fn conntrack() -> impl Strategy<Value = Conntrack> {
    let numbers = (any::<Option<u16>>(), any::<Option<(u32, u32)>>(), any::<Option<u32>>());
    let labels = any::<Option<([u8; 16], [u8; 16])>>();
    let names = (of("[a-z]{1,15}"), of("[a-z0-9_]{1,31}"));
    (any::<[bool; 2]>(), numbers, labels, names, of(nat())).prop_map(
        |([is_commit, is_force_commit], (zone, mark, event_mask), labels, (helper, timeout), nat)| {
            Conntrack {
                is_commit,
                is_force_commit,
                zone,
                mark: mark.map(|(value, mask)| Masked { value, mask }),
                labels,
                helper,
                nat,
                event_mask,
                timeout,
            }
        },
    )
}

fn mpls() -> impl Strategy<Value = MplsTag> {
    (any::<u32>(), prop_oneof![Just(0x8847), Just(0x8848)], any::<bool>())
        .prop_map(|(lse, ether_type, is_l3)| MplsTag { lse, ether_type, is_l3 })
}

fn plain() -> BoxedStrategy<Action> {
    let hash = (prop_oneof![Just(HashAlgorithm::L4), Just(HashAlgorithm::SymmetricL4)], any::<u32>());
    prop_oneof![
        (0..65_536_u32).prop_map(Action::Output),
        userspace().prop_map(Action::Userspace),
        any::<u16>().prop_map(|tci| Action::PushVlan(Vlan { tpid: 0x88a8, tci: tci | VLAN_PRESENT })),
        Just(Action::PopVlan),
        any::<u32>().prop_map(Action::Recirc),
        hash.prop_map(|(algorithm, basis)| Action::Hash(Hash { algorithm, basis })),
        mpls().prop_map(|tag| Action::PushMpls(MplsTag { is_l3: true, ..tag })),
        any::<u16>().prop_map(Action::PopMpls),
        mpls().prop_map(Action::AddMpls),
        Just(Action::CtClear),
        any::<u32>().prop_map(Action::Drop),
        (14..u32::MAX).prop_map(Action::Truncate),
        group().prop_map(Action::PushEthernet),
        Just(Action::PopEthernet),
        nsh().prop_map(|nsh| Action::PushNsh(Box::new(to_push(nsh)))),
        Just(Action::PopNsh),
        any::<u32>().prop_map(Action::Meter),
    ]
    .boxed()
}

fn flat() -> BoxedStrategy<Action> {
    prop_oneof![
        4 => plain(),
        3 => rewrite().prop_map(Action::Set),
        1 => conntrack().prop_map(|ct| Action::Ct(Box::new(ct))),
    ]
    .boxed()
}

/// Any list of actions.
pub(crate) fn actions() -> BoxedStrategy<Vec<Action>> {
    let action = flat().prop_recursive(4, 24, 4, |inner| {
        let list = || prop::collection::vec(inner.clone(), 0..4);
        prop_oneof![
            list().prop_map(Action::Clone),
            (any::<u32>(), list())
                .prop_map(|(probability, actions)| Action::Sample(SampleAction { probability, actions })),
            (1..u16::MAX, list(), list()).prop_map(|(len_bytes, greater, less_equal)| {
                Action::CheckLength(CheckLength { len_bytes, greater, less_equal })
            }),
        ]
    });
    prop::collection::vec(action, 0..6).boxed()
}
