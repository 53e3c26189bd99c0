use lasthop_frontend::START_BYTES;
use lasthop_wire::checksum::Sum;
use lasthop_wire::vnet::{F_NEEDS_CSUM, GSO_TCPV4, HEADER_BYTES, Offload};

use crate::Workload;

const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const TCP_BYTES: usize = 20;
/// The position of the UDP ports.
const PORTS: std::ops::Range<usize> = ETHERNET_BYTES + IPV4_BYTES..ETHERNET_BYTES + IPV4_BYTES + 4;
/// The first bytes of our MAC addresses (locally administered), by which the receiver tells our frames from those that
/// a switch sends by itself.
const OURS: [u8; 2] = [0x02, 0x4c];
/// The position of a UDP datagram's payload, where a frame's number is, with the virtio-net header counted.
const NUMBER: usize = HEADER_BYTES + ETHERNET_BYTES + IPV4_BYTES + 8;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
/// The payload of a segment with TCP timestamps at an MTU of 1500, as Linux sends it.
const SEGMENT_BYTES: u16 = 1448;

/// The frames that one guest sends to another, each with its virtio-net header: they differ only in addresses and
/// ports, which rotate. Those of two guests to each other belong to the same connections.
#[derive(Debug)]
pub(crate) struct Frames {
    bytes: Vec<u8>,
    /// Whether the other guest's frames begin the connections.
    are_replies: bool,
    flows: Round,
    macs: Round,
}

/// Counts from 0 to `end` and starts again.
#[derive(Clone, Copy, Debug)]
struct Round {
    next: u32,
    end: u32,
}

impl Round {
    #[inline]
    fn step(&mut self) -> u32 {
        let now = self.next;
        self.next = if now + 1 == self.end { 0 } else { now + 1 };
        now
    }
}

/// Address `number` of guest `guest`.
fn mac(guest: u16, number: u32) -> [u8; 6] {
    let number = number.to_be_bytes();
    [OURS[0], OURS[1], guest as u8, number[1], number[2], number[3]] // guests are at most 256
}

impl Frames {
    pub(crate) fn new(workload: &Workload, from: u16, to: u16) -> Self {
        let mut frame: Vec<u8> = (0..workload.frame_bytes).map(|at| at as u8).collect();
        frame[..6].copy_from_slice(&mac(to, 0));
        frame[6..12].copy_from_slice(&mac(from, 0));
        frame[12..14].copy_from_slice(&0x0800_u16.to_be_bytes());
        let protocol = if workload.uncut() { PROTOCOL_TCP } else { PROTOCOL_UDP };
        ipv4(&mut frame[ETHERNET_BYTES..], protocol, from, to);
        let offload = if workload.uncut() { tcp(&mut frame) } else { udp(&mut frame) };
        let bytes = [&offload.emit(0), &frame[..]].concat();
        let round = |end| Round { next: 0, end };
        Self { bytes, are_replies: from > to, flows: round(workload.flows), macs: round(workload.macs) }
    }

    /// The next frame with its header.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> &[u8] {
        if self.flows.end > 1 {
            let number = self.flows.step();
            self.set_ports(number);
        }
        let frame = &mut self.bytes[HEADER_BYTES..];
        if self.macs.end > 1 {
            let [_, number @ ..] = self.macs.step().to_be_bytes();
            frame[3..6].copy_from_slice(&number);
            frame[9..12].copy_from_slice(&number);
        }
        &self.bytes
    }

    /// The first bytes of the next frame: the part that differs between frames.
    #[inline(always)]
    pub(crate) fn next_start(&mut self) -> &[u8; START_BYTES] {
        self.next().first_chunk().unwrap_or(&[0; START_BYTES])
    }

    /// Makes the frames belong to flow `number`.
    #[inline(always)]
    pub(crate) fn set_ports(&mut self, number: u32) {
        // The port of the first guest has the low 15 bits, the other one the rest. None is 0, which Open vSwitch's userspace
        // datapath does not track.
        let [first, second] = [0x8000 | number & 0x7fff, 0x4000 + (number >> 15)];
        let ports = if self.are_replies { second << 16 | first } else { first << 16 | second };
        self.bytes[HEADER_BYTES..][PORTS].copy_from_slice(&ports.to_be_bytes());
    }

    /// Makes all frames go from address `from` of one guest to address `to` of the other, if each has only one.
    pub(crate) fn set_addresses(&mut self, from: u32, to: u32) {
        let frame = &mut self.bytes[HEADER_BYTES..];
        frame[3..6].copy_from_slice(&to.to_be_bytes()[1..]);
        frame[9..12].copy_from_slice(&from.to_be_bytes()[1..]);
    }

    /// Writes a number into the next frame, a UDP datagram.
    pub(crate) fn set_number(&mut self, number: u32) {
        self.bytes[NUMBER..NUMBER + 4].copy_from_slice(&number.to_be_bytes());
    }

    /// The length of each frame with its header.
    #[inline(always)]
    pub(crate) fn len_bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// The number of a received frame.
pub(crate) fn number(start: &[u8; START_BYTES]) -> u32 {
    u32::from_be_bytes(std::array::from_fn(|at| start[NUMBER + at]))
}

/// Whether a received frame is ours, by its first bytes, which begin with the header.
#[inline(always)]
pub(crate) fn is_ours(start: &[u8; START_BYTES]) -> bool {
    const DESTINATION: usize = HEADER_BYTES;
    const SOURCE: usize = HEADER_BYTES + 6;
    start[DESTINATION..DESTINATION + 2] == OURS && start[SOURCE..SOURCE + 2] == OURS
}

fn ipv4(packet: &mut [u8], protocol: u8, from: u16, to: u16) {
    let [.., high, low] = packet.len().to_be_bytes(); // at most 65535
    packet[..IPV4_BYTES]
        .copy_from_slice(&[0x45, 0, high, low, 0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 9, 0, 0, 10, 9, 0, 0]);
    packet[14..16].copy_from_slice(&from.to_be_bytes());
    packet[18..20].copy_from_slice(&to.to_be_bytes());
    let mut sum = Sum::default();
    sum.add(&packet[..IPV4_BYTES]);
    packet[10..12].copy_from_slice(&sum.finish().to_be_bytes());
}

/// UDP without a checksum.
fn udp(frame: &mut [u8]) -> Offload {
    let datagram = &mut frame[ETHERNET_BYTES + IPV4_BYTES..];
    let [.., high, low] = datagram.len().to_be_bytes();
    datagram[..8].copy_from_slice(&[0x40, 0, 0x40, 0, high, low, 0, 0]);
    Offload::default()
}

/// TCP that is still to be segmented and checksummed.
fn tcp(frame: &mut [u8]) -> Offload {
    let start = ETHERNET_BYTES + IPV4_BYTES;
    let address = |at| std::array::from_fn(|byte| frame[at + byte]);
    let len_bytes = (frame.len() - start) as u16; // less than an IPv4 packet's limit
    let pseudo = Sum::pseudo_v4(address(start - 8), address(start - 4), PROTOCOL_TCP, len_bytes);
    let header = &mut frame[start..start + TCP_BYTES];
    header.copy_from_slice(&[0x40, 0, 0x40, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    header[16..18].copy_from_slice(&pseudo.partial().to_be_bytes());
    Offload {
        flags: F_NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        hdr_len: (start + TCP_BYTES) as u16,
        gso_size: SEGMENT_BYTES,
        csum_start: start as u16,
        csum_offset: 16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn workload(text: &str) -> Workload {
        text.parse().expect(text)
    }

    #[test]
    fn headers_are_right_and_known_again() {
        for text in ["size=60", "size=64", "size=9000", "size=65549"] {
            let mut frames = Frames::new(&workload(text), 1, 2);
            let bytes = frames.next().to_vec();
            assert_eq!(bytes.len(), frames.len_bytes());
            assert!(is_ours(bytes.first_chunk().expect("long enough")), "{text}");
            let offload = Offload::parse(bytes.first_chunk().expect("long enough"));
            assert_eq!(offload.is_gso(), text == "size=65549");
            let frame = &bytes[HEADER_BYTES..];
            let mut sum = Sum::default();
            sum.add(&frame[14..34]);
            assert_eq!(sum.finish(), 0, "the IPv4 header's sum is right");
            assert_eq!(usize::from(u16::from_be_bytes([frame[16], frame[17]])), frame.len() - 14);
        }
        assert!(!is_ours(&[2; START_BYTES]));
    }

    #[test]
    fn frames_of_two_guests_to_each_other_belong_to_the_same_connections() {
        let workload = workload("both,flows=70000");
        let [mut there, mut back] = [(0, 1), (1, 0)].map(|(from, to)| Frames::new(&workload, from, to));
        for _ in 0..70_000 {
            let [there, back] =
                [there.next(), back.next()].map(|bytes| bytes[HEADER_BYTES + 26..][..12].to_vec());
            let reversed = [&back[4..8], &back[..4], &back[10..], &back[8..10]].concat();
            assert_eq!(there, reversed, "addresses and ports");
        }
    }

    #[test]
    fn flows_and_addresses_are_as_many_as_asked_for() {
        let mut frames = Frames::new(&workload("size=64,flows=70000,macs=300"), 1, 2);
        let mut flows = HashSet::new();
        let mut pairs = HashSet::new();
        for _ in 0..140_000 {
            let head = &frames.next_start()[HEADER_BYTES..];
            flows.insert(head[34..38].to_vec());
            pairs.insert(head[..12].to_vec());
            assert_eq!((head[0], head[6], head[2], head[8]), (2, 2, 2, 1));
        }
        assert_eq!((flows.len(), pairs.len()), (70_000, 300));
    }
}
