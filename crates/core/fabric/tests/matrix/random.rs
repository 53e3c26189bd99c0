//! Random packets between random guests, with chains and buffers cut anywhere, and buffers that are posted late.

use etherparse::{
    IpHeaders, IpNumber, Ipv4Header, Ipv6Extensions, Ipv6Header, Ipv6RawExtHeader, Ipv6RoutingExtensions,
    TcpHeader, TransportHeader, UdpHeader,
};
use lasthop_module_api::DropReason;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;

use crate::header::VnetHeader;
use crate::model::{LOOKED_AT_BYTES, Offloads, Received, sent};
use crate::packet::Packet;
use crate::peer::{Layout, Peer};
use crate::samples::payload;
use crate::support::{assert_conserved, flooding_fabric};

fn link() -> impl Strategy<Value = Vec<u8>> {
    let tag = (select(&[[0x81, 0x00], [0x88, 0xa8]]), any::<[u8; 2]>());
    (any::<[u8; 12]>(), vec(tag, 0..=2)).prop_map(|(macs, tags)| {
        let tags = tags.into_iter().flat_map(|(ethertype, id)| [ethertype, id].concat());
        macs.into_iter().chain(tags).collect()
    })
}

fn v4() -> impl Strategy<Value = IpHeaders> {
    // No operation and router alert, but no source route.
    let option = prop_oneof![Just(vec![1; 4]), Just(vec![148, 4, 0, 0])];
    let numbers = (any::<u16>(), any::<u8>(), any::<bool>());
    (any::<[[u8; 4]; 2]>(), vec(option, 0..=5), numbers).prop_map(
        |([source, destination], options, (identification, time_to_live, dont_fragment))| {
            let header = Ipv4Header { source, destination, identification, ..Ipv4Header::default() };
            let options = options.concat()[..].try_into().unwrap();
            IpHeaders::Ipv4(Ipv4Header { time_to_live, dont_fragment, options, ..header }, Default::default())
        },
    )
}

fn extension() -> impl Strategy<Value = Ipv6RawExtHeader> {
    (0..3_usize, any::<u8>()).prop_map(|(units, fill)| {
        Ipv6RawExtHeader::new_raw(IpNumber::TCP, &vec![fill; 6 + 8 * units]).unwrap()
    })
}

fn routing() -> impl Strategy<Value = Ipv6RoutingExtensions> {
    (extension(), any::<u8>(), of(extension())).prop_map(|(raw, kind, final_destination_options)| {
        let mut payload = raw.payload().to_vec();
        (payload[0], payload[1]) = (kind, 0); // no segments left
        let routing = Ipv6RawExtHeader::new_raw(IpNumber::TCP, &payload).unwrap();
        Ipv6RoutingExtensions { routing, final_destination_options }
    })
}

fn v6() -> impl Strategy<Value = IpHeaders> {
    let rarely = |some: f64| proptest::option::weighted(some, extension());
    let extensions = (rarely(0.3), rarely(0.3), proptest::option::weighted(0.3, routing()));
    (any::<[[u8; 16]; 2]>(), any::<u8>(), extensions).prop_map(
        |([source, destination], traffic_class, (hop_by_hop_options, destination_options, routing))| {
            let header =
                Ipv6Header { source, destination, traffic_class, hop_limit: 64, ..Ipv6Header::default() };
            let extensions = Ipv6Extensions {
                hop_by_hop_options,
                destination_options,
                routing,
                ..Ipv6Extensions::default()
            };
            IpHeaders::Ipv6(header, extensions)
        },
    )
}

fn tcp() -> impl Strategy<Value = TransportHeader> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (any::<[u16; 3]>(), any::<[u32; 2]>(), flags, vec(any::<[u8; 4]>(), 0..=10)).prop_map(
        |([source, destination, window], [sequence, acknowledgment], (fin, psh, cwr, ece), options)| {
            let mut header = TcpHeader::new(source, destination, sequence, window);
            (header.acknowledgment_number, header.ack) = (acknowledgment, true);
            (header.fin, header.psh, header.cwr, header.ece) = (fin, psh, cwr, ece);
            header.set_options_raw(&options.concat()).unwrap();
            TransportHeader::Tcp(header)
        },
    )
}

fn udp() -> impl Strategy<Value = TransportHeader> {
    any::<[u16; 2]>().prop_map(|[source_port, destination_port]| {
        TransportHeader::Udp(UdpHeader { source_port, destination_port, length: 0, checksum: 0 })
    })
}

/// A packet of up to 64 KiB, and the largest payload of its segments, of which there are at most 128.
fn packet() -> impl Strategy<Value = (Packet, usize)> {
    let len = prop_oneof![0..100_usize, 100..5000_usize, 5000..65_200_usize];
    let ip = prop_oneof![v4(), v6()];
    (link(), ip, prop_oneof![tcp(), udp()], len, 48..9000_usize).prop_map(
        |(link, ip, transport, len, size)| {
            let mut packet = Packet { link, ip: Some((ip, transport)), payload: Vec::new() };
            // Without the Ethernet header and its tags.
            let room = 65_535 + 14 - packet.headers_bytes();
            packet.payload = payload(len.min(room));
            let least = packet.payload.len().div_ceil(128);
            (packet, size.max(least))
        },
    )
}

/// Cuts such that a chain has at most 64 segments.
fn layout() -> impl Strategy<Value = Layout> {
    let cuts =
        prop_oneof![vec(0..200_usize, 0..4), vec(0..65_000_usize, 0..20), Just(vec![12]), Just(vec![10])];
    (cuts, any::<bool>()).prop_map(|(mut cuts, indirect)| {
        cuts.sort_unstable();
        Layout { cuts, indirect }
    })
}

/// A receiver's features, whether it merges buffers, its header's length, and its buffers.
fn receiver() -> impl Strategy<Value = (Offloads, bool, usize, Vec<(usize, Layout)>)> {
    let cuts = (vec(1..1000_usize, 0..3), any::<bool>()).prop_map(|(mut cuts, indirect)| {
        cuts.sort_unstable();
        cuts.dedup(); // a receive buffer of no bytes is an error of the ring
        Layout { cuts, indirect }
    });
    let buffers = vec((1100..5000_usize, cuts), 70);
    let framing = select(&[(true, 12), (false, 12), (false, 10)]);
    (select(Offloads::all()), framing, buffers).prop_map(|(offloads, (mergeable, header_bytes), buffers)| {
        let large = buffers.into_iter().map(|(len, layout)| (if mergeable { len } else { 65_600 }, layout));
        (offloads, mergeable, header_bytes, large.collect())
    })
}

/// Replaces `assert_eq`, which would print 64 KiB.
fn same(received: &[Received], expected: &[Received]) -> Result<(), TestCaseError> {
    prop_assert_eq!(received.len(), expected.len());
    for ((header, frame), (expected_header, expected)) in received.iter().zip(expected) {
        prop_assert_eq!(header, expected_header);
        prop_assert_eq!(frame.len(), expected.len());
        if frame != expected {
            let differs = frame.iter().zip(expected).position(|(received, expected)| received != expected);
            prop_assert!(false, "byte {:?} is wrong", differs);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_frame_between_any_guests(
        (packet, size) in packet(),
        sender_offloads in select(Offloads::all()),
        sender_header_bytes in select(&[10_usize, 12]),
        layout in layout(),
        (receiver_offloads, mergeable, header_bytes, mut buffers) in receiver(),
        posted in 0..70_usize,
        lie: u16,
    ) {
        let mut fabric = flooding_fabric(2);
        let capabilities = sender_offloads.capabilities(true, sender_header_bytes);
        let mut sender = Peer::attach(&mut fabric, 1, capabilities);
        let capabilities = receiver_offloads.capabilities(mergeable, header_bytes);
        let mut receiver = Peer::attach(&mut fabric, 2, capabilities);
        let late = buffers.split_off(posted);
        buffers.iter().for_each(|(len, layout)| receiver.post(*len, layout));
        let (mut refused, mut late) = (0, late.into_iter());
        for item in sent(&packet, size, sender_offloads) {
            // The header length in a sender's metadata is a hint, and may be any value.
            let header = VnetHeader { hdr_len: lie, ..item.header() };
            sender.send(&mut fabric, header, &item.frame(), &layout);
            let mut received = Vec::new();
            loop {
                received.extend(std::iter::from_fn(|| receiver.receive()));
                assert_conserved(&fabric, &[sender.port, receiver.port]);
                if sender.is_done() {
                    break;
                }
                if let Some((len, layout)) = late.next() {
                    receiver.post(len, &layout);
                }
                fabric.drain(receiver.ring());
            }
            received.extend(std::iter::from_fn(|| receiver.receive()));
            same(&received, &item.received(receiver_offloads))?;
            refused += u64::from(item.gso_size.is_some() && packet.headers_bytes() > LOOKED_AT_BYTES);
        }
        let drops = fabric.counters(sender.port).unwrap().rx_drops;
        prop_assert_eq!((drops.total(), drops.of(DropReason::BadGso)), (refused, refused));
    }
}
