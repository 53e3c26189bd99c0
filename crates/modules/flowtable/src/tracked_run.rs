//! Runs of usual packets whose flow is `ct(...),recirc(...)`: they are tracked, looked up again and sent.
//!
//! ```text
//!   all   cache key ─> flow: the same ct, recirc as the first one's ── other ──> end of the run
//!   all   connection, protocol state ── neither usual nor of a young one ──> end of the run: single look-ups
//!                │ none, and it begins one ─> alone: the next packet may belong to it
//!   each  its state, beside the cache ─> flow of the second pass: output ─> verdict
//!                │ not stored there                              └ ct(commit), output ─> connection ─> verdict
//!                └─> cache of later passes ─> all of its actions
//! ```
//!
//! Statistics of both flows are added up, and stored when the second flow changes.

use std::ops::Range;
use std::sync::atomic::Ordering;

use lasthop_conntrack::{UsualEnds, UsualPacket, UsualPacket4, UsualZone, WINDOW4_BYTES, WINDOW6_BYTES};
use lasthop_module_api::{DropReason, Header, Output, PortId, Verdicts};
use lasthop_wire::key::{CtWords, MINI_KEY4_WORDS, extract};
use lasthop_wire::{Key, Metadata};

use crate::action_packet::{ActionPacket, EVERYTHING};
use crate::cache::{CacheSlot, Hit};
use crate::cache_key::CacheKey;
use crate::executor::Executor;
use crate::program::{Code, PlainCt, Step, load, read_ct};
use crate::second_pass::SecondHit;
use crate::slot::EntryId;
use crate::stats::{CountedRun, Stock};
use crate::tracked_batch::{is_beginning, is_reply};
use crate::worker_state::{Known, UsualKind, WorkerState};

/// Values that hold for all packets of a run.
struct TrackedRun<'a> {
    stock: &'a Stock,
    zone: UsualZone<'a>,
    recirc_id: u32,
    in_port: u16,
    /// The statistics entry of the first flow.
    stats: u32,
    /// Whether all words are needed: flows match on labels or original tuples, or packets are translated.
    is_whole: bool,
}

impl TrackedRun<'_> {
    /// Of a packet's second pass.
    #[inline(always)]
    fn metadata(&self, ct: CtWords) -> Metadata {
        Metadata { recirc_id: self.recirc_id, in_port: self.in_port, ct, ..Metadata::default() }
    }
}

/// A second flow that sends packets unchanged.
#[derive(Clone, Copy)]
struct SecondFlow {
    stats: u32,
    port: PortId,
}

/// Where a second flow sends a packet, and the ends that the packet leaves with if they differ.
type Destination = (PortId, Option<UsualEnds>);

impl Executor<'_> {
    /// Forwards usual packets whose mini key has `KEY` words, starting at packet number `first`, that are sent
    /// unchanged, or after they were tracked. It stops at the first packet of another kind or flow, and returns the number
    /// of forwarded packets.
    #[inline(always)]
    pub(crate) fn send_usual<const KEY: usize>(
        &mut self,
        headers: &[Header],
        cache_keys: &[CacheKey],
        at: (usize, u16),
    ) -> usize
    where
        WorkerState: UsualKind<KEY>,
    {
        let known: Known<'_, KEY> = self.local.known_usual();
        let Some((slot, hit)) = cache_keys.first().and_then(|first_key| known.find(first_key)) else {
            return 0;
        };
        match Step(hit.program).is(Code::CtRecirc) {
            true => self.send_tracked::<KEY>(headers, cache_keys, at, (slot, hit)),
            false => self.send_known::<KEY>(headers, cache_keys, (at.0, hit.program)),
        }
    }

    /// Forwards usual packets whose flow, that of the first one, tracks them.
    #[inline(never)]
    fn send_tracked<const KEY: usize>(
        &mut self,
        headers: &[Header],
        cache_keys: &[CacheKey],
        (first, in_port): (usize, u16),
        (slot, hit): (CacheSlot, Hit),
    ) -> usize
    where
        WorkerState: UsualKind<KEY>,
    {
        let Some(first_key) = cache_keys.first() else { return 0 };
        let (step, shared, tracking) = (Step(hit.program), self.shared, self.tracking);
        let (Some(connections), Some(stock)) = (tracking.made(), shared.stats.of(self.local.worker())) else {
            return 0;
        };
        let PlainCt { zone: number, is_translated, recirc_id } = PlainCt::of(step);
        let zone = connections.usual_zone(number, is_translated, shared.monotonic_ms(self.now_ns));
        let is_whole = is_translated || self.local.union.has_whole_ct;
        let is_ipv4 = KEY == MINI_KEY4_WORDS;
        // Any packet may belong to a pending flow in its second pass.
        if self.local.pending.is_any() || (is_whole && !is_ipv4) {
            return 0;
        }
        let alike = self.tracked.alike::<KEY>(self.local, (first_key, cache_keys), (slot, hit));
        let headers = headers.get(..alike).unwrap_or(headers);
        let run = TrackedRun { stock, zone, recirc_id, in_port, stats: hit.stats, is_whole };
        // In a batch, the search for the first one prefetches the connections of all.
        let (mut sent, mut may_begin) = (0, self.tracked.new.is_some() && headers.len() == 1);
        loop {
            let rest = (sent, headers);
            let usual = match is_ipv4 {
                _ if may_begin => sent,
                true if is_whole => self.tracked.track_whole(&zone, number, rest),
                true => self.tracked.track::<WINDOW4_BYTES>(&zone, number, rest),
                false => self.tracked.track::<WINDOW6_BYTES>(&zone, number, rest),
            };
            let behind = (usual, rest.1);
            let (tracked, begins) = match is_ipv4 {
                _ if usual == headers.len() => (usual, false),
                true if is_whole => self.tracked.track_unusual::<true, WINDOW4_BYTES>(&zone, number, behind),
                true => self.tracked.track_unusual::<false, WINDOW4_BYTES>(&zone, number, behind),
                false => self.tracked.track_unusual::<false, WINDOW6_BYTES>(&zone, number, behind),
            };
            self.send_second::<KEY>(&run, (sent..tracked, headers), cache_keys, first);
            // One that was expected to begin a connection may be a usual one.
            let is_over = tracked == headers.len() || (tracked == usual && !may_begin);
            if is_over || self.local.pending.is_any() {
                return tracked;
            }
            // Where one packet begins a connection, the next one often does: it is not searched for among usual ones first.
            (sent, may_begin) = (tracked, begins);
        }
    }

    /// Executes the second pass of tracked packets.
    #[inline(never)]
    fn send_second<const KEY: usize>(
        &mut self,
        run: &TrackedRun<'_>,
        (tracked, headers): (Range<usize>, &[Header]),
        cache_keys: &[CacheKey],
        first: usize,
    ) where
        WorkerState: UsualKind<KEY>,
    {
        let headers = &headers[..tracked.end];
        let mut at = tracked.start;
        while at < headers.len() {
            let packet = (at, first + at);
            let Some(second) = self.second_flow::<KEY>(run, packet, &headers[at], &cache_keys[at]) else {
                at += 1;
                continue;
            };
            let mut sent = CountedRun::default();
            sent.add(headers[at].frame_len_bytes(), cache_keys[at].tcp_flags);
            if !run.is_whole {
                let behind = (&headers[at + 1..], &cache_keys[at + 1..]);
                self.tracked.count_alike::<KEY>(self.local, (at + 1, second.stats), behind, &mut sent);
            }
            let count = sent.packets as usize;
            self.verdicts.output_run(first + at, count, second.port);
            self.count_both(run, second, sent);
            at += count;
        }
    }

    /// Returns the second flow of a packet, if that sends it unchanged. Otherwise this executes the second pass and
    /// counts the packet.
    #[inline(never)]
    fn second_flow<const KEY: usize>(
        &mut self,
        run: &TrackedRun<'_>,
        (at, packet): (usize, usize),
        header: &Header,
        cache_key: &CacheKey,
    ) -> Option<SecondFlow>
    where
        WorkerState: UsualKind<KEY>,
    {
        let (ct, translation) = self.tracked.whole(at, run.is_whole);
        if translation.is_none() && !self.local.pending.is_any() {
            let known = self.known_second::<KEY>(run, (at, ct), header, cache_key);
            let sent = known.and_then(|SecondHit { program, stats }| {
                let (port, translation) = match Step(program) {
                    step if step.is(Code::Output) => {
                        (self.shared.numbers.port(step.operand(0, 16) as u16)?, None)
                    }
                    step if is_beginning(ct.0[0]) => match KEY {
                        MINI_KEY4_WORDS => self.commit_then_output::<WINDOW4_BYTES>(run, step, header)?,
                        _ => self.commit_then_output::<WINDOW6_BYTES>(run, step, header)?,
                    },
                    _ => return None,
                };
                Some((SecondFlow { stats, port }, translation))
            });
            match sent {
                Some((second, None)) => return Some(second),
                Some((second, Some(to))) => {
                    self.send_committed(run, second, (packet, header), (&to, cache_key.tcp_flags));
                    return None;
                }
                None => {}
            }
        }
        let mut counted = CountedRun::default();
        counted.add(header.frame_len_bytes(), cache_key.tcp_flags);
        run.stock.count_run(EntryId::of(run.stats), counted, self.now_ns);
        self.local.note_cached(1);
        let metadata = run.metadata(ct);
        // IPv6 packets of runs are never translated: one caller, into which the function is inlined.
        match translation.filter(|_| KEY == MINI_KEY4_WORDS) {
            Some(to) => self.send_translated((packet, header), (&to, cache_key.tcp_flags), metadata),
            None => self.go_on(ActionPacket::new(packet, header, metadata)),
        }
        None
    }

    /// The flow of a tracked packet's second pass, if it is in a cache.
    fn known_second<const KEY: usize>(
        &mut self,
        run: &TrackedRun<'_>,
        (at, ct): (usize, CtWords),
        header: &Header,
        cache_key: &CacheKey,
    ) -> Option<SecondHit>
    where
        WorkerState: UsualKind<KEY>,
    {
        let place = (self.tracked.slots[at], is_reply(ct.0[0]));
        let words = self.local.union.of_ct(&ct);
        if let Some(known) = self.local.known_second_whole(place, &words) {
            return Some(known);
        }
        let hit = match KEY {
            MINI_KEY4_WORDS => {
                let later = self.local.union.later(cache_key, (run.recirc_id, &ct), &self.shared.secret);
                self.local.known_later(&later)?
            }
            _ => self.known_later6(header, &run.metadata(ct))?,
        };
        self.local.second_mut().put(place, &words, hit);
        Some(SecondHit { program: hit.program, stats: hit.stats })
    }

    /// Sends a packet whose connection was committed with a translation, and counts it for both flows.
    fn send_committed(
        &mut self,
        run: &TrackedRun<'_>,
        second: SecondFlow,
        (packet, header): (usize, &Header),
        (to, tcp_flags): (&UsualEnds, u16),
    ) {
        let mut counted = CountedRun::default();
        counted.add(header.frame_len_bytes(), tcp_flags);
        self.count_both(run, second, counted);
        let Some((image, _)) = translated(self.verdicts, header, to) else {
            return self.verdicts.drop_packet(packet, DropReason::VerdictOverflow);
        };
        let (packet, port, truncate_len_bytes) = (packet as u16, second.port, EVERYTHING);
        self.verdicts.push(Output { packet, image, port, truncate_len_bytes });
    }

    /// Counts packets for their flows of both passes, which were found in caches.
    #[inline(always)]
    fn count_both(&mut self, run: &TrackedRun<'_>, second: SecondFlow, counted: CountedRun) {
        self.local.note_cached(2 * counted.packets);
        run.stock.count_run(EntryId::of(run.stats), counted, self.now_ns);
        run.stock.count_run(EntryId::of(second.stats), counted, self.now_ns);
    }

    /// Commits the connection that a packet begins, if `step` is the program `ct(commit),output`. `None`, with nothing done, for another
    /// program or if the commit has to take the general path.
    #[inline(never)]
    fn commit_then_output<const WINDOW: usize>(
        &mut self,
        run: &TrackedRun<'_>,
        step: Step,
        header: &Header,
    ) -> Option<Destination> {
        let (place, len) = step.place()?;
        let (first, rest) = self.shared.arena.words(place, len).split_first()?;
        let commit = Some(Step(first.load(Ordering::Relaxed))).filter(|step| step.is(Code::Ct))?;
        let (request, operands) = read_ct(commit, rest);
        let last = Step(load(rest, operands));
        if !last.is(Code::Output) || operands + 1 != rest.len() {
            return None;
        }
        let port = self.shared.numbers.port(last.operand(0, 16) as u16)?;
        let in_port = self.shared.numbers.port(run.in_port).unwrap_or(PortId::INTERNAL);
        let usual = UsualPacket::<WINDOW>::of(header.bytes(), &header.offload)?;
        let (new, len) = (self.tracked.new.as_ref()?, header.frame_len_bytes());
        let translation = run.zone.commit((&usual, new), (len, in_port.0), &request)?;
        self.verdicts.leave_rest(self.port, request.zone);
        Some((port, translation))
    }

    /// The flow of a usual IPv6 packet in a later pass, if it is in the cache, which has whole keys for it. So this costs more than for IPv4;
    /// its result is kept beside the first flow.
    #[inline(never)]
    fn known_later6(&self, header: &Header, metadata: &Metadata) -> Option<Hit> {
        let mut key = Key::default();
        extract(header.bytes(), header.frame_len_bytes() as usize, metadata, &mut key);
        self.local.known_other(&key, self.shared)
    }

    /// Executes the second pass of a packet whose addresses or ports are translated.
    fn send_translated(
        &mut self,
        (packet, header): (usize, &Header),
        (to, tcp_flags): (&UsualEnds, u16),
        metadata: Metadata,
    ) {
        let Some((image, edited)) = translated(self.verdicts, header, to) else {
            return self.verdicts.drop_packet(packet, DropReason::VerdictOverflow);
        };
        let pass = (metadata.recirc_id, &metadata.ct);
        let later = self.local.union.later_at(edited.bytes(), metadata.in_port, pass, &self.shared.secret);
        let is_any_behind = self.local.pending.is_any();
        let known = later.as_ref().and_then(|later| self.local.known_later(later));
        let Some(hit) = known.filter(|hit| Step(hit.program).is(Code::Output) && !is_any_behind) else {
            let edited = *edited;
            return self.go_on(ActionPacket::edited(packet, (header, edited, image), metadata));
        };
        self.local.note_cached(1);
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

/// A copy of a packet's image with these ends, and its index.
#[inline(always)]
fn translated<'a>(
    verdicts: &'a mut Verdicts,
    header: &Header,
    to: &UsualEnds,
) -> Option<(u16, &'a mut Header)> {
    let (image, edited) = verdicts.copy_image(header)?;
    if let Some(usual) = UsualPacket4::of(header.bytes(), &header.offload) {
        usual.translate(edited.bytes_mut(), to);
    }
    Some((image, edited))
}
