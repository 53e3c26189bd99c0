//! Keys, attribute by attribute, in the order of their messages.

use lasthop_flow::{
    Arp, Ethernet, FlowKey, Group, Icmp, Ipv4, Ipv6, NeighbourDiscovery, Nsh, NshContext, Ports, Tuple4,
    Tuple6, Vlan,
};

use super::text::{Text, flags, hex, hex_bytes, masked_flags};
use super::{Style, tunnel};

const CT_STATES: [(u32, &str); 8] = [
    (0x01, "new"),
    (0x02, "est"),
    (0x04, "rel"),
    (0x08, "rpl"),
    (0x10, "inv"),
    (0x20, "trk"),
    (0x40, "snat"),
    (0x80, "dnat"),
];
const TCP_FLAGS: [(u32, &str); 12] = [
    (0x01, "fin"),
    (0x02, "syn"),
    (0x04, "rst"),
    (0x08, "psh"),
    (0x10, "ack"),
    (0x20, "urg"),
    (0x40, "ece"),
    (0x80, "cwr"),
    (0x100, "ns"),
    (0x200, "[200]"),
    (0x400, "[400]"),
    (0x800, "[800]"),
];
const TCP_FLAGS_ALL: u16 = 0xfff;
const LABEL_ALL: u32 = 0xf_ffff;

/// The printed attributes.
struct List<'a> {
    attrs: Vec<String>,
    /// Whether there is a mask: then fields that it lacks match anything.
    is_masked: bool,
    style: Style<'a>,
}

impl List<'_> {
    /// Adds an attribute; `wild` is the mask that matches anything.
    fn put<T: PartialEq + Copy>(
        &mut self,
        name: &str,
        (value, mask, wild): (Option<T>, Option<T>, T),
        show: impl Fn(T, Option<T>, Style<'_>) -> String,
    ) {
        let Some(value) = value else { return };
        let mask = self.is_masked.then(|| mask.unwrap_or(wild));
        if self.style.is_verbose || mask != Some(wild) {
            self.attrs.push(format!("{name}({})", show(value, mask, self.style)));
        }
    }

    fn group<G: Group>(
        &mut self,
        name: &str,
        value: Option<G>,
        mask: Option<G>,
        show: impl Fn(G, Option<G>, &mut Text),
    ) {
        self.put(name, (value, mask, G::default()), |value, mask, style| {
            fields(value, mask, style.is_verbose, &show)
        });
    }
}

fn fields<G: Group>(
    value: G,
    mask: Option<G>,
    is_verbose: bool,
    show: impl Fn(G, Option<G>, &mut Text),
) -> String {
    let mut text = Text::new(is_verbose);
    show(value, mask, &mut text);
    text.finish()
}

/// Formats a key.
pub(super) fn format(key: &FlowKey, mask: Option<&FlowKey>, style: Style<'_>) -> String {
    let nothing = FlowKey::default();
    let masks = mask.unwrap_or(&nothing);
    let mut list = List { attrs: Vec::new(), is_masked: mask.is_some(), style };
    metadata(&mut list, key, masks);
    ethernet(&mut list, key.ethernet, masks.ethernet);
    let inner = from_tag(key, mask, (&key.vlans, mask.map(|mask| mask.vlans.as_slice())), style).join(",");
    let inner = if list.attrs.is_empty() { &inner } else { inner.trim_start_matches(',') };
    list.attrs.extend((!inner.is_empty()).then(|| inner.to_owned()));
    let line = list.attrs.join(",");
    // At the start it has no comma.
    line.strip_prefix("eth(),").map_or_else(|| line.clone(), |rest| format!("eth(){rest}"))
}

fn metadata(list: &mut List<'_>, key: &FlowKey, mask: &FlowKey) {
    let word = |value, mask, _: Style<'_>| number(value, mask);
    list.put("recirc_id", (key.recirc_id, mask.recirc_id, 0), word);
    list.put("dp_hash", (key.dp_hash, mask.dp_hash, 0), word);
    list.put("skb_priority", (key.priority, mask.priority, 0), word);
    if let Some(outer) = &key.tunnel {
        let mask = mask.tunnel.as_deref().filter(|_| list.is_masked);
        list.attrs.push(format!("tunnel({})", tunnel::format(outer, mask, list.style.is_verbose)));
    }
    list.put("in_port", (key.in_port, mask.in_port, 0), in_port);
    list.put("skb_mark", (key.mark, mask.mark, 0), word);
    conntrack(list, key, mask);
}

fn conntrack(list: &mut List<'_>, key: &FlowKey, mask: &FlowKey) {
    let (key, mask) = (&key.ct, &mask.ct);
    list.put("ct_state", (key.state, mask.state, 0), ct_state);
    // Without a mask these three are not printed.
    let is_told = list.is_masked || list.style.is_verbose;
    list.put("ct_zone", (key.zone, mask.zone, 0), |value, mask, _| {
        let tail = mask.filter(|mask| *mask != u16::MAX).map(|mask| format!("/{}", hex(mask)));
        if is_told { hex(value) + &tail.unwrap_or_default() } else { String::new() }
    });
    list.put(
        "ct_mark",
        (key.mark, mask.mark, 0),
        |value, mask, _| {
            if is_told { number(value, mask) } else { String::new() }
        },
    );
    list.put("ct_label", (key.labels, mask.labels, [0; 16]), |value, mask, _| {
        if is_told { labels(value, mask) } else { String::new() }
    });
    list.group("ct_tuple4", key.tuple4, mask.tuple4, tuple4);
    list.group("ct_tuple6", key.tuple6, mask.tuple6, tuple6);
}

/// `%#x`, and the mask unless it is exact.
fn number(value: u32, mask: Option<u32>) -> String {
    let tail = mask.filter(|mask| *mask != u32::MAX).map(|mask| format!("/{}", hex(mask)));
    hex(value) + &tail.unwrap_or_default()
}

fn in_port(value: u32, mask: Option<u32>, style: Style<'_>) -> String {
    match mask {
        None | Some(u32::MAX) => style.port(value),
        Some(mask) => format!("{value}/{}", hex(mask)),
    }
}

fn ct_state(value: u32, mask: Option<u32>, style: Style<'_>) -> String {
    match mask {
        _ if style.is_verbose => number(value, mask),
        None => flags(value, &CT_STATES, "|"),
        Some(mask) => masked_flags(value, mask, u32::MAX, &CT_STATES),
    }
}

/// Formats 128 bits, as words in the host's byte order, the lowest first.
pub(super) fn labels(value: [u8; 16], mask: Option<[u8; 16]>) -> String {
    let show = |bytes: [u8; 16]| {
        let words = bytes.as_chunks::<4>().0.iter().rev().map(|word| u32::from_ne_bytes(*word).to_be_bytes());
        hex_bytes(&words.flatten().collect::<Vec<u8>>())
    };
    let tail = mask.filter(|mask| *mask != [0xff; 16]).map(|mask| format!("/{}", show(mask)));
    show(value) + &tail.unwrap_or_default()
}

/// Formats an Ethernet header, which is printed even if the mask matches any address.
fn ethernet(list: &mut List<'_>, value: Option<Ethernet>, mask: Option<Ethernet>) {
    if value.is_some()
        && list.is_masked
        && mask.unwrap_or_default() == Ethernet::default()
        && !list.style.is_verbose
    {
        return list.attrs.push("eth()".to_owned());
    }
    list.group("eth", value, mask, eth);
}

/// Formats a tag with the fields behind it in its `encap`; or the fields behind the last tag.
fn from_tag(
    key: &FlowKey,
    mask: Option<&FlowKey>,
    (vlans, masks): (&[Vlan], Option<&[Vlan]>),
    style: Style<'_>,
) -> Vec<String> {
    let mut list = List { attrs: Vec::new(), is_masked: mask.is_some(), style };
    let Some((vlan, inner)) = vlans.split_first() else {
        headers(&mut list, key, mask);
        return list.attrs;
    };
    let (vlan_mask, inner_masks) = masks.and_then(<[Vlan]>::split_first).unzip();
    list.put("eth_type", (Some(vlan.tpid), vlan_mask.map(|mask| mask.tpid), 0), ether_type);
    list.put("vlan", (Some(vlan.tci), vlan_mask.map(|mask| mask.tci), 0), tci);
    // An empty mask in it counts as none.
    let has_mask =
        mask.is_some_and(|mask| inner_masks.is_some_and(|tags| !tags.is_empty()) || has_headers(mask));
    let inner = from_tag(key, mask.filter(|_| has_mask), (inner, inner_masks), style);
    list.attrs.push(format!("encap({})", inner.join(",")));
    list.attrs
}

/// Whether there are headers behind the last tag.
fn has_headers(key: &FlowKey) -> bool {
    let before = FlowKey {
        ether_type: None,
        ipv4: None,
        ipv6: None,
        arp: None,
        mpls: Default::default(),
        nsh: None,
        tcp: None,
        tcp_flags: None,
        udp: None,
        sctp: None,
        icmp: None,
        icmpv6: None,
        nd: None,
        ..key.clone()
    };
    before != *key
}

fn headers(list: &mut List<'_>, key: &FlowKey, mask: Option<&FlowKey>) {
    let nothing = FlowKey::default();
    let masks = mask.unwrap_or(&nothing);
    list.put("eth_type", (key.ether_type, masks.ether_type, 0), ether_type);
    list.group("ipv4", key.ipv4, masks.ipv4, ipv4);
    list.group("ipv6", key.ipv6, masks.ipv6, ipv6);
    list.group("arp", key.arp, masks.arp, arp);
    mpls(list, key, masks);
    if let Some(header) = &key.nsh {
        list.attrs.push(format!("nsh({})", nsh(header, masks.nsh.as_ref().filter(|_| mask.is_some()))));
    }
    list.group("tcp", key.tcp, masks.tcp, ports);
    list.put("tcp_flags", (key.tcp_flags, masks.tcp_flags, 0), tcp_flags);
    list.group("udp", key.udp, masks.udp, ports);
    list.group("sctp", key.sctp, masks.sctp, ports);
    list.group("icmp", key.icmp, masks.icmp, icmp);
    list.group("icmpv6", key.icmpv6, masks.icmpv6, icmp);
    list.group("nd", key.nd, masks.nd, nd);
    if let (None, Some(mask)) = (key.ether_type, masks.ether_type) {
        // It always has a comma.
        let comma = if list.attrs.is_empty() { "," } else { "" };
        list.attrs.push(format!("{comma}eth_type(0/0x{mask:04x})"));
    }
}

fn ether_type(value: u16, mask: Option<u16>, _: Style<'_>) -> String {
    let tail = mask.filter(|mask| *mask != u16::MAX).map(|mask| format!("/0x{mask:04x}"));
    format!("0x{value:04x}{}", tail.unwrap_or_default())
}

fn tci(value: u16, mask: Option<u16>, style: Style<'_>) -> String {
    vlan_tci(value, mask.unwrap_or(u16::MAX), style.is_verbose)
}

/// Formats a tag's control word; prints the bit that says that there is a tag only if it is missing.
pub(super) fn vlan_tci(value: u16, mask: u16, is_verbose: bool) -> String {
    let (vid, vid_mask) = (value & 0xfff, mask & 0xfff);
    let (pcp, pcp_mask) = (value >> 13, mask >> 13);
    let mut text = Text::new(is_verbose);
    if is_verbose || vid != 0 || vid_mask != 0 {
        let tail = if vid_mask == 0xfff { String::new() } else { format!("/0x{vid_mask:x}") };
        text.push(format!("vid={vid}{tail}"));
    }
    if is_verbose || pcp != 0 || pcp_mask != 0 {
        let tail = if pcp_mask == 7 { String::new() } else { format!("/0x{pcp_mask:x}") };
        text.push(format!("pcp={pcp}{tail}"));
    }
    if value & lasthop_flow::VLAN_PRESENT == 0 {
        text.push("cfi=0".to_owned());
    }
    text.finish()
}

fn mpls(list: &mut List<'_>, key: &FlowKey, mask: &FlowKey) {
    if key.mpls.is_empty() {
        return;
    }
    let is_open = list.is_masked && mask.mpls.iter().all(|mask| *mask == 0);
    if is_open && !list.style.is_verbose {
        return;
    }
    let is_exact =
        !list.is_masked || (!mask.mpls.is_empty() && mask.mpls.iter().all(|mask| *mask == u32::MAX));
    let masks = mask.mpls.iter().chain(std::iter::repeat(&0));
    let entries = key.mpls.iter().zip(masks).map(|(entry, mask)| match is_exact {
        true => lse(*entry),
        false => lse_masked(*entry, *mask),
    });
    list.attrs.push(format!("mpls({})", entries.collect::<Vec<_>>().join(",")));
}

/// Label, traffic class, time to live, bottom of stack (RFC 3032, 2.1).
fn lse_parts(entry: u32) -> [u32; 4] {
    [entry >> 12, entry >> 9 & 7, entry & 0xff, entry >> 8 & 1]
}

pub(super) fn lse(entry: u32) -> String {
    let [label, class, ttl, bottom] = lse_parts(entry);
    format!("label={label},tc={class},ttl={ttl},bos={bottom}")
}

pub(super) fn lse_masked(entry: u32, mask: u32) -> String {
    let ([label, class, ttl, bottom], [l, c, t, b]) = (lse_parts(entry), lse_parts(mask));
    format!("label={label}/0x{l:x},tc={class}/{c:x},ttl={ttl}/0x{t:x},bos={bottom}/{b:x}")
}

fn context(header: &Nsh) -> Option<[u32; 4]> {
    match header.context {
        NshContext::Md1(context) => Some(context),
        _ => None,
    }
}

/// Formats a network service header, including fields that its mask lacks.
pub(super) fn nsh(header: &Nsh, mask: Option<&Nsh>) -> String {
    let words = context(header).unwrap_or_default();
    let (spi, si) = (header.path >> 8, header.path & 0xff);
    let Some(mask) = mask else {
        let Nsh { flags, ttl, md_type, next_proto, .. } = header;
        let start = format!("flags={flags},ttl={ttl},mdtype={md_type},np={next_proto},spi=0x{spi:x},si={si}");
        let [a, b, c, d] = words;
        let tail = format!(",c1=0x{a:x},c2=0x{b:x},c3=0x{c:x},c4=0x{d:x}");
        return if *md_type == 1 { start + &tail } else { start };
    };
    let mut text = Text::new(false);
    let byte = |text: &mut Text, name: &str, value: u32, mask: u32| match mask {
        0 => {}
        0xff => text.push(format!("{name}={value}")),
        _ => text.push(format!("{name}=0x{value:02x}/0x{mask:02x}")),
    };
    byte(&mut text, "flags", header.flags.into(), mask.flags.into());
    byte(&mut text, "ttl", header.ttl.into(), mask.ttl.into());
    byte(&mut text, "mdtype", header.md_type.into(), mask.md_type.into());
    byte(&mut text, "np", header.next_proto.into(), mask.next_proto.into());
    word(&mut text, "spi", spi, if mask.path >> 8 == 0xff_ffff { u32::MAX } else { mask.path >> 8 });
    byte(&mut text, "si", si, mask.path & 0xff);
    let masks = context(header).and(context(mask)).unwrap_or([u32::MAX; 4]);
    for ((name, value), mask) in ["c1", "c2", "c3", "c4"].into_iter().zip(words).zip(masks) {
        word(&mut text, name, value, mask);
    }
    text.finish()
}

fn word(text: &mut Text, name: &str, value: u32, mask: u32) {
    match mask {
        0 => {}
        u32::MAX => text.push(format!("{name}=0x{value:x}")),
        _ => text.push(format!("{name}=0x{value:x}/0x{mask:08x}")),
    }
}

fn tcp_flags(value: u16, mask: Option<u16>, _: Style<'_>) -> String {
    match mask.map(|mask| mask & TCP_FLAGS_ALL) {
        None | Some(TCP_FLAGS_ALL) => flags(value.into(), &TCP_FLAGS, "|"),
        Some(mask) => masked_flags(value.into(), mask.into(), TCP_FLAGS_ALL.into(), &TCP_FLAGS),
    }
}

pub(super) fn eth(value: Ethernet, mask: Option<Ethernet>, text: &mut Text) {
    text.mac("src", value.src, mask.map(|mask| mask.src));
    text.mac("dst", value.dst, mask.map(|mask| mask.dst));
}

pub(super) fn ipv4(value: Ipv4, mask: Option<Ipv4>, text: &mut Text) {
    text.ipv4("src", value.src, mask.map(|mask| mask.src));
    text.ipv4("dst", value.dst, mask.map(|mask| mask.dst));
    text.u8("proto", value.proto, mask.map(|mask| mask.proto));
    text.u8_hex("tos", value.tos, mask.map(|mask| mask.tos));
    text.u8("ttl", value.ttl, mask.map(|mask| mask.ttl));
    frag(value.frag, mask.map(|mask| mask.frag), text);
}

pub(super) fn ipv6(value: Ipv6, mask: Option<Ipv6>, text: &mut Text) {
    text.ipv6("src", value.src, mask.map(|mask| mask.src));
    text.ipv6("dst", value.dst, mask.map(|mask| mask.dst));
    // A mask of all twenty bits is exact, for any other bits.
    let label_mask = mask.map(|mask| if mask.label & LABEL_ALL == LABEL_ALL { u32::MAX } else { mask.label });
    text.put("label", (value.label, label_mask), (0, u32::MAX), (hex, hex));
    text.u8("proto", value.proto, mask.map(|mask| mask.proto));
    text.u8_hex("tclass", value.tclass, mask.map(|mask| mask.tclass));
    text.u8("hlimit", value.hlimit, mask.map(|mask| mask.hlimit));
    frag(value.frag, mask.map(|mask| mask.frag), text);
}

/// Formats the fragment bits, as far as the mask has them.
fn frag(value: u8, mask: Option<u8>, text: &mut Text) {
    let name = match value {
        lasthop_flow::FRAGMENT_NONE => "no",
        lasthop_flow::FRAGMENT_FIRST => "first",
        lasthop_flow::FRAGMENT_LATER => "later",
        _ => "<error>",
    };
    match mask {
        Some(0) => {}
        None | Some(u8::MAX) => text.push(format!("frag={name}")),
        Some(mask) => text.push(format!("error: partial mask not supported for frag ({})", hex(mask))),
    }
}

pub(super) fn arp(value: Arp, mask: Option<Arp>, text: &mut Text) {
    text.ipv4("sip", value.sip, mask.map(|mask| mask.sip));
    text.ipv4("tip", value.tip, mask.map(|mask| mask.tip));
    text.u16("op", value.op, mask.map(|mask| mask.op));
    text.mac("sha", value.sha, mask.map(|mask| mask.sha));
    text.mac("tha", value.tha, mask.map(|mask| mask.tha));
}

pub(super) fn ports(value: Ports, mask: Option<Ports>, text: &mut Text) {
    text.u16("src", value.src, mask.map(|mask| mask.src));
    text.u16("dst", value.dst, mask.map(|mask| mask.dst));
}

pub(super) fn icmp(value: Icmp, mask: Option<Icmp>, text: &mut Text) {
    text.u8("type", value.kind, mask.map(|mask| mask.kind));
    text.u8("code", value.code, mask.map(|mask| mask.code));
}

pub(super) fn nd(value: NeighbourDiscovery, mask: Option<NeighbourDiscovery>, text: &mut Text) {
    text.ipv6("target", value.target, mask.map(|mask| mask.target));
    text.mac("sll", value.sll, mask.map(|mask| mask.sll));
    text.mac("tll", value.tll, mask.map(|mask| mask.tll));
}

fn tuple4(value: Tuple4, mask: Option<Tuple4>, text: &mut Text) {
    text.ipv4("src", value.src, mask.map(|mask| mask.src));
    text.ipv4("dst", value.dst, mask.map(|mask| mask.dst));
    text.u8("proto", value.proto, mask.map(|mask| mask.proto));
    text.u16("tp_src", value.src_port, mask.map(|mask| mask.src_port));
    text.u16("tp_dst", value.dst_port, mask.map(|mask| mask.dst_port));
}

fn tuple6(value: Tuple6, mask: Option<Tuple6>, text: &mut Text) {
    text.ipv6("src", value.src, mask.map(|mask| mask.src));
    text.ipv6("dst", value.dst, mask.map(|mask| mask.dst));
    text.u8("proto", value.proto, mask.map(|mask| mask.proto));
    text.u16("src_port", value.src_port, mask.map(|mask| mask.src_port));
    text.u16("dst_port", value.dst_port, mask.map(|mask| mask.dst_port));
}

/// Formats a header to set, with its mask.
pub(super) fn group<G: Group>(
    name: &str,
    value: G,
    mask: Option<G>,
    show: impl Fn(G, Option<G>, &mut Text),
) -> String {
    format!("{name}({})", fields(value, mask, mask.is_none(), show))
}
