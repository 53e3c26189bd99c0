//! Packets of every shape that the crate supports, written by an independent implementation.

use etherparse::{
    ArpEthIpv4Packet, ArpOperation, IpFragOffset, IpHeaders, IpNumber, Ipv4Header, Ipv6Extensions,
    Ipv6FragmentHeader, Ipv6Header, Ipv6RawExtHeader, Ipv6RoutingExtensions, PacketBuilder, TcpHeader,
    TransportHeader, UdpHeader,
};
use proptest::array::{uniform4, uniform16};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

/// A frame and the offsets of its parts.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) bytes: Vec<u8>,
    pub(crate) l3_offset: usize,
    pub(crate) l4_offset: usize,
    pub(crate) payload_offset: usize,
}

/// The part of a fragmented packet: (more fragments, offset in 8 bytes).
pub(crate) type Fragment = (bool, u16);

/// MAC addresses and up to two VLAN tags, up to the EtherType.
fn link() -> impl Strategy<Value = Vec<u8>> {
    let tag = (prop_oneof![Just([0x81, 0x00]), Just([0x88, 0xa8])], any::<[u8; 2]>());
    (vec(any::<u8>(), 12), vec(tag, 0..=2)).prop_map(|(macs, tags)| {
        let tags = tags.into_iter().flat_map(|(ethertype, id)| [ethertype, id].concat());
        macs.into_iter().chain(tags).collect()
    })
}

/// No operation and options like router alert, but no source route.
fn ipv4_options() -> impl Strategy<Value = Vec<u8>> {
    (vec(
        prop_oneof![Just(vec![1; 4]), any::<[u8; 2]>().prop_map(|data| vec![148, 4, data[0], data[1]])],
        0..=10,
    ))
    .prop_map(|options| options.concat())
}

fn ipv4(fragment: Fragment) -> impl Strategy<Value = IpHeaders> {
    let addresses = (uniform4(any::<u8>()), uniform4(any::<u8>()));
    (addresses, ipv4_options(), any::<u16>(), any::<u8>(), any::<bool>()).prop_map(
        move |((source, destination), options, identification, time_to_live, dont_fragment)| {
            let mut header = Ipv4Header {
                source,
                destination,
                identification,
                time_to_live,
                dont_fragment,
                more_fragments: fragment.0,
                fragment_offset: IpFragOffset::try_new(fragment.1).unwrap(),
                ..Ipv4Header::default()
            };
            header.options = options[..].try_into().unwrap();
            IpHeaders::Ipv4(header, Default::default())
        },
    )
}

fn raw_extension() -> impl Strategy<Value = Ipv6RawExtHeader> {
    (0..3_usize, any::<u8>()).prop_map(|(units, fill)| {
        Ipv6RawExtHeader::new_raw(IpNumber::TCP, &vec![fill; 6 + 8 * units]).unwrap()
    })
}

fn routing() -> impl Strategy<Value = Ipv6RoutingExtensions> {
    (0..3_usize, any::<u8>(), of(raw_extension())).prop_map(|(units, kind, final_destination_options)| {
        let mut payload = vec![0xcc; 6 + 8 * units];
        // Type, and no segments left.
        (payload[0], payload[1]) = (kind, 0);
        let routing = Ipv6RawExtHeader::new_raw(IpNumber::TCP, &payload).unwrap();
        Ipv6RoutingExtensions { routing, final_destination_options }
    })
}

/// If `may_be_atomic`, a whole packet may also have a fragment header.
fn ipv6(fragment: Fragment, may_be_atomic: bool) -> impl Strategy<Value = IpHeaders> {
    let addresses = (uniform16(any::<u8>()), uniform16(any::<u8>()));
    let fragment_header = (any::<bool>(), any::<u32>()).prop_map(move |(atomic, identification)| {
        let offset = IpFragOffset::try_new(fragment.1).unwrap();
        let header = Ipv6FragmentHeader::new(IpNumber::TCP, offset, fragment.0, identification);
        (may_be_atomic && atomic || fragment != (false, 0)).then_some(header)
    });
    let extensions = (of(raw_extension()), of(raw_extension()), of(routing()), fragment_header);
    (addresses, any::<u8>(), extensions).prop_map(|((source, destination), traffic_class, extensions)| {
        let (hop_by_hop_options, destination_options, routing, fragment) = extensions;
        let header =
            Ipv6Header { traffic_class, source, destination, hop_limit: 64, ..Ipv6Header::default() };
        let extensions = Ipv6Extensions {
            hop_by_hop_options,
            destination_options,
            routing,
            fragment,
            ..Default::default()
        };
        IpHeaders::Ipv6(header, extensions)
    })
}

fn tcp() -> impl Strategy<Value = TransportHeader> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (any::<[u16; 4]>(), any::<[u32; 2]>(), flags, vec(vec(any::<u8>(), 4), 0..=10)).prop_map(
        |(
            [source, destination, window, checksum],
            [sequence, acknowledgment],
            (fin, psh, cwr, ece),
            options,
        )| {
            let mut header = TcpHeader::new(source, destination, sequence, window);
            (header.acknowledgment_number, header.ack, header.checksum) = (acknowledgment, true, checksum);
            (header.fin, header.psh, header.cwr, header.ece) = (fin, psh, cwr, ece);
            header.set_options_raw(&options.concat()).unwrap();
            TransportHeader::Tcp(header)
        },
    )
}

fn udp() -> impl Strategy<Value = TransportHeader> {
    any::<[u16; 2]>().prop_map(|[source_port, destination_port]| {
        TransportHeader::Udp(UdpHeader { source_port, destination_port, length: 8, checksum: 0 })
    })
}

/// The frame with valid lengths and IPv4 header checksum; the TCP checksum is arbitrary.
fn frame(link: Vec<u8>, mut ip: IpHeaders, transport: &TransportHeader, payload: &[u8]) -> Packet {
    let mut bytes = link;
    let (ethertype, proto) = match (&ip, transport) {
        (IpHeaders::Ipv4(..), TransportHeader::Tcp(_)) => ([0x08, 0x00], IpNumber::TCP),
        (IpHeaders::Ipv4(..), _) => ([0x08, 0x00], IpNumber::UDP),
        (IpHeaders::Ipv6(..), TransportHeader::Tcp(_)) => ([0x86, 0xdd], IpNumber::TCP),
        (IpHeaders::Ipv6(..), _) => ([0x86, 0xdd], IpNumber::UDP),
    };
    bytes.extend(ethertype);
    ip.set_next_headers(proto);
    ip.set_payload_len(transport.header_len() + payload.len()).unwrap();
    if let IpHeaders::Ipv4(header, _) = &mut ip {
        header.header_checksum = header.calc_header_checksum();
    }
    let l3_offset = bytes.len();
    ip.write(&mut bytes).unwrap();
    let l4_offset = bytes.len();
    transport.write(&mut bytes).unwrap();
    let payload_offset = bytes.len();
    bytes.extend(payload);
    Packet { bytes, l3_offset, l4_offset, payload_offset }
}

fn packet(
    ip: impl Strategy<Value = IpHeaders>,
    transport: impl Strategy<Value = TransportHeader>,
    payload_bytes: core::ops::RangeInclusive<usize>,
) -> impl Strategy<Value = Packet> {
    (link(), ip, transport, vec(any::<u8>(), payload_bytes))
        .prop_map(|(link, ip, transport, payload)| frame(link, ip, &transport, &payload))
}

fn whole() -> impl Strategy<Value = IpHeaders> {
    prop_oneof![ipv4((false, 0)), ipv6((false, 0), false)]
}

/// TCP, whole packets with 1 to `payload_bytes_max` bytes of payload.
pub(crate) fn tcp_packet(payload_bytes_max: usize) -> impl Strategy<Value = Packet> {
    packet(whole(), tcp(), 1..=payload_bytes_max)
}

/// As `tcp_packet`, TCP and UDP.
pub(crate) fn gso_packet(payload_bytes_max: usize) -> impl Strategy<Value = Packet> {
    packet(whole(), prop_oneof![tcp(), udp()], 1..=payload_bytes_max)
}

/// TCP and UDP, whole packets and fragments.
pub(crate) fn any_packet() -> impl Strategy<Value = Packet> {
    let fragment = prop_oneof![Just((false, 0)), (any::<bool>(), 0..100_u16)];
    fragment.prop_flat_map(|fragment| {
        packet(prop_oneof![ipv4(fragment), ipv6(fragment, true)], prop_oneof![tcp(), udp()], 0..=64)
    })
}

/// Echo requests over IPv4 and IPv6.
pub(crate) fn icmp_packet() -> impl Strategy<Value = Packet> {
    (link(), any::<[u8; 4]>(), any::<[u16; 2]>(), any::<bool>()).prop_map(
        |(link, address, [id, seq], is_v6)| {
            let l3_offset = link.len() + 2;
            let mut bytes = link;
            let l4_offset = if is_v6 {
                let [a, b, c, d] = address;
                let source = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d];
                bytes.extend([0x86, 0xdd]);
                let builder = PacketBuilder::ipv6(source, [0xfe; 16], 64).icmpv6_echo_request(id, seq);
                builder.write(&mut bytes, &[7; 20]).unwrap();
                l3_offset + 40
            } else {
                bytes.extend([8, 0]);
                let builder = PacketBuilder::ipv4(address, [10, 0, 0, 1], 64).icmpv4_echo_request(id, seq);
                builder.write(&mut bytes, &[7; 20]).unwrap();
                l3_offset + 20
            };
            Packet { bytes, l3_offset, l4_offset, payload_offset: l4_offset + 8 }
        },
    )
}

/// ARP requests and replies.
pub(crate) fn arp_packet() -> impl Strategy<Value = Packet> {
    (link(), any::<[u8; 20]>(), 1..3_u16).prop_map(|(link, addresses, operation)| {
        let l3_offset = link.len() + 2;
        let mut bytes = link;
        bytes.extend([8, 6]);
        let [a, b, c, d, e, f, rest @ ..] = addresses;
        let [g, h, i, j, k, l, m, n, o, p, ip @ ..] = rest;
        let arp = ArpEthIpv4Packet {
            operation: ArpOperation(operation),
            sender_mac: [a, b, c, d, e, f],
            sender_ipv4: [g, h, i, j],
            target_mac: [k, l, m, n, o, p],
            target_ipv4: ip,
        };
        bytes.extend(arp.to_bytes());
        let l4_offset = bytes.len();
        Packet { bytes, l3_offset, l4_offset, payload_offset: l4_offset }
    })
}
