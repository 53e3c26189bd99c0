//! The transmit side of one port: fetches batches of chains in two passes, descriptors first, then headers.

use std::sync::Arc;

use arrayvec::ArrayVec;
use lasthop_guestmem::{MemoryMap, Place, Segment, Window};
use lasthop_module_api::{BATCH_PACKETS_MAX, DropReason, Hashes, Header, IMAGES_MADE_MAX, PortId};
use lasthop_ring::{
    BufferAccess, DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Descriptor, DeviceRing, RingError, walk_from,
};
use lasthop_stages::{Stages, WorkStage};
use lasthop_turns::Charge;
use lasthop_wire::vnet::HEADER_BYTES;

use crate::bounds::{CHAIN_SEGMENTS_MAX, VISIT_BYTES_MAX};
use crate::counters::PortCounters;
use crate::reference::{PacketCopy, PacketRef};
use crate::side_table::{ChainSegments, Chains, SegmentBuffer};
use crate::steering::Steering;
use crate::tx::chain::{Chain, ReadFrames, read_one_piece, read_pieces, read_usual};
use crate::tx::tx_queue::TxQueue;
use crate::{Capabilities, RingId};

/// A worker's part of the transmit side of a port.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    pub(crate) map: Arc<MemoryMap>,
    pub(crate) epoch: u32,
    pub(crate) capabilities: Capabilities,
    /// The rings whose home is here.
    pub(crate) queues: Vec<Option<TxQueue>>,
    /// Chains of all rings of the port, since any worker may hold references to them.
    pub(crate) chains: Vec<Option<Arc<Chains>>>,
    pub(crate) counters: PortCounters,
    pub(crate) charge: Charge,
    /// Of a guest with several queue pairs, whose flows follow it.
    pub(crate) steering: Option<Arc<Steering>>,
}

/// The memory of a visit's chains that are in one piece and are not listed.
pub(crate) type Places<'m> = ArrayVec<Place<'m>, BATCH_PACKETS_MAX>;

/// The packets of one visit to one ring.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// The packets' headers; from `BATCH_PACKETS_MAX` on, the images that the module made.
    pub(crate) headers: Box<[Header; BATCH_PACKETS_MAX + IMAGES_MADE_MAX]>,
    /// References to the packets, once they are listed.
    pub(crate) packets: [PacketRef; BATCH_PACKETS_MAX],
    pub(crate) len: usize,
    /// Whether the chains are in the side table and the packets have references. If not, packet `i` is chain `i`, in
    /// one piece of memory, and only this visit knows it.
    pub(crate) is_listed: bool,
    /// The reference of all packets of the visit, without the head.
    pub(crate) name: PacketRef,
    /// Bytes that count as taken before the visit begins, so that it takes fewer.
    pub(crate) spent_bytes: u64,
    /// Whether the ring has more chains. If it is blocked or broken, the next visit takes none.
    pub(crate) more: bool,
    pub(crate) heads: [u16; BATCH_PACKETS_MAX],
    /// The chains as taken, before invalid frames are removed.
    pub(crate) chains: [Chain; BATCH_PACKETS_MAX],
    segments: Box<SegmentBuffer>,
    /// The packets' hashes.
    pub(crate) hashes: Box<Hashes>,
}

impl Default for Fetched {
    fn default() -> Self {
        Self {
            headers: Box::new([Header::default(); BATCH_PACKETS_MAX + IMAGES_MADE_MAX]),
            packets: [PacketRef::default(); BATCH_PACKETS_MAX],
            len: 0,
            is_listed: true,
            name: PacketRef::default(),
            spent_bytes: 0,
            more: false,
            heads: [0; BATCH_PACKETS_MAX],
            chains: [Chain::default(); BATCH_PACKETS_MAX],
            segments: Box::new([Segment::default(); CHAIN_SEGMENTS_MAX]),
            hashes: Box::new(Hashes::NONE),
        }
    }
}

impl Fetched {
    /// The packets and their headers.
    #[inline]
    pub(crate) fn frames(&self) -> impl ExactSizeIterator<Item = (&Chain, &Header)> + Clone {
        self.chains[..self.len].iter().zip(self.headers.iter())
    }

    /// Adds the listed packets from number `from` on, unchanged.
    // The caller provides the list: returning one would copy all its room.
    #[inline]
    pub(crate) fn add_copies<'f>(
        &'f self,
        from: usize,
        copies: &mut ArrayVec<PacketCopy<'f>, BATCH_PACKETS_MAX>,
    ) {
        let packets = self.packets[from..self.len].iter().zip(&self.headers[from..]);
        let copy =
            |(image, (&packet, header))| PacketCopy { packet, header, truncate_len_bytes: u32::MAX, image };
        copies.extend((from as u16..).zip(packets).map(copy));
    }

    /// Makes references to the first packets from their chains.
    pub(crate) fn name_first(&mut self, count: usize) {
        for (packet, chain) in self.packets.iter_mut().zip(&self.chains[..count]) {
            *packet = PacketRef { head: chain.head, ..self.name };
        }
    }

    /// Stores the images that the module made where outputs find them.
    #[inline]
    pub(crate) fn add_images(&mut self, made: &[Header]) {
        for (place, image) in self.headers[BATCH_PACKETS_MAX..].iter_mut().zip(made) {
            *place = *image;
        }
    }
}

impl Sender {
    /// Number of unsettled copies of the chain at `head` of the only queue.
    pub(crate) fn pending_copies(&self, head: u16) -> u16 {
        self.queues.first().and_then(Option::as_ref).map_or(0, |queue| queue.ring.mark(head))
    }

    /// Takes chains from the queue of `ring`, in two passes, so that the cache misses of descriptors and of headers
    /// overlap. The second pass reads each chain's headers once. Returns the number of heads taken. Marks a broken
    /// ring.
    pub(super) fn fetch(
        &mut self,
        ring: RingId,
        fetched: &mut Fetched,
        home: (u8, Option<DropReason>),
        stages: &Stages,
    ) -> usize {
        let Some(Some(queue)) = self.queues.get_mut(usize::from(ring.queue)) else { return 0 };
        if !queue.is_ready() {
            return 0;
        }
        let (home, discard) = home;
        fetched.name = PacketRef { port: ring.port.0, queue: ring.queue, head: 0, home, epoch: self.epoch };
        let has_usual_header = self.capabilities.sent_header_bytes == HEADER_BYTES;
        let is_usual = has_usual_header && ring.port != PortId::INTERNAL && discard.is_none();
        let (taken, mut read) = {
            let (map, mut places) = (&*self.map, Places::new());
            let (taken, error) = match queue.postponement.is_due() {
                false => queue.take_pending((map, self.epoch), &mut self.charge, fetched, &mut places),
                true => queue.take_postponed((map, self.epoch), &mut self.charge, fetched),
            };
            if error.is_some() {
                queue.error = error;
            }
            stages.mark(WorkStage::Fetch);
            let places = if is_usual && !fetched.is_listed { &places[..] } else { &[] };
            (taken, read_usual(places, &mut fetched.headers[..]))
        };
        fetched.len = read.count;
        if read.count < taken {
            self.read_others(ring, fetched, taken, discard, &mut read);
        }
        if let Some(steering) = &self.steering {
            steering.note(&fetched.headers[..fetched.len], ring.queue, self.counters.rx_packets);
        }
        self.counters.rx_packets += taken as u64;
        self.counters.rx_bytes += read.bytes;
        self.counters.rx_gso_packets += read.gso_packets;
        taken
    }

    /// The second pass for the remaining chains, of any kind. Lists all chains. Drops and completes invalid frames.
    #[inline(never)]
    fn read_others(
        &mut self,
        ring: RingId,
        fetched: &mut Fetched,
        taken: usize,
        discard: Option<DropReason>,
        read: &mut ReadFrames,
    ) {
        let Some(Some(queue)) = self.queues.get_mut(usize::from(ring.queue)) else { return };
        queue.list(fetched, 0..taken, self.epoch);
        fetched.name_first(read.count);
        let vnet_bytes = self.capabilities.sent_header_bytes;
        let is_own = ring.port == PortId::INTERNAL;
        let is_usual = vnet_bytes == HEADER_BYTES && !is_own;
        for chain in &fetched.chains[read.count..taken] {
            let header = &mut fetched.headers[fetched.len];
            let result = if is_usual && chain.is_one_piece() {
                read_one_piece(&self.map, header, chain)
            } else {
                let chains = queue.table.chains();
                let segments = chains.segments(chain.head, self.epoch, &mut fetched.segments);
                let pieces = (&*self.map, segments.unwrap_or_default());
                let told = (&mut *fetched.hashes, fetched.len);
                read_pieces(pieces, header, chain, (vnet_bytes, is_own), told)
            };
            if result.is_ok() {
                read.bytes += u64::from(header.frame_len_bytes());
            }
            if let Some(reason) = result.err().or(discard) {
                self.counters.rx_drops.count(reason);
                queue.table.refuse(chain.head, reason);
                queue.settle(chain.head, || false);
                continue;
            }
            read.gso_packets += u64::from(header.offload.is_gso());
            fetched.packets[fetched.len] = PacketRef { head: chain.head, ..fetched.name };
            fetched.len += 1;
        }
    }
}

impl TxQueue {
    /// First pass, over chains that the driver made available.
    #[inline(always)]
    fn take_pending<'m>(
        &mut self,
        (map, epoch): (&'m MemoryMap, u32),
        charge: &mut Charge,
        fetched: &mut Fetched,
        places: &mut Places<'m>,
    ) -> (usize, Option<RingError>) {
        // One more than a visit takes tells whether there are more.
        let all = match self.ring.pending_up_to(BATCH_PACKETS_MAX as u16 + 1) {
            Ok(pending) => usize::from(pending),
            Err(error) => return (0, Some(error)),
        };
        if all == 0 {
            return (0, None);
        }
        let pending = all.min(charge.begin_visit()).min(BATCH_PACKETS_MAX);
        let (readable, unreadable) = self.ring.read_heads(&mut fetched.heads[..pending]);
        let (taken, broken) = read_chains(self, (map, epoch), fetched, places, readable);
        let error = if taken == readable { unreadable } else { broken };
        self.blocked = taken < pending && error.is_none() && !self.table.has_room();
        fetched.more = taken < all;
        self.ring.take_marked(&fetched.heads[..taken]);
        self.pieces += self.ring.take_long_descriptors();
        charge.add_pieces(std::mem::take(&mut self.pieces));
        charge.taken(taken);
        (taken, error)
    }
}

/// Reads and checks the chains at the first `count` fetched heads, within the bounds of a visit. If one is unusual, all
/// are listed. Returns their number, and the fault of the next one.
#[inline(always)]
fn read_chains<'m>(
    queue: &mut TxQueue,
    (map, epoch): (&'m MemoryMap, u32),
    fetched: &mut Fetched,
    places: &mut Places<'m>,
    count: usize,
) -> (usize, Option<RingError>) {
    fetched.is_listed = false;
    let heads = &fetched.heads[..count];
    let read = (heads, fetched.spent_bytes);
    let (ring, chains) = ((&mut queue.ring, &mut queue.hint), &mut fetched.chains);
    let bytes = match ring.0.is_packed() {
        false => read_usual_chains::<false>(ring, map, read, chains, places),
        true => read_usual_chains::<true>(ring, map, read, chains, places),
    };
    let taken = places.len();
    if taken == count || bytes >= u64::from(VISIT_BYTES_MAX) {
        return (taken, None);
    }
    let is_under_way = |queue: &TxQueue, head| queue.ring.mark(head) > 0;
    read_more_chains(queue, map, epoch, fetched, ((taken, bytes), count), is_under_way)
}

/// Reads, checks and marks usual chains, with one buffer in one region each, and adds them to `places`. Stops at an
/// unusual chain or one that is under way already. Returns `spent_bytes` and their bytes.
#[inline]
fn read_usual_chains<'m, const PACKED: bool>(
    (ring, hint): (&mut DeviceRing, &mut u16),
    map: &'m MemoryMap,
    (heads, spent_bytes): (&[u16], u64),
    chains: &mut [Chain; BATCH_PACKETS_MAX],
    places: &mut Places<'m>,
) -> u64 {
    let mut window = map.window(*hint);
    let bytes = read_chains_in::<true, PACKED>(ring, &mut window, (heads, chains), places, spent_bytes);
    let done = places.len();
    if done == heads.len() {
        return bytes;
    }
    let rest = (&heads[done..], &mut chains[done..]);
    let bytes = read_chains_in::<false, PACKED>(ring, &mut window, rest, places, bytes);
    *hint = window.hint();
    bytes
}

/// As [`read_usual_chains`], after chains with `bytes` bytes. With `NEAR`, stops at the first one outside the region of
/// the last translation.
// Not inlined, so that the loop has all registers.
#[inline(never)]
fn read_chains_in<'m, const NEAR: bool, const PACKED: bool>(
    ring: &mut DeviceRing,
    window: &mut Window<'m>,
    (heads, chains): (&[u16], &mut [Chain]),
    places: &mut Places<'m>,
    mut bytes: u64,
) -> u64 {
    places.extend(heads.iter().zip(chains).map_while(|(&head, chain)| {
        let Descriptor { addr, len, flags, .. } = ring.descriptor_in::<PACKED>(head);
        let is_usual = flags & (DESC_NEXT | DESC_INDIRECT | DESC_WRITE) == 0 && len > 0;
        if !is_usual || bytes >= u64::from(VISIT_BYTES_MAX) || ring.mark(head) > 0 {
            return None;
        }
        let (first, place) = match NEAR {
            true => window.locate_near(addr, len)?,
            false => window.locate(addr, len)?,
        };
        place.prefetch();
        ring.set_mark(head, 1);
        *chain = Chain { head, whole: true, bytes: len, first };
        bytes += u64::from(len);
        Some(place)
    }));
    bytes
}

/// As [`read_chains`], for the chains of any kind behind the first ones, which were read and have these bytes. Lists
/// all chains.
#[inline(never)]
pub(crate) fn read_more_chains(
    queue: &mut TxQueue,
    map: &MemoryMap,
    epoch: u32,
    fetched: &mut Fetched,
    ((mut taken, mut bytes), count): ((usize, u64), usize),
    is_under_way: impl Fn(&TxQueue, u16) -> bool,
) -> (usize, Option<RingError>) {
    queue.list(fetched, 0..taken, epoch);
    for (head, chain) in fetched.heads[..count].iter().zip(&mut fetched.chains).skip(taken) {
        if bytes >= u64::from(VISIT_BYTES_MAX) || !queue.table.has_room() {
            break;
        }
        let read = match is_under_way(queue, *head) {
            true => Err(RingError::HeadTwice(*head)),
            false => take_pieces(queue, map, *head, epoch),
        };
        *chain = match read {
            Ok(read) => read,
            Err(broken) => return (taken, Some(broken)),
        };
        bytes += u64::from(chain.bytes);
        taken += 1;
    }
    (taken, None)
}

/// Reads and checks the chain at `head`, which is not under way, and enters it in the side table.
#[inline]
fn take_pieces(queue: &mut TxQueue, map: &MemoryMap, head: u16, epoch: u32) -> Result<Chain, RingError> {
    let start = queue.ring.chain_start(head);
    let mut segments = ChainSegments::new();
    let mut bytes = 0_u32;
    let whole = walk_from(&queue.ring, map, start, BufferAccess::Readable, &mut queue.hint, |segment, _| {
        bytes = bytes.saturating_add(segment.len);
        segments.try_push(segment).is_ok()
    })?;
    if segments.len() > 1 || start.descriptor.flags & (DESC_NEXT | DESC_INDIRECT) != 0 {
        queue.pieces += segments.len() as u64;
    }
    let first = segments.first().copied().unwrap_or_default();
    map.prefetch_start(first);
    queue.enter(head, epoch, &segments);
    Ok(Chain { head, whole, bytes, first })
}
