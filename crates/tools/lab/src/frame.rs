//! Frames of the lab: an Ethernet frame whose payload begins with the flow's number and the packet's number in it, so that
//! a receiver can check order and loss.

use lasthop_module_api::PortId;
use lasthop_wire::vnet::HEADER_BYTES;

/// Bytes of a frame that carry meaning; the rest is payload that nobody reads.
pub(crate) const HEAD_BYTES: usize = 52;
/// The virtio-net header and the frame's head: the first descriptor of each chain.
pub(crate) const IMAGE_BYTES: usize = HEADER_BYTES + HEAD_BYTES;
/// The shortest frame of Ethernet, without its check sum.
const FRAME_BYTES_MIN: u32 = 60;
/// The longest payload: a frame of 64 KiB.
pub(crate) const PAYLOAD_BYTES_MAX: u32 = 65_483;
/// For local experiments (IEEE 802).
pub(crate) const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
const AT_FLOW: usize = 14;

/// The meaning of a frame to its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// Payload.
    Data,
    /// An acknowledgement of all packets before `acked`.
    Ack,
}

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
        (HEAD_BYTES as u32 + self.payload_bytes).max(FRAME_BYTES_MIN)
    }

    /// The virtio-net header, which asks for nothing, and the head.
    pub(crate) fn emit(&self) -> [u8; IMAGE_BYTES] {
        let mut out = [0; IMAGE_BYTES];
        let frame = &mut out[HEADER_BYTES..];
        frame[..6].copy_from_slice(&mac_of(self.to));
        frame[6..12].copy_from_slice(&mac_of(self.from));
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

    /// The head of a received frame; the switch wrote its own virtio-net header before it.
    pub(crate) fn parse(image: &[u8; IMAGE_BYTES]) -> Self {
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
            is_ack in any::<bool>(),
            numbers in any::<(u64, u64)>(),
            payload_bytes in 0..PAYLOAD_BYTES_MAX,
        ) {
            let kind = if is_ack { FrameKind::Ack } else { FrameKind::Data };
            let ((from, to), (number, acked)) = (ends, numbers);
            let head = FrameHead { from, to, flow, kind, number, acked, payload_bytes };
            prop_assert_eq!(FrameHead::parse(&head.emit()), head);
            prop_assert!(head.frame_bytes() >= FRAME_BYTES_MIN);
        }
    }
}
