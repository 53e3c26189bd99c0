//! Executes a flow's actions for a packet, into verdicts.

use std::sync::atomic::{AtomicU64, Ordering};

use lasthop_flow::drop_reason;
use lasthop_module_api::{DropReason, Header, Output, Upcall, UpcallReason, Verdicts};
use lasthop_wire::key::{CtWords, LinkLayer};
use lasthop_wire::tunnel::{OuterHeader, TUNNEL_BYTES, set_sender};
use lasthop_wire::{Key, Metadata};

use crate::action_packet::{ActionPacket, ETHERNET_BYTES, EVERYTHING};
use crate::bounds::PUSH_NSH_BYTES_MAX;
use crate::cache::Hit;
use crate::cache_key::{CacheKey, LaterKey};
use crate::course::Course;
use crate::dry_event::{DryEvent, DryOutput};
use crate::execution::Execution;
use crate::executor::{ActionResult, ActionSource, Executor, tag};
use crate::pending::{Ticket, Turn};
use crate::pending_filter::FilterKey;
use crate::program::{ALWAYS, Code, GROUP_BYTES_MAX, Kind, PlainCt, Step, load, read_ct};
use crate::rewrite::{Masks, rewrite};
use crate::shared::Shared;
use crate::slot::EntryId;
use crate::stats::Counted;
use crate::tracking::Tracked;
use crate::worker_state::WorkerState;

/// Smallest length of an output after truncation.
const TRUNCATED_BYTES_MIN: u32 = ETHERNET_BYTES as u32;

impl Executor<'_> {
    /// Counts a packet for its flow, and executes the flow's actions.
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

    /// Looks up the packet's flow; its cache key may already be computed. `None` on a miss, or if the packet must follow
    /// earlier upcalls of its flow.
    pub(crate) fn look_up(&mut self, key: &Key, cache_key: Option<&CacheKey>) -> Option<Hit> {
        self.in_turn(key, |local, shared| local.look_up(shared, key, cache_key))
    }

    /// As [`Self::look_up`], of a packet that was looked up together with the others.
    #[inline(always)]
    pub(crate) fn look_up_in_batch(&mut self, packet: usize, key: &Key) -> Option<Hit> {
        if !self.local.pending.is_any() {
            return self.local.look_up_in_batch(self.shared, packet, key);
        }
        self.look_up_in_turn(packet, key)
    }

    #[inline(never)]
    fn look_up_in_turn(&mut self, packet: usize, key: &Key) -> Option<Hit> {
        self.in_turn(key, |local, shared| local.look_up_in_batch(shared, packet, key))
    }

    /// Calls `find`, unless the packet has to follow others of its flow to the control plane.
    #[inline]
    pub(crate) fn in_turn(
        &mut self,
        key: &Key,
        find: impl FnOnce(&mut WorkerState, &Shared) -> Option<Hit>,
    ) -> Option<Hit> {
        if !self.local.pending.is_any() {
            return find(self.local, self.shared);
        }
        let (shared, hash) = (self.shared, self.shared.secret.of_key(key));
        match self.local.pending.turn(&shared.tickets, hash, self.now_ns) {
            Turn::Now => find(self.local, shared),
            Turn::Behind => None,
            // The packet waited long enough. If one of the others is being sent at this moment, it follows them to the
            // control plane.
            Turn::Overdue => {
                let hit = find(self.local, shared)?;
                self.local.pending.overtake(&shared.tickets, hash).then_some(hit)
            }
        }
    }

    /// Sends an upcall for a packet without a flow.
    #[cold]
    pub(crate) fn miss(
        &mut self,
        packet: usize,
        header: &Header,
        (key, filter_key): (&Key, FilterKey),
        metadata: Metadata,
    ) {
        self.miss_of(ActionPacket::new(packet, header, metadata), (key, filter_key));
    }

    /// As [`Self::miss`], of a packet whose header may differ from the received one.
    pub(crate) fn miss_of(&mut self, copy: ActionPacket<'_>, (key, filter_key): (&Key, FilterKey)) {
        let source = ActionSource::of_miss(key, self.shared, filter_key);
        self.act_at_length(copy, source);
    }

    /// As [`Self::act`], of a packet whose header differs from the received one.
    pub(crate) fn act_on(&mut self, copy: ActionPacket<'_>, tcp_flags: u16, hit: Hit) {
        self.count(copy.header(), tcp_flags, hit);
        self.act_at_length(copy, ActionSource::Flow(hit.program, tag(hit)));
    }

    /// Executes the actions that the control plane gave with a packet.
    pub(crate) fn execute(&mut self, packet: usize, header: &Header, execution: &Execution) {
        let Execution { metadata, program, number, tunnel } = execution;
        let source = ActionSource::Execute(program, *number);
        match tunnel {
            None => self.act_at_length(ActionPacket::new(packet, header, *metadata), source),
            Some(tunnel) => self.execute_tunnelled((packet, header, metadata), tunnel, source),
        }
    }

    /// The same for a packet that was received through a tunnel.
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

    /// The cache key of a packet in a later pass, if it is a usual one of IPv4 without other metadata.
    pub(crate) fn later_key(&self, copy: &ActionPacket<'_>) -> Option<LaterKey> {
        let Metadata { recirc_id, dp_hash, priority, mark, in_port, link, ct } = &copy.metadata;
        if *link != LinkLayer::Ethernet || dp_hash | priority | mark != 0 || copy.came_by_tunnel() {
            return None;
        }
        self.local.union.later_at(copy.seen(), *in_port, (*recirc_id, ct), &self.shared.secret)
    }
}

impl<C: Course> Executor<'_, C> {
    #[inline(never)]
    fn act_at_length(&mut self, mut copy: ActionPacket<'_>, source: ActionSource<'_>) {
        let mut result = ActionResult::for_packet();
        self.follow(&mut result, &mut copy, source);
        self.end(&result, &copy);
    }

    pub(crate) fn end(&mut self, result: &ActionResult, copy: &ActionPacket<'_>) {
        if result.sent == 0 && !result.is_said {
            self.verdicts.drop_packet(usize::from(copy.packet), result.why);
        }
    }

    pub(crate) fn follow(
        &mut self,
        result: &mut ActionResult,
        copy: &mut ActionPacket<'_>,
        source: ActionSource<'_>,
    ) {
        let shared = self.shared;
        let done = match source {
            ActionSource::Upcall(hash, filter_key) => return C::ask(self, result, copy, (hash, filter_key)),
            ActionSource::Unread => Err(DropReason::ActionImpossible),
            ActionSource::Execute(words, number) => self.list(result, copy, words, number),
            ActionSource::Flow(program, tag) => match Step(program).place() {
                Some((place, len)) => self.list(result, copy, shared.arena.words(place, len), tag),
                None => self.list(result, copy, &[AtomicU64::new(program)], tag),
            },
        };
        if let Err(reason) = done {
            self.course.note(|| DryEvent::Ended(reason));
            result.why = reason;
        }
    }

    /// Does a list; an error ends it, and all that it is part of up to the next copy.
    pub(crate) fn list(
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

    /// Executes a step, and returns the number of words that follow it as operands.
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
                self.list_apart(result, &mut copy.clone(), rest.get(..len).unwrap_or_default(), flow);
                return Ok(len);
            }
            Code::Truncate => copy.truncate_len_bytes = (number(0, 32) as u32).max(TRUNCATED_BYTES_MIN),
            Code::Meter => {
                let len_bytes = copy.header().frame_len_bytes();
                if !C::passes_meter(self, number(0, 32) as u32, len_bytes) {
                    return Err(DropReason::MeterExceeded);
                }
            }
            Code::CheckLength => return Ok(self.check_length(result, copy, (step, rest), flow)),
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
        match C::track(self, copy, &request)? {
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
        match C::track(self, copy, &plain.request())? {
            Tracked::Done => self.recirculate(result, copy.clone(), plain.recirc_id),
            Tracked::Partial => return self.suspend(result, copy, (&plain.words(), rest), flow),
        }
        Ok(0)
    }

    /// Suspends a packet until all its bytes or fragments are available. Then this step, whose words come first, and the
    /// steps behind it are executed.
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
        // This part of the packet is finished.
        Err(DropReason::FragShare)
    }

    /// Executes a list; an error ends it alone.
    pub(crate) fn list_apart(
        &mut self,
        result: &mut ActionResult,
        copy: &mut ActionPacket<'_>,
        words: &[AtomicU64],
        flow: u32,
    ) {
        if let Err(reason) = self.list(result, copy, words, flow) {
            self.course.note(|| DryEvent::Ended(reason));
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
        if probability == ALWAYS || C::is_sampled(self, probability) {
            self.list_apart(result, &mut copy.clone(), rest.get(1..1 + len).unwrap_or_default(), flow);
        }
        1 + len
    }

    fn check_length(
        &mut self,
        result: &mut ActionResult,
        copy: &mut ActionPacket<'_>,
        (step, rest): (Step, &[AtomicU64]),
        flow: u32,
    ) -> usize {
        let (greater, others) = (step.operand(16, 20) as usize, step.operand(36, 20) as usize);
        let is_greater = u64::from(copy.len_bytes()) > step.operand(0, 16);
        self.course.note(|| DryEvent::LengthChecked { limit_bytes: step.operand(0, 16) as u32, is_greater });
        let list = if is_greater { 0..greater } else { greater..greater + others };
        let (list, len) = (rest.get(list).unwrap_or_default(), greater + others);
        // Actions behind it see the packet as it was before; if there are none, it needs no clone.
        if len < rest.len() {
            self.list_apart(result, &mut copy.clone(), list, flow);
        } else {
            self.list_apart(result, copy, list, flow);
        }
        len
    }

    fn output(&mut self, result: &mut ActionResult, copy: &mut ActionPacket<'_>, number: u16) {
        let truncate_len_bytes = std::mem::replace(&mut copy.truncate_len_bytes, EVERYTHING);
        let Some(port) = self.shared.numbers.port(number) else {
            self.course.note(|| DryEvent::NumberGone(number));
            return self.lose(result, copy, DropReason::PortGone);
        };
        if copy.metadata.link != LinkLayer::Ethernet {
            return self.output_bare(result, copy, (number, port), truncate_len_bytes);
        }
        let Some(image) = self.image(copy) else {
            return self.lose(result, copy, DropReason::VerdictOverflow);
        };
        result.sent += 1;
        self.course.note(|| DryEvent::Output(DryOutput::of(copy, (number, port), truncate_len_bytes)));
        self.verdicts.push(Output { packet: copy.packet, image, port, truncate_len_bytes });
    }

    pub(crate) fn upcall(
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
            self.course.note(|| DryEvent::asked(reason));
            result.sent += 1;
        } else {
            self.shared.tickets.settle(ticket);
            self.lose(result, copy, DropReason::NoFlow);
        }
    }

    /// A copy that should go somewhere does not.
    pub(crate) fn lose(&mut self, result: &mut ActionResult, copy: &ActionPacket<'_>, reason: DropReason) {
        result.is_said = true;
        self.course.note(|| DryEvent::Lost(reason));
        self.verdicts.drop_packet(usize::from(copy.packet), reason);
    }

    /// Returns the index of the packet's current image.
    fn image(&mut self, copy: &mut ActionPacket<'_>) -> Option<u16> {
        if copy.image.is_none() {
            copy.image = self.verdicts.add_image(*copy.header());
        }
        copy.image
    }

    /// The same for an upcall: it reports the tunnel that the packet was received through, not one that an action has
    /// set.
    fn image_for_upcall(&mut self, copy: &mut ActionPacket<'_>) -> Option<u16> {
        match copy.with_first_tunnel() {
            None => self.image(copy),
            Some(header) => self.verdicts.add_image(header),
        }
    }

    fn recirculate(&mut self, result: &mut ActionResult, mut copy: ActionPacket<'_>, id: u32) {
        if result.recirculations == 0 || result.recirculation_depth == 0 {
            return self.lose(result, &copy, DropReason::ActionBudget);
        }
        result.recirculations -= 1;
        result.recirculation_depth -= 1;
        copy.metadata.recirc_id = id;
        self.pass_on(result, &mut copy);
        // Further copies of a flood go as deep as this one.
        result.recirculation_depth += 1;
    }

    /// Continues with the next pass of a packet after a tracking action; the metadata names the pass.
    #[inline(never)]
    pub(crate) fn go_on(&mut self, mut copy: ActionPacket<'_>) {
        let mut result = ActionResult::for_packet();
        result.steps -= 1;
        result.recirculations -= 1;
        result.recirculation_depth -= 1;
        self.pass_on(&mut result, &mut copy);
        self.end(&result, &copy);
    }

    /// Looks the packet up again and executes the actions.
    fn pass_on(&mut self, result: &mut ActionResult, copy: &mut ActionPacket<'_>) {
        let source = C::find(self, copy);
        self.follow(result, copy, source);
    }
}

/// Sends an unchanged packet to the port of an output step.
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

/// Rewrites a group from the words behind the step.
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

/// Pushes the service header in the words behind the step.
fn push_nsh_by(copy: &mut ActionPacket<'_>, step: Step, rest: &[AtomicU64]) -> Result<usize, DropReason> {
    let (len, mut bytes) = (step.operand(0, 8) as usize, [0; PUSH_NSH_BYTES_MAX]);
    let words = len.div_ceil(8);
    for (index, place) in bytes.as_chunks_mut::<8>().0.iter_mut().take(words).enumerate() {
        *place = load(rest, index).to_le_bytes();
    }
    copy.push_nsh(bytes.get_mut(..len).ok_or(DropReason::ActionImpossible)?)?;
    Ok(words)
}

/// Sets the tunnel's header from the words behind the step, and the port that the packet came from.
fn set_tunnel_by(copy: &mut ActionPacket<'_>, step: Step, rest: &[AtomicU64]) -> Result<usize, DropReason> {
    let (len, mut bytes) = (step.operand(0, 8) as usize, [0; TUNNEL_BYTES]);
    let words = len.div_ceil(8);
    for (index, place) in bytes.chunks_mut(8).enumerate().take(words) {
        place.copy_from_slice(&load(rest, index).to_le_bytes()[..place.len()]);
    }
    let tunnel = bytes.get_mut(..len).ok_or(DropReason::ActionImpossible)?;
    set_sender(tunnel, u32::from(copy.metadata.in_port));
    copy.edit().set_tunnel(tunnel).map_err(|_| DropReason::ActionImpossible)?;
    Ok(words)
}
