//! A tracker with its own clock, and the functions by which tests use it.

use std::net::IpAddr;

use lasthop_conntrack::{
    ConntrackTable, CtBounds, CtCommit, CtDryRun, CtId, CtMetadata, CtRecord, CtRequest, CtTrial, CtVerdict,
    PacketImage,
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
    pub(crate) dry_run: CtDryRun,
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

    /// The connection with this identity.
    fn record_of(&self, id: CtId, now_ms: u64) -> Option<CtRecord> {
        let mut place = 0;
        while let Some((next, record)) = self.next_record(place, now_ms) {
            if record.id == id {
                return Some(record);
            }
            place = next;
        }
        None
    }
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
        let now_ms = 1_000_000;
        Self { tracker: ConntrackTable::new(bounds, now_ms), now_ms, dry_run: CtDryRun::default() }
    }

    /// One action for a packet. A dry run has predicted the answer and changed nothing.
    pub(crate) fn track(&mut self, frame: &[u8], before: &CtMetadata, request: &CtRequest) -> CtVerdict {
        let image =
            PacketImage::parse(frame, frame.len() as u32, Offload::default(), 1).expect("an IP packet");
        let (len, counters) = (self.tracker.len(), self.tracker.counters());
        self.dry_run.begin(Some(&self.tracker));
        let trial = self.dry_run.track(Some(&self.tracker), &image, before, request, self.now_ms);
        assert_eq!((self.tracker.len(), self.tracker.counters()), (len, counters));
        if !self.tracker.is_adopted() {
            // Connections of another process are looked at when they are asked for, and may make no sense.
            return self.tracker.track(&image, before, request, self.now_ms);
        }
        let known = trial.connection.filter(|_| trial.is_known).map(|known| known.tuples[0]);
        let is_known = known.is_some_and(|tuple| self.tracker.find(&tuple, self.now_ms).is_some());
        assert_eq!(is_known, trial.is_known);
        let verdict = self.tracker.track(&image, before, request, self.now_ms);
        self.assert_predicted(&trial, &verdict, request);
        verdict
    }

    /// Addresses and ports that are chosen at random may be others.
    fn assert_predicted(&self, trial: &CtTrial, verdict: &CtVerdict, request: &CtRequest) {
        let predicted = &trial.verdict;
        assert_eq!(predicted.metadata, verdict.metadata);
        assert_eq!((predicted.refused, predicted.wants_whole), (verdict.refused, verdict.wants_whole));
        assert_eq!(predicted.connection.is_some(), verdict.connection.is_some());
        if request.nat.is_none_or(|nat| nat.source.is_none()) && request.helper.is_none() {
            assert_eq!(predicted.rewrites, verdict.rewrites);
        }
        let (Some(told), Some(id)) = (trial.connection, verdict.connection) else { return };
        // By its tuple it is found without a search of all; if that is not the predicted one, by its identity.
        let by_tuple = self.tracker.find(&told.tuples[0], self.now_ms).filter(|record| record.id == id);
        if let Some(record) = by_tuple.or_else(|| self.tracker.record_of(id, self.now_ms)) {
            let shape = |record: CtRecord| (record.tuples[0], record.mark, record.labels, record.protocol);
            assert_eq!(shape(told), shape(record));
            assert_eq!((told.left_ms, told.packets), (record.left_ms, record.packets));
        }
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
