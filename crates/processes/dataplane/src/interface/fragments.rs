//! Packets for which an action `ct` needs more than a worker has: fragments, queued until their packet is complete, and
//! lines of FTP.
//!
//! ```text
//!   worker: ct of a fragment ─> upcall queue ─> FragmentPool ─┬─ complete: its headers, remaining actions ─> worker
//!                                                             └─ lost: counted at the port, by reason
//! ```
//!
//! A packet whose helper has to read beyond the header image is tracked here, and continues behind `ct`.
//!
//! A fragment is copied out of its guest's memory like every upcall, within the same bounds of its port. So queued
//! fragments do not block a ring.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lasthop_dpif::datapath::DatapathId;
use lasthop_engine::UpcallRecord;
use lasthop_flowtable::{Execution, FlowModule, suspended_zone};
use lasthop_module_api::{DropReason, PortId};
use lasthop_reassembly::{FragmentLoss, FragmentPlace, FragmentPool, LostFragments, WholePacket};
use lasthop_runtime::clock;
use lasthop_wire::{Fragmentation, Layers, Offload};

use super::super::datapath::Datapath;
use super::adapter::Adapter;
use super::places::Places;

/// Bytes of a packet in which its headers are looked for: as many as a worker has.
const HEAD_BYTES: usize = lasthop_module_api::IMAGE_FETCH_BYTES;

/// Queued fragments.
#[derive(Debug, Default)]
pub(super) struct Fragments {
    pool: FragmentPool,
    lost: Vec<LostFragments>,
}

fn reason_of(loss: FragmentLoss) -> DropReason {
    match loss {
        FragmentLoss::Overlap => DropReason::FragOverlap,
        FragmentLoss::Timeout => DropReason::FragTimeout,
        FragmentLoss::Share => DropReason::FragShare,
        FragmentLoss::TooSmall => DropReason::FragSmall,
        FragmentLoss::TooLarge => DropReason::FragLarge,
        FragmentLoss::Malformed => DropReason::FragMalformed,
    }
}

/// The metadata of a reassembled packet: it must be cut into packets of `mtu_bytes`. A packet that cannot be cut stays
/// as it is.
pub(super) fn fragmented(packet: &[u8], mtu_bytes: u16) -> Offload {
    // A random value (RFC 7739).
    let identification = RandomState::new().hash_one(mtu_bytes) as u32;
    let (head, len_bytes) = (packet.get(..HEAD_BYTES).unwrap_or(packet), packet.len() as u32);
    Fragmentation::offload(head, len_bytes, (mtu_bytes, identification)).unwrap_or_default()
}

impl Places {
    /// The port at which fragments from `in_port` are counted.
    fn port_of(&self, id: DatapathId, in_port: u16) -> PortId {
        let member = self.get(id).and_then(|place| place.members.get(&u32::from(in_port)));
        member.and_then(|member| member.port).unwrap_or(PortId::INTERNAL)
    }
}

/// A complete packet.
struct Packet<'a> {
    port: PortId,
    module: Arc<FlowModule>,
    frame: Vec<u8>,
    record: &'a UpcallRecord,
}

impl Packet<'_> {
    /// Tracks it, and has a worker execute the remaining actions.
    fn track(mut self, adapter: &mut Adapter<'_>, actions: (u32, &[u64])) {
        let (metadata, now) = (self.record.metadata, (self.port.0, clock::now_ms()));
        let table = self.module.table();
        let execution = Execution::resumed_behind_ct(table, metadata, actions, &mut self.frame, now);
        let has_room = adapter.places.under_way.has_room(self.port);
        let execution = execution.map(|execution| execution.with_tunnel(self.record.tunnel));
        match execution {
            Ok(execution) if has_room => {
                adapter.inject((self.port, 0), self.module, execution, (&self.frame, Offload::default()));
            }
            Ok(_) => adapter.inside.engine().lost(self.port, 1, DropReason::RxShare),
            Err(reason) => adapter.inside.engine().lost(self.port, 1, reason),
        }
    }
}

impl Fragments {
    /// Takes a packet of flow number `flow`, or a fragment; the words of its actions precede it.
    pub(super) fn take(
        &mut self,
        adapter: &mut Adapter<'_>,
        (record, flow): (&UpcallRecord, u32),
        mut frame: Vec<u8>,
    ) {
        let words = record.take_suspended(&mut frame);
        let place = adapter.places.of_origin(record.origin);
        let (Some((id, place)), Some(zone)) = (place, suspended_zone(&words)) else {
            return adapter.inside.engine().upcalls_lost(record.port, 1);
        };
        let module = Arc::clone(&place.module);
        let port = adapter.places.port_of(id, record.metadata.in_port);
        let layers = Layers::parse(frame.get(..HEAD_BYTES).unwrap_or(&frame));
        if !layers.is_ok_and(|layers| layers.is_fragment) {
            let packet = Packet { port, module, frame, record };
            return packet.track(adapter, (flow, &words));
        }
        // Fragments of one packet may arrive by several uplinks.
        let source = if module.is_uplink(port) { PortId::INTERNAL } else { port };
        let waiting = FragmentPlace { datapath: id.0, zone, source: source.0 };
        let whole = self.pool.take(waiting, frame, clock::now_ms(), &mut self.lost);
        self.count_lost(adapter.inside);
        let Some(WholePacket { frame, mtu_bytes, identification, fragments }) = whole else { return };
        let head = frame.get(..HEAD_BYTES).unwrap_or(&frame);
        let offload = Fragmentation::offload(head, frame.len() as u32, (mtu_bytes, identification));
        let execution = Execution::resumed(record.metadata, flow, &words);
        let execution = execution.map(|execution| execution.with_tunnel(record.tunnel));
        let lose = |reason| adapter.inside.engine().lost(port, fragments.into(), reason);
        match (offload, execution) {
            (Ok(offload), Some(execution)) if adapter.places.under_way.has_room(port) => {
                adapter.inject((port, 0), module, execution, (&frame, offload));
            }
            (Ok(_), _) => lose(DropReason::RxShare),
            (Err(_), _) => lose(DropReason::FragMalformed),
        }
    }

    /// The time of the next expiry.
    pub(super) fn due(&self) -> Option<Instant> {
        let wait_ms = self.pool.due_ms()?.saturating_sub(clock::now_ms());
        Some(Instant::now() + Duration::from_millis(wait_ms))
    }

    /// Drops expired fragments.
    pub(super) fn expire(&mut self, inside: &Datapath) {
        if self.pool.due_ms().is_some() {
            self.pool.expire(clock::now_ms(), &mut self.lost);
            self.count_lost(inside);
        }
    }

    fn count_lost(&mut self, inside: &Datapath) {
        for LostFragments { place, reason, fragments } in self.lost.drain(..) {
            inside.engine().lost(PortId(place.source), fragments.into(), reason_of(reason));
        }
    }
}
