//! One packet of every shape.

use etherparse::{
    IpFragOffset, IpHeaders, IpNumber, Ipv4Header, Ipv6Extensions, Ipv6FragmentHeader, Ipv6Header,
    Ipv6RawExtHeader, Ipv6RoutingExtensions, TcpHeader, TransportHeader, UdpHeader,
};

use crate::packet::{Checksum, Packet};

/// A packet, and the largest payload of its segments.
pub(crate) struct Sample {
    pub(crate) name: &'static str,
    pub(crate) packet: Packet,
    pub(crate) size: usize,
}

const MACS: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
const TAG: [u8; 4] = [0x81, 0, 0x20, 7];
const SERVICE_TAG: [u8; 4] = [0x88, 0xa8, 0, 9];
/// No operation, timestamps.
const TCP_OPTIONS: [u8; 12] = [1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8];

pub(crate) fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 13 + at / 251) as u8).collect()
}

pub(crate) fn v4(options: &[u8]) -> IpHeaders {
    let (source, destination) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    // The identification wraps among the segments.
    let mut header = Ipv4Header { source, destination, identification: 0xffff, ..Ipv4Header::default() };
    (header.time_to_live, header.dont_fragment) = (64, true);
    header.options = options.try_into().unwrap();
    IpHeaders::Ipv4(header, Default::default())
}

pub(crate) fn v6(extensions: Ipv6Extensions) -> IpHeaders {
    let (mut source, mut destination) = ([0xfd; 16], [0xfd; 16]);
    (source[15], destination[15]) = (1, 2);
    IpHeaders::Ipv6(Ipv6Header { source, destination, hop_limit: 64, ..Ipv6Header::default() }, extensions)
}

fn extension(units: usize) -> Ipv6RawExtHeader {
    // Padding options fill the rest.
    let mut payload = vec![0; 6 + 8 * units];
    (payload[0], payload[1]) = (1, (4 + 8 * units) as u8);
    Ipv6RawExtHeader::new_raw(IpNumber::TCP, &payload).unwrap()
}

/// Hop-by-hop options, destination options, a routing header without segments left, `more` times 8 bytes longer.
fn extensions(more: usize) -> Ipv6Extensions {
    let routing = Ipv6RawExtHeader::new_raw(IpNumber::TCP, &[4, 0, 0, 0, 0, 0]).unwrap();
    Ipv6Extensions {
        hop_by_hop_options: Some(extension(0)),
        destination_options: Some(extension(more)),
        routing: Some(Ipv6RoutingExtensions { routing, final_destination_options: None }),
        ..Ipv6Extensions::default()
    }
}

pub(crate) fn tcp(options: &[u8], edit: impl Fn(&mut TcpHeader)) -> TransportHeader {
    // The sequence number wraps among the segments.
    let mut header = TcpHeader::new(40000, 80, 0xffff_fc00, 500);
    (header.acknowledgment_number, header.ack) = (77, true);
    header.set_options_raw(options).unwrap();
    edit(&mut header);
    TransportHeader::Tcp(header)
}

pub(crate) fn udp() -> TransportHeader {
    TransportHeader::Udp(UdpHeader { source_port: 1000, destination_port: 443, length: 0, checksum: 0 })
}

fn packet(tags: &[u8], ip: IpHeaders, transport: TransportHeader, payload_bytes: usize) -> Packet {
    let link = [&MACS[..], tags].concat();
    Packet { link, ip: Some((ip, transport)), payload: payload(payload_bytes) }
}

/// A packet whose checksum computes to zero, which UDP must not send (RFC 768).
fn sums_up_to_nought(ip: IpHeaders, transport: TransportHeader) -> Packet {
    let mut packet = packet(&[], ip, transport, 400);
    packet.payload[..2].fill(0);
    let field = packet.l4_offset() + packet.csum_offset();
    let checksum = packet.bytes(Checksum::Complete)[field..field + 2].to_vec();
    packet.payload[..2].copy_from_slice(&checksum);
    let nought = if packet.tcp().is_some() { [0, 0] } else { [0xff, 0xff] };
    assert_eq!(packet.bytes(Checksum::Complete)[field..field + 2], nought);
    packet
}

/// Packets that every pair of guests exchanges.
pub(crate) fn samples() -> Vec<Sample> {
    let last = |tcp: &mut TcpHeader| (tcp.fin, tcp.psh) = (true, true);
    let reduced = |tcp: &mut TcpHeader| (tcp.cwr, tcp.ece, tcp.psh) = (true, true, true);
    let tags = [SERVICE_TAG, TAG].concat();
    let no_ip = Packet { link: MACS.to_vec(), ip: None, payload: payload(300) };
    let none = Ipv6Extensions::default;
    let sample = |name, packet, size| Sample { name, packet, size };
    vec![
        sample("no IP", no_ip, 1448),
        sample("bare acknowledgement", packet(&[], v4(&[]), tcp(&[], |_| {}), 0), 1448),
        sample("TCP, one segment, odd", packet(&TAG, v4(&[]), tcp(&TCP_OPTIONS, last), 333), 1448),
        sample("TCP", packet(&[], v4(&[]), tcp(&TCP_OPTIONS, last), 3000), 1448),
        sample("TCP, IP options, tag", packet(&TAG, v4(&[148, 4, 0, 0]), tcp(&[], last), 2501), 501),
        sample("TCP, CWR", packet(&[], v4(&[]), tcp(&TCP_OPTIONS, reduced), 2000), 999),
        sample("TCP over IPv6", packet(&[], v6(none()), tcp(&TCP_OPTIONS, last), 2900), 1428),
        sample("TCP over IPv6, CWR, tags", packet(&tags, v6(none()), tcp(&[], reduced), 2000), 700),
        sample("TCP over IPv6, extensions", packet(&[], v6(extensions(0)), tcp(&[], last), 2000), 1201),
        sample("UDP, one datagram", packet(&[], v4(&[]), udp(), 1001), 1472),
        sample("UDP that sums up to nought", sums_up_to_nought(v4(&[]), udp()), 1472),
        sample("UDP over IPv6 that sums up to nought", sums_up_to_nought(v6(none()), udp()), 1472),
        sample("TCP that sums up to nought", sums_up_to_nought(v4(&[]), tcp(&[], last)), 1448),
        sample("UDP", packet(&TAG, v4(&[]), udp(), 2500), 1200),
        sample("UDP, many small ones", packet(&[], v4(&[]), udp(), 128 * 9), 9),
        sample("UDP over IPv6, extensions", packet(&[], v6(extensions(1)), udp(), 2501), 1200),
        sample("64 KiB of TCP", packet(&[], v4(&[]), tcp(&[], last), 65535 - 40), 1460),
        sample("64 KiB of TCP over IPv6, tag", packet(&TAG, v6(none()), tcp(&[], last), 65535 - 60), 1440),
        sample("64 KiB of UDP", packet(&[], v4(&[]), udp(), 65535 - 28), 1472),
    ]
}

/// Whole, valid packets that cannot be segmented: a request to segment them is a drop.
pub(crate) fn not_to_be_segmented() -> Vec<Sample> {
    let fragment = |offset, more| {
        let offset = IpFragOffset::try_new(offset).unwrap();
        let fragment = Some(Ipv6FragmentHeader::new(IpNumber::TCP, offset, more, 7));
        v6(Ipv6Extensions { fragment, ..Ipv6Extensions::default() })
    };
    let mut v4_fragment = v4(&[]);
    if let IpHeaders::Ipv4(header, _) = &mut v4_fragment {
        (header.dont_fragment, header.more_fragments) = (false, true);
    }
    let routed = {
        let mut extensions = extensions(0);
        let routing = Ipv6RawExtHeader::new_raw(IpNumber::TCP, &[4, 1, 0, 0, 0, 0]).unwrap();
        extensions.routing = Some(Ipv6RoutingExtensions { routing, final_destination_options: None });
        v6(extensions)
    };
    let data = |ip, transport| packet(&[], ip, transport, 2000);
    let sample = |name, packet| Sample { name, packet, size: 1000 };
    vec![
        sample("fragment", data(v4_fragment.clone(), tcp(&[], |_| {}))),
        sample("fragment of UDP", data(v4_fragment, udp())),
        sample("IPv6 fragment", data(fragment(0, true), tcp(&[], |_| {}))),
        sample("IPv6 fragment header of a whole packet", data(fragment(0, false), udp())),
        sample("IPv6 segments left", data(routed, tcp(&[], |_| {}))),
        sample("loose source route", data(v4(&[131, 3, 4, 0]), tcp(&[], |_| {}))),
        sample("headers of 131 bytes", data(v6(extensions(4)), tcp(&[1; 9], |_| {}))),
        sample("SYN", data(v4(&[]), tcp(&[], |tcp| tcp.syn = true))),
        sample("RST", data(v4(&[]), tcp(&[], |tcp| tcp.rst = true))),
        sample("URG", data(v4(&[]), tcp(&[], |tcp| tcp.urg = true))),
    ]
}
