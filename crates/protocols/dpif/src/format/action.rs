//! Actions.

use std::net::IpAddr;

use lasthop_flow::{
    Action, Conntrack, Group, HashAlgorithm, Masked, Nat, NatSource, Nsh, NshContext, Rewrite, Userspace,
};
use lasthop_wire::headers::ETHERTYPE_VLAN;

use super::Style;
use super::cookie;
use super::key;
use super::text::{Text, hex, hex_bytes, ipv6};
use super::tunnel;

pub(super) fn format(actions: &[Action], style: Style<'_>) -> String {
    if actions.is_empty() {
        return "drop".to_owned();
    }
    actions.iter().map(|action| one(action, style)).collect::<Vec<_>>().join(",")
}

fn one(action: &Action, style: Style<'_>) -> String {
    match action {
        Action::Output(port) => style.port(*port),
        Action::Userspace(userspace) => self::userspace(userspace, style),
        Action::Set(rewrite) => format!("set({})", self::rewrite(rewrite)),
        Action::PushVlan(vlan) => {
            let tpid = if vlan.tpid == ETHERTYPE_VLAN {
                String::new()
            } else {
                format!("tpid=0x{:04x},", vlan.tpid)
            };
            format!("push_vlan({tpid}{})", key::vlan_tci(vlan.tci, u16::MAX, false))
        }
        Action::PopVlan => "pop_vlan".to_owned(),
        Action::Sample(sample) => {
            let percent = 100.0 * f64::from(sample.probability) / f64::from(u32::MAX);
            format!("sample(sample={percent:.1}%,actions({}))", format(&sample.actions, style))
        }
        Action::Recirc(id) => format!("recirc({})", hex(*id)),
        Action::Hash(hash) => {
            let name = match hash.algorithm {
                HashAlgorithm::L4 => "l4",
                HashAlgorithm::SymmetricL4 => "sym_l4",
            };
            format!("hash({name}({}))", hash.basis)
        }
        Action::PushMpls(tag) => format!("push_mpls({},eth_type=0x{:x})", key::lse(tag.lse), tag.ether_type),
        Action::PopMpls(ether_type) => format!("pop_mpls(eth_type=0x{ether_type:x})"),
        Action::AddMpls(tag) => format!("add_mpls({},eth_type=0x{:x})", key::lse(tag.lse), tag.ether_type),
        Action::Ct(conntrack) => self::conntrack(conntrack),
        Action::CtClear => "ct_clear".to_owned(),
        Action::Drop(_) => "drop".to_owned(),
        Action::Truncate(len) => format!("trunc({len})"),
        Action::PushEthernet(ethernet) => format!("push_eth(src={},dst={})", ethernet.src, ethernet.dst),
        Action::PopEthernet => "pop_eth".to_owned(),
        Action::PushNsh(header) => format!("push_nsh({})", push_nsh(header)),
        Action::PopNsh => "pop_nsh()".to_owned(),
        Action::Meter(id) => format!("meter({id})"),
        Action::Clone(actions) => format!("clone({})", format(actions, style)),
        Action::CheckLength(check) => {
            let (greater, less_equal) = (format(&check.greater, style), format(&check.less_equal, style));
            format!("check_pkt_len(size={},gt({greater}),le({less_equal}))", check.len_bytes)
        }
    }
}

fn userspace(userspace: &Userspace, style: Style<'_>) -> String {
    let mut line = format!("userspace(pid={}", userspace.port_id);
    if let Some(user_data) = &userspace.user_data {
        line += &cookie::format(user_data, style).unwrap_or_else(|| {
            let digits: String = user_data.iter().map(|byte| format!("{byte:02x}")).collect();
            format!(",userdata({digits})")
        });
    }
    if userspace.has_actions {
        line += ",actions";
    }
    if let Some(port) = userspace.egress_tunnel_port {
        line += &format!(",tunnel_out_port={}", style.port(port));
    }
    line + ")"
}

fn set<G: Group>(name: &str, set: &Masked<G>, show: impl Fn(G, Option<G>, &mut Text)) -> String {
    key::group(name, set.value, Some(set.mask).filter(|_| !set.is_exact()), show)
}

fn set_word(name: &str, set: &Masked<u32>) -> String {
    let tail = if set.is_exact() { String::new() } else { format!("/{}", hex(set.mask)) };
    format!("{name}({}{tail})", hex(set.value))
}

fn rewrite(rewrite: &Rewrite) -> String {
    match rewrite {
        Rewrite::Priority(word) => set_word("skb_priority", word),
        Rewrite::Mark(word) => set_word("skb_mark", word),
        Rewrite::Ethernet(group) => set("eth", group, key::eth),
        Rewrite::Ipv4(group) => set("ipv4", group, key::ipv4),
        Rewrite::Ipv6(group) => set("ipv6", group, key::ipv6),
        Rewrite::Tcp(group) => set("tcp", group, key::ports),
        Rewrite::Udp(group) => set("udp", group, key::ports),
        Rewrite::Sctp(group) => set("sctp", group, key::ports),
        Rewrite::Icmp(group) => set("icmp", group, key::icmp),
        Rewrite::Icmpv6(group) => set("icmpv6", group, key::icmp),
        Rewrite::Arp(group) => set("arp", group, key::arp),
        Rewrite::Nd(group) => set("nd", group, key::nd),
        Rewrite::Mpls(entry) if entry.is_exact() => format!("mpls({})", key::lse(entry.value.lse)),
        Rewrite::Mpls(entry) => format!("mpls({})", key::lse_masked(entry.value.lse, entry.mask.lse)),
        Rewrite::Nsh(pair) => format!("nsh({})", key::nsh(&pair.0, Some(&pair.1))),
        Rewrite::Tunnel(outer) => format!("tunnel({})", tunnel::format(outer, None, true)),
    }
}

/// Formats the flags and hops as on the wire: two bits of flags, six of hops left.
fn push_nsh(header: &Nsh) -> String {
    let plain = key::nsh(&Nsh { flags: header.flags & 3, ttl: header.ttl & 0x3f, ..header.clone() }, None);
    match (&header.context, header.md_type) {
        (NshContext::Md2(bytes), 2) => format!("{plain},md2={}", hex_bytes(bytes)),
        (_, 1) => plain,
        (_, 2) => plain + ",md2=0",
        _ => plain + ",<error: unknown mdtype>",
    }
}

fn conntrack(ct: &Conntrack) -> String {
    let mut text = Text::new(true);
    if ct.is_commit {
        text.push("commit".to_owned());
    }
    if ct.is_force_commit {
        text.push("force_commit".to_owned());
    }
    if let Some(zone @ 1..) = ct.zone {
        text.push(format!("zone={zone}"));
    }
    if let Some(mark) = ct.mark {
        text.push(format!("mark={}/{}", hex(mark.value), hex(mark.mask)));
    }
    if let Some((value, mask)) = ct.labels {
        text.push(format!("label={}", key::labels(value, Some(mask))));
    }
    if let Some(helper) = &ct.helper {
        text.push(format!("helper={helper}"));
    }
    if let Some(timeout) = &ct.timeout {
        text.push(format!("timeout={timeout}"));
    }
    if let Some(nat) = &ct.nat {
        text.push(self::nat(nat));
    }
    let inner = text.finish();
    if inner.is_empty() { "ct".to_owned() } else { format!("ct({inner})") }
}

/// Formats a translation. Invalid values are reported in the words of ovs-dpctl.
fn nat(nat: &Nat) -> String {
    let range = &nat.range;
    let has_options = nat.is_persistent || nat.is_hashed || nat.is_random;
    let Some(source) = nat.source else {
        let is_plain = !has_options && *range == Default::default();
        let wrong = "nat(error: options allowed only with \"src\" or \"dst\")";
        return if is_plain { "nat" } else { wrong }.to_owned();
    };
    if let Some(wrong) = wrong_range(nat) {
        return wrong.to_owned();
    }
    let mut text = Text::new(true);
    text.push(match source {
        NatSource::Src => format!("src{}", addresses(nat)),
        NatSource::Dst => format!("dst{}", addresses(nat)),
    });
    for (is_set, name) in
        [(nat.is_persistent, "persistent"), (nat.is_hashed, "hash"), (nat.is_random, "random")]
    {
        if is_set {
            text.push(name.to_owned());
        }
    }
    format!("nat({})", text.finish())
}

fn wrong_range(nat: &Nat) -> Option<&'static str> {
    let range = &nat.range;
    let (ip_min, ip_max) = (range.ip_min, range.ip_max.filter(|address| !address.is_unspecified()));
    let ports = range.proto_min.unwrap_or(0)..=range.proto_max.unwrap_or(0);
    if range.ip_min.is_none() && range.proto_min.is_some() {
        Some("nat(error: proto but no IP.)")
    } else if (ip_min.is_none() && range.ip_max.is_some())
        || (range.proto_min.is_none() && range.proto_max.is_some())
    {
        Some("nat(error: range max without min.)")
    } else if ip_min.zip(range.ip_max).is_some_and(|(min, max)| min.is_ipv4() != max.is_ipv4()) {
        Some("nat(error: IP address sizes do not match)")
    } else if ip_min.zip(ip_max).is_some_and(|(min, max)| min > max)
        || (*ports.end() != 0 && ports.is_empty())
    {
        Some("nat(range error)")
    } else {
        None
    }
}

fn addresses(nat: &Nat) -> String {
    let range = &nat.range;
    let Some(min) = range.ip_min else { return String::new() };
    let port = range.proto_min.filter(|port| *port != 0);
    let show = |address: IpAddr| match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) if port.is_some() => format!("[{}]", ipv6(address)),
        IpAddr::V6(address) => ipv6(address),
    };
    let mut line = format!("={}", show(min));
    if let Some(max) = range.ip_max.filter(|max| !max.is_unspecified() && *max != min) {
        line += &format!("-{}", show(max));
    }
    if let Some(port) = port {
        line += &format!(":{port}");
        if let Some(max) = range.proto_max.filter(|max| *max != 0 && *max != port) {
            line += &format!("-{max}");
        }
    }
    line
}
