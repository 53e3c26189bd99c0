//! Frames that carry their sender, their number, and a payload derived from it.

use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};
use lasthop_wire::Offload;
use lasthop_wire::vnet::{F_NEEDS_CSUM, GSO_NONE, GSO_TCPV4};

use crate::support::Received;

const CSUM_START: usize = 34;
const CSUM: usize = CSUM_START + 16;

fn payload_byte(position: u32) -> u8 {
    (position ^ position >> 8 ^ position >> 16).wrapping_mul(31) as u8
}

/// A TCP frame with a partial checksum, as Linux sends it; `to` 0xff is broadcast.
pub(crate) fn frame(to: u8, from: [u8; 2], number: u32, payload_len: usize, gso: bool) -> (Vec<u8>, Offload) {
    let position = number << 16;
    let payload: Vec<u8> = (0..payload_len as u32).map(|at| payload_byte(position + at)).collect();
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([2, 0, 0, 0, from[0], from[1]], [2, 0, 0, 0, 0, to])
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .tcp(40_000 + u16::from(from[0]), 80, position, 5000)
        .ack(1)
        .write(&mut frame, &payload)
        .unwrap();
    let sum = pseudo_header_sum(&frame);
    frame[CSUM..CSUM + 2].copy_from_slice(&sum.to_be_bytes());
    let gso_size = 1400;
    let gso = gso && payload_len > usize::from(gso_size);
    let offload = Offload {
        flags: F_NEEDS_CSUM,
        gso_type: if gso { GSO_TCPV4 } else { GSO_NONE },
        hdr_len: 54,
        gso_size: if gso { gso_size } else { 0 },
        csum_start: CSUM_START as u16,
        csum_offset: 16,
    };
    (frame, offload)
}

fn pseudo_header_sum(frame: &[u8]) -> u16 {
    let words = frame[26..34].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let mut sum = words.sum::<u32>() + 6 + (frame.len() - CSUM_START) as u32;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Sender and position of a received frame. Asserts that its bytes are right.
pub(crate) fn check_frame(received: &Received) -> ([u8; 2], u32) {
    let mut frame = received.frame.clone();
    if received.offload.needs_csum() {
        assert_eq!(frame[CSUM..CSUM + 2], pseudo_header_sum(&frame).to_be_bytes());
        frame[CSUM..CSUM + 2].fill(0);
    }
    let sliced = SlicedPacket::from_ethernet(&frame).unwrap();
    let Some(TransportSlice::Tcp(tcp)) = &sliced.transport else { panic!("not TCP") };
    let Some(etherparse::NetSlice::Ipv4(ip)) = &sliced.net else { panic!("not IPv4") };
    if !received.offload.needs_csum() {
        let ip = ip.header().to_header();
        assert_eq!(tcp.checksum(), tcp.to_header().calc_checksum_ipv4(&ip, tcp.payload()).unwrap());
    }
    let position = tcp.sequence_number();
    let expected = (0..tcp.payload().len() as u32).map(|at| payload_byte(position + at));
    assert!(expected.eq(tcp.payload().iter().copied()), "payload at {position:#x}");
    ([frame[10], frame[11]], position)
}
