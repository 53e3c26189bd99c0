//! The record of an upcall: two words, and the packet's metadata in front of its frame.

use lasthop_module_api::{PortId, SuspendedWords, UpcallReason};
use lasthop_wire::Metadata;
use lasthop_wire::key::{CT_WORDS, CtWords, LinkLayer};
use lasthop_wire::tunnel::OuterHeader;

use crate::UpcallLine;

/// Bytes of a record before its frame: the packet's metadata.
pub const UPCALL_PREFIX_BYTES: usize = NUMBERS_BYTES + 8 * CT_WORDS;
/// Bytes of the numbers of 32 bits in the metadata.
const NUMBERS_BYTES: usize = 32;
/// A bit in the module's number: a tunnel header follows the frame.
const HAS_TUNNEL: u32 = 1 << 16;
const MISS: u64 = 0;
const ACTION: u64 = 1;
const SUSPENDED: u64 = 2;

/// An EtherType, or a larger number for an Ethernet header.
fn number_of(link: LinkLayer) -> u32 {
    match link {
        LinkLayer::Ethernet => u32::MAX,
        LinkLayer::None(ethertype) => u32::from(ethertype),
    }
}

fn link_of(number: u32) -> LinkLayer {
    u16::try_from(number).map_or(LinkLayer::Ethernet, LinkLayer::None)
}

/// Metadata of an upcall; its bytes are returned beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpcallRecord {
    /// The reason of the upcall.
    pub reason: UpcallReason,
    /// Its input port, in whose queue it is; `internal` for packets that the control plane sent, whatever input port it
    /// gave them.
    pub port: PortId,
    /// Metadata of the packet.
    pub metadata: Metadata,
    /// The worker that sent it.
    pub worker: u8,
    /// Length of the whole packet; the record may have fewer bytes.
    pub len_bytes: u32,
    /// Bytes of the largest packet that it may be fragmented into, if it was reassembled from fragments; else 0.
    pub mtu_bytes: u16,
    /// See [`Upcall::ticket`].
    pub ticket: u32,
    /// See [`Upcall::origin`].
    pub origin: u16,
    /// The tunnel by which it came.
    pub tunnel: Option<OuterHeader>,
    /// Whether its line had few packets: then it goes ahead of those of busy lines. Known once it leaves its line.
    pub is_sparse: bool,
}

impl UpcallRecord {
    /// The line in which it waits.
    #[must_use]
    pub fn line(&self) -> UpcallLine {
        let is_suspended = matches!(self.reason, UpcallReason::Suspended { .. });
        UpcallLine::of(self.port, self.origin, is_suspended)
    }

    /// Two words: kind 8, step 16, input port 16, worker 8, port 16; and flow 32, length 32.
    #[must_use]
    pub fn words(&self) -> [u64; 2] {
        let (kind, flow, step) = match self.reason {
            UpcallReason::Miss => (MISS, 0, 0),
            UpcallReason::Action { flow, step } => (ACTION, flow, step),
            UpcallReason::Suspended { flow, rest } => (SUSPENDED, flow, rest.len),
        };
        let first = kind
            | u64::from(step) << 8
            | u64::from(self.metadata.in_port) << 24
            | u64::from(self.worker) << 40
            | u64::from(self.port.0) << 48;
        [first, u64::from(flow) | u64::from(self.len_bytes) << 32]
    }

    /// Its first bytes.
    #[must_use]
    pub fn prefix(&self) -> [u8; UPCALL_PREFIX_BYTES] {
        let Metadata { recirc_id, dp_hash, priority, mark, link, ct, .. } = self.metadata;
        let mut bytes = [0; UPCALL_PREFIX_BYTES];
        let has_tunnel = if self.tunnel.is_some() { HAS_TUNNEL } else { 0 };
        let (origin, mtu_bytes) = (u32::from(self.origin) | has_tunnel, u32::from(self.mtu_bytes));
        let numbers = [recirc_id, dp_hash, priority, mark, self.ticket, origin, number_of(link), mtu_bytes];
        let (first, rest) = bytes.split_at_mut(NUMBERS_BYTES);
        for (place, number) in first.as_chunks_mut::<4>().0.iter_mut().zip(numbers) {
            *place = number.to_ne_bytes();
        }
        for (place, word) in rest.as_chunks_mut::<8>().0.iter_mut().zip(ct.0) {
            *place = word.to_ne_bytes();
        }
        bytes
    }

    /// The record of these words and first bytes, and whether a tunnel's header follows its frame.
    #[must_use]
    pub fn of([first, second]: [u64; 2], prefix: &[u8]) -> (Self, bool) {
        let (first_part, rest) = prefix.split_at_checked(NUMBERS_BYTES).unwrap_or_default();
        let mut numbers = first_part.as_chunks::<4>().0.iter().map(|bytes| u32::from_ne_bytes(*bytes));
        let mut next = || numbers.next().unwrap_or(0);
        let [recirc_id, dp_hash, priority, mark, ticket, origin, link, mtu_bytes] =
            std::array::from_fn(|_| next());
        let (has_tunnel, origin, mtu_bytes) = (origin & HAS_TUNNEL != 0, origin as u16, mtu_bytes as u16);
        let reason = match first & 0xff {
            ACTION => UpcallReason::Action { flow: second as u32, step: (first >> 8) as u16 },
            SUSPENDED => {
                let rest = SuspendedWords::of_len((first >> 8) as u16);
                UpcallReason::Suspended { flow: second as u32, rest }
            }
            _ => UpcallReason::Miss,
        };
        let (in_port, mut ct) = ((first >> 24) as u16, CtWords::default());
        for (word, bytes) in ct.0.iter_mut().zip(rest.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        let metadata = Metadata { recirc_id, dp_hash, priority, mark, in_port, link: link_of(link), ct };
        let (worker, port) = ((first >> 40) as u8, PortId((first >> 48) as u16));
        let len_bytes = (second >> 32) as u32;
        let (tunnel, is_sparse) = (None, false);
        let record =
            Self { reason, port, metadata, worker, len_bytes, mtu_bytes, ticket, origin, tunnel, is_sparse };
        (record, has_tunnel)
    }

    /// Removes the words of suspended actions from the front of the bytes, and returns them.
    #[must_use]
    pub fn take_suspended(&self, bytes: &mut Vec<u8>) -> Vec<u64> {
        let UpcallReason::Suspended { rest, .. } = self.reason else { return Vec::new() };
        let len = (8 * usize::from(rest.len)).min(bytes.len());
        let words = bytes.drain(..len).collect::<Vec<u8>>();
        words.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_its_words() {
        let rest = SuspendedWords::of_len(0x1234);
        let fragment = UpcallReason::Suspended { flow: 0x8000_0001, rest };
        for reason in [UpcallReason::Miss, UpcallReason::Action { flow: u32::MAX, step: 0xabcd }, fragment] {
            let (link, ct) = (LinkLayer::None(0x894f), CtWords([1, 2, 3, 4, 5, 6, 7, u64::MAX]));
            let metadata =
                Metadata { recirc_id: 1, dp_hash: u32::MAX, priority: 3, mark: 4, in_port: 1023, link, ct };
            let (port, len_bytes) = (PortId(1022), u32::MAX);
            let (worker, ticket, origin) = (15, 0x1_0007, 0xfedc);
            let (mtu_bytes, tunnel, is_sparse) = (0x89ab, None, false);
            let record = UpcallRecord {
                reason,
                port,
                metadata,
                worker,
                len_bytes,
                mtu_bytes,
                ticket,
                origin,
                tunnel,
                is_sparse,
            };
            assert_eq!(UpcallRecord::of(record.words(), &record.prefix()), (record, false));
            let tunnelled = UpcallRecord { tunnel: Some(OuterHeader::default()), ..record };
            assert_eq!(UpcallRecord::of(tunnelled.words(), &tunnelled.prefix()), (record, true));
        }
    }
}
