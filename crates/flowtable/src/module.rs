//! The module: keys, look-ups, actions, for one batch after the other.

use std::sync::Mutex;

use lasthop_exchange::WORKERS_MAX;
use lasthop_verdict::{BATCH_PACKETS_MAX, Batch, DropReason, Module, PortId, PortSettings, Verdicts};
use lasthop_wire::key::{Link, extract};
use lasthop_wire::{Key, Metadata};

use crate::FlowTable;
use crate::execute::Executor;
use crate::hash::Dice;
use crate::lane::Lane;

/// Forwards by a flow table.
#[derive(Debug)]
pub struct FlowModule {
    table: FlowTable,
    /// By worker. Each takes its own, which nobody else ever does: a lock that is always free.
    lanes: Box<[Mutex<Own>]>,
}

/// What one worker has for itself.
#[derive(Debug)]
struct Own {
    lane: Lane,
    /// Of the packets of a batch.
    keys: Box<[Key; BATCH_PACKETS_MAX]>,
    hashes: [u64; BATCH_PACKETS_MAX],
}

impl Default for FlowModule {
    fn default() -> Self {
        let table = FlowTable::default();
        let mut seeds = Dice::new(table.shared.secret.of_word(1, 1));
        let own = |worker| Own {
            lane: Lane::new(worker, seeds.next()),
            keys: Box::new([Key::default(); BATCH_PACKETS_MAX]),
            hashes: [0; BATCH_PACKETS_MAX],
        };
        let lanes = (0..WORKERS_MAX).map(own).map(Mutex::new).collect();
        Self { table, lanes }
    }
}

impl FlowModule {
    /// Its flows.
    #[must_use]
    pub fn table(&self) -> &FlowTable {
        &self.table
    }

    fn decide_for(&self, own: &mut Own, batch: &Batch<'_>, now_ns: u64, verdicts: &mut Verdicts) {
        let shared = &*self.table.shared;
        let Own { lane, keys, hashes } = own;
        let metadata = Metadata { in_port: batch.port.0, ..Metadata::default() };
        let mut touched = 0;
        for ((header, key), hash) in batch.headers.iter().zip(&mut **keys).zip(&mut *hashes) {
            extract(header.bytes(), Link::Ethernet, &metadata, key);
            *hash = shared.secret.of_key(key);
            touched ^= lane.touch(*hash);
        }
        std::hint::black_box(touched);
        lane.begin(shared);
        let mut executor = Executor { shared, meters: &self.table.meters, lane, verdicts, now_ns };
        for (packet, header) in batch.headers.iter().enumerate().take(BATCH_PACKETS_MAX) {
            match executor.lane.look_up(shared, hashes[packet], &keys[packet]) {
                Some(hit) => executor.act(packet, header, &keys[packet], hit, metadata),
                None => executor.miss(packet, header, metadata),
            }
        }
        lane.borrows.give_back(&self.table.meters);
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
