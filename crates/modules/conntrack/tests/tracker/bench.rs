//! A tracker with its own clock, and the functions by which tests use it.

use std::net::IpAddr;

use lasthop_conntrack::{
    ConntrackTable, CtBounds, CtCommit, CtMetadata, CtRecord, CtRequest, CtVerdict, PacketImage,
};
use lasthop_flow::{Nat, NatRange, NatSource, ct_state};
use lasthop_wire::Offload;

use crate::frames::assert_right;

pub(crate) const NEW: u32 = ct_state::TRACKED | ct_state::NEW;
pub(crate) const EST: u32 = ct_state::TRACKED | ct_state::ESTABLISHED;
pub(crate) const REPLY: u32 = EST | ct_state::REPLY;
pub(crate) const INVALID: u32 = ct_state::TRACKED | ct_state::INVALID;
pub(crate) const RELATED: u32 = ct_state::TRACKED | ct_state::RELATED;
pub(crate) const SNAT: u32 = ct_state::SRC_NAT;
pub(crate) const DNAT: u32 = ct_state::DST_NAT;

pub(crate) struct Bench {
    pub(crate) tracker: ConntrackTable,
    pub(crate) now_ms: u64,
}

impl Default for Bench {
    fn default() -> Self {
        Self::with(CtBounds::default())
    }
}

/// Reads connections one by one.
pub(crate) trait Records {
    /// The next connection at or behind a place, and the place behind it.
    fn next_record(&self, place: u32, now_ms: u64) -> Option<(u32, CtRecord)>;
}

impl Records for ConntrackTable {
    fn next_record(&self, place: u32, now_ms: u64) -> Option<(u32, CtRecord)> {
        let (mut next, mut records) = (Some(place), Vec::new());
        while let (Some(place), true) = (next, records.is_empty()) {
            next = self.dump(place, None, now_ms, 1, &mut records);
        }
        Some((next.unwrap_or(u32::MAX), records.pop()?))
    }
}

/// `ct(commit)`.
pub(crate) fn commit() -> CtRequest {
    CtRequest { commit: CtCommit::Yes, ..CtRequest::default() }
}

/// `ct(commit,nat(...))`.
pub(crate) fn nat(source: NatSource, addresses: (&str, &str), ports: Option<(u16, u16)>) -> CtRequest {
    let address = |text: &str| (!text.is_empty()).then(|| text.parse::<IpAddr>().expect("an address"));
    let range = NatRange {
        ip_min: address(addresses.0),
        ip_max: address(addresses.1),
        proto_min: ports.map(|ports| ports.0),
        proto_max: ports.map(|ports| ports.1),
    };
    CtRequest { nat: Some(Nat { source: Some(source), range, ..Nat::default() }), ..commit() }
}

/// `ct(nat)`.
pub(crate) fn natted() -> CtRequest {
    CtRequest { nat: Some(Nat::default()), ..CtRequest::default() }
}

impl Bench {
    pub(crate) fn with(bounds: CtBounds) -> Self {
        Self { tracker: ConntrackTable::new(bounds, 1_000_000), now_ms: 1_000_000 }
    }

    /// Applies one action to a packet.
    pub(crate) fn track(&mut self, frame: &[u8], before: &CtMetadata, request: &CtRequest) -> CtVerdict {
        let image =
            PacketImage::parse(frame, frame.len() as u32, Offload::default(), 1).expect("an IP packet");
        self.tracker.track(&image, before, request, self.now_ms)
    }

    /// The state that one action gives to an untracked packet.
    pub(crate) fn state(&mut self, frame: &[u8], request: &CtRequest) -> u32 {
        self.track(frame, &CtMetadata::default(), request).metadata.state
    }

    /// The state, and the packet as it leaves with right checksums.
    pub(crate) fn pass(&mut self, frame: &[u8], request: &CtRequest) -> (u32, Vec<u8>) {
        let verdict = self.track(frame, &CtMetadata::default(), request);
        assert_eq!(verdict.refused, None);
        let out = verdict.rewrites.applied(frame);
        assert_right(&out);
        (verdict.metadata.state, out)
    }
}
