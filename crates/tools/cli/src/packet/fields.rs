//! Fields of a packet, by the words of Open vSwitch's flows (ovs-fields(7)).

use std::net::IpAddr;
use std::str::FromStr;

use lasthop_api::names;
use lasthop_module_api::Mac;
use lasthop_runtime::fault::Fault;
use lasthop_wire::headers::{
    ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, PROTO_ICMP, PROTO_ICMPV6, PROTO_SCTP, PROTO_TCP, PROTO_UDP,
};

/// The fields that were named; all others have the value that is usual for the protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PacketFields {
    pub(super) dl_src: Option<Mac>,
    pub(super) dl_dst: Option<Mac>,
    pub(super) dl_type: Option<u16>,
    pub(super) vlan: Option<u16>,
    pub(super) vlan_pcp: u8,
    pub(super) nw_src: Option<IpAddr>,
    pub(super) nw_dst: Option<IpAddr>,
    pub(super) nw_proto: Option<u8>,
    pub(super) nw_tos: u8,
    pub(super) nw_ttl: Option<u8>,
    /// Source port, or ICMP type.
    pub(super) tp_src: Option<u16>,
    /// Destination port, or ICMP code.
    pub(super) tp_dst: Option<u16>,
    pub(super) tcp_flags: Option<u16>,
    pub(super) arp_op: Option<u16>,
    pub(super) arp_sha: Option<Mac>,
    pub(super) arp_tha: Option<Mac>,
}

/// Words for a protocol: EtherType and IP protocol.
const PROTOCOLS: [(&str, u16, Option<u8>); 13] = [
    ("ip", ETHERTYPE_IPV4, None),
    ("ipv4", ETHERTYPE_IPV4, None),
    ("ipv6", ETHERTYPE_IPV6, None),
    ("tcp", ETHERTYPE_IPV4, Some(PROTO_TCP)),
    ("udp", ETHERTYPE_IPV4, Some(PROTO_UDP)),
    ("sctp", ETHERTYPE_IPV4, Some(PROTO_SCTP)),
    ("icmp", ETHERTYPE_IPV4, Some(PROTO_ICMP)),
    ("tcp6", ETHERTYPE_IPV6, Some(PROTO_TCP)),
    ("udp6", ETHERTYPE_IPV6, Some(PROTO_UDP)),
    ("sctp6", ETHERTYPE_IPV6, Some(PROTO_SCTP)),
    ("icmp6", ETHERTYPE_IPV6, Some(PROTO_ICMPV6)),
    ("icmpv6", ETHERTYPE_IPV6, Some(PROTO_ICMPV6)),
    ("arp", ETHERTYPE_ARP, None),
];

/// Words for a field; those of a line mean the same.
const FIELDS: [&[&str]; 17] = [
    &["dl_src", "eth_src"],
    &["dl_dst", "eth_dst"],
    &["dl_type", "eth_type"],
    &["dl_vlan", "vlan_vid"],
    &["dl_vlan_pcp", "vlan_pcp"],
    &["nw_src", "ip_src", "ipv6_src", "arp_spa"],
    &["nw_dst", "ip_dst", "ipv6_dst", "arp_tpa"],
    &["nw_proto", "ip_proto"],
    &["nw_tos", "ip_tos"],
    &["nw_ttl"],
    &["tp_src", "tcp_src", "udp_src", "sctp_src", "icmp_type", "icmpv6_type"],
    &["tp_dst", "tcp_dst", "udp_dst", "sctp_dst", "icmp_code", "icmpv6_code"],
    &["tcp_flags"],
    &["arp_op"],
    &["arp_sha"],
    &["arp_tha"],
    &["in_port"],
];

/// TCP flags by name, the lowest bit first.
const TCP_FLAGS: [&str; 9] = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr", "ns"];

/// Reads `tcp,nw_src=10.0.0.1,...`.
pub(super) fn read(text: &str) -> Result<PacketFields, Fault> {
    let mut fields = PacketFields::default();
    for word in text.split([',', ' ']).map(str::trim).filter(|word| !word.is_empty()) {
        match word.split_once('=') {
            Some((name, value)) => fields.set(name, value)?,
            None => fields.set_protocol(word)?,
        }
    }
    if fields == PacketFields::default() {
        return Err(Fault::params(
            "the packet is empty; write it as tcp,nw_src=10.0.0.1,nw_dst=10.0.0.2,tp_dst=443, or as hexadecimal bytes",
        ));
    }
    fields.check()
}

impl PacketFields {
    fn set_protocol(&mut self, word: &str) -> Result<(), Fault> {
        let found = PROTOCOLS.iter().find(|(name, ..)| *name == word);
        let (_, dl_type, proto) = found.ok_or_else(|| {
            let all = PROTOCOLS.iter().map(|(name, ..)| *name);
            let known: Vec<&str> = all.clone().collect();
            let hint = names::hint(word, all);
            Fault::params(format!(
                "\"{word}\" is no protocol{hint} (there are {}), and no row of hexadecimal bytes of a whole Ethernet header",
                known.join(", ")
            ))
        })?;
        self.dl_type = Some(*dl_type);
        self.nw_proto = proto.or(self.nw_proto);
        Ok(())
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), Fault> {
        let found = FIELDS.iter().find(|names| names.contains(&name)).and_then(|names| names.first());
        match *found.ok_or_else(|| no_field(name))? {
            "dl_src" => self.dl_src = Some(parsed(name, value)?),
            "dl_dst" => self.dl_dst = Some(parsed(name, value)?),
            "dl_type" => self.dl_type = Some(number(name, value, u16::MAX)?),
            "dl_vlan" => self.vlan = Some(number(name, value, 0xfff)?),
            "dl_vlan_pcp" => self.vlan_pcp = number(name, value, 7)? as u8,
            "nw_src" => self.nw_src = Some(parsed(name, value)?),
            "nw_dst" => self.nw_dst = Some(parsed(name, value)?),
            "nw_proto" => self.nw_proto = Some(number(name, value, 0xff)? as u8),
            "nw_tos" => self.nw_tos = number(name, value, 0xff)? as u8,
            "nw_ttl" => self.nw_ttl = Some(number(name, value, 0xff)? as u8),
            "tp_src" => self.tp_src = Some(number(name, value, u16::MAX)?),
            "tp_dst" => self.tp_dst = Some(number(name, value, u16::MAX)?),
            "tcp_flags" => self.tcp_flags = Some(tcp_flags(value)?),
            "arp_op" => self.arp_op = Some(number(name, value, u16::MAX)?),
            "arp_sha" => self.arp_sha = Some(parsed(name, value)?),
            "arp_tha" => self.arp_tha = Some(parsed(name, value)?),
            _ => return Err(Fault::params("in_port is given by its name, as --from NAME")),
        }
        Ok(())
    }

    /// Addresses are of the version that the protocol word says, and of one.
    fn check(mut self) -> Result<Self, Fault> {
        let addresses = [self.nw_src, self.nw_dst].into_iter().flatten();
        if self.dl_type.is_none() {
            let is_ipv6 = addresses.clone().next().map(|address| address.is_ipv6());
            self.dl_type = is_ipv6.map(|is_ipv6| if is_ipv6 { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 });
        }
        let is_ipv6 = self.dl_type == Some(ETHERTYPE_IPV6);
        match addresses.clone().find(|address| address.is_ipv6() != is_ipv6) {
            Some(other) => Err(Fault::params(format!(
                "{other} is an address of another IP version than the packet; the words for IPv6 are ipv6, tcp6, udp6 and icmp6"
            ))),
            None => Ok(self),
        }
    }
}

fn no_field(name: &str) -> Fault {
    let hint = names::hint(name, FIELDS.iter().flat_map(|names| names.iter().copied()));
    let known: Vec<&str> = FIELDS.iter().filter_map(|names| names.first().copied()).collect();
    Fault::params(format!("there is no field \"{name}\"{hint} (there are {})", known.join(", ")))
}

fn parsed<T: FromStr>(name: &str, value: &str) -> Result<T, Fault> {
    let example = if name.ends_with("src") && name.starts_with('n') {
        "10.0.0.1"
    } else {
        "02:00:00:00:00:01 or 10.0.0.1"
    };
    value.parse().map_err(|_| {
        Fault::params(format!("{name} is no address: \"{value}\"; write it as {example}, without a mask"))
    })
}

fn number(name: &str, value: &str, max: u16) -> Result<u16, Fault> {
    let read = match value.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => value.parse().ok(),
    };
    let within = read.and_then(|number| u16::try_from(number).ok()).filter(|number| *number <= max);
    within.ok_or_else(|| {
        Fault::params(format!("{name}={value} must be a number from 0 to {max}, without a mask"))
    })
}

/// `syn|ack`, `+syn+ack`, or a number.
fn tcp_flags(value: &str) -> Result<u16, Fault> {
    if value.starts_with(|letter: char| letter.is_ascii_digit()) {
        return number("tcp_flags", value, 0xfff);
    }
    let mut flags = 0;
    for name in value.split(['|', '+']).filter(|name| !name.is_empty()) {
        let bit = TCP_FLAGS.iter().position(|known| *known == name);
        flags |= 1
            << bit.ok_or_else(|| {
                let hint = names::hint(name, TCP_FLAGS);
                Fault::params(format!("\"{name}\" is no TCP flag{hint} (there are {})", TCP_FLAGS.join(", ")))
            })?;
    }
    Ok(flags)
}
