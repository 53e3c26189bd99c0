//! A frame with some fields, written by a library that has no code in common with the switch; checksums are right.

use std::net::IpAddr;

use etherparse::{
    IpFragOffset, IpHeaders, IpNumber, Ipv4Header, Ipv6Header, PacketBuilder, TcpHeader,
    err::packet::BuildVecWriteError,
};
use lasthop_module_api::Mac;
use lasthop_runtime::fault::Fault;
use lasthop_wire::headers::{
    ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, PROTO_ICMP, PROTO_ICMPV6, PROTO_SCTP,
    PROTO_TCP, PROTO_UDP,
};

use super::fields::PacketFields;

/// Of packets without an own one, as Linux sends them.
const TTL: u8 = 64;
/// Of TCP, without another one.
const WINDOW: u16 = 64_240;
const ARP_REQUEST: u16 = 1;
const SYN: u16 = 2;
/// ICMP types of echo requests.
const ECHO: [u16; 2] = [8, 128];
const BROADCAST: Mac = Mac([0xff; 6]);

/// The frame. `mac` is its source address if it names none.
pub(super) fn built(
    fields: &PacketFields,
    mac: impl FnOnce() -> Result<Mac, Fault>,
) -> Result<Vec<u8>, Fault> {
    let source = fields.dl_src.map_or_else(mac, Ok)?;
    let dl_type = fields.dl_type.unwrap_or(ETHERTYPE_IPV4);
    let mut frame = [fields.dl_dst.unwrap_or(BROADCAST).0, source.0].concat();
    if let Some(vid) = fields.vlan {
        frame.extend(ETHERTYPE_VLAN.to_be_bytes());
        frame.extend((u16::from(fields.vlan_pcp) << 13 | vid).to_be_bytes());
    }
    frame.extend(dl_type.to_be_bytes());
    match dl_type {
        ETHERTYPE_ARP => frame.extend(arp(fields, source)),
        ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => put_ip(&mut frame, fields, dl_type == ETHERTYPE_IPV6)?,
        _ => {}
    }
    Ok(frame)
}

/// RFC 826, for Ethernet and IPv4.
fn arp(fields: &PacketFields, source: Mac) -> Vec<u8> {
    let address = |address: Option<IpAddr>| match address {
        Some(IpAddr::V4(address)) => address.octets(),
        _ => [0; 4],
    };
    let mut packet = vec![0, 1, 8, 0, 6, 4];
    packet.extend(fields.arp_op.unwrap_or(ARP_REQUEST).to_be_bytes());
    packet.extend(fields.arp_sha.unwrap_or(source).0);
    packet.extend(address(fields.nw_src));
    packet.extend(fields.arp_tha.unwrap_or_default().0);
    packet.extend(address(fields.nw_dst));
    packet
}

fn ip_header(fields: &PacketFields, is_ipv6: bool, proto: u8) -> Result<IpHeaders, Fault> {
    let ttl = fields.nw_ttl.unwrap_or(TTL);
    let octets6 = |address: Option<IpAddr>| match address {
        Some(IpAddr::V6(address)) => address.octets(),
        _ => [0; 16],
    };
    let octets4 = |address: Option<IpAddr>| match address {
        Some(IpAddr::V4(address)) => address.octets(),
        _ => [0; 4],
    };
    if is_ipv6 {
        let header = Ipv6Header {
            traffic_class: fields.nw_tos,
            hop_limit: ttl,
            next_header: IpNumber(proto),
            source: octets6(fields.nw_src),
            destination: octets6(fields.nw_dst),
            ..Ipv6Header::default()
        };
        return Ok(IpHeaders::Ipv6(header, etherparse::Ipv6Extensions::default()));
    }
    let (source, destination) = (octets4(fields.nw_src), octets4(fields.nw_dst));
    let mut header = Ipv4Header::new(0, ttl, IpNumber(proto), source, destination).map_err(too_long)?;
    let parts = ((fields.nw_tos >> 2).try_into(), (fields.nw_tos & 3).try_into());
    let (Ok(dscp), Ok(ecn)) = parts else { return Err(Fault::internal("write the packet", "its TOS")) };
    (header.dscp, header.ecn, header.fragment_offset) = (dscp, ecn, IpFragOffset::ZERO);
    Ok(IpHeaders::Ipv4(header, etherparse::Ipv4Extensions::default()))
}

fn put_ip(frame: &mut Vec<u8>, fields: &PacketFields, is_ipv6: bool) -> Result<(), Fault> {
    let proto = fields.nw_proto.unwrap_or(u8::MAX);
    let step = PacketBuilder::ip(ip_header(fields, is_ipv6, proto)?);
    let (source, destination) = (fields.tp_src.unwrap_or(0), fields.tp_dst.unwrap_or(0));
    let kind = fields.tp_src.unwrap_or(ECHO[usize::from(is_ipv6)]) as u8; // one of ICMP has 8 bits
    let done = match proto {
        PROTO_TCP => step.tcp_header(tcp(fields, source, destination)).write_to_vec(frame, &[]),
        PROTO_UDP => step.udp(source, destination).write_to_vec(frame, &[]),
        PROTO_ICMP if !is_ipv6 => {
            step.icmpv4_raw(kind, destination as u8, [0, 1, 0, 1]).write_to_vec(frame, &[])
        }
        PROTO_ICMPV6 if is_ipv6 => {
            step.icmpv6_raw(kind, destination as u8, [0, 1, 0, 1]).write_to_vec(frame, &[])
        }
        PROTO_SCTP => {
            let [[a, b], [c, d]] = [source.to_be_bytes(), destination.to_be_bytes()];
            step.write_to_vec(frame, IpNumber(proto), &[a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0])
        }
        _ => step.write_to_vec(frame, IpNumber(proto), &[]),
    };
    done.map_err(too_long)
}

fn tcp(fields: &PacketFields, source: u16, destination: u16) -> TcpHeader {
    let flags = fields.tcp_flags.unwrap_or(SYN);
    let has = |bit: u16| flags >> bit & 1 == 1;
    let mut header = TcpHeader::new(source, destination, 1, WINDOW);
    (header.fin, header.syn, header.rst, header.psh) = (has(0), has(1), has(2), has(3));
    (header.ack, header.urg, header.ece, header.cwr, header.ns) = (has(4), has(5), has(6), has(7), has(8));
    header
}

fn too_long(error: impl std::fmt::Display) -> Fault {
    Fault::internal("write the packet", error)
}

const _: fn(BuildVecWriteError) -> Fault = too_long;
