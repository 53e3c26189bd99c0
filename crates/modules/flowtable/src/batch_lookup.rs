//! Looks up all packets of a batch side by side, in the most used masks.
//!
//! A packet that the cache does not know costs several cache lines: bucket, flow, statistics. Each is found
//! by reading the one before, so a single packet waits for each line. Here all packets take each step
//! together, so their lines are loaded in parallel. The cache, which did not help, is bypassed.
//!
//! ```text
//!   packets   0 1 2 ... 31
//!     step 1   hashes by mask, their buckets
//!     step 2   candidate flows in the buckets
//!     step 3   comparison with the keys, and statistics entries
//! ```

use lasthop_module_api::BATCH_PACKETS_MAX;
use lasthop_wire::Key;

use crate::bounds::BATCH_LOOKUP_MASKS;
use crate::buckets::Homes;
use crate::shared::Shared;
use crate::slot::MaskHasher;

/// Marks a packet that must be looked up on its own.
const NO_FLOW: u32 = u32::MAX;

/// The flows that were found for the packets of a batch.
#[derive(Debug)]
pub(crate) struct BatchLookup {
    /// For each packet its flow, and the index of the mask that found it.
    flows: [(u32, u8); BATCH_PACKETS_MAX],
    hashes: [[u64; BATCH_LOOKUP_MASKS]; BATCH_PACKETS_MAX],
    /// Of the masks.
    hashers: [MaskHasher; BATCH_LOOKUP_MASKS],
}

impl BatchLookup {
    pub(crate) fn new() -> Self {
        Self {
            flows: [(NO_FLOW, 0); BATCH_PACKETS_MAX],
            hashes: [[0; BATCH_LOOKUP_MASKS]; BATCH_PACKETS_MAX],
            hashers: Default::default(),
        }
    }

    /// Returns the flow of a packet and the index of its mask; `None` if the packet must be looked up on its own.
    #[inline]
    pub(crate) fn found(&self, packet: usize) -> Option<(u32, usize)> {
        let (flow, at) = *self.flows.get(packet)?;
        (flow != NO_FLOW).then_some((flow, usize::from(at)))
    }

    /// Looks all packets up in the first [`BATCH_LOOKUP_MASKS`] of `masks`.
    #[inline(never)]
    pub(crate) fn look(&mut self, shared: &Shared, masks: &[u16], keys: &[Key]) {
        let masks = &masks[..masks.len().min(BATCH_LOOKUP_MASKS)];
        let homes = shared.buckets.homes();
        for ((at, number), hasher) in masks.iter().enumerate().zip(&mut self.hashers) {
            match shared.masks.get(usize::from(*number)) {
                Some(mask) => mask.set_hasher(*number, &shared.secret, hasher),
                // A mask that is gone has no flows, so any hash will do.
                None => hasher.unset(),
            }
            for (hashes, key) in self.hashes.iter_mut().zip(keys) {
                hashes[at] = hasher.hash(key);
                homes.prefetch(hashes[at]);
            }
        }
        for (found, hashes) in self.flows.iter_mut().zip(&self.hashes).take(keys.len()) {
            lead(shared, homes, &hashes[..masks.len()], found);
        }
        for (found, key) in self.flows.iter_mut().zip(keys) {
            check(shared, &self.hashers, key, found);
        }
    }
}

/// Finds a candidate flow for a packet.
#[inline]
fn lead(shared: &Shared, homes: Homes<'_>, hashes: &[u64], found: &mut (u32, u8)) {
    let led = hashes.iter().zip(0..).find_map(|(hash, at)| Some((homes.candidate(*hash)?, at)));
    *found = led.unwrap_or((NO_FLOW, 0));
    if let Some(slot) = shared.flows.get(found.0 as usize) {
        slot.prefetch();
    }
}

/// Checks whether the candidate matches.
#[inline]
fn check(shared: &Shared, hashers: &[MaskHasher], key: &Key, found: &mut (u32, u8)) {
    let (flow, at) = *found;
    let Some(slot) = shared.flows.get(flow as usize) else { return };
    if hashers.get(usize::from(at)).is_some_and(|hasher| hasher.selects(slot, key)) {
        shared.stats.prefetch(slot.newest_entry());
    } else {
        *found = (NO_FLOW, 0);
    }
}
