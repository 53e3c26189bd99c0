//! The transmit side of one port: fetches batches of chains in two passes, descriptors first, then headers.

use std::sync::Arc;

use lasthop_guestmem::{MemoryMap, Segment};
use lasthop_module_api::{BATCH_PACKETS_MAX, DropReason, Hashes, Header, IMAGES_MADE_MAX, PortId};
use lasthop_ring::{
    BufferAccess, DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Descriptor, DeviceRing, RingError, walk_from,
};
use lasthop_wire::vnet::HEADER_BYTES;

use crate::bounds::{CHAIN_SEGMENTS_MAX, VISIT_BYTES_MAX};
use crate::counters::PortCounters;
use crate::reference::PacketRef;
use crate::side_table::{ChainSegments, Chains, SegmentBuffer};
use crate::stages::{Stages, WorkStage};
use crate::tx::chain::{Chain, read_one_piece, read_pieces};
use crate::tx::cost::Charge;
use crate::tx::tx_queue::TxQueue;
use crate::{Capabilities, RingId};

/// The transmit side of a port, as one worker has it.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    pub(crate) map: Arc<MemoryMap>,
    pub(crate) epoch: u32,
    pub(crate) capabilities: Capabilities,
    /// Rings whose home is here.
    pub(crate) queues: Vec<Option<TxQueue>>,
    /// Chains of all its rings, since any worker may hold references to them.
    pub(crate) chains: Vec<Option<Arc<Chains>>>,
    pub(crate) counters: PortCounters,
    pub(crate) charge: Charge,
}

/// The packets of one visit to one ring.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// Of the packets, and from `BATCH_PACKETS_MAX` on those that the module made.
    pub(crate) headers: Box<[Header; BATCH_PACKETS_MAX + IMAGES_MADE_MAX]>,
    pub(crate) packets: [PacketRef; BATCH_PACKETS_MAX],
    pub(crate) len: usize,
    /// Whether the ring has more. If it is blocked or broken, the next visit takes none of it.
    pub(crate) more: bool,
    pub(crate) heads: [u16; BATCH_PACKETS_MAX],
    /// The chains as taken, before frames that are none are left out.
    pub(crate) chains: [Chain; BATCH_PACKETS_MAX],
    segments: Box<SegmentBuffer>,
    /// Of the packets.
    pub(crate) hashes: Box<Hashes>,
}

impl Default for Fetched {
    fn default() -> Self {
        Self {
            headers: Box::new([Header::default(); BATCH_PACKETS_MAX + IMAGES_MADE_MAX]),
            packets: [PacketRef::default(); BATCH_PACKETS_MAX],
            len: 0,
            more: false,
            heads: [0; BATCH_PACKETS_MAX],
            chains: [Chain::default(); BATCH_PACKETS_MAX],
            segments: Box::new([Segment::default(); CHAIN_SEGMENTS_MAX]),
            hashes: Box::new(Hashes::NONE),
        }
    }
}

impl Fetched {
    /// Puts the images that the module made where outputs look for them.
    #[inline]
    pub(crate) fn add_images(&mut self, made: &[Header]) {
        for (place, image) in self.headers[BATCH_PACKETS_MAX..].iter_mut().zip(made) {
            *place = *image;
        }
    }
}

impl Sender {
    /// Copies of the chain at `head` of the only queue that are not settled.
    pub(crate) fn pending_copies(&self, head: u16) -> u16 {
        self.queues.first().and_then(Option::as_ref).map_or(0, |queue| queue.ring.mark(head))
    }

    /// Takes chains from the queue of `ring`, in two passes so that the descriptors' and the headers' cache lines come in
    /// side by side. Returns heads taken and the error that ended it.
    pub(super) fn fetch(
        &mut self,
        ring: RingId,
        fetched: &mut Fetched,
        home: (u8, Option<DropReason>),
        stages: &Stages,
    ) -> (usize, Option<RingError>) {
        let Some(Some(queue)) = self.queues.get_mut(usize::from(ring.queue)) else { return (0, None) };
        let (taken, error) = match queue.postponement.is_due() {
            false => self.take_pending(ring.queue, fetched),
            true => self.take_postponed(ring.queue, fetched),
        };
        stages.mark(WorkStage::Fetch);
        self.read_headers(ring, fetched, taken, home);
        (taken, error)
    }

    /// First pass, over chains that the driver made available.
    #[inline(always)]
    fn take_pending(&mut self, queue: u16, fetched: &mut Fetched) -> (usize, Option<RingError>) {
        let Some(Some(queue)) = self.queues.get_mut(usize::from(queue)) else { return (0, None) };
        let all = match queue.ring.pending() {
            Ok(pending) => usize::from(pending),
            Err(error) => return (0, Some(error)),
        };
        if all == 0 {
            return (0, None);
        }
        let pending = all.min(self.charge.begin_visit()).min(BATCH_PACKETS_MAX);
        let (readable, unreadable) = read_heads(&queue.ring, &mut fetched.heads[..pending]);
        let is_under_way = |queue: &TxQueue, head| queue.ring.mark(head) > 0;
        let (taken, broken) = read_chains(queue, &self.map, self.epoch, fetched, readable, is_under_way);
        let error = if taken == readable { unreadable } else { broken };
        queue.blocked = taken < pending && error.is_none() && !queue.table.has_room();
        fetched.more = taken < all;
        queue.ring.take_marked(&fetched.heads[..taken]);
        self.charge.add_pieces(std::mem::take(&mut queue.pieces));
        self.charge.taken(taken);
        (taken, error)
    }

    /// Second pass: reads each chain's headers, once. Invalid frames are dropped and completed.
    #[inline]
    fn read_headers(
        &mut self,
        ring: RingId,
        fetched: &mut Fetched,
        taken: usize,
        (home, discard): (u8, Option<DropReason>),
    ) {
        let Some(Some(queue)) = self.queues.get_mut(usize::from(ring.queue)) else { return };
        let vnet_bytes = self.capabilities.sent_header_bytes;
        let packet = PacketRef { port: ring.port.0, queue: ring.queue, head: 0, home, epoch: self.epoch };
        let is_own = ring.port == PortId::INTERNAL;
        let is_usual = vnet_bytes == HEADER_BYTES && !is_own;
        let (mut bytes, mut gso_packets) = (0, 0);
        for chain in &fetched.chains[..taken] {
            let header = &mut fetched.headers[fetched.len];
            let read = if is_usual && chain.is_one_piece() {
                read_one_piece(&self.map, header, chain)
            } else {
                let chains = queue.table.chains();
                let segments = chains.segments(chain.head, self.epoch, &mut fetched.segments);
                let pieces = (&*self.map, segments.unwrap_or_default());
                let told = (&mut *fetched.hashes, fetched.len);
                read_pieces(pieces, header, chain, (vnet_bytes, is_own), told)
            };
            if read.is_ok() {
                bytes += u64::from(header.frame_len_bytes());
            }
            if let Some(reason) = read.err().or(discard) {
                self.counters.rx_drops.count(reason);
                queue.table.refuse(chain.head, reason);
                queue.settle(chain.head, || false);
                continue;
            }
            gso_packets += u64::from(header.offload.is_gso());
            fetched.packets[fetched.len] = PacketRef { head: chain.head, ..packet };
            fetched.len += 1;
        }
        self.counters.rx_packets += taken as u64;
        self.counters.rx_bytes += bytes;
        self.counters.rx_gso_packets += gso_packets;
    }
}

/// Reads the pending heads, and prefetches their descriptors. Returns the number in range, and the fault of
/// the next one.
#[inline]
fn read_heads(ring: &DeviceRing, heads: &mut [u16]) -> (usize, Option<RingError>) {
    for (ahead, place) in heads.iter_mut().enumerate() {
        match ring.head(ahead as u16) {
            Ok(head) => *place = head,
            Err(error) => return (ahead, Some(error)),
        }
        ring.prefetch_descriptor(*place);
    }
    (heads.len(), None)
}

/// Reads, checks and enters the chains at the first `count` fetched heads, within the bounds of a visit.
/// Returns their number, and the fault of the next one.
#[inline(always)]
pub(crate) fn read_chains(
    queue: &mut TxQueue,
    map: &MemoryMap,
    epoch: u32,
    fetched: &mut Fetched,
    count: usize,
    is_under_way: impl Fn(&TxQueue, u16) -> bool,
) -> (usize, Option<RingError>) {
    let (mut taken, mut bytes) = (0, 0_u32);
    for (head, chain) in fetched.heads[..count].iter().zip(&mut fetched.chains) {
        if bytes >= VISIT_BYTES_MAX || !queue.table.has_room() {
            break;
        }
        let read = match is_under_way(queue, *head) {
            true => Err(RingError::HeadTwice(*head)),
            false => read_chain(queue, map, *head, epoch, chain),
        };
        if let Err(broken) = read {
            return (taken, Some(broken));
        }
        bytes = bytes.saturating_add(chain.bytes);
        taken += 1;
    }
    (taken, None)
}

/// Reads, checks and enters the chain at `head`, which is not under way. Its segments are in `chain`.
#[inline(always)]
fn read_chain(
    queue: &mut TxQueue,
    map: &MemoryMap,
    head: u16,
    epoch: u32,
    chain: &mut Chain,
) -> Result<(), RingError> {
    let descriptor = queue.ring.descriptor(head);
    if descriptor.flags & (DESC_NEXT | DESC_INDIRECT | DESC_WRITE) == 0 {
        // The usual chain, spared the walk: one buffer in one region.
        let piece = map.translate_whole(descriptor.addr, descriptor.len, &mut queue.hint);
        if let Some(first) = piece.filter(|piece| piece.len > 0) {
            map.prefetch_start(first);
            queue.enter(head, epoch, &[first]);
            *chain = Chain { head, whole: true, bytes: first.len, first };
            return Ok(());
        }
    }
    *chain = take_pieces(queue, map, (head, descriptor), epoch)?;
    Ok(())
}

/// As [`read_chain`], for a chain of any kind.
#[inline(never)]
fn take_pieces(
    queue: &mut TxQueue,
    map: &MemoryMap,
    (head, descriptor): (u16, Descriptor),
    epoch: u32,
) -> Result<Chain, RingError> {
    let mut segments = ChainSegments::new();
    let mut bytes = 0_u32;
    let whole =
        walk_from(&queue.ring, map, descriptor, BufferAccess::Readable, &mut queue.hint, |segment, _| {
            bytes = bytes.saturating_add(segment.len);
            segments.try_push(segment).is_ok()
        })?;
    queue.pieces += segments.len() as u64;
    let first = segments.first().copied().unwrap_or_default();
    map.prefetch(first, 0);
    queue.enter(head, epoch, &segments);
    Ok(Chain { head, whole, bytes, first })
}
