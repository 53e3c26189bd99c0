//! TCP frames as guests send and receive them, checked by an independent parser (etherparse).
#![allow(dead_code, unreachable_pub)] // each test file uses its own part of this module

use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};
use lasthop_fabric::Capabilities;
use lasthop_wire::Offload;
use lasthop_wire::vnet::{F_NEEDS_CSUM, GSO_TCPV4};
use proptest::prelude::*;

use crate::support::{Received, everything};

const L2: usize = 14;

/// A TCP frame with a partial checksum, as Linux sends it.
pub fn tcp_frame(v6: bool, payload: &[u8]) -> (Vec<u8>, usize) {
    let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let builder =
        if v6 { builder.ipv6([1; 16], [2; 16], 64) } else { builder.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64) };
    let builder = builder.tcp(40000, 80, 1_000_000, 5000).ack(77).psh().fin();
    let mut frame = Vec::new();
    builder.write(&mut frame, payload).unwrap();
    let csum_start = L2 + if v6 { 40 } else { 20 };
    let pseudo = partial_checksum(&frame, csum_start);
    frame[csum_start + 16..csum_start + 18].copy_from_slice(&pseudo.to_be_bytes());
    (frame, csum_start)
}

/// The offload of such a frame over IPv4 without IP options: segments of `gso_size` bytes of payload.
pub fn tso4(csum_start: usize, gso_size: u16) -> Offload {
    Offload {
        flags: F_NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        hdr_len: 54,
        gso_size,
        csum_start: csum_start as u16,
        csum_offset: 16,
    }
}

/// The folded sum of the pseudo header: the value of the checksum field of a frame with NEEDS_CSUM.
fn partial_checksum(frame: &[u8], csum_start: usize) -> u16 {
    let addresses = if frame[12] == 0x86 { &frame[L2 + 8..L2 + 40] } else { &frame[L2 + 12..L2 + 20] };
    let len = (frame.len() - csum_start) as u32;
    let mut sum: u32 =
        addresses.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    sum += 6 + (len >> 16) + (len & 0xffff);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Sequence number and payload of a frame. Asserts that its checksum is right, or completes it as the receiver would.
pub fn check_tcp(received: &Received) -> (u32, Vec<u8>) {
    let mut frame = received.frame.clone();
    if received.offload.needs_csum() {
        let at = usize::from(received.offload.csum_start) + usize::from(received.offload.csum_offset);
        assert_eq!(
            frame[at..at + 2],
            partial_checksum(&frame, usize::from(received.offload.csum_start)).to_be_bytes(),
            "a partial checksum is the pseudo header's"
        );
        frame[at..at + 2].fill(0);
    }
    let sliced = SlicedPacket::from_ethernet(&frame).unwrap();
    let Some(TransportSlice::Tcp(tcp)) = &sliced.transport else { panic!("not TCP") };
    let right = match sliced.net.as_ref().unwrap() {
        etherparse::NetSlice::Ipv4(ip) => {
            let header = ip.header().to_header();
            assert_eq!(header.header_checksum, header.calc_header_checksum());
            tcp.to_header().calc_checksum_ipv4(&header, tcp.payload()).unwrap()
        }
        etherparse::NetSlice::Ipv6(ip) => {
            tcp.to_header().calc_checksum_ipv6(&ip.header().to_header(), tcp.payload()).unwrap()
        }
        other => panic!("{other:?}"),
    };
    if !received.offload.needs_csum() {
        assert_eq!(tcp.checksum(), right, "checksum");
    }
    (tcp.sequence_number(), tcp.payload().to_vec())
}

/// Any combination of a receiver's features.
pub fn capabilities() -> impl Strategy<Value = Capabilities> {
    (any::<[bool; 5]>()).prop_map(|[mergeable, csum, tso4, tso6, ecn]| Capabilities {
        mergeable,
        csum,
        tso4: tso4 && csum,
        tso6: tso6 && csum,
        ecn,
        ..everything()
    })
}
