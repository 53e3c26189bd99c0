//! Frames of the lab: an Ethernet frame whose payload begins with the flow's number and the packet's number in it, so that
//! a receiver can check order and loss.
//!
//! ```text
//!   receivers with offloads:     Ethernet | numbers of flow and frame | payload
//!   receivers without offloads:  Ethernet | IPv4 | TCP: flow in the ports, frame in the time stamps | payload    to be cut, or summed
//! ```

use lasthop_module_api::PortId;
use lasthop_wire::Offload;
use lasthop_wire::vnet::{F_NEEDS_CSUM, GSO_NONE, GSO_TCPV4, HEADER_BYTES};

/// Bytes of a frame that carry meaning; the rest is payload that nobody reads.
pub(crate) const HEAD_BYTES: usize = 52;
/// The same of a TCP frame with time stamps.
const TCP_HEAD_BYTES: usize = 66;
/// Bytes of its head behind the Ethernet header.
const IP_HEAD_BYTES: u32 = TCP_HEAD_BYTES as u32 - 14;
/// Payload of a segment: an MTU of 1500 bytes.
pub(crate) const SEGMENT_PAYLOAD_BYTES: u32 = 1448;
/// The virtio-net header and the longest head: the first descriptor of each chain.
pub(crate) const IMAGE_BYTES: usize = HEADER_BYTES + TCP_HEAD_BYTES;
/// The shortest frame of Ethernet, without its check sum.
const FRAME_BYTES_MIN: u32 = 60;
/// The longest payload: a frame of 64 KiB.
pub(crate) const PAYLOAD_BYTES_MAX: u32 = 65_483;
/// For local experiments (IEEE 802).
pub(crate) const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
const AT_FLOW: usize = 14;
/// IPv4 and TCP, and where their fields begin in a frame.
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0];
const AT_TOTAL_LENGTH: usize = 16;
const AT_ADDRESSES: usize = 26;
const AT_TCP: u16 = 34;
const AT_PORTS: usize = 34;
const AT_SEQUENCE: usize = 38;
const AT_FLAGS: usize = 47;
const AT_STAMPS: usize = 58;
/// Of the last segment only.
const PUSH: u8 = 0x08;
/// Of frames that are not cut: a mark of the lab, without an urgent pointer.
const URGENT: u8 = 0x20;

/// The meaning of a frame to its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// Payload.
    Data,
    /// An acknowledgement of all packets before `acked`.
    Ack,
    /// Payload of a TCP frame, whose checksum is completed; `is_cut`: it is cut for receivers without TSO, and a segment begins at
    /// this byte of it.
    Tcp { at_bytes: u32, is_end: bool, is_cut: bool },
}

/// The receiver gets a TCP frame in segments, unless it takes it whole.
const SEGMENTS: Offload = Offload {
    flags: F_NEEDS_CSUM,
    gso_type: GSO_TCPV4,
    hdr_len: TCP_HEAD_BYTES as u16,
    gso_size: SEGMENT_PAYLOAD_BYTES as u16,
    csum_start: AT_TCP,
    csum_offset: 16,
};

/// The receiver gets a TCP frame whole.
const WHOLE: Offload = Offload { gso_type: GSO_NONE, gso_size: 0, ..SEGMENTS };

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHead {
    /// Numbers of the sending and the receiving NIC.
    pub(crate) from: u16,
    pub(crate) to: u16,
    pub(crate) flow: u32,
    pub(crate) kind: FrameKind,
    /// Number of the frame among those of its flow in this direction.
    pub(crate) number: u64,
    /// For `FrameKind::Ack`: packets received in order.
    pub(crate) acked: u64,
    pub(crate) payload_bytes: u32,
}

/// The port of NIC `nic`: port 0 is the switch's own.
pub(crate) fn port_of(nic: u16) -> PortId {
    PortId(nic + 1)
}

/// The address of NIC `nic`.
pub(crate) fn mac_of(nic: u16) -> [u8; 6] {
    let [high, low] = nic.to_be_bytes();
    [2, 0, 0, 0x1a, high, low]
}

impl FrameHead {
    /// Bytes of the frame on the wire.
    pub(crate) fn frame_bytes(&self) -> u32 {
        (self.head_bytes() + self.payload_bytes).max(FRAME_BYTES_MIN)
    }

    /// Bytes of it before the payload.
    pub(crate) fn head_bytes(&self) -> u32 {
        if matches!(self.kind, FrameKind::Tcp { .. }) { TCP_HEAD_BYTES as u32 } else { HEAD_BYTES as u32 }
    }

    /// Bytes that the switch sums for receivers without checksums, beside the segments of a cut frame.
    pub(crate) fn summed_bytes(&self) -> u32 {
        if matches!(self.kind, FrameKind::Tcp { is_cut: false, .. }) { self.payload_bytes } else { 0 }
    }

    /// Packets that the receiver gets.
    pub(crate) fn packets(&self) -> u32 {
        match self.kind {
            FrameKind::Tcp { is_cut: true, .. } => self.payload_bytes.div_ceil(SEGMENT_PAYLOAD_BYTES).max(1),
            FrameKind::Tcp { .. } | FrameKind::Data | FrameKind::Ack => 1,
        }
    }

    /// The virtio-net header, which asks for nothing but the segments of TCP, and the head.
    pub(crate) fn emit(&self) -> [u8; IMAGE_BYTES] {
        let mut out = [0; IMAGE_BYTES];
        let (header, frame) = out.split_at_mut(HEADER_BYTES);
        frame[..6].copy_from_slice(&mac_of(self.to));
        frame[6..12].copy_from_slice(&mac_of(self.from));
        if let FrameKind::Tcp { at_bytes, is_end, is_cut } = self.kind {
            let offload = if is_cut { SEGMENTS } else { WHOLE };
            header.copy_from_slice(&offload.emit(0));
            let flags = if is_end { PUSH } else { 0 } | if is_cut { 0 } else { URGENT };
            self.emit_tcp(frame, at_bytes, flags);
            return out;
        }
        frame[12..14].copy_from_slice(&ETHERTYPE);
        let words = &mut frame[AT_FLOW..];
        words[..4].copy_from_slice(&self.flow.to_le_bytes());
        words[4] = u8::from(self.kind == FrameKind::Ack);
        words[5..7].copy_from_slice(&self.from.to_le_bytes());
        words[7..9].copy_from_slice(&self.to.to_le_bytes());
        words[9..17].copy_from_slice(&self.number.to_le_bytes());
        words[17..25].copy_from_slice(&self.acked.to_le_bytes());
        words[25..29].copy_from_slice(&self.payload_bytes.to_le_bytes());
        out
    }

    fn emit_tcp(&self, frame: &mut [u8], at_bytes: u32, flags: u8) {
        let mut put = |at: usize, bytes: &[u8]| frame[at..at + bytes.len()].copy_from_slice(bytes);
        put(12, &ETHERTYPE_IPV4);
        put(14, &[0x45]);
        put(AT_TOTAL_LENGTH, &((IP_HEAD_BYTES + self.payload_bytes) as u16).to_be_bytes());
        put(20, &[0x40, 0, 64, 6]); // not to be fragmented, time to live, TCP
        for (address, nic) in [self.from, self.to].into_iter().enumerate() {
            let [high, low] = nic.to_be_bytes();
            put(AT_ADDRESSES + 4 * address, &[10, 0, high, low]);
        }
        put(AT_PORTS, &self.flow.to_be_bytes());
        put(AT_SEQUENCE, &at_bytes.to_be_bytes());
        put(46, &[0x80, 0x10 | flags]); // 32 bytes of header; acknowledges
        put(54, &[1, 1, 8, 10]); // time stamps, behind two bytes of padding
        put(AT_STAMPS, &self.number.to_be_bytes());
    }

    fn parse_tcp(frame: &[u8]) -> Self {
        let half = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let word = |at: usize| u64::from_be_bytes(std::array::from_fn(|byte| frame[at + byte]));
        let quarter = |at: usize| u32::from_be_bytes(std::array::from_fn(|byte| frame[at + byte]));
        let [is_end, is_whole] = [PUSH, URGENT].map(|flag| frame[AT_FLAGS] & flag != 0);
        Self {
            from: half(10),
            to: half(4),
            flow: quarter(AT_PORTS),
            kind: FrameKind::Tcp { at_bytes: quarter(AT_SEQUENCE), is_end, is_cut: !is_whole },
            number: word(AT_STAMPS),
            acked: 0,
            payload_bytes: u32::from(half(AT_TOTAL_LENGTH)).saturating_sub(IP_HEAD_BYTES),
        }
    }

    /// The head of a received frame; the switch wrote its own virtio-net header before it.
    pub(crate) fn parse(image: &[u8; IMAGE_BYTES]) -> Self {
        let frame = &image[HEADER_BYTES..];
        if frame[12..14] == ETHERTYPE_IPV4 {
            return Self::parse_tcp(frame);
        }
        let words = &image[HEADER_BYTES + AT_FLOW..];
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| words[at + byte]));
        let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| words[at + byte]));
        Self {
            from: u16::from_le_bytes([words[5], words[6]]),
            to: u16::from_le_bytes([words[7], words[8]]),
            flow: half(0),
            kind: if words[4] == 0 { FrameKind::Data } else { FrameKind::Ack },
            number: word(9),
            acked: word(17),
            payload_bytes: half(25),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_head_comes_back_as_it_went(
            ends in any::<(u16, u16)>(),
            flow in any::<u32>(),
            kind in 0..3,
            numbers in any::<(u64, u64)>(),
            payload_bytes in 0..PAYLOAD_BYTES_MAX,
        ) {
            let segment = FrameKind::Tcp { at_bytes: flow / 2, is_end: flow % 2 == 0, is_cut: flow % 3 == 0 };
            let kind = [FrameKind::Ack, FrameKind::Data, segment][kind as usize];
            let ((from, to), (number, acked)) = (ends, numbers);
            let acked = if kind == segment { 0 } else { acked };
            let head = FrameHead { from, to, flow, kind, number, acked, payload_bytes };
            prop_assert_eq!(FrameHead::parse(&head.emit()), head);
            prop_assert!(head.frame_bytes() >= FRAME_BYTES_MIN);
        }
    }
}
