//! The frames that guests send and should receive, by negotiated features.

use lasthop_fabric::Capabilities;

use crate::header::{ECN, NEEDS_CSUM, TCPV4, TCPV6, UDP_L4, VnetHeader};
use crate::packet::{Checksum, Packet};

/// Bytes of a frame that the switch reads: a frame to be segmented has all its headers there.
pub(crate) const LOOKED_AT_BYTES: usize = 128;

/// Offloads that a guest leaves to its device, or accepts from it: CSUM, HOST_TSO4 and so on of a sender; GUEST_CSUM,
/// GUEST_TSO4 and so on of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Offloads {
    pub(crate) csum: bool,
    pub(crate) tso4: bool,
    pub(crate) tso6: bool,
    pub(crate) ecn: bool,
    pub(crate) uso: bool,
}

impl Offloads {
    /// All combinations that can be negotiated (virtio 1.2, 5.1.3.1).
    pub(crate) fn all() -> Vec<Self> {
        let bits = |bits: u8| {
            let [csum, tso4, tso6, ecn, uso] = [1, 2, 4, 8, 16].map(|bit| bits & bit != 0);
            Self { csum, tso4, tso6, ecn, uso }
        };
        let valid = |set: &Self| {
            let tso = set.tso4 || set.tso6;
            (set.csum || !(tso || set.uso)) && (tso || !set.ecn)
        };
        (0..32).map(bits).filter(valid).collect()
    }

    pub(crate) fn capabilities(self, mergeable: bool, header_bytes: usize) -> Capabilities {
        let Self { csum, tso4, tso6, ecn, uso } = self;
        Capabilities { mergeable, csum, tso4, tso6, ecn, uso, header_bytes, sent_header_bytes: header_bytes }
    }

    /// Whether a packet may be sent unsegmented.
    pub(crate) fn segments(self, packet: &Packet) -> bool {
        match packet.tcp() {
            Some(tcp) => (if packet.is_v6() { self.tso6 } else { self.tso4 }) && (self.ecn || !tcp.cwr),
            None => self.uso,
        }
    }

    /// Whether any packet may be sent unsegmented.
    pub(crate) fn takes_large(self) -> bool {
        self.tso4 || self.tso6 || self.uso
    }
}

/// A frame as received, with its header.
pub(crate) type Received = (VnetHeader, Vec<u8>);

/// An entry of a sender's ring: a packet, and the largest payload of its segments if it needs segmentation.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) packet: Packet,
    pub(crate) checksum: Checksum,
    pub(crate) gso_size: Option<usize>,
}

/// The entries with which a guest sends `packet` in segments of at most `size` bytes.
pub(crate) fn sent(packet: &Packet, size: usize, sender: Offloads) -> Vec<Sent> {
    let offloadable = packet.ip.is_some() && !packet.is_fragment();
    let checksum = if sender.csum && offloadable { Checksum::Partial } else { Checksum::Complete };
    let one = |packet: Packet| Sent { packet, checksum, gso_size: None };
    if !offloadable || packet.payload.len() <= size {
        vec![one(packet.clone())]
    } else if sender.segments(packet) {
        vec![Sent { packet: packet.clone(), checksum, gso_size: Some(size) }]
    } else {
        packet.cut(size).into_iter().map(one).collect()
    }
}

impl Sent {
    /// The virtio-net header of this entry.
    pub(crate) fn header(&self) -> VnetHeader {
        let mut header = VnetHeader::default();
        if self.checksum == Checksum::Partial {
            header.flags = NEEDS_CSUM;
            header.csum_start = self.packet.l4_offset() as u16;
            header.csum_offset = self.packet.csum_offset() as u16;
        }
        if let Some(gso_size) = self.gso_size {
            header.gso_type = match self.packet.tcp() {
                None => UDP_L4,
                Some(tcp) => {
                    (if self.packet.is_v6() { TCPV6 } else { TCPV4 }) | if tcp.cwr { ECN } else { 0 }
                }
            };
            header.gso_size = gso_size as u16;
            header.hdr_len = self.packet.headers_bytes() as u16;
        }
        header
    }

    pub(crate) fn frame(&self) -> Vec<u8> {
        self.packet.bytes(self.checksum)
    }

    /// Headers and frames that a receiver should get.
    pub(crate) fn received(&self, receiver: Offloads) -> Vec<Received> {
        if self.gso_size.is_some() && self.packet.headers_bytes() > LOOKED_AT_BYTES {
            return Vec::new();
        }
        match self.gso_size {
            Some(size) if !receiver.segments(&self.packet) => {
                let parts = self.packet.cut(size).into_iter();
                parts.flat_map(|packet| Self { packet, gso_size: None, ..*self }.received(receiver)).collect()
            }
            _ if self.checksum == Checksum::Partial && !receiver.csum => {
                vec![(VnetHeader::default(), self.packet.bytes(Checksum::Complete))]
            }
            _ => vec![(self.header(), self.frame())],
        }
    }
}
