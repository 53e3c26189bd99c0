//! The fragments of one packet.

use lasthop_wire::Fragment;
use lasthop_wire::fragment::PACKET_BYTES_MAX;

use crate::bounds::{DATAGRAM_FRAGMENTS_MAX, FragmentShare};

/// A packet that was put together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholePacket {
    /// Its frame.
    pub frame: Vec<u8>,
    /// Bytes of the IP packet of its largest fragment.
    pub mtu_bytes: u16,
    /// The identification of its fragments.
    pub identification: u32,
    /// The number of its fragments.
    pub fragments: u32,
}

/// The fragments of one packet that have arrived.
#[derive(Debug)]
pub(crate) struct Datagram {
    /// A number higher than those of all earlier datagrams.
    pub(crate) number: u64,
    pub(crate) began_ms: u64,
    /// Fragments by their offset in the packet; none overlaps another.
    pieces: Vec<(Fragment, Vec<u8>)>,
    /// Bytes of the packet's payload, once the last fragment is there.
    payload_bytes: Option<u32>,
}

/// The result of adding a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    Queued,
    /// The packet is complete.
    All,
    /// The fragment is a duplicate; the packet may still be completed.
    Twice,
    Overlap,
    TooMany,
    /// The packet would be longer than the IP header can say.
    TooLarge,
}

fn end(fragment: &Fragment) -> u32 {
    fragment.offset_bytes + fragment.payload.len() as u32
}

impl Datagram {
    pub(crate) fn new(number: u64, began_ms: u64) -> Self {
        Self { number, began_ms, pieces: Vec::new(), payload_bytes: None }
    }

    pub(crate) fn share(&self) -> FragmentShare {
        let bytes = self.pieces.iter().map(|(_, frame)| frame.len() as u32).sum();
        FragmentShare { fragments: self.pieces.len() as u32, bytes }
    }

    /// An overlap, or a second end, indicates an attempt to evade a filter: the packet is lost (RFC 5722). A link may
    /// have sent an exact duplicate twice.
    pub(crate) fn enter(&mut self, fragment: Fragment, frame: Vec<u8>) -> Entered {
        let (start, end_here) = (fragment.offset_bytes, end(&fragment));
        let at = self.pieces.partition_point(|(other, _)| other.offset_bytes < start);
        let next = self.pieces.get(at).map(|(other, _)| other);
        if next.is_some_and(|next| {
            (next.offset_bytes, end(next), next.has_more) == (start, end_here, fragment.has_more)
        }) {
            return Entered::Twice;
        }
        let before = at.checked_sub(1).and_then(|before| self.pieces.get(before)).map(|(other, _)| other);
        let overlaps = before.is_some_and(|before| end(before) > start)
            || next.is_some_and(|next| next.offset_bytes < end_here)
            || self.payload_bytes.is_some_and(|all| end_here > all || !fragment.has_more)
            || (!fragment.has_more && self.pieces.last().is_some_and(|(last, _)| end(last) > end_here));
        if overlaps {
            return Entered::Overlap;
        }
        if self.pieces.len() >= DATAGRAM_FRAGMENTS_MAX {
            return Entered::TooMany;
        }
        if !fragment.has_more {
            self.payload_bytes = Some(end_here);
        }
        self.pieces.insert(at, (fragment, frame));
        let sum: usize = self.pieces.iter().map(|(fragment, _)| fragment.payload.len()).sum();
        match self.payload_bytes {
            // They do not overlap.
            Some(all) if all as usize == sum => self.checked(all),
            _ => Entered::Queued,
        }
    }

    fn checked(&self, payload_bytes: u32) -> Entered {
        let headers = self.pieces.first().map_or(0, |(first, _)| first.cut_at - first.l3_offset) as u32;
        if headers + payload_bytes > PACKET_BYTES_MAX { Entered::TooLarge } else { Entered::All }
    }

    /// Puts the complete packet together.
    pub(crate) fn whole(&self) -> WholePacket {
        let payload_bytes = self.payload_bytes.unwrap_or(0) as usize;
        let mut frame = Vec::new();
        if let Some((first, head)) = self.pieces.first() {
            frame.reserve_exact(first.cut_at + payload_bytes);
            frame.extend_from_slice(head.get(..first.cut_at).unwrap_or_default());
            for (fragment, bytes) in &self.pieces {
                frame.extend_from_slice(bytes.get(fragment.payload.clone()).unwrap_or_default());
            }
            let is_congested = self.pieces.iter().any(|(fragment, _)| fragment.has_experienced_congestion());
            first.make_whole(&mut frame, payload_bytes, is_congested);
        }
        let largest = self.pieces.iter().map(|(fragment, _)| fragment.payload.end - fragment.l3_offset).max();
        WholePacket {
            frame,
            mtu_bytes: largest.unwrap_or(0) as u16,
            identification: self.pieces.first().map_or(0, |(first, _)| first.identification),
            fragments: self.pieces.len() as u32,
        }
    }
}
