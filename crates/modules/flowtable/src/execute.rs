//! Executes a flow's actions for a packet, into verdicts.

use std::sync::atomic::{AtomicU64, Ordering};

use lasthop_conntrack::CtRequest;
use lasthop_flow::drop_reason;
use lasthop_module_api::{DropReason, Header, Output, PortId, Upcall, UpcallReason, Verdicts};
use lasthop_wire::key::{CtWords, LinkLayer, field};
use lasthop_wire::tunnel::{OuterHeader, TUNNEL_BYTES};
use lasthop_wire::{Key, Metadata};

use crate::action_packet::{ActionPacket, ETHERNET_BYTES, EVERYTHING};
use crate::bounds::{DEPTH_MAX, PUSH_NSH_BYTES_MAX, RECIRCULATIONS_MAX, STEPS_MAX};
use crate::cache::Hit;
use crate::cache_key::{CacheKey, LaterKey};
use crate::execution::Execution;
use crate::lane::Lane;
use crate::meter::Meters;
use crate::pending::{Ticket, Turn};
use crate::pending_filter::FilterKey;
use crate::program::{ALWAYS, Code, GROUP_BYTES_MAX, Kind, PlainCt, Step, load, read_ct};
use crate::rewrite::{Masks, rewrite};
use crate::shared::Shared;
use crate::slot::{EntryId, tag_of};
use crate::stats::Counted;
use crate::tracked_batch::TrackedBatch;
use crate::tracking::{Tracked, Tracking};

/// Bytes of an output at least, however it is cut.
const TRUNCATED_BYTES_MIN: u32 = ETHERNET_BYTES as u32;

/// Does actions, for one worker and one batch.
pub(crate) struct Executor<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) meters: &'a Meters,
    pub(crate) tracking: &'a Tracking,
    pub(crate) lane: &'a mut Lane,
    pub(crate) verdicts: &'a mut Verdicts,
    pub(crate) tracked: &'a mut TrackedBatch,
    pub(crate) now_ns: u64,
    /// The module's name in upcalls.
    pub(crate) origin: u16,
    /// Where packets come in.
    pub(crate) port: PortId,
    /// Whether packets may wait in their ring behind a crowd of their flow.
    pub(crate) may_hold: bool,
}

/// The source of a packet's actions.
enum ActionSource<'a> {
    /// The control plane is asked; the hash of its key, and how others of its flow are known.
    Upcall(u64, FilterKey),
    /// The actions of its flow, and the flow's tag.
    Flow(u64, u32),
    /// Actions of an execute request, and the number that its upcalls carry in place of a flow's.
    Execute(&'a [AtomicU64], u32),
}

/// The result of one packet and its copies.
struct ActionResult {
    /// Copies that went somewhere.
    sent: u32,
    /// Why one that should have did not; said to the verdicts already if there is one that did.
    why: DropReason,
    is_said: bool,
    /// Steps, recirculations and lists within lists that are left to it.
    steps: u32,
    recirculations: u32,
    depth: u32,
}

impl ActionResult {
    fn for_packet() -> Self {
        Self {
            sent: 0,
            why: DropReason::FlowDrop,
            is_said: false,
            steps: STEPS_MAX,
            recirculations: RECIRCULATIONS_MAX,
            depth: DEPTH_MAX,
        }
    }
}

impl Executor<'_> {
    /// Counts a packet for its flow, and executes its actions.
    #[inline(always)]
    pub(crate) fn act(
        &mut self,
        packet: usize,
        header: &Header,
        tcp_flags: u16,
        hit: Hit,
        metadata: &Metadata,
    ) {
        self.count(header, tcp_flags, hit);
        let step = Step(hit.program);
        if step.is(Code::Output) {
            return send(self.shared, self.verdicts, packet, step);
        }
        self.act_by(packet, header, metadata, (hit.program, tag(hit)));
    }

    /// Runs a program; `flow` is the program and its flow's tag.
    #[inline(never)]
    fn act_by(&mut self, packet: usize, header: &Header, metadata: &Metadata, flow: (u64, u32)) {
        self.act_at_length(ActionPacket::new(packet, header, *metadata), ActionSource::Flow(flow.0, flow.1));
    }

    /// The flow of a packet, which may have been beheld; none if there is none, or if the packet has to go to the control plane
    /// behind others.
    pub(crate) fn look_up(&mut self, key: &Key, cache_key: Option<&CacheKey>) -> Option<Hit> {
        self.in_turn(key, |lane, shared| lane.look_up(shared, key, cache_key))
    }

    /// As [`Self::look_up`], of a packet that was looked up together with the others.
    #[inline(always)]
    pub(crate) fn look_up_in_batch(&mut self, packet: usize, key: &Key) -> Option<Hit> {
        if !self.lane.pending.is_any() {
            return self.lane.look_up_in_batch(self.shared, packet, key);
        }
        self.look_up_in_turn(packet, key)
    }

    #[inline(never)]
    fn look_up_in_turn(&mut self, packet: usize, key: &Key) -> Option<Hit> {
        self.in_turn(key, |lane, shared| lane.look_up_in_batch(shared, packet, key))
    }

    /// The flow that `find` finds for a packet, unless the packet has to go to the control plane behind others of its flow.
    #[inline]
    fn in_turn(&mut self, key: &Key, find: impl FnOnce(&mut Lane, &Shared) -> Option<Hit>) -> Option<Hit> {
        if !self.lane.pending.is_any() {
            return find(self.lane, self.shared);
        }
        let (shared, hash) = (self.shared, self.shared.secret.of_key(key));
        match self.lane.pending.turn(&shared.tickets, hash, self.now_ns) {
            Turn::Now => find(self.lane, shared),
            Turn::Behind => None,
            // It need not wait any more, unless one of the others is being sent: then it goes behind them once more.
            Turn::Overdue => {
                let hit = find(self.lane, shared)?;
                self.lane.pending.overtake(&shared.tickets, hash).then_some(hit)
            }
        }
    }

    /// Asks the control plane about a packet of no flow.
    #[cold]
    pub(crate) fn miss(
        &mut self,
        packet: usize,
        header: &Header,
        (key, filter_key): (&Key, FilterKey),
        metadata: Metadata,
    ) {
        let source = ActionSource::Upcall(self.shared.secret.of_key(key), filter_key);
        self.act_at_length(ActionPacket::new(packet, header, metadata), source);
    }

    /// Executes an action list of the control plane for a packet that it sent.
    pub(crate) fn execute(&mut self, packet: usize, header: &Header, execution: &Execution) {
        let Execution { metadata, program, number, tunnel } = execution;
        let source = ActionSource::Execute(program, *number);
        match tunnel {
            None => self.act_at_length(ActionPacket::new(packet, header, *metadata), source),
            Some(tunnel) => self.execute_tunnelled((packet, header, metadata), tunnel, source),
        }
    }

    /// The same of a packet that had come through a tunnel.
    #[cold]
    fn execute_tunnelled(
        &mut self,
        (packet, header, metadata): (usize, &Header, &Metadata),
        tunnel: &OuterHeader,
        source: ActionSource<'_>,
    ) {
        let (mut header, mut bytes) = (*header, [0; TUNNEL_BYTES]);
        let len = tunnel.emit(&mut bytes);
        if header.set_tunnel(bytes.get(..len).unwrap_or_default()).is_err() {
            return self.verdicts.drop_packet(packet, DropReason::TooLong);
        }
        self.act_at_length(ActionPacket::without_image(packet, &header, *metadata), source);
    }

    #[inline]
    pub(crate) fn count(&self, header: &Header, tcp_flags: u16, hit: Hit) {
        let counted = Counted { len_bytes: header.frame_len_bytes(), tcp_flags, now_ns: self.now_ns };
        let slot = || self.shared.flows.get(hit.flow as usize);
        self.shared.stats.count(EntryId::of(hit.stats), slot, counted);
    }

    #[inline(never)]
    fn act_at_length(&mut self, mut copy: ActionPacket<'_>, source: ActionSource<'_>) {
        let mut result = ActionResult::for_packet();
        self.follow(&mut result, &mut copy, source);
        self.end(&result, &copy);
    }

    fn end(&mut self, result: &ActionResult, copy: &ActionPacket<'_>) {
        if result.sent == 0 && !result.is_said {
            self.verdicts.drop_packet(usize::from(copy.packet), result.why);
        }
    }

    fn follow(&mut self, result: &mut ActionResult, copy: &mut ActionPacket<'_>, source: ActionSource<'_>) {
        let shared = self.shared;
        let done = match source {
            ActionSource::Upcall(hash, filter_key) => {
                return self.upcall_for_miss(result, copy, (hash, filter_key));
            }
            ActionSource::Execute(words, number) => self.list(result, copy, words, number),
            ActionSource::Flow(program, tag) => match Step(program).place() {
                Some((place, len)) => self.list(result, copy, shared.arena.words(place, len), tag),
                None => self.list(result, copy, &[AtomicU64::new(program)], tag),
            },
        };
        if let Err(reason) = done {
            result.why = reason;
        }
    }

    fn upcall_for_miss(
        &mut self,
        result: &mut ActionResult,
        copy: &mut ActionPacket<'_>,
        (hash, filter_key): (u64, FilterKey),
    ) {
        match self.lane.pending.enter(&self.shared.tickets, (self.port, hash, filter_key), self.now_ns) {
            Some(ticket) => {
                if self.may_hold && self.lane.pending.is_crowded(self.port, hash) {
                    self.verdicts.hold();
                }
                self.upcall(result, copy, UpcallReason::Miss, ticket);
            }
            None => self.lose(result, copy, DropReason::OutOfOrder),
        }
    }

    /// Does a list; an error ends it, and all that it is part of up to the next copy.
    fn list(
        &mut self,
        result: &mut ActionResult,
        copy: &mut ActionPacket<'_>,
        words: &[AtomicU64],
        flow: u32,
    ) -> Result<(), DropReason> {
        result.depth = result.depth.checked_sub(1).ok_or(DropReason::ActionBudget)?;
        let done = self.steps(result, copy, words, flow);
        result.depth += 1;
        done
    }

    fn steps(
        &mut self,
        result: &mut ActionResult,
        copy: &mut ActionPacket<'_>,
        words: &[AtomicU64],
        flow: u32,
    ) -> Result<(), DropReason> {
        let mut at = 0;
        while let Some(word) = words.get(at) {
            result.steps = result.steps.checked_sub(1).ok_or(DropReason::ActionBudget)?;
            let step = Step(word.load(Ordering::Relaxed));
            let rest = words.get(at + 1..).unwrap_or_default();
            at += 1 + self.step(result, copy, (step, rest), flow)?;
        }
        Ok(())
    }

    /// Does a step; how many words behind it are its own.
    fn step(
        &mut self,
        result: &mut ActionResult,
        copy: &mut ActionPacket<'_>,
        (step, rest): (Step, &[AtomicU64]),
        flow: u32,
    ) -> Result<usize, DropReason> {
        let number = |shift, bits| step.operand(shift, bits);
        match step.code() {
            Code::End | Code::Long => {}
            Code::Output => self.output(result, copy, number(0, 16) as u16),
            Code::Userspace => {
                let reason = UpcallReason::Action { flow, step: number(0, 16) as u16 };
                self.upcall(result, copy, reason, Ticket::NONE);
            }
            Code::Recirc => self.recirculate(result, copy.clone(), number(0, 32) as u32),
            Code::Priority => return Ok(set_masked(&mut copy.metadata.priority, rest)),
            Code::Mark => return Ok(set_masked(&mut copy.metadata.mark, rest)),
            Code::Rewrite => return rewrite_by(copy, step, rest),
            Code::PushVlan => copy.push_vlan(number(0, 16) as u16, number(16, 16) as u16)?,
            Code::PopVlan => copy.pop_vlan()?,
            Code::Hash => {
                let secret = self.shared.secret.of_word(0, 0);
                copy.metadata.dp_hash = copy.flow_hash(secret, number(0, 32) as u32, number(32, 1) == 1);
            }
            Code::Sample => return Ok(self.sample(result, copy, (step, rest), flow)),
            Code::Clone => {
                let len = number(0, 20) as usize;
                self.run_on_clone(result, copy, rest.get(..len).unwrap_or_default(), flow);
                return Ok(len);
            }
            Code::Truncate => copy.truncate_len_bytes = (number(0, 32) as u32).max(TRUNCATED_BYTES_MIN),
            Code::Meter => {
                let len_bytes = copy.header().frame_len_bytes();
                if !self.lane.borrows.pass(self.meters, number(0, 32) as u32, len_bytes, self.now_ns) {
                    return Err(DropReason::MeterExceeded);
                }
            }
            Code::CheckLength => return self.check_length(result, copy, (step, rest), flow),
            Code::PushMpls => {
                copy.push_mpls(number(0, 32) as u32, number(32, 16) as u16, number(48, 1) == 1)?;
            }
            Code::PopMpls => copy.pop_mpls(number(0, 16) as u16)?,
            Code::PushEthernet => {
                copy.push_ethernet(load(rest, 0), load(rest, 1))?;
                return Ok(2);
            }
            Code::PopEthernet => copy.pop_ethernet()?,
            Code::Drop => return Err(drop_reason(number(0, 32) as u32)),
            Code::PushNsh => return push_nsh_by(copy, step, rest),
            Code::PopNsh => copy.pop_nsh()?,
            Code::Ct => return self.track_by(result, copy, (step, rest), flow),
            Code::CtRecirc => return self.track_and_recirculate(result, copy, (step, rest), flow),
            Code::SetTunnel => return set_tunnel_by(copy, step, rest),
            Code::CtClear => copy.metadata.ct = CtWords::default(),
        }
        Ok(0)
    }

    fn track_by(
        &mut self,
        result: &mut ActionResult,
        copy: &mut ActionPacket<'_>,
        (step, rest): (Step, &[AtomicU64]),
        flow: u32,
    ) -> Result<usize, DropReason> {
        let (request, len) = read_ct(step, rest);
        match self.track(copy, &request)? {
            Tracked::Done => Ok(len),
            Tracked::Partial => self.suspend(result, copy, (&[step.0], rest), flow),
        }
    }

    fn track_and_recirculate(
        &mut self,
        result: &mut ActionResult,
        copy: &mut ActionPacket<'_>,
        (step, rest): (Step, &[AtomicU64]),
        flow: u32,
    ) -> Result<usize, DropReason> {
        let plain = PlainCt::of(step);
        match self.track(copy, &plain.request())? {
            Tracked::Done => self.recirculate(result, copy.clone(), plain.recirc_id),
            Tracked::Partial => return self.suspend(result, copy, (&plain.words(), rest), flow),
        }
        Ok(0)
    }

    /// Tracks a packet. Its connection counts for the port that the packet came in by, also if the control plane sends it.
    fn track(&self, copy: &mut ActionPacket<'_>, request: &CtRequest) -> Result<Tracked, DropReason> {
        let port = self.shared.numbers.port(copy.metadata.in_port).unwrap_or(PortId::INTERNAL);
        self.tracking.track(copy, request, (port.0, self.shared.monotonic_ms(self.now_ns)))
    }

    /// Has a packet wait until all of it is at hand. This step, whose words come first, and those behind it in its list are done then.
    #[cold]
    fn suspend(
        &mut self,
        result: &mut ActionResult,
        copy: &mut ActionPacket<'_>,
        (step, rest): (&[u64], &[AtomicU64]),
        flow: u32,
    ) -> Result<usize, DropReason> {
        copy.truncate_len_bytes = EVERYTHING;
        let word = |at: usize| step.get(at).copied().unwrap_or_else(|| load(rest, at - step.len()));
        let words = (0..step.len() + rest.len()).map(word);
        let rest = self.verdicts.suspend(words).ok_or(DropReason::ActionBudget)?;
        self.upcall(result, copy, UpcallReason::Suspended { flow, rest }, Ticket::NONE);
        // Nothing more is done for what there is of it.
        Err(DropReason::FragShare)
    }

    /// A list of which the packet itself sees nothing.
    fn run_on_clone(
        &mut self,
        result: &mut ActionResult,
        copy: &ActionPacket<'_>,
        words: &[AtomicU64],
        flow: u32,
    ) {
        if let Err(reason) = self.list(result, &mut copy.clone(), words, flow) {
            result.why = reason;
        }
    }

    fn sample(
        &mut self,
        result: &mut ActionResult,
        copy: &ActionPacket<'_>,
        (step, rest): (Step, &[AtomicU64]),
        flow: u32,
    ) -> usize {
        let (probability, len) = (load(rest, 0) as u32, step.operand(0, 20) as usize);
        let mut is_chosen = || probability != 0 && (self.lane.rng.next() >> 32) as u32 <= probability;
        if probability == ALWAYS || is_chosen() {
            self.run_on_clone(result, copy, rest.get(1..1 + len).unwrap_or_default(), flow);
        }
        1 + len
    }

    fn check_length(
        &mut self,
        result: &mut ActionResult,
        copy: &mut ActionPacket<'_>,
        (step, rest): (Step, &[AtomicU64]),
        flow: u32,
    ) -> Result<usize, DropReason> {
        let (greater, others) = (step.operand(16, 20) as usize, step.operand(36, 20) as usize);
        let is_greater = u64::from(copy.len_bytes()) > step.operand(0, 16);
        let list = if is_greater { 0..greater } else { greater..greater + others };
        self.list(result, copy, rest.get(list).unwrap_or_default(), flow)?;
        Ok(greater + others)
    }

    fn output(&mut self, result: &mut ActionResult, copy: &mut ActionPacket<'_>, number: u16) {
        let truncate_len_bytes = std::mem::replace(&mut copy.truncate_len_bytes, EVERYTHING);
        let Some(port) = self.shared.numbers.port(number) else {
            return self.lose(result, copy, DropReason::PortGone);
        };
        if copy.metadata.link != LinkLayer::Ethernet {
            return self.lose(result, copy, DropReason::ActionImpossible);
        }
        let Some(image) = self.image(copy) else {
            return self.lose(result, copy, DropReason::VerdictOverflow);
        };
        result.sent += 1;
        self.verdicts.push(Output { packet: copy.packet, image, port, truncate_len_bytes });
    }

    fn upcall(
        &mut self,
        result: &mut ActionResult,
        copy: &mut ActionPacket<'_>,
        reason: UpcallReason,
        ticket: Ticket,
    ) {
        let truncate_len_bytes = std::mem::replace(&mut copy.truncate_len_bytes, EVERYTHING);
        let (packet, metadata, origin) = (copy.packet, copy.metadata, self.origin);
        let sent = self.image_for_upcall(copy).is_some_and(|image| {
            self.verdicts.upcall(Upcall {
                packet,
                image,
                truncate_len_bytes,
                reason,
                metadata,
                ticket: ticket.0,
                origin,
            })
        });
        if sent {
            result.sent += 1;
        } else {
            self.shared.tickets.settle(ticket);
            self.lose(result, copy, DropReason::NoFlow);
        }
    }

    /// A copy that should go somewhere does not.
    fn lose(&mut self, result: &mut ActionResult, copy: &ActionPacket<'_>, reason: DropReason) {
        result.is_said = true;
        self.verdicts.drop_packet(usize::from(copy.packet), reason);
    }

    /// The number of the packet's image as it is now.
    fn image(&mut self, copy: &mut ActionPacket<'_>) -> Option<u16> {
        if copy.image.is_none() {
            copy.image = self.verdicts.add_image(*copy.header());
        }
        copy.image
    }

    /// The same for the control plane, which is told of the tunnel that the packet came by, and not of one that it is to go into.
    fn image_for_upcall(&mut self, copy: &mut ActionPacket<'_>) -> Option<u16> {
        match copy.with_first_tunnel() {
            None => self.image(copy),
            Some(header) => self.verdicts.add_image(header),
        }
    }

    fn recirculate(&mut self, result: &mut ActionResult, mut copy: ActionPacket<'_>, id: u32) {
        let Some(fewer) = result.recirculations.checked_sub(1) else {
            return self.lose(result, &copy, DropReason::ActionBudget);
        };
        result.recirculations = fewer;
        copy.metadata.recirc_id = id;
        self.pass_on(result, &mut copy);
    }

    /// A packet that was in a tracking action and has the next pass in its metadata.
    #[inline(never)]
    pub(crate) fn go_on(&mut self, mut copy: ActionPacket<'_>) {
        let mut result = ActionResult {
            recirculations: RECIRCULATIONS_MAX - 1,
            steps: STEPS_MAX - 1,
            ..ActionResult::for_packet()
        };
        self.pass_on(&mut result, &mut copy);
        self.end(&result, &copy);
    }

    /// The next pass of a packet through the table.
    fn pass_on(&mut self, result: &mut ActionResult, copy: &mut ActionPacket<'_>) {
        let later = self.later_key(copy);
        let is_any_behind = self.lane.pending.is_any();
        if let Some(later) = later.as_ref().filter(|_| !is_any_behind)
            && let Some(hit) = self.lane.known_later(later)
        {
            self.lane.note_cached(1);
            self.count(copy.header(), later.tcp_flags, hit);
            return self.follow(result, copy, ActionSource::Flow(hit.program, tag(hit)));
        }
        let (key, _) = copy.key();
        let found = self.in_turn(&key, |lane, shared| match &later {
            Some(later) => lane.look_up_later(shared, &key, later),
            None => lane.look_up(shared, &key, None),
        });
        let source = match found {
            Some(hit) => {
                self.count(copy.header(), key.get(field::TCP_FLAGS) as u16, hit);
                ActionSource::Flow(hit.program, tag(hit))
            }
            None => ActionSource::Upcall(self.shared.secret.of_key(&key), FilterKey::Inner),
        };
        self.follow(result, copy, source);
    }

    /// The cache key of a packet in a later pass, if it is a usual one of IPv4 without other metadata.
    fn later_key(&self, copy: &ActionPacket<'_>) -> Option<LaterKey> {
        let Metadata { recirc_id, dp_hash, priority, mark, in_port, link, ct } = &copy.metadata;
        if *link != LinkLayer::Ethernet || dp_hash | priority | mark != 0 || copy.came_by_tunnel() {
            return None;
        }
        self.lane.union.later_at(copy.seen(), *in_port, (*recirc_id, ct), &self.shared.secret)
    }
}

/// Sends a packet as it is where a step says.
#[inline(always)]
fn send(shared: &Shared, verdicts: &mut Verdicts, packet: usize, step: Step) {
    match shared.numbers.port(step.operand(0, 16) as u16) {
        Some(port) => verdicts.output(packet, port),
        None => verdicts.drop_packet(packet, DropReason::PortGone),
    }
}

/// Sets a number of the metadata by the word behind the step.
fn set_masked(number: &mut u32, rest: &[AtomicU64]) -> usize {
    let word = load(rest, 0);
    let (value, mask) = (word as u32, (word >> 32) as u32);
    *number = *number & !mask | value;
    1
}

/// Rewrites a group by the words behind the step.
fn rewrite_by(copy: &mut ActionPacket<'_>, step: Step, rest: &[AtomicU64]) -> Result<usize, DropReason> {
    let words = (step.operand(8, 8) as usize).div_ceil(8);
    let image = |from: usize| {
        let mut bytes = [0; GROUP_BYTES_MAX];
        for (index, place) in bytes.as_chunks_mut::<8>().0.iter_mut().take(words).enumerate() {
            *place = load(rest, from + index).to_le_bytes();
        }
        bytes
    };
    let masks = Masks { value: image(0), mask: image(words) };
    let kind = Kind::of(step.operand(0, 8)).ok_or(DropReason::ActionImpossible)?;
    let link = copy.metadata.link;
    rewrite(copy.edit(), link, kind, &masks)?;
    Ok(2 * words)
}

/// Puts the service header in front that the words behind the step hold.
fn push_nsh_by(copy: &mut ActionPacket<'_>, step: Step, rest: &[AtomicU64]) -> Result<usize, DropReason> {
    let (len, mut bytes) = (step.operand(0, 8) as usize, [0; PUSH_NSH_BYTES_MAX]);
    let words = len.div_ceil(8);
    for (index, place) in bytes.as_chunks_mut::<8>().0.iter_mut().take(words).enumerate() {
        *place = load(rest, index).to_le_bytes();
    }
    copy.push_nsh(bytes.get_mut(..len).ok_or(DropReason::ActionImpossible)?)?;
    Ok(words)
}

/// Sets the tunnel's header that the words behind the step hold.
fn set_tunnel_by(copy: &mut ActionPacket<'_>, step: Step, rest: &[AtomicU64]) -> Result<usize, DropReason> {
    let (len, mut bytes) = (step.operand(0, 8) as usize, [0; TUNNEL_BYTES]);
    let words = len.div_ceil(8);
    for (index, place) in bytes.chunks_mut(8).enumerate().take(words) {
        place.copy_from_slice(&load(rest, index).to_le_bytes()[..place.len()]);
    }
    let tunnel = bytes.get(..len).ok_or(DropReason::ActionImpossible)?;
    copy.edit().set_tunnel(tunnel).map_err(|_| DropReason::ActionImpossible)?;
    Ok(words)
}

/// The flow's tag in upcalls.
fn tag(hit: Hit) -> u32 {
    tag_of(hit.flow, hit.generation)
}
