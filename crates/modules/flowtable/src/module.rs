//! The module: it computes keys, looks flows up and executes actions for each batch.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lasthop_conntrack::CtCounters;
use lasthop_module_api::{
    BATCH_PACKETS_MAX, Batch, DropReason, FdbEntry, FdbMove, Hashes, Header, Mac, Module, PORTS_MAX, PortId,
    PortKind, PortSettings, Reasons, Upcall, Verdicts, Vid,
};
use lasthop_sync::WORKERS_MAX;
use lasthop_wire::Key;
use lasthop_wire::mix::Xorshift;

use crate::bounds::EXECUTIONS_MAX;
use crate::cache_key::CacheKey;
use crate::execution::Execution;
use crate::executor::{Executor, Live};
use crate::numbers::Numbers;
use crate::pending::{Pending, Ticket, Tickets};
use crate::tracked_batch::TrackedBatch;
use crate::worker_state::WorkerState;
use crate::{FlowTable, InstallError};

/// A module that forwards by a flow table.
pub struct FlowModule {
    pub(crate) table: FlowTable,
    /// State by worker. Each worker locks only its own state, so the lock is always free.
    states: Box<[Mutex<Own>]>,
    /// Actions of the next packets of the port `internal`. That port's worker uses try_lock.
    executions: Mutex<VecDeque<Execution>>,
    /// The module's name in upcalls.
    pub(crate) origin: AtomicU16,
    /// Whether a control plane reads upcalls.
    pub(crate) is_asked: AtomicBool,
    /// Decides on misses without a control plane, if enabled.
    fallback: Option<Box<dyn Module>>,
    stands_alone: AtomicBool,
    /// Ports with packets of many senders, as bits: there no packet waits for another sender's packets.
    uplinks: Box<[AtomicU64; PORTS_MAX / 64]>,
}

/// State of one worker.
#[derive(Debug)]
pub(crate) struct Own {
    pub(crate) local: WorkerState,
    /// Cache keys of a batch's packets, and their flow keys.
    pub(crate) cache_keys: Box<[CacheKey; BATCH_PACKETS_MAX]>,
    pub(crate) keys: Box<[Key; BATCH_PACKETS_MAX]>,
    pub(crate) tracked: Box<TrackedBatch>,
}

/// Counts of look-ups, over all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookUps {
    /// All look-ups.
    pub all: u64,
    /// Cache hits.
    pub cached: u64,
    /// Look-ups without a flow.
    pub missed: u64,
    /// Masks that were tried after cache misses.
    pub masks: u64,
}

impl Default for FlowModule {
    fn default() -> Self {
        Self::for_workers(WORKERS_MAX)
    }
}

impl fmt::Debug for FlowModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlowModule").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl FlowModule {
    /// Returns a module without flows, for a switch of `workers` workers; packets of other workers are dropped. Ports
    /// have the switch's own numbers, and misses are upcalls.
    #[must_use]
    pub fn for_workers(workers: usize) -> Self {
        Self::new(workers, FlowTable::default(), None)
    }

    /// Returns a module without flows. No port has a number, and there is no control plane: `fallback` decides packets
    /// until there is one.
    #[must_use]
    pub fn in_waiting(workers: usize, fallback: Box<dyn Module>) -> Self {
        let module = Self::new(workers, FlowTable::new(Numbers::none()), Some(fallback));
        module.set_asked(false);
        module
    }

    fn new(workers: usize, table: FlowTable, fallback: Option<Box<dyn Module>>) -> Self {
        let mut seeds = Xorshift::new(table.shared.secret.of_word(1, 1));
        let own = |worker| Own {
            local: WorkerState::new(worker, seeds.draw()),
            cache_keys: Box::new([CacheKey::default(); BATCH_PACKETS_MAX]),
            keys: Box::new([Key::default(); BATCH_PACKETS_MAX]),
            tracked: Box::new(TrackedBatch::new()),
        };
        let states = (0..workers.min(WORKERS_MAX)).map(own).map(Mutex::new).collect();
        let (executions, origin, is_asked) = (Mutex::default(), AtomicU16::new(0), AtomicBool::new(true));
        let (stands_alone, uplinks) = (AtomicBool::new(true), Box::new([const { AtomicU64::new(0) }; _]));
        Self { table, states, executions, origin, is_asked, fallback, stands_alone, uplinks }
    }

    /// The module's flows.
    #[must_use]
    pub fn table(&self) -> &FlowTable {
        &self.table
    }

    /// Sets the module's name in upcalls. Upcalls in flight keep the old name. A new name for each control plane tells
    /// their upcalls apart.
    pub fn set_origin(&self, origin: u16) {
        self.origin.store(origin, Ordering::Relaxed);
    }

    /// Sets whether misses are upcalls.
    pub fn set_asked(&self, is_asked: bool) {
        self.is_asked.store(is_asked, Ordering::Relaxed);
    }

    /// Sets whether the fallback bridge decides misses without a control plane; otherwise they are dropped.
    pub fn set_stands_alone(&self, stands_alone: bool) {
        self.stands_alone.store(stands_alone, Ordering::Relaxed);
    }

    /// Gives a port a number that no other port of its switch has, or removes its number.
    pub fn set_number(&self, port: PortId, number: Option<u16>) {
        self.table.shared.numbers.set(port, number);
    }

    /// Says that a port with a number is a tunnel's end. Only those take packets without an Ethernet header.
    pub fn set_tunnel_end(&self, port: PortId) {
        self.table.shared.numbers.set_tunnel_end(port);
    }

    /// The number of a port of its switch, if it has one.
    #[must_use]
    pub fn number_of(&self, port: PortId) -> Option<u16> {
        self.table.shared.numbers.of(port)
    }

    /// Whether flows decide about a port's packets: it has a number, and there is a flow or a control plane.
    #[must_use]
    pub fn is_by_flows(&self, port: PortId) -> bool {
        self.number_of(port).is_some() && (self.has_asker() || !self.table.shared.is_empty())
    }

    /// Whether packets without a flow cause upcalls.
    #[must_use]
    pub fn has_asker(&self) -> bool {
        self.is_asked.load(Ordering::Relaxed)
    }

    /// Results of look-ups so far.
    #[must_use]
    pub fn look_ups(&self) -> LookUps {
        let [all, cached, missed, masks] = self.table.shared.counts.sums();
        LookUps { all, cached, missed, masks }
    }

    /// Sets the actions of the next injected packet (`Fabric::inject`). The caller is the worker that injects, and
    /// calls this right before.
    ///
    /// # Errors
    /// [`InstallError::NoRoom`] if too many announced packets were never injected.
    pub fn execute_next(&self, execution: Execution) -> Result<(), InstallError> {
        let mut executions = self.executions();
        if executions.len() >= EXECUTIONS_MAX {
            return Err(InstallError::NoRoom("64 packets were announced and never injected"));
        }
        executions.push_back(execution);
        Ok(())
    }

    fn executions(&self) -> MutexGuard<'_, VecDeque<Execution>> {
        self.executions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The control plane will not send a packet that it received in an upcall. Later packets of the flow need not wait
    /// for it.
    pub fn settle(&self, ticket: u32) {
        self.table.shared.tickets.settle(Ticket(ticket));
    }

    /// Begins to send a packet of an upcall: packets of its flow do not overtake it until [`Self::done`]. Returns false
    /// if they may have overtaken it already; then the caller drops it. One thread calls this and `done`.
    #[must_use]
    pub fn begin(&self, ticket: u32) -> bool {
        self.table.shared.tickets.begin(Ticket(ticket))
    }

    /// Ends the sending of a packet, whether it was sent or not. Later packets of the flow need not wait for it.
    pub fn done(&self, ticket: u32) {
        self.table.shared.tickets.done(Ticket(ticket));
    }

    /// Makes worker `worker` bypass its caches from now on, to measure cache misses.
    #[doc(hidden)]
    pub fn bypass_caches(&self, worker: usize) {
        if let Some(Ok(mut own)) = self.states.get(worker).map(|own| own.try_lock()) {
            own.local.bypass_caches();
        }
    }

    /// Executes the actions announced for the next packet, which is number `packet` of its batch.
    pub(crate) fn execute_one(&self, packet: usize, header: &Header, now_ns: u64, verdicts: &mut Verdicts) {
        let own = self.states.get(verdicts.worker()).map(|own| own.try_lock());
        let next = self.executions().pop_front();
        let (Some(Ok(mut own)), Some(execution)) = (own, next) else {
            return verdicts.drop_packet(packet, DropReason::NoFlow);
        };
        let (shared, Own { local, tracked, .. }) = (&*self.table.shared, &mut *own);
        local.begin(shared);
        let FlowTable { meters, tracking, .. } = &self.table;
        let origin = self.origin.load(Ordering::Relaxed);
        let (port, may_pause, course) = (PortId::INTERNAL, false, Live);
        Executor {
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
        }
        .execute(packet, header, &execution);
        local.borrows.give_back(meters);
        local.end(shared);
    }

    /// Hands a batch to the fallback bridge. The port's packets that the control plane still has may be overtaken and
    /// are dropped when they come back. If one of those is being sent, this batch is dropped.
    fn stand_in_for_all(&self, batch: &Batch<'_>, now_ns: u64, verdicts: &mut Verdicts) {
        let all = 0..batch.headers.len();
        match self.guest_left(batch.port, verdicts.worker()) {
            true => self.stand_in(batch, all, now_ns, verdicts),
            false => all.for_each(|packet| verdicts.drop_packet(packet, DropReason::OutOfOrder)),
        }
    }

    /// Does something with the pending flows of a worker, which calls this. `None` if there is no such worker.
    fn with_pending<R>(&self, worker: usize, act: impl FnOnce(&mut Pending, &Tickets) -> R) -> Option<R> {
        let mut own = self.states.get(worker)?.try_lock().ok()?;
        Some(act(&mut own.local.pending, &self.table.shared.tickets))
    }

    /// Whether a port receives packets of many senders.
    #[must_use]
    pub fn is_uplink(&self, port: PortId) -> bool {
        let word = self.uplinks.get(port.index() / 64).map_or(0, |word| word.load(Ordering::Relaxed));
        word >> (port.index() % 64) & 1 == 1
    }

    fn set_uplink(&self, port: PortId, kind: PortKind) {
        let Some(word) = self.uplinks.get(port.index() / 64) else { return };
        let bit = 1 << (port.index() % 64);
        match kind {
            PortKind::Inside => word.fetch_and(!bit, Ordering::Relaxed),
            PortKind::Uplink | PortKind::TransitUplink => word.fetch_or(bit, Ordering::Relaxed),
        };
    }

    /// Lets the fallback bridge decide some packets of a batch.
    pub(crate) fn stand_in(
        &self,
        batch: &Batch<'_>,
        packets: std::ops::Range<usize>,
        now_ns: u64,
        verdicts: &mut Verdicts,
    ) {
        let headers = batch.headers.get(packets.clone()).unwrap_or_default();
        let fallback = self.fallback.as_ref().filter(|_| self.stands_alone.load(Ordering::Relaxed));
        let Some(fallback) = fallback else {
            return packets.for_each(|packet| verdicts.drop_packet(packet, DropReason::NoFlow));
        };
        let start = packets.start as u16; // below BATCH_PACKETS_MAX
        let mark = (start > 0).then(|| verdicts.mark());
        fallback.decide(&Batch { headers, hashes: &Hashes::NONE, ..*batch }, now_ns, verdicts);
        if let Some(mark) = mark {
            verdicts.shift(mark, start);
        }
    }
}

impl Module for FlowModule {
    fn name(&self) -> &'static str {
        "flow"
    }

    fn decide(&self, batch: &Batch<'_>, now_ns: u64, verdicts: &mut Verdicts) {
        if batch.port == PortId::INTERNAL {
            let headers = batch.headers.iter().enumerate();
            return headers.for_each(|(packet, header)| self.execute_one(packet, header, now_ns, verdicts));
        }
        let shared = &self.table.shared;
        let Some(number) = shared.numbers.of(batch.port) else {
            return self.stand_in_for_all(batch, now_ns, verdicts);
        };
        if !self.is_asked.load(Ordering::Relaxed) && shared.is_empty() {
            return self.stand_in_for_all(batch, now_ns, verdicts);
        }
        match self.states.get(verdicts.worker()).map(|own| own.try_lock()) {
            Some(Ok(mut own)) => self.decide_for(&mut own, (batch, number), now_ns, verdicts),
            // Two fabrics with one number do not belong to one switch.
            _ => (0..batch.headers.len()).for_each(|packet| verdicts.drop_packet(packet, DropReason::NoFlow)),
        }
    }

    /// `rest` is a zone with new connections.
    fn delivered(&self, _port: PortId, rest: u16) {
        self.table.connections_made().into_iter().for_each(|connections| connections.finish_begun(rest));
    }

    /// For packets that the fallback bridge decides about; [`FlowModule::dry_run`] explains the others.
    fn explain(
        &self,
        packet: (PortId, &Header),
        now_ns: u64,
        verdicts: &mut Verdicts,
        reasons: &mut Reasons<'_>,
    ) -> bool {
        if let Some(fallback) = self.fallback.as_ref().filter(|_| self.stands_alone.load(Ordering::Relaxed)) {
            reasons.tell("fail-mode", "no controller decides about it, so the switch forwards as a bridge");
            return fallback.explain(packet, now_ns, verdicts, reasons);
        }
        reasons.tell(
            "fail-mode",
            "no controller decides about it, and with fail-mode secure the switch drops it",
        );
        verdicts.drop_packet(0, DropReason::NoFlow);
        true
    }

    fn port_added(&self, port: PortId, settings: &PortSettings) -> Result<(), String> {
        self.set_uplink(port, settings.kind);
        self.fallback.as_ref().map_or(Ok(()), |fallback| fallback.port_added(port, settings))
    }

    fn port_changed(&self, port: PortId, settings: &PortSettings) -> Result<(), String> {
        self.set_uplink(port, settings.kind);
        self.fallback.as_ref().map_or(Ok(()), |fallback| fallback.port_changed(port, settings))
    }

    fn port_removed(&self, port: PortId) {
        self.set_number(port, None);
        self.set_uplink(port, PortKind::Inside);
        if let Some(fallback) = &self.fallback {
            fallback.port_removed(port);
        }
    }

    fn keeps_paused(&self, port: PortId, worker: usize, now_ns: u64) -> bool {
        self.with_pending(worker, |pending, tickets| pending.keeps_paused(tickets, port, now_ns))
            .unwrap_or(false)
    }

    fn may_leave(&self, port: PortId, worker: usize, now_ns: u64) -> bool {
        self.with_pending(worker, |pending, tickets| pending.are_settled(tickets, port, now_ns))
            .unwrap_or(true)
    }

    fn guest_left(&self, port: PortId, worker: usize) -> bool {
        self.with_pending(worker, |pending, tickets| pending.overtake_all(tickets, port)).unwrap_or(true)
    }

    fn upcall_split(&self, upcall: &Upcall) {
        if upcall.origin == self.origin.load(Ordering::Relaxed) {
            self.table.shared.tickets.add(Ticket(upcall.ticket));
        }
    }

    fn upcall_lost(&self, upcall: &Upcall) {
        if upcall.origin == self.origin.load(Ordering::Relaxed) {
            self.settle(upcall.ticket);
        }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let (flows, masks) = self.table.len();
        let LookUps { all, cached, missed, .. } = self.look_ups();
        let own = [
            ("flows", flows as u64),
            ("masks", masks as u64),
            ("lookups", all),
            ("cache_hits", cached),
            ("misses", missed),
        ];
        let tracked = self.tracked_counters();
        own.into_iter()
            .chain(tracked)
            .chain(self.fallback.iter().flat_map(|fallback| fallback.counters()))
            .collect()
    }

    fn fdb(&self, now_ns: u64) -> Vec<FdbEntry> {
        self.fallback.as_ref().map(|fallback| fallback.fdb(now_ns)).unwrap_or_default()
    }

    fn moves(&self, now_ns: u64) -> Vec<FdbMove> {
        self.fallback.as_ref().map(|fallback| fallback.moves(now_ns)).unwrap_or_default()
    }

    fn fdb_add(&self, mac: Mac, vlan: Option<Vid>, port: PortId) -> Result<(), String> {
        self.fallback()?.fdb_add(mac, vlan, port)
    }

    fn fdb_del(&self, mac: Mac, vlan: Option<Vid>, port: PortId) -> Result<(), String> {
        self.fallback()?.fdb_del(mac, vlan, port)
    }

    fn fdb_flush(&self, port: Option<PortId>, vlan: Option<Vid>) -> Result<usize, String> {
        self.fallback()?.fdb_flush(port, vlan)
    }
}

impl FlowModule {
    /// Empty before the first connection.
    fn tracked_counters(&self) -> Vec<(&'static str, u64)> {
        let made = self.table.connections_made().map(|connections| (connections, connections.counters()));
        let made = made.filter(|(_, counted)| *counted != CtCounters::default());
        let Some((connections, counted)) = made else { return Vec::new() };
        vec![
            ("connections", u64::from(connections.len())),
            ("connection_bytes", connections.memory_bytes() as u64),
            ("ct_created", counted.created),
            ("ct_expired", counted.expired),
            ("ct_evicted", counted.evicted),
            ("ct_deleted", counted.deleted),
            ("ct_invalid", counted.invalid),
        ]
    }

    fn fallback(&self) -> Result<&dyn Module, String> {
        self.fallback.as_deref().ok_or_else(|| "a flow table alone has no forwarding table".to_owned())
    }
}
