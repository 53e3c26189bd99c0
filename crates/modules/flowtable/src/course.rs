//! The effects of actions besides verdicts: statistics, meters, connections, upcalls.
//!
//! Real packets use the [`Live`] course. An explanation uses one without effects ([`crate::dry_run`]). Both run the same
//! programs with the same executor, so an explanation cannot differ from the real decision.

use lasthop_conntrack::CtRequest;
use lasthop_module_api::{DropReason, PortId, UpcallReason};
use lasthop_wire::key::field;

use crate::action_packet::ActionPacket;
use crate::dry_event::DryEvent;
use crate::executor::{ActionResult, ActionSource, Executor, Live, tag};
use crate::pending_filter::FilterKey;
use crate::tracking::Tracked;

/// The effects of actions besides verdicts.
pub(crate) trait Course: Sized {
    /// The source of the actions of a packet's next pass.
    fn find(executor: &mut Executor<'_, Self>, copy: &ActionPacket<'_>) -> ActionSource<'static>;

    /// A packet has no flow, and the control plane decides.
    fn ask(
        executor: &mut Executor<'_, Self>,
        result: &mut ActionResult,
        copy: &mut ActionPacket<'_>,
        flow: (u64, FilterKey),
    );

    /// Whether a meter lets a packet through.
    fn passes_meter(executor: &mut Executor<'_, Self>, meter: u32, len_bytes: u32) -> bool;

    /// `ct(...)` for a packet.
    fn track(
        executor: &mut Executor<'_, Self>,
        copy: &mut ActionPacket<'_>,
        request: &CtRequest,
    ) -> Result<Tracked, DropReason>;

    /// Whether a packet is one of those that are sampled, which a share of `probability` in 2^32 is.
    fn is_sampled(executor: &mut Executor<'_, Self>, probability: u32) -> bool;

    /// Something has happened that an explanation tells of.
    fn note(&mut self, event: impl FnOnce() -> DryEvent);
}

impl Course for Live {
    #[inline]
    fn find(executor: &mut Executor<'_, Self>, copy: &ActionPacket<'_>) -> ActionSource<'static> {
        let later = executor.later_key(copy);
        let is_any_behind = executor.local.pending.is_any();
        if let Some(later) = later.as_ref().filter(|_| !is_any_behind)
            && let Some(hit) = executor.local.known_later(later)
        {
            executor.local.note_cached(1);
            executor.count(copy.header(), later.tcp_flags, hit);
            return ActionSource::Flow(hit.program, tag(hit));
        }
        let (key, _) = copy.key();
        let found = executor.in_turn(&key, |local, shared| match &later {
            Some(later) => local.look_up_later(shared, &key, later),
            None => local.look_up(shared, &key, None),
        });
        match found {
            Some(hit) => {
                executor.count(copy.header(), key.get(field::TCP_FLAGS) as u16, hit);
                ActionSource::Flow(hit.program, tag(hit))
            }
            None => ActionSource::of_miss(&key, executor.shared, FilterKey::Inner),
        }
    }

    fn ask(
        executor: &mut Executor<'_, Self>,
        result: &mut ActionResult,
        copy: &mut ActionPacket<'_>,
        (hash, filter_key): (u64, FilterKey),
    ) {
        let (shared, port, now_ns) = (executor.shared, executor.port, executor.now_ns);
        match executor.local.pending.enter(&shared.tickets, (port, hash, filter_key), now_ns) {
            Some(ticket) => {
                if executor.may_pause && executor.local.pending.is_crowded(port, hash) {
                    executor.verdicts.pause_ring();
                }
                executor.upcall(result, copy, UpcallReason::Miss, ticket);
            }
            None => executor.lose(result, copy, DropReason::OutOfOrder),
        }
    }

    #[inline]
    fn passes_meter(executor: &mut Executor<'_, Self>, meter: u32, len_bytes: u32) -> bool {
        executor.local.borrows.pass(executor.meters, meter, len_bytes, executor.now_ns)
    }

    /// The connection counts for the port that the packet came in by, also if the control plane sends it.
    #[inline]
    fn track(
        executor: &mut Executor<'_, Self>,
        copy: &mut ActionPacket<'_>,
        request: &CtRequest,
    ) -> Result<Tracked, DropReason> {
        let port = executor.shared.numbers.port(copy.metadata.in_port).unwrap_or(PortId::INTERNAL);
        executor.tracking.track(copy, request, (port.0, executor.shared.monotonic_ms(executor.now_ns)))
    }

    #[inline]
    fn is_sampled(executor: &mut Executor<'_, Self>, probability: u32) -> bool {
        probability != 0 && (executor.local.rng.draw() >> 32) as u32 <= probability
    }

    #[inline(always)]
    fn note(&mut self, _: impl FnOnce() -> DryEvent) {}
}
