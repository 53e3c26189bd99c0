//! Explains the path of a packet through the flow table, without sending it.
//!
//! The same table and the same executor ([`crate::course`]) are used as for any packet.
//! Only effects are missing: no statistics, no tokens of meters, no connections, no upcalls. So it may run on any thread,
//! beside workers.
//!
//! **Limits.** If several flows match a packet, workers use any of them; the explanation names
//! one and counts the others. Caches are not used. Pending upcalls of the flow, which a packet must follow, are not considered.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lasthop_conntrack::{CtDryRun, CtRequest};
use lasthop_flow::{Action, FlowKey, tunnel_told};
use lasthop_module_api::{DropReason, Header, PortId, UpcallReason, Verdicts};
use lasthop_wire::{Metadata, OuterHeader};

use crate::action_packet::ActionPacket;
use crate::course::Course;
use crate::describe::unpack;
use crate::dry_event::{DryEvent, DryPass, DryTracked};
use crate::execution::EXECUTED;
use crate::executor::{ActionResult, ActionSource, Executor};
use crate::flow_memory::Installed;
use crate::layer3::without_placeholder;
use crate::module::FlowModule;
use crate::pending::Ticket;
use crate::pending_filter::FilterKey;
use crate::shared::Shared;
use crate::slot::tag_of;
use crate::tracked_batch::TrackedBatch;
use crate::tracking::Tracked;
use crate::worker_state::WorkerState;
use crate::{FlowTable, UnsupportedFlow};

/// Events in the explanation of one packet; further ones are only counted. A flood to all ports fits.
pub const EVENTS_MAX: usize = 4096;

/// Memory for packets that are explained, one after the other.
pub struct DryRun {
    local: WorkerState,
    tracked: TrackedBatch,
    verdicts: Verdicts,
    connections: CtDryRun,
}

impl Default for DryRun {
    fn default() -> Self {
        let (local, tracked) = (WorkerState::new(0, 1), TrackedBatch::new());
        Self { local, tracked, verdicts: Verdicts::default(), connections: CtDryRun::default() }
    }
}

impl fmt::Debug for DryRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DryRun").finish_non_exhaustive()
    }
}

/// The decision about a packet, with the reasons.
#[derive(Debug)]
pub struct DryStory<'a> {
    /// The events, in order.
    pub events: Vec<DryEvent>,
    /// Events that are not told.
    pub untold: usize,
    /// The decision, for packet number 0 of a batch.
    pub verdicts: &'a mut Verdicts,
}

/// The course without effects.
struct Dry<'a> {
    events: Vec<DryEvent>,
    untold: usize,
    flow_of: &'a dyn Fn(u32) -> Option<Arc<Installed>>,
    connections: &'a CtDryRun,
    /// By meter: tokens that the packet has had, in ticks.
    tokens: BTreeMap<u32, u64>,
    /// By pass.
    answers: &'a [Option<Vec<AtomicU64>>],
    passes: usize,
}

impl Dry<'_> {
    /// The answer for the next pass.
    fn answer(&self) -> Option<&[AtomicU64]> {
        self.answers.get(self.passes)?.as_deref()
    }
}

impl Course for Dry<'_> {
    fn find(executor: &mut Executor<'_, Self>, copy: &ActionPacket<'_>) -> ActionSource<'static> {
        let ((key, _), shared) = (copy.key(), executor.shared);
        let mut matching = live_masks(shared).filter_map(|mask| shared.find(mask, &key));
        let slot = matching.next();
        let rivals = matching.count();
        let flow = slot.and_then(|slot| (executor.course.flow_of)(slot));
        let is_answered = flow.is_none() && executor.course.answer().is_some();
        executor.course.passes += 1;
        let key_told = Box::new(FlowKey { tunnel: tunnel_by(copy), ..unpack(&key) });
        executor.course.note(|| DryEvent::Pass(DryPass { key: key_told, flow, rivals, is_answered }));
        let found = slot.and_then(|slot| Some((slot, shared.flows.get(slot as usize)?)));
        match found {
            Some((slot, flow)) => {
                ActionSource::Flow(flow.program(), tag_of(slot, flow.identity().generation()))
            }
            None => ActionSource::of_miss(&key, shared, FilterKey::Inner),
        }
    }

    /// The answer that is given for this pass, if there is one.
    fn ask(
        executor: &mut Executor<'_, Self>,
        result: &mut ActionResult,
        copy: &mut ActionPacket<'_>,
        _: (u64, FilterKey),
    ) {
        let last = executor.course.passes.wrapping_sub(1);
        let Some(Some(program)) = executor.course.answers.get(last) else {
            return executor.upcall(result, copy, UpcallReason::Miss, Ticket::NONE);
        };
        executor.list_apart(result, copy, program, EXECUTED);
    }

    fn passes_meter(executor: &mut Executor<'_, Self>, meter: u32, len_bytes: u32) -> bool {
        let (meters, now_ns) = (executor.meters, executor.now_ns);
        let taken = executor.course.tokens.entry(meter).or_default();
        let cost = meters.cost_now(meter, len_bytes, *taken, now_ns);
        *taken += cost.unwrap_or(0);
        let passes = cost.is_some();
        executor.course.note(|| DryEvent::Metered { meter, passes });
        passes
    }

    fn track(
        executor: &mut Executor<'_, Self>,
        copy: &mut ActionPacket<'_>,
        request: &CtRequest,
    ) -> Result<Tracked, DropReason> {
        let port = executor.shared.numbers.port(copy.metadata.in_port).unwrap_or(PortId::INTERNAL);
        let at = (port.0, executor.shared.monotonic_ms(executor.now_ns));
        let (tracked, trial) = executor.tracking.try_out((copy, executor.course.connections), request, at);
        let refused = tracked.err();
        executor
            .course
            .note(|| DryEvent::Tracked(Box::new(DryTracked { request: *request, trial, refused })));
        tracked
    }

    /// Those that are: the story tells how many there are.
    fn is_sampled(executor: &mut Executor<'_, Self>, probability: u32) -> bool {
        executor.course.note(|| DryEvent::Sampled(probability));
        probability != 0
    }

    fn note(&mut self, event: impl FnOnce() -> DryEvent) {
        if self.events.len() < EVENTS_MAX {
            self.events.push(event());
        } else {
            self.untold += 1;
        }
    }
}

/// The masks that there are.
fn live_masks(shared: &Shared) -> impl Iterator<Item = u16> {
    shared.live_masks.iter().enumerate().flat_map(|(number, word)| {
        let bits = word.load(Ordering::Acquire);
        (0..64_u16).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| number as u16 * 64 + bit)
    })
}

/// The tunnel that a packet came by.
fn tunnel_by(copy: &ActionPacket<'_>) -> Option<Box<lasthop_flow::Tunnel>> {
    let header = copy.first_header();
    OuterHeader::parse(header.tunnel())
        .filter(|_| header.has_tunnel())
        .map(|outer| Box::new(tunnel_told(&outer)))
}

impl FlowModule {
    /// Explains the decisions about a packet that is received at the port with this number at `now_ns`. Nothing changes.
    /// `answers` are the actions that the control plane would return in each pass without a flow, in order. Without an
    /// answer the explanation ends at that pass.
    ///
    /// # Errors
    /// If an answer has an action that is not done here.
    pub fn dry_run<'a>(
        &self,
        memory: &'a mut DryRun,
        (number, header): (u16, &Header),
        answers: &[Option<Vec<Action>>],
        now_ns: u64,
    ) -> Result<DryStory<'a>, UnsupportedFlow> {
        let compile = |actions: &Option<Vec<Action>>| {
            actions.as_ref().map(|actions| self.program_of(actions)).transpose()
        };
        let answers: Vec<Option<Vec<AtomicU64>>> = answers.iter().map(compile).collect::<Result<_, _>>()?;
        let shared = &*self.table.shared;
        let FlowTable { meters, tracking, .. } = &self.table;
        let DryRun { local, tracked, verdicts, connections } = memory;
        connections.begin(tracking.made());
        verdicts.clear();
        let port = shared.numbers.port(number).unwrap_or(PortId::INTERNAL);
        let (origin, may_pause) = (self.origin.load(Ordering::Relaxed), false);
        let (events, untold) = self.table.unchanged(|flow_of| {
            let (tokens, untold, passes, answers) = (BTreeMap::new(), 0, 0, &answers[..]);
            let course = Dry { events: Vec::new(), untold, flow_of, connections, tokens, answers, passes };
            let mut executor = Executor {
                shared,
                meters,
                tracking,
                local,
                verdicts,
                tracked,
                now_ns,
                origin,
                port,
                may_pause,
                course,
            };
            let metadata = Metadata { in_port: number, ..Metadata::default() };
            let tunnel = OuterHeader::parse(header.tunnel());
            let is_bare = tunnel.is_some_and(|tunnel| tunnel.is_layer3);
            let bare = without_placeholder(header, &metadata).filter(|_| is_bare);
            if let Some((header, metadata)) = &bare {
                executor.first_pass(ActionPacket::without_image(0, header, *metadata));
            } else if is_bare || header.has_tunnel() && tunnel.is_none() {
                executor.verdicts.drop_packet(0, DropReason::ActionImpossible);
            } else {
                executor.first_pass(ActionPacket::new(0, header, metadata));
            }
            (executor.course.events, executor.course.untold)
        });
        Ok(DryStory { events, untold, verdicts })
    }

    fn program_of(&self, actions: &[Action]) -> Result<Vec<AtomicU64>, UnsupportedFlow> {
        Ok(self.table.compile_only(actions)?.into_iter().map(AtomicU64::new).collect())
    }
}

impl<'a> Executor<'_, Dry<'a>> {
    fn first_pass(&mut self, mut copy: ActionPacket<'_>) {
        let mut result = ActionResult::for_packet();
        let source = Dry::find(self, &copy);
        self.follow(&mut result, &mut copy, source);
        self.end(&result, &copy);
    }
}
