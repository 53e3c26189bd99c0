//! The module: keys, look-ups, actions, for one batch after the other.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};

use lasthop_exchange::WORKERS_MAX;
use lasthop_flow::Action;
use lasthop_verdict::{BATCH_PACKETS_MAX, Batch, DropReason, Module, PortId, PortSettings, Verdicts};
use lasthop_wire::key::{Link, extract};
use lasthop_wire::{Key, Metadata};

use crate::bounds::EXECUTIONS_MAX;
use crate::execute::Executor;
use crate::hash::{Dice, Digest};
use crate::lane::Lane;
use crate::pending::Ticket;
use crate::program::compile;
use crate::{FlowTable, InstallError};

/// Forwards by a flow table.
#[derive(Debug)]
pub struct FlowModule {
    table: FlowTable,
    /// By worker. Each takes its own, which nobody else ever does: a lock that is always free.
    lanes: Box<[Mutex<Own>]>,
    /// What is done with the next packets of the port `internal`. Its worker tries the lock.
    executions: Mutex<VecDeque<Execution>>,
}

/// What is done with a packet of the control plane's own.
#[derive(Debug)]
struct Execution {
    metadata: Metadata,
    program: Box<[AtomicU64]>,
}

/// What one worker has for itself.
#[derive(Debug)]
struct Own {
    lane: Lane,
    /// Of the packets of a batch.
    keys: Box<[Key; BATCH_PACKETS_MAX]>,
    digests: [Digest; BATCH_PACKETS_MAX],
}

impl Default for FlowModule {
    fn default() -> Self {
        Self::for_workers(WORKERS_MAX)
    }
}

impl FlowModule {
    /// A module without flows, for a switch of `workers` workers; what others ask it is dropped.
    #[must_use]
    pub fn for_workers(workers: usize) -> Self {
        let table = FlowTable::default();
        let mut seeds = Dice::new(table.shared.secret.of_word(1, 1));
        let own = |worker| Own {
            lane: Lane::new(worker, seeds.next()),
            keys: Box::new([Key::default(); BATCH_PACKETS_MAX]),
            digests: [Digest::default(); BATCH_PACKETS_MAX],
        };
        let lanes = (0..workers.min(WORKERS_MAX)).map(own).map(Mutex::new).collect();
        Self { table, lanes, executions: Mutex::default() }
    }

    /// Its flows.
    #[must_use]
    pub fn table(&self) -> &FlowTable {
        &self.table
    }

    /// Says what is done with the next packet that is injected (`Fabric::inject`), which comes from `metadata.in_port` for all that
    /// it does. To be called on the worker that injects it, right before.
    ///
    /// # Errors
    /// [`InstallError::Refused`], or [`InstallError::NoRoom`] if so many were announced that never came.
    pub fn execute_next(&self, metadata: Metadata, actions: &[Action]) -> Result<(), InstallError> {
        let program = compile(actions)?.into_iter().map(AtomicU64::new).collect();
        let mut executions = self.executions.lock().unwrap_or_else(PoisonError::into_inner);
        if executions.len() >= EXECUTIONS_MAX {
            return Err(InstallError::NoRoom("64 packets were announced and never injected"));
        }
        executions.push_back(Execution { metadata, program });
        Ok(())
    }

    /// The control plane is done with a packet that it was asked about: sent it on, or not. Packets of the same flow need not
    /// go behind it any more.
    pub fn settle(&self, ticket: u32) {
        self.table.shared.tickets.settle(Ticket(ticket));
    }

    /// Worker `worker`'s cache forgets everything. For measurements of what packets cost that it does not know.
    #[doc(hidden)]
    pub fn forget(&self, worker: usize) {
        if let Some(Ok(mut own)) = self.lanes.get(worker).map(|own| own.try_lock()) {
            own.lane.forget();
        }
    }

    fn execute(&self, own: &mut Own, batch: &Batch<'_>, now_ns: u64, verdicts: &mut Verdicts) {
        let (shared, lane) = (&*self.table.shared, &mut own.lane);
        lane.begin(shared);
        let mut executor = Executor { shared, meters: &self.table.meters, lane, verdicts, now_ns };
        for (packet, header) in batch.headers.iter().enumerate() {
            let next = self.executions.try_lock().ok().and_then(|mut executions| executions.pop_front());
            match next {
                Some(Execution { metadata, program }) => executor.obey(packet, header, metadata, &program),
                None => executor.verdicts.drop_packet(packet, DropReason::NoFlow),
            }
        }
        lane.borrows.give_back(&self.table.meters);
        lane.end(shared);
    }

    fn decide_for(&self, own: &mut Own, batch: &Batch<'_>, now_ns: u64, verdicts: &mut Verdicts) {
        let shared = &*self.table.shared;
        let Own { lane, keys, digests } = own;
        let metadata = Metadata { in_port: batch.port.0, ..Metadata::default() };
        let is_warm = lane.is_warm();
        for ((header, key), digest) in batch.headers.iter().zip(&mut **keys).zip(&mut *digests) {
            let offsets = extract(header.bytes(), Link::Ethernet, &metadata, key);
            *digest = shared.secret.digest(key, offsets.is_long);
            if is_warm {
                lane.prefetch(digest.hash);
            }
        }
        lane.begin(shared);
        if !is_warm {
            lane.foresee(shared, &keys[..batch.headers.len().min(BATCH_PACKETS_MAX)]);
        }
        let mut executor = Executor { shared, meters: &self.table.meters, lane, verdicts, now_ns };
        for (packet, header) in batch.headers.iter().enumerate().take(BATCH_PACKETS_MAX) {
            let (digest, key) = (digests[packet], &keys[packet]);
            let hit = match is_warm {
                true => executor.look_up(digest, key),
                false => executor.look_up_foreseen(packet, digest, key),
            };
            match hit {
                Some(hit) => executor.act(packet, header, &keys[packet], hit, metadata),
                None => executor.miss(packet, header, metadata, digests[packet].hash),
            }
        }
        lane.borrows.give_back(&self.table.meters);
        lane.learn();
        lane.end(shared);
    }
}

impl Module for FlowModule {
    fn name(&self) -> &'static str {
        "flow"
    }

    fn decide(&self, batch: &Batch<'_>, now_ns: u64, verdicts: &mut Verdicts) {
        let lane = self.lanes.get(verdicts.worker()).map(|lane| lane.try_lock());
        match lane {
            Some(Ok(mut own)) if batch.port == PortId::INTERNAL => {
                self.execute(&mut own, batch, now_ns, verdicts)
            }
            Some(Ok(mut own)) => self.decide_for(&mut own, batch, now_ns, verdicts),
            // Two fabrics with one number: not one crew's.
            _ => {
                (0..batch.headers.len()).for_each(|packet| verdicts.drop_packet(packet, DropReason::NoFlow));
            }
        }
    }

    fn port_added(&self, _: PortId, _: &PortSettings) -> Result<(), String> {
        Ok(())
    }

    fn port_removed(&self, _: PortId) {}

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let (flows, masks) = self.table.len();
        let [lookups, hits, misses] = self.table.shared.counts.sums();
        vec![
            ("flows", flows as u64),
            ("masks", masks as u64),
            ("lookups", lookups),
            ("cache_hits", hits),
            ("misses", misses),
        ]
    }
}
