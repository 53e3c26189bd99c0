//! Frames from the sender's address to those of the receivers.

use lasthop_wire::gso::TCP_CSUM_OFFSET;
use lasthop_wire::headers::{PROTO_TCP, PROTO_UDP};
use lasthop_wire::vnet::{F_NEEDS_CSUM, GSO_TCPV4};
use lasthop_wire::{Offload, Sum};

use super::support;

/// Payload of a TCP segment on an Ethernet with an MTU of 1500 bytes and timestamps, in bytes.
pub const TCP_PAYLOAD_BYTES: u16 = 1448;
/// Segments of the largest TCP frame.
pub const TSO_SEGMENTS: usize = 45;
const ETHERNET_BYTES: u16 = 14;
const IPV4_BYTES: u16 = 20;
const IPV6_BYTES: u16 = 40;
const TCP_BYTES: u16 = 32;

/// A frame and its offload metadata.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The frame, from the Ethernet header on.
    pub bytes: Vec<u8>,
    /// The virtio-net header.
    pub offload: Offload,
}

/// A frame of `len_bytes` to receiver `receiver`, counted from 0.
pub fn plain(receiver: u8, len_bytes: usize) -> Frame {
    Frame { bytes: support::frame(2 + receiver, 1, len_bytes), offload: Offload::default() }
}

/// `count` frames of `len_bytes` to the first receiver.
pub fn one_flow(count: usize, len_bytes: usize) -> Vec<Frame> {
    vec![plain(0, len_bytes); count]
}

/// Puts a UDP datagram into the frame.
pub fn udp(mut frame: Frame) -> Frame {
    let packet_bytes = (frame.bytes.len() - usize::from(ETHERNET_BYTES)) as u16;
    frame.bytes[12..42].copy_from_slice(&[
        8, 0, 0x45, 0, 0, 0, 0, 7, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0x9c, 0x40, 0, 53, 0, 0,
        0, 0,
    ]);
    frame.bytes[16..18].copy_from_slice(&packet_bytes.to_be_bytes());
    frame.bytes[38..40].copy_from_slice(&(packet_bytes - IPV4_BYTES).to_be_bytes());
    frame
}

/// As [`udp`], over IPv6; the frame must have room for it.
pub fn udp6(mut frame: Frame) -> Frame {
    let payload_bytes = (frame.bytes.len() - usize::from(ETHERNET_BYTES + IPV6_BYTES)) as u16;
    let packet = &mut frame.bytes[12..];
    packet[..10].copy_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 17, 64]);
    packet[10..42].copy_from_slice(&[0xfd; 32]);
    packet[6..8].copy_from_slice(&payload_bytes.to_be_bytes());
    packet[42..50].copy_from_slice(&[0x9c, 0x40, 0, 53, 0, 0, 0, 0]);
    packet[46..48].copy_from_slice(&payload_bytes.to_be_bytes());
    frame
}

/// An unsegmented TCP frame with the payload of `segments` segments to the first receiver, with a partial checksum.
pub fn tcp(segments: usize) -> Frame {
    let payload_bytes = segments * usize::from(TCP_PAYLOAD_BYTES);
    let headers_bytes = usize::from(ETHERNET_BYTES + IPV4_BYTES + TCP_BYTES);
    let mut bytes = support::frame(2, 1, headers_bytes + payload_bytes);
    let packet_bytes = (bytes.len() - usize::from(ETHERNET_BYTES)) as u16;
    bytes[12..14].copy_from_slice(&[8, 0]);
    let mut ip = [0x45, 0, 0, 0, 0, 7, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    ip[2..4].copy_from_slice(&packet_bytes.to_be_bytes());
    bytes[14..34].copy_from_slice(&ip);
    // Ports, sequence and acknowledgement numbers, eight words of header, ACK; checksum and urgent pointer; timestamps.
    let tcp = [
        0x9c, 0x40, 0, 80, 0, 15, 66, 64, 0, 0, 0, 77, 0x80, 0x10, 1, 0, 0, 0, 0, 0, 1, 1, 8, 10, 0, 0, 0, 1,
        0, 0, 0, 2,
    ];
    bytes[34..66].copy_from_slice(&tcp);
    let gso = segments > 1;
    let offload = Offload {
        flags: F_NEEDS_CSUM,
        gso_type: if gso { GSO_TCPV4 } else { 0 },
        hdr_len: headers_bytes as u16,
        gso_size: if gso { TCP_PAYLOAD_BYTES } else { 0 },
        csum_start: ETHERNET_BYTES + IPV4_BYTES,
        csum_offset: TCP_CSUM_OFFSET,
    };
    Frame { bytes, offload }
}

/// A segment of 64 bytes of established connection `number`, to the first receiver. With `is_translated`, replies go to
/// [`TRANSLATED`].
pub fn segment(number: u8, is_reply: bool, is_translated: bool) -> Frame {
    handshake(number, is_reply, is_translated, TCP_ACK)
}

/// The address that [`segment`]'s sources are translated to.
pub const TRANSLATED: [u8; 4] = [192, 0, 2, 200];
/// TCP flags of the segments that begin a connection.
pub const TCP_SYN: u8 = 2;
/// See [`TCP_SYN`].
pub const TCP_ACK: u8 = 0x10;

/// As [`segment`], with these TCP flags.
pub fn handshake(number: u8, is_reply: bool, is_translated: bool, flags: u8) -> Frame {
    let mut bytes = support::frame(2, 1, 64);
    let (client, server, source) = ([10, 0, 0, number], [198, 51, 100, 1], 1000 + u16::from(number));
    let seen = if is_translated { TRANSLATED } else { client };
    let (src, dst, sport, dport) =
        if is_reply { (server, seen, 80, source) } else { (client, server, source, 80) };
    let len: u8 = if flags & TCP_SYN != 0 { 40 } else { 50 };
    // A SYN takes one sequence number.
    let behind_syn = u8::from(flags & TCP_SYN == 0);
    let (own, other) = if is_reply { (100, 1) } else { (0, 101) };
    let (seq, ack) = (own + behind_syn, if flags & TCP_ACK != 0 { other } else { 0 });
    bytes[12..26].copy_from_slice(&[8, 0, 0x45, 0, 0, len, 0, 7, 0x40, 0, 64, 6, 0, 0]);
    bytes[26..30].copy_from_slice(&src);
    bytes[30..34].copy_from_slice(&dst);
    bytes[34..36].copy_from_slice(&sport.to_be_bytes());
    bytes[36..38].copy_from_slice(&dport.to_be_bytes());
    bytes[38..54].copy_from_slice(&[0, 0, 0, seq, 0, 0, 0, ack, 0x50, flags, 0x20, 0, 0, 0, 0, 0]);
    let header = sum_of(&bytes[14..34]);
    bytes[24..26].copy_from_slice(&header.finish().to_be_bytes());
    let pseudo = Sum::pseudo_v4(src, dst, PROTO_TCP, u16::from(len) - IPV4_BYTES);
    bytes[50..52].copy_from_slice(&pseudo.partial().to_be_bytes());
    let csum_start = ETHERNET_BYTES + IPV4_BYTES;
    let offload =
        Offload { flags: F_NEEDS_CSUM, csum_start, csum_offset: TCP_CSUM_OFFSET, ..Offload::default() };
    Frame { bytes, offload }
}

/// The frame with a complete TCP checksum and no offload metadata.
pub fn complete(mut frame: Frame) -> Frame {
    let start = usize::from(frame.offload.csum_start);
    let end =
        usize::from(ETHERNET_BYTES) + usize::from(u16::from_be_bytes([frame.bytes[16], frame.bytes[17]]));
    let sum = sum_of(&frame.bytes[start..end]).finish();
    frame.bytes[start + 16..start + 18].copy_from_slice(&sum.to_be_bytes());
    Frame { offload: Offload::default(), ..frame }
}

/// The frame with a VLAN tag; its checksum is unchanged.
pub fn tagged(mut frame: Frame) -> Frame {
    frame.bytes.splice(12..12, [0x81, 0, 0, 5]);
    frame.offload.csum_start += 4;
    frame
}

/// The segment over IPv6, between addresses that end in those of IPv4. Its checksum is partial.
pub fn over_ipv6(frame: Frame) -> Frame {
    let Frame { mut bytes, mut offload } = frame;
    let (ethernet, ipv6) = (usize::from(ETHERNET_BYTES), usize::from(IPV6_BYTES));
    let address = |ipv4: &[u8]| {
        let mut address = [0xfd; 16];
        address[12..].copy_from_slice(ipv4);
        address
    };
    let (src, dst) = (address(&bytes[26..30]), address(&bytes[30..34]));
    let payload_bytes = u16::from_be_bytes([bytes[16], bytes[17]]) - IPV4_BYTES;
    let [high, low] = payload_bytes.to_be_bytes();
    let header = [&[0x86, 0xdd, 0x60, 0, 0, 0, high, low, PROTO_TCP, 64][..], &src, &dst].concat();
    bytes.splice(12..ethernet + usize::from(IPV4_BYTES), header);
    let pseudo = Sum::pseudo_v6(src, dst, PROTO_TCP, u32::from(payload_bytes));
    let at = ethernet + ipv6 + usize::from(TCP_CSUM_OFFSET);
    bytes[at..at + 2].copy_from_slice(&pseudo.partial().to_be_bytes());
    offload.csum_start = ETHERNET_BYTES + IPV6_BYTES;
    Frame { bytes, offload }
}

/// As one of [`handshake`], with UDP in place of TCP, without a checksum.
pub fn over_udp(frame: Frame) -> Frame {
    let mut bytes = frame.bytes;
    (bytes[17], bytes[23]) = (50, PROTO_UDP);
    bytes[24..26].fill(0);
    let header = sum_of(&bytes[14..34]);
    bytes[24..26].copy_from_slice(&header.finish().to_be_bytes());
    bytes[38..54].fill(0);
    bytes[39] = 30;
    Frame { bytes, offload: Offload::default() }
}

fn sum_of(bytes: &[u8]) -> Sum {
    let mut sum = Sum::default();
    sum.add(bytes);
    sum
}
