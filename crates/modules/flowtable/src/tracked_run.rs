//! Runs of usual packets whose flow is `ct(...),recirc(...)`: tracked, looked up again and sent.
//!
//! ```text
//!   all   cache key ─> flow: the same ct, recirc as the first one's ── other ──> end of the run
//!   all   connection, the protocol moves on ── not usual ──> end of the run: the long way
//!   each  its state, beside the cache ─> flow of the second pass: output ─> verdict
//!                │ not known there
//!                └─> cache of later passes ─> its actions at length
//! ```
//!
//! Statistics of both flows are added up, and counted when the second flow changes.

use lasthop_conntrack::{UsualEnds, UsualPacket};
use lasthop_module_api::{DropReason, Header, Output, PortId};
use lasthop_wire::Metadata;

use crate::action_packet::{ActionPacket, EVERYTHING};
use crate::cache_key::CacheKey;
use crate::execute::Executor;
use crate::program::{Code, PlainCt, Step};
use crate::second_pass::SecondHit;
use crate::slot::EntryId;
use crate::stats::{CountedRun, Stock};
use crate::tracked_batch::is_reply;

/// Facts that hold for all packets of a run.
struct TrackedRun<'a> {
    stock: &'a Stock,
    recirc_id: u32,
    in_port: u16,
    /// Statistics of the first flow.
    stats: u32,
    /// Flows look at labels and original tuples, or packets are translated.
    is_whole: bool,
}

/// A second flow that sends packets as they are.
#[derive(Clone, Copy)]
struct SecondFlow {
    stats: u32,
    port: PortId,
}

impl Executor<'_> {
    /// Forwards usual packets of established connections, starting at packet number `first`, up to the first other one or one of another
    /// flow. Returns their number.
    #[inline(never)]
    pub(crate) fn send_tracked(
        &mut self,
        headers: &[Header],
        cache_keys: &[CacheKey],
        (first, in_port): (usize, u16),
    ) -> usize {
        let Some((_, hit)) = cache_keys.first().and_then(|cache_key| self.lane.known4().find(cache_key))
        else {
            return 0;
        };
        let (step, shared, tracking) = (Step(hit.program), self.shared, self.tracking);
        // Any may be behind others in its second pass.
        if !step.is(Code::CtRecirc) || self.lane.pending.is_any() {
            return 0;
        }
        let (Some(connections), Some(stock)) = (tracking.made(), shared.stats.of(self.lane.worker())) else {
            return 0;
        };
        let PlainCt { zone: number, is_translated, recirc_id } = PlainCt::of(step);
        let zone = connections.usual_zone(number, is_translated, shared.monotonic_ms(self.now_ns));
        let is_whole = is_translated || self.lane.union.has_whole_ct;
        let alike = self.tracked.alike(self.lane, cache_keys, (hit.program, hit.stats));
        let headers = headers.get(..alike).unwrap_or(headers);
        let count = match is_whole {
            true => self.tracked.track_whole(&zone, number, headers),
            false => self.tracked.track(&zone, number, headers),
        };
        let run = TrackedRun { stock, recirc_id, in_port, stats: hit.stats, is_whole };
        self.send_second(&run, &headers[..count], cache_keys, first);
        count
    }

    /// The second pass of tracked packets.
    #[inline(never)]
    fn send_second(
        &mut self,
        run: &TrackedRun<'_>,
        headers: &[Header],
        cache_keys: &[CacheKey],
        first: usize,
    ) {
        let mut at = 0;
        while at < headers.len() {
            let packet = (at, first + at);
            let Some(second) = self.second_flow(run, packet, &headers[at], &cache_keys[at]) else {
                at += 1;
                continue;
            };
            let mut sent = CountedRun::default();
            sent.add(headers[at].frame_len_bytes(), cache_keys[at].tcp_flags);
            if !run.is_whole {
                let behind = (&headers[at + 1..], &cache_keys[at + 1..]);
                self.tracked.count_alike(self.lane, (at + 1, second.stats), behind, &mut sent);
            }
            let count = sent.packets as usize;
            self.verdicts.output_run(first + at, count, second.port);
            self.lane.note_cached(2 * sent.packets);
            run.stock.count_run(EntryId::of(run.stats), sent, self.now_ns);
            run.stock.count_run(EntryId::of(second.stats), sent, self.now_ns);
            at += count;
        }
    }

    /// The second flow of a packet, if that sends it as it is. Else the packet has had its second pass, and is counted.
    #[inline(never)]
    fn second_flow(
        &mut self,
        run: &TrackedRun<'_>,
        (at, packet): (usize, usize),
        header: &Header,
        cache_key: &CacheKey,
    ) -> Option<SecondFlow> {
        let (ct, translation) = self.tracked.whole(at, run.is_whole);
        if translation.is_none() && !self.lane.pending.is_any() {
            let place = (self.tracked.slots[at], is_reply(ct.0[0]));
            let words = self.lane.union.of_ct(&ct);
            let known = self.lane.known_second_whole(place, &words).or_else(|| {
                let later = self.lane.union.later(cache_key, (run.recirc_id, &ct), &self.shared.secret);
                let hit = self.lane.known_later(&later)?;
                self.lane.note_second(place, &words, hit);
                Some(SecondHit { program: hit.program, stats: hit.stats })
            });
            let output = known.filter(|known| Step(known.program).is(Code::Output));
            let port = |known: SecondHit| Step(known.program).operand(0, 16) as u16;
            if let Some(known) = output
                && let Some(port) = self.shared.numbers.port(port(known))
            {
                return Some(SecondFlow { stats: known.stats, port });
            }
        }
        let mut counted = CountedRun::default();
        counted.add(header.frame_len_bytes(), cache_key.tcp_flags);
        run.stock.count_run(EntryId::of(run.stats), counted, self.now_ns);
        self.lane.note_cached(1);
        let metadata = Metadata { recirc_id: run.recirc_id, in_port: run.in_port, ct, ..Metadata::default() };
        match translation {
            Some(to) => self.send_translated((packet, header), (&to, cache_key.tcp_flags), metadata),
            None => self.go_on(ActionPacket::new(packet, header, metadata)),
        }
        None
    }

    /// The second pass of a packet that leaves with other addresses or ports.
    fn send_translated(
        &mut self,
        (packet, header): (usize, &Header),
        (to, tcp_flags): (&UsualEnds, u16),
        metadata: Metadata,
    ) {
        let Some((image, edited)) = self.verdicts.copy_image(header) else {
            return self.verdicts.drop_packet(packet, DropReason::VerdictOverflow);
        };
        if let Some(usual) = UsualPacket::of(header.bytes(), header.frame_len_bytes(), &header.offload) {
            usual.translate(edited.bytes_mut(), to);
        }
        let pass = (metadata.recirc_id, &metadata.ct);
        let later = self.lane.union.later_at(edited.bytes(), metadata.in_port, pass, &self.shared.secret);
        let is_any_behind = self.lane.pending.is_any();
        let known = later.as_ref().and_then(|later| self.lane.known_later(later));
        let Some(hit) = known.filter(|hit| Step(hit.program).is(Code::Output) && !is_any_behind) else {
            let edited = *edited;
            return self.go_on(ActionPacket::edited(packet, (header, edited, image), metadata));
        };
        self.lane.note_cached(1);
        self.count(header, tcp_flags, hit);
        match self.shared.numbers.port(Step(hit.program).operand(0, 16) as u16) {
            Some(port) => {
                let (packet, truncate_len_bytes) = (packet as u16, EVERYTHING);
                self.verdicts.push(Output { packet, image, port, truncate_len_bytes });
            }
            None => self.verdicts.drop_packet(packet, DropReason::PortGone),
        }
    }
}
