//! Senders with false metadata. Their frames are dropped for a named reason or arrive harmlessly: with no metadata that
//! the receiver did not negotiate or that is false, and with all bytes unchanged that the switch decided on.

use etherparse::{LaxNetSlice, LaxSlicedPacket, TransportSlice};
use lasthop_module_api::DropReason::{self, BadCsum, BadGso};
use lasthop_module_api::PortId;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::header::{DATA_VALID, ECN, NEEDS_CSUM, TCPV4, TCPV6, UDP_L4, UFO, VnetHeader};
use crate::model::{Offloads, Received, Sent};
use crate::packet::{Checksum, Packet};
use crate::peer::{Layout, Peer};
use crate::samples::{payload, samples, tcp, udp, v4, v6};
use crate::support::{assert_conserved, flooding_fabric};

const MACS: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];

fn packet(name: &str) -> Packet {
    samples().into_iter().find(|sample| sample.name == name).unwrap().packet
}

/// A valid request to segment 3000 bytes of TCP.
fn request() -> Sent {
    let gso_size = Some(1448);
    Sent { packet: packet("TCP"), checksum: Checksum::Partial, gso_size }
}

/// Headers and frames received by two guests.
type Both = [Vec<Received>; 2];

/// The result of a frame with this header at two receivers: one accepts all offloads, the other none.
fn fate(header: VnetHeader, frame: &[u8]) -> Result<Both, DropReason> {
    let (received, drops) = both_fates(header, frame);
    match drops[..] {
        [] => Ok(received),
        [reason] if received.iter().all(Vec::is_empty) => Err(reason),
        _ => panic!("dropped for one and not for the other: {drops:?}"),
    }
}

fn both_fates(header: VnetHeader, frame: &[u8]) -> (Both, Vec<DropReason>) {
    let sets = Offloads::all();
    let mut fabric = flooding_fabric(2);
    let mut sender = Peer::attach(&mut fabric, 3, sets[0].capabilities(false, 12));
    let mut receivers = [(1, sets[sets.len() - 1]), (2, sets[0])].map(|(port, takes)| {
        let mut peer = Peer::attach(&mut fabric, port, takes.capabilities(true, 12));
        (0..100).for_each(|_| peer.post(1536, &Layout::default()));
        peer
    });
    sender.send(&mut fabric, header, frame, &Layout::default());
    let mut received = [Vec::new(), Vec::new()];
    loop {
        for (peer, received) in receivers.iter_mut().zip(&mut received) {
            received.extend(std::iter::from_fn(|| peer.receive()));
            fabric.drain(peer.ring());
        }
        if sender.is_done() && receivers.iter_mut().all(|peer| !peer.has_received()) {
            break;
        }
    }
    assert_conserved(&fabric, &[PortId(1), PortId(2), PortId(3)]);
    let drops = fabric.counters(sender.port).unwrap().rx_drops;
    let each = drops.nonzero().flat_map(|(reason, count)| (0..count).map(move |_| reason));
    (received, each.collect())
}

#[test]
fn a_receiver_with_all_features_takes_everything() {
    let sets = Offloads::all();
    let last = sets[sets.len() - 1];
    assert!(last.csum && last.tso4 && last.tso6 && last.ecn && last.uso);
    assert!(!sets[0].csum && !sets[0].takes_large());
}

#[test]
fn impossible_checksums_are_dropped() {
    let one = Sent { gso_size: None, ..request() };
    let len = one.frame().len() as u16;
    // The field ends at the frame's end: it is the last two bytes.
    assert!(fate(VnetHeader { csum_start: len - 18, ..one.header() }, &one.frame()).is_ok());
    for (csum_start, csum_offset) in [
        (len - 17, 16),
        (len, 16),
        (34, len),
        (u16::MAX, u16::MAX),
        // In the source address, which the switch may have been told to check.
        (0, 6),
        (6, 0),
        // In the EtherType, in the IP header.
        (12, 0),
        (14, 10),
        (33, 16),
    ] {
        let header = VnetHeader { csum_start, csum_offset, ..one.header() };
        assert_eq!(fate(header, &one.frame()).err(), Some(BadCsum), "{csum_start} + {csum_offset}");
    }
    let tagged = Packet { link: [&MACS[..], &[0x81, 0, 0, 1]].concat(), ..one.packet.clone() };
    let tagged = Sent { packet: tagged, ..one };
    for (csum_start, csum_offset) in [(12, 2), (14, 0), (34, 16), (37, 16)] {
        let header = VnetHeader { csum_start, csum_offset, ..tagged.header() };
        assert_eq!(
            fate(header, &tagged.frame()).err(),
            Some(BadCsum),
            "tagged: {csum_start} + {csum_offset}"
        );
    }
    assert!(fate(tagged.header(), &tagged.frame()).is_ok());
}

#[test]
fn impossible_requests_to_segment_are_dropped() {
    let (request, udp) = (request(), Sent { packet: packet("UDP"), gso_size: Some(1200), ..request() });
    let right = request.header();
    let lies: &[(&str, VnetHeader)] = &[
        ("size 0", VnetHeader { gso_size: 0, ..right }),
        ("size below 48", VnetHeader { gso_size: 47, ..right }),
        ("no checksum wanted", VnetHeader { flags: 0, ..right }),
        ("only verified", VnetHeader { flags: DATA_VALID, ..right }),
        ("another IP version", VnetHeader { gso_type: TCPV6, ..right }),
        ("another transport", VnetHeader { gso_type: UDP_L4, ..right }),
        ("UFO", VnetHeader { gso_type: UFO, ..right }),
        ("no known type", VnetHeader { gso_type: 2, ..right }),
        ("no type but ECN", VnetHeader { gso_type: ECN, ..right }),
        ("another place of the checksum", VnetHeader { csum_start: 54, ..right }),
        ("UDP's place of the checksum", VnetHeader { csum_offset: 6, ..right }),
    ];
    for (name, header) in lies {
        assert_eq!(fate(*header, &request.frame()).err(), Some(BadGso), "{name}");
    }
    for (name, header) in [
        ("TCP", VnetHeader { gso_type: TCPV4, ..udp.header() }),
        ("ECN of UDP", VnetHeader { gso_type: UDP_L4 | ECN, ..udp.header() }),
        ("size 0", VnetHeader { gso_size: 0, ..udp.header() }),
        ("129 datagrams", VnetHeader { gso_size: 19, ..udp.header() }),
    ] {
        assert_eq!(fate(header, &udp.frame()).err(), Some(BadGso), "UDP: {name}");
    }
}

/// Edits of a valid frame after which it cannot be segmented.
#[test]
fn frames_that_cannot_be_segmented_are_dropped() {
    let request = request();
    let lies: &[(&str, usize, &[u8])] = &[
        ("ARP", 12, &[8, 6]),
        ("IPv6", 12, &[0x86, 0xdd]),
        ("version", 14, &[0x65]),
        ("header length", 14, &[0x44]),
        ("beyond the frame", 16, &[0xff, 0xff]),
        ("more fragments", 20, &[0x20]),
        ("fragment offset", 21, &[1]),
        ("ICMP", 23, &[1]),
        ("UDP", 23, &[17]),
        ("data offset", 46, &[0x40]),
    ];
    for (name, at, bytes) in lies {
        let mut frame = request.frame();
        frame[*at..*at + bytes.len()].copy_from_slice(bytes);
        assert_eq!(fate(request.header(), &frame).err(), Some(BadGso), "{name}");
    }
    let frame = request.frame();
    let headers = request.packet.headers_bytes();
    for len in [14, 33, 53, headers - 1, headers] {
        let mut frame = frame[..len].to_vec();
        if len >= 18 {
            frame[16..18].copy_from_slice(&(len as u16 - 14).to_be_bytes());
        }
        assert_eq!(fate(request.header(), &frame).err(), Some(BadGso), "{len} bytes");
    }
}

#[test]
fn lies_about_the_header_length_do_no_harm() {
    for hdr_len in [0, 1, 14, 128, u16::MAX] {
        let request = request();
        let lie = VnetHeader { hdr_len, ..request.header() };
        let sets = Offloads::all();
        let [all, none] = fate(lie, &request.frame()).unwrap();
        assert!(
            all == request.received(sets[sets.len() - 1]) && none == request.received(sets[0]),
            "{hdr_len}"
        );
    }
}

#[test]
fn metadata_that_means_nothing_is_not_passed_on() {
    let packet = packet("UDP, one datagram");
    let whole = Sent { packet, checksum: Checksum::Complete, gso_size: None };
    for flags in [0, DATA_VALID, 4, 0xfe] {
        let noise =
            VnetHeader { flags, hdr_len: 9, gso_size: 1000, csum_start: 7, csum_offset: 60_000, gso_type: 0 };
        for received in fate(noise, &whole.frame()).unwrap() {
            assert_eq!(received, [(VnetHeader::default(), whole.frame())], "flags {flags:#x}");
        }
    }
    let partial = Sent { checksum: Checksum::Partial, ..whole };
    let noise = VnetHeader { flags: 0xff, hdr_len: 9, gso_size: 1000, ..partial.header() };
    let [all, _] = fate(noise, &partial.frame()).unwrap();
    assert_eq!(all, [(partial.header(), partial.frame())]);
}

/// A sender that negotiated nothing uses all offloads: its metadata is still checked, and true metadata is accepted.
#[test]
fn true_metadata_is_accepted_without_negotiation() {
    let sets = Offloads::all();
    for sample in samples().into_iter().filter(|sample| sample.packet.payload.len() > sample.size) {
        let request =
            Sent { packet: sample.packet, checksum: Checksum::Partial, gso_size: Some(sample.size) };
        let [all, none] = fate(request.header(), &request.frame()).unwrap();
        assert!(all == request.received(sets[sets.len() - 1]), "{}", sample.name);
        assert!(none == request.received(sets[0]), "{}", sample.name);
    }
}

/// More segments than software makes: only a receiver that takes the frame whole may get it.
#[test]
fn too_many_segments_are_not_made() {
    let of = |payload_bytes| {
        let packet = Packet { payload: payload(payload_bytes), ..request().packet };
        Sent { packet, gso_size: Some(48), ..request() }
    };
    let most = of(48 * 128);
    assert!(fate(most.header(), &most.frame()).unwrap()[1] == most.received(Offloads::all()[0]));
    let more = of(48 * 128 + 1);
    let sets = Offloads::all();
    let ([all, none], drops) = both_fates(more.header(), &more.frame());
    assert!(all == more.received(sets[sets.len() - 1]) && none.is_empty());
    assert_eq!(drops, [BadGso]);
}

fn frames() -> impl Strategy<Value = Vec<u8>> {
    let tags: &[&[u8]] = &[&[], &[0x81, 0, 0, 1], &[0x88, 0xa8, 0, 1, 0x81, 0, 0, 2]];
    let ip = prop_oneof![Just(v4(&[])), Just(v4(&[1; 8])), Just(v6(Default::default()))];
    let transport = prop_oneof![Just(tcp(&[1; 12], |_| {})), Just(udp())];
    let edits = vec((0..120_usize, any::<u8>()), 0..4);
    (select(tags), ip, transport, 0..4000_usize, edits, 0..200_usize).prop_map(
        |(tags, ip, transport, len, edits, keep)| {
            let link = [&MACS[..], tags].concat();
            let packet = Packet { link, ip: Some((ip, transport)), payload: payload(len) };
            let mut frame = packet.bytes(Checksum::Partial);
            for (at, value) in edits {
                if let Some(byte) = frame.get_mut(at) {
                    *byte = value;
                }
            }
            if keep < 100 {
                frame.truncate(14 + keep);
            }
            frame
        },
    )
}

fn headers() -> impl Strategy<Value = VnetHeader> {
    let flags = select(&[NEEDS_CSUM, NEEDS_CSUM, NEEDS_CSUM, 0, DATA_VALID, 0xff]);
    let gso_type = select(&[0, TCPV4, TCPV6, UDP_L4, TCPV4 | ECN, TCPV6 | ECN, UFO, UDP_L4 | ECN, 0xff]);
    let gso_size = prop_oneof![0..100_u16, 100..5000_u16, any::<u16>()];
    let csum_start = prop_oneof![Just(34), Just(54), Just(38), Just(42), Just(58), 0..100_u16, any::<u16>()];
    let csum_offset = prop_oneof![Just(16), Just(6), Just(16), Just(6), any::<u16>()];
    (flags, gso_type, any::<u16>(), gso_size, csum_start, csum_offset).prop_map(
        |(flags, gso_type, hdr_len, gso_size, csum_start, csum_offset)| VnetHeader {
            flags,
            gso_type,
            hdr_len,
            gso_size,
            csum_start,
            csum_offset,
        },
    )
}

/// The offsets at which etherparse finds the transport header and the payload of a packet that may be segmented as
/// `kind`.
fn places(frame: &[u8], kind: u8) -> Option<(usize, usize)> {
    let packet = LaxSlicedPacket::from_ethernet(frame).ok()?;
    let at = |part: &[u8]| part.as_ptr() as usize - frame.as_ptr() as usize;
    match packet.net.as_ref()? {
        LaxNetSlice::Ipv4(_) if kind == TCPV6 => return None,
        LaxNetSlice::Ipv6(_) if kind == TCPV4 => return None,
        net if net.ip_payload_ref()?.fragmented => return None,
        _ => {}
    }
    match packet.transport.as_ref()? {
        TransportSlice::Tcp(tcp) if kind != UDP_L4 => Some((at(tcp.header_slice()), at(tcp.payload()))),
        TransportSlice::Udp(udp) if kind == UDP_L4 => Some((at(udp.header_slice()), at(udp.payload()))),
        _ => None,
    }
}

/// Bytes of MAC addresses, tags, and the IP header's fixed part, which must not change on the way.
fn decided_on(frame: &[u8]) -> &[u8] {
    let tags = frame[12..]
        .chunks(4)
        .take(2)
        .take_while(|tag| matches!(tag, [0x81, 0, ..] | [0x88, 0xa8, ..]))
        .count();
    let ethertype = 12 + 4 * tags;
    let ip_bytes = match frame.get(ethertype..ethertype + 2) {
        Some([8, 0]) => 20,
        Some([0x86, 0xdd]) => 40,
        _ => 0,
    };
    &frame[..(ethertype + 2 + ip_bytes).min(frame.len())]
}

/// The part of them that all segments share: without lengths, and the identification and checksum of IPv4.
fn unsegmented(decided_on: &[u8]) -> Vec<u8> {
    let (end, is_v6) = (decided_on.len(), decided_on.len() % 4 == 2 && decided_on.len() >= 54);
    let mut bytes = decided_on.to_vec();
    if is_v6 {
        bytes[end - 36..end - 34].fill(0);
    } else if let Some(ip) = end.checked_sub(20) {
        bytes[ip + 2..ip + 6].fill(0);
        bytes[ip + 10..ip + 12].fill(0);
    }
    bytes
}

fn check_harmless(header: VnetHeader, frame: &[u8], takes_all: bool) -> Result<(), TestCaseError> {
    if header == VnetHeader::default() {
        return Ok(());
    }
    prop_assert!(takes_all, "metadata that was not negotiated: {:?}", header);
    prop_assert_eq!(header.flags, NEEDS_CSUM);
    let (start, field) = (usize::from(header.csum_start), usize::from(header.csum_offset));
    prop_assert!(start + field + 2 <= frame.len() && start >= decided_on(frame).len());
    if header.gso_type == 0 {
        prop_assert_eq!((header.gso_size, header.hdr_len), (0, 0));
        return Ok(());
    }
    let kind = header.gso_type & !ECN;
    let found = places(frame, kind);
    prop_assert_eq!(found, Some((start, usize::from(header.hdr_len))));
    prop_assert_eq!(field, if kind == UDP_L4 { 6 } else { 16 });
    let size_min = if kind == UDP_L4 { 1 } else { 48 };
    prop_assert!(header.gso_size >= size_min && usize::from(header.hdr_len) < frame.len());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_lie_is_dropped_by_name_or_harmless(header in headers(), frame in frames()) {
        let (received, drops) = both_fates(header, &frame);
        prop_assert!(drops.iter().all(|reason| matches!(reason, BadCsum | BadGso)), "{:?}", drops);
        prop_assert!(drops.len() <= 1 && (drops.is_empty() || received[1].is_empty()));
        prop_assert!(!received[1].is_empty() || !drops.is_empty());
        for (got, takes_all) in received.iter().zip([true, false]) {
            for (shown, got) in got {
                check_harmless(*shown, got, takes_all)?;
                let (was, is) = (decided_on(&frame), decided_on(got));
                let same = if header.gso_type == 0 { was == is } else { unsegmented(was) == unsegmented(is) };
                prop_assert!(same, "what the switch decides by is not as it was sent");
            }
        }
    }
}
