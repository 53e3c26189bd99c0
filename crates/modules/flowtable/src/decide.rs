//! Decides the packets of a batch: look-ups, then actions.
//!
//! ```text
//!   caches help       all packets: cache key ─> prefetch lines of the cache     each: cache, or key ─> caches, masks ─> actions
//!   caches do not     all packets: key ─> masks side by side               each: ─> actions
//! ```

use std::sync::atomic::Ordering;

use lasthop_module_api::{BATCH_PACKETS_MAX, Batch, DropReason, Header, Verdicts};
use lasthop_wire::key::{MINI_KEY4_WORDS, MINI_KEY6_WORDS, extract, extract_usual4, field};
use lasthop_wire::{Key, Metadata, OuterHeader};

use crate::cache::Hit;
use crate::cache_key::{CacheKey, Kind};
use crate::executor::{Executor, Live};
use crate::module::{FlowModule, Own};
use crate::pending_filter::FilterKey;
use crate::send_run::SendRun;

impl FlowModule {
    /// Decides packets of a port with a number, by flows.
    pub(crate) fn decide_for(
        &self,
        own: &mut Own,
        (batch, number): (&Batch<'_>, u16),
        now_ns: u64,
        verdicts: &mut Verdicts,
    ) {
        let shared = &*self.table.shared;
        let Own { local, cache_keys, keys, tracked } = own;
        let headers = &batch.headers[..batch.headers.len().min(BATCH_PACKETS_MAX)];
        let metadata = Metadata { in_port: number, ..Metadata::default() };
        local.begin(shared);
        // At a tunnel port all packets have one.
        let is_tunnel = headers.first().is_some_and(Header::has_tunnel);
        let is_warm = local.is_warm();
        if is_tunnel {
            // These packets have keys of their own.
        } else if is_warm {
            local.prepare_batch(shared, (headers, &metadata), (cache_keys, keys));
        } else {
            local.batch_lookup(shared, extract_all(headers, &metadata, keys));
        }
        let port = batch.port;
        let mut executor = Executor {
            shared,
            meters: &self.table.meters,
            tracking: &self.table.tracking,
            local,
            verdicts,
            tracked,
            now_ns,
            origin: self.origin.load(Ordering::Relaxed),
            port,
            may_pause: !self.is_uplink(port),
            course: Live,
        };
        match is_warm {
            _ if is_tunnel => self.decide_tunnelled(&mut executor, batch, &metadata),
            true => self.decide_by_caches(&mut executor, batch, &metadata, (cache_keys, keys)),
            false => self.decide_by_batch_lookup(&mut executor, batch, &metadata, keys),
        }
        local.finish(shared, &self.table.meters, now_ns);
    }

    #[inline]
    fn decide_by_caches(
        &self,
        executor: &mut Executor<'_>,
        batch: &Batch<'_>,
        metadata: &Metadata,
        (cache_keys, counted): (&[CacheKey; BATCH_PACKETS_MAX], &[Key; BATCH_PACKETS_MAX]),
    ) {
        let headers = &batch.headers[..batch.headers.len().min(BATCH_PACKETS_MAX)];
        let mut packet = 0;
        while let (Some(header), Some(cache_key)) = (headers.get(packet), cache_keys.get(packet)) {
            // Behind these are keys of earlier batches.
            let (rest, keys) = (&headers[packet..], &cache_keys[packet..headers.len()]);
            let at = (packet, metadata.in_port);
            let sent = match cache_key.kind {
                Kind::Four => executor.send_usual::<MINI_KEY4_WORDS>(rest, keys, at),
                Kind::Six => executor.send_usual::<MINI_KEY6_WORDS>(rest, keys, at),
                Kind::Other => 0,
            };
            packet += sent;
            if sent > 0 {
                continue;
            }
            let is_clear = executor.local.pending.is_clear(cache_key);
            let hit = if is_clear { executor.local.known(cache_key, &counted[packet]) } else { None };
            match hit {
                Some(hit) => executor.act(packet, header, cache_key.tcp_flags, hit, metadata),
                None => self.act_at_length(executor, (batch, packet), cache_key, metadata),
            }
            packet += 1;
        }
    }

    fn decide_by_batch_lookup(
        &self,
        executor: &mut Executor<'_>,
        batch: &Batch<'_>,
        metadata: &Metadata,
        keys: &[Key; BATCH_PACKETS_MAX],
    ) {
        let mut run = SendRun::from(0);
        for (packet, (header, key)) in batch.headers.iter().zip(keys).enumerate() {
            let hit = executor.look_up_in_batch(packet, key);
            let seen = (packet, header, key.get(field::TCP_FLAGS) as u16);
            if hit.is_some_and(|hit| executor.send_in_run(&mut run, seen, hit)) {
                continue;
            }
            executor.end_run(&run, packet);
            self.act_or_upcall(executor, (batch, packet), (key, FilterKey::Unseen), hit, metadata);
            run = SendRun::from(packet + 1);
        }
        executor.end_run(&run, batch.headers.len().min(BATCH_PACKETS_MAX));
    }

    /// Decides packets that were received through a tunnel.
    #[inline(never)]
    fn decide_tunnelled(&self, executor: &mut Executor<'_>, batch: &Batch<'_>, metadata: &Metadata) {
        for (packet, header) in batch.headers.iter().enumerate().take(BATCH_PACKETS_MAX) {
            let Some(tunnel) = OuterHeader::parse(header.tunnel()) else {
                executor.verdicts.drop_packet(packet, DropReason::ActionImpossible);
                continue;
            };
            if tunnel.is_layer3 {
                self.decide_bare(executor, (batch, packet), &tunnel, metadata);
                continue;
            }
            let mut key = Key::default();
            extract(header.bytes(), header.frame_len_bytes() as usize, metadata, &mut key);
            key.put_tunnel(&tunnel);
            let hit = executor.look_up(&key, None);
            self.act_or_upcall(executor, (batch, packet), (&key, FilterKey::Unseen), hit, metadata);
        }
    }

    /// Looks up a packet that missed in the first cache.
    #[inline(never)]
    fn act_at_length(
        &self,
        executor: &mut Executor<'_>,
        (batch, packet): (&Batch<'_>, usize),
        cache_key: &CacheKey,
        metadata: &Metadata,
    ) {
        let mut key = Key::default();
        let header = &batch.headers[packet];
        extract(header.bytes(), header.frame_len_bytes() as usize, metadata, &mut key);
        let hit = executor.look_up(&key, Some(cache_key));
        self.act_or_upcall(executor, (batch, packet), (&key, FilterKey::of(cache_key)), hit, metadata);
    }

    /// Executes the actions of a packet's flow, or handles a packet without a flow.
    fn act_or_upcall(
        &self,
        executor: &mut Executor<'_>,
        (batch, packet): (&Batch<'_>, usize),
        (key, filter_key): (&Key, FilterKey),
        hit: Option<Hit>,
        metadata: &Metadata,
    ) {
        let (header, shared) = (&batch.headers[packet], executor.shared);
        let tcp_flags = key.get(field::TCP_FLAGS) as u16;
        match hit {
            Some(hit) => executor.act(packet, header, tcp_flags, hit, metadata),
            None if self.is_asked.load(Ordering::Relaxed) => {
                executor.miss(packet, header, (key, filter_key), *metadata)
            }
            // A later control plane may execute packets of the flow that a former one received.
            None if executor.local.pending.overtake(&shared.tickets, shared.secret.of_key(key)) => {
                self.stand_in(batch, packet..packet + 1, executor.now_ns, executor.verdicts);
            }
            None => executor.verdicts.drop_packet(packet, DropReason::OutOfOrder),
        }
    }
}

fn extract_all<'a>(
    headers: &[Header],
    metadata: &Metadata,
    keys: &'a mut [Key; BATCH_PACKETS_MAX],
) -> &'a [Key] {
    for (header, key) in headers.iter().zip(keys.iter_mut()) {
        // All metadata of a first pass is its port.
        if !extract_usual4(header.bytes(), metadata.in_port, key) {
            extract(header.bytes(), header.frame_len_bytes() as usize, metadata, key);
        }
    }
    &keys[..headers.len()]
}
