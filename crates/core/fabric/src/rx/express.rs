//! Delivers batches of usual frames: one piece of memory, copied unchanged into one buffer in one piece.

use arrayvec::ArrayVec;
use lasthop_guestmem::{MemoryMap, Place, Rest, Segment, StaleSegment, Window};
use lasthop_module_api::{BATCH_PACKETS_MAX, Header};
use lasthop_ring::{DESC_WRITE, Descriptor, DeviceRing};
use lasthop_stages::{Stages, WorkStage};
use lasthop_wire::Offload;
use lasthop_wire::vnet::HEADER_BYTES;

use crate::Capabilities;
use crate::frame::{Source, shape};
use crate::reference::{Delivered, PacketCopy};
use crate::rx::deliver::as_received;
use crate::rx::receive_ring::RxQueue;

/// The virtio-net header of a frame that needs no offload, in one buffer.
pub(crate) const PLAIN: [u8; HEADER_BYTES] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];

/// Buffers reserved for the first packets of a list.
///
/// ```text
///   ahead:   head, ask for the descriptor                      x n
///   reserve: descriptor, check, translate, ask for the lines   x n   (cache misses side by side)
///   copy:    header, image, rest                               x n
///   complete: used entries                                     x n   published later, by one index store
/// ```
#[derive(Debug, Default)]
pub(crate) struct Express {
    /// Heads of the next buffers.
    heads: [u16; BATCH_PACKETS_MAX],
    /// Frames and buffers that are filled without the claim.
    places: [ReservedFrame; BATCH_PACKETS_MAX],
}

/// The part of a receive buffer that a frame fills.
struct Buffer<'m> {
    place: Place<'m>,
    head: u16,
}

/// The buffers of one batch.
type Buffers<'m> = ArrayVec<Buffer<'m>, BATCH_PACKETS_MAX>;

/// A receive buffer that is filled without the claim, and its frame.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReservedFrame {
    head: u16,
    target: Segment,
    source: Segment,
    is_gso: bool,
}

impl Express {
    /// Delivers `frames` from the memory `source`, up to the first one that is unusual or finds no buffer. Returns the
    /// number delivered. [`crate::rx::deliver::Delivery`] handles the others.
    #[inline]
    pub(crate) fn run<'h>(
        &mut self,
        queue: &mut RxQueue,
        (map, capabilities): (&MemoryMap, Capabilities),
        (source, frames): (&MemoryMap, impl ExactSizeIterator<Item = UsualFrame<'h>> + Clone),
        stages: &Stages,
    ) -> Delivered {
        let mut buffers = Buffers::new();
        let to = (map, capabilities);
        match queue.ring.is_packed() {
            false => self.reserve::<false>(queue, to, frames.clone(), &mut buffers),
            true => self.reserve::<true>(queue, to, frames.clone(), &mut buffers),
        }
        stages.mark(WorkStage::Queue);
        let copied = copy_all(source, frames, &buffers);
        stages.mark(WorkStage::Copy);
        let filled = &buffers[..copied.packets as usize];
        complete(&mut queue.ring, filled.iter().map(|buffer| (buffer.head, buffer.place.len_bytes())));
        queue.note_filled();
        copied
    }

    /// As `run`, without copying. Writes the used entries; the caller copies the frames before it publishes.
    #[inline]
    pub(crate) fn lease(
        &mut self,
        queue: &mut RxQueue,
        (map, capabilities): (&MemoryMap, Capabilities),
        source: &Source<'_>,
        copies: &[PacketCopy<'_>],
    ) -> &[ReservedFrame] {
        let frames = copied_from(source, copies);
        let found = self.find(queue, capabilities, frames.len());
        let (mut window, mut reserved) = (map.window(queue.hint), 0);
        for ((&head, kept), frame) in self.heads[..found].iter().zip(&mut self.places).zip(frames) {
            let target = reserve_one::<false>(queue.ring.descriptor(head), &mut window, &frame, capabilities);
            let (Some((target, place)), Some(source)) = (target, frame.source) else { break };
            place.prefetch_write::<HEADER_BYTES>();
            let is_gso = frame.offload.is_gso();
            *kept =
                ReservedFrame { head, target: Segment { len: place.len_bytes(), ..target }, source, is_gso };
            reserved += 1;
        }
        queue.hint = window.hint();
        let places = &self.places[..reserved];
        complete(&mut queue.ring, places.iter().map(|place| (place.head, place.target.len)));
        places
    }

    /// Reads the heads of at most `count` next buffers and prefetches their descriptors. Returns their number.
    #[inline(always)]
    fn find(&mut self, queue: &mut RxQueue, capabilities: Capabilities, count: usize) -> usize {
        if capabilities.header_bytes != HEADER_BYTES {
            return 0;
        }
        // The slow path takes every packet after an invalid index or head, and reports the fault.
        let count = count.min(BATCH_PACKETS_MAX);
        let wanted = usize::from(queue.ring.pending_up_to(count as u16).unwrap_or_default()).min(count);
        let (found, _) = queue.ring.read_heads(&mut self.heads[..wanted]);
        found
    }

    /// Finds buffers for at most one batch of the first `frames`, and prefetches their cache lines.
    #[inline]
    fn reserve<'h, 'm, const PACKED: bool>(
        &mut self,
        queue: &mut RxQueue,
        (map, capabilities): (&'m MemoryMap, Capabilities),
        frames: impl ExactSizeIterator<Item = UsualFrame<'h>> + Clone,
        buffers: &mut Buffers<'m>,
    ) {
        let found = self.find(queue, capabilities, frames.len());
        let (heads, mut window) = (&self.heads[..found], map.window(queue.hint));
        let ring = (&queue.ring, capabilities);
        reserve_all::<true, PACKED>(ring, &mut window, heads, frames.clone(), buffers);
        let done = buffers.len();
        if done < found {
            let (heads, frames) = (&heads[done..], frames.skip(done));
            reserve_all::<false, PACKED>(ring, &mut window, heads, frames, buffers);
            queue.hint = window.hint();
        }
    }
}

/// Finds buffers at `heads` for the first `frames`, and prefetches their cache lines. With `NEAR`, stops at the first
/// one that needs a function call.
// Not inlined, so that the loop has all registers.
#[inline(never)]
fn reserve_all<'h, 'm, const NEAR: bool, const PACKED: bool>(
    (ring, capabilities): (&DeviceRing, Capabilities),
    window: &mut Window<'m>,
    heads: &[u16],
    frames: impl Iterator<Item = UsualFrame<'h>>,
    buffers: &mut Buffers<'m>,
) {
    buffers.extend(heads.iter().zip(frames).map_while(|(&head, frame)| {
        frame.source?;
        let descriptor = ring.descriptor_in::<PACKED>(head);
        let (_, place) = reserve_one::<NEAR>(descriptor, window, &frame, capabilities)?;
        place.prefetch_write::<HEADER_BYTES>();
        Some(Buffer { place, head })
    }));
}

/// The part of the buffer that the frame fills, if both are usual. With `NEAR`, only if this needs no function call.
#[inline(always)]
pub(crate) fn reserve_one<'m, const NEAR: bool>(
    descriptor: Descriptor,
    window: &mut Window<'m>,
    frame: &UsualFrame<'_>,
    capabilities: Capabilities,
) -> Option<(Segment, Place<'m>)> {
    if descriptor.flags != DESC_WRITE {
        return None;
    }
    let (segment, place) = match NEAR {
        true => window.locate_near(descriptor.addr, descriptor.len)?,
        false => window.locate(descriptor.addr, descriptor.len)?,
    };
    let place = place.first(HEADER_BYTES as u32 + frame.len)?;
    if !is_plain(frame.offload) && !is_taken_as_it_is(frame.offload, capabilities) {
        return None;
    }
    Some((segment, place))
}

/// A frame that may be usual.
#[derive(Clone, Copy)]
pub(crate) struct UsualFrame<'h> {
    pub(crate) header: &'h Header,
    /// Bytes to deliver.
    pub(crate) len: u32,
    pub(crate) offload: Offload,
    /// The frame's memory, if it is one piece.
    pub(crate) source: Option<Segment>,
}

/// The frames of listed packets.
#[inline]
pub(crate) fn copied_from<'h>(
    source: &Source<'_>,
    copies: &[PacketCopy<'h>],
) -> impl ExactSizeIterator<Item = UsualFrame<'h>> + Clone {
    copies.iter().map(|copy| {
        let (len, offload) = shape(copy.header, copy.truncate_len_bytes);
        let has_usual_header = source.vnet_bytes() == HEADER_BYTES;
        let segment = source.only_segment(copy.packet).filter(|_| has_usual_header);
        UsualFrame { header: copy.header, len, offload, source: segment }
    })
}

/// Whether the sender left no offload to do.
#[inline]
pub(crate) fn is_plain(offload: Offload) -> bool {
    offload.flags | offload.gso_type == 0
}

/// Whether the receiver accepts the frame with its offloads pending.
#[inline(always)]
fn is_taken_as_it_is(offload: Offload, capabilities: Capabilities) -> bool {
    (!offload.needs_csum() || capabilities.csum) && (!offload.is_gso() || capabilities.takes_gso(offload))
}

/// Copies frames into their buffers, up to the first that cannot be copied.
#[inline]
fn copy_all<'h>(
    source: &MemoryMap,
    frames: impl Iterator<Item = UsualFrame<'h>> + Clone,
    buffers: &[Buffer<'_>],
) -> Delivered {
    // The buffers of a guest are alike.
    let compare = buffers.first().is_some_and(|buffer| buffer.place.header_ends_line::<HEADER_BYTES>());
    let mut copied = match compare {
        true => copy_short::<true>(frames.clone(), buffers),
        false => copy_short::<false>(frames.clone(), buffers),
    };
    let done = copied.packets as usize;
    if done < buffers.len() {
        copied.add(&copy_any(source, frames.skip(done), &buffers[done..]));
    }
    copied
}

/// As [`copy_all`], up to the first frame that is not wholly in its image, or that is GSO.
// Not inlined, and without calls, so that the loop has all registers.
#[inline(never)]
fn copy_short<'h, const COMPARE: bool>(
    frames: impl Iterator<Item = UsualFrame<'h>>,
    buffers: &[Buffer<'_>],
) -> Delivered {
    let (mut packets, mut bytes) = (0, 0);
    for (buffer, frame) in buffers.iter().zip(frames) {
        let vnet = match is_plain(frame.offload) {
            true => PLAIN,
            false => as_received(frame.offload).emit(1),
        };
        if frame.source.is_none()
            || frame.offload.is_gso()
            || !buffer.place.fill_with(&vnet, frame.header.bytes(), COMPARE)
        {
            break;
        }
        packets += 1;
        bytes += u64::from(buffer.place.len_bytes());
    }
    Delivered { packets, bytes: bytes - HEADER_BYTES as u64 * packets, gso_packets: 0, csum_completed: 0 }
}

/// As [`copy_all`], for any frames.
#[inline(never)]
fn copy_any<'h>(
    source: &MemoryMap,
    frames: impl Iterator<Item = UsualFrame<'h>>,
    buffers: &[Buffer<'_>],
) -> Delivered {
    let (mut packets, mut bytes, mut gso_packets) = (0, 0, 0);
    for (buffer, frame) in buffers.iter().zip(frames) {
        let Some(segment) = frame.source else { break };
        if write(buffer.place, (source, segment), frame.header, frame.offload).is_err() {
            break;
        }
        packets += 1;
        bytes += u64::from(buffer.place.len_bytes());
        gso_packets += u64::from(frame.offload.is_gso());
    }
    Delivered { packets, bytes: bytes - HEADER_BYTES as u64 * packets, gso_packets, csum_completed: 0 }
}

/// Copies a frame into the buffer that it fills.
#[inline(always)]
pub(crate) fn write(
    place: Place<'_>,
    (map, segment): (&MemoryMap, Segment),
    header: &Header,
    offload: Offload,
) -> Result<(), StaleSegment> {
    let (image, payload) = (header.bytes(), place.len_bytes() as usize - HEADER_BYTES);
    let image = &image[..image.len().min(payload)];
    let rest = Rest { map, segment, skip: HEADER_BYTES as u32 + header.covers_bytes() };
    match is_plain(offload) {
        true => place.fill(&PLAIN, image, rest),
        false => write_with(place, offload, image, rest),
    }
}

/// As [`write`], for a frame whose offloads the receiver does.
#[inline(never)]
fn write_with(place: Place<'_>, offload: Offload, image: &[u8], rest: Rest<'_>) -> Result<(), StaleSegment> {
    place.fill(&as_received(offload).emit(1), image, rest)
}

/// Takes the buffers from the ring and writes their used entries.
#[inline]
fn complete(ring: &mut DeviceRing, filled: impl ExactSizeIterator<Item = (u16, u32)>) {
    ring.take(filled.len() as u16); // at most a batch
    ring.complete_all(filled);
}

impl ReservedFrame {
    /// The counts of this frame once it is written.
    #[inline]
    pub(crate) fn delivered(&self) -> Delivered {
        let bytes = u64::from(self.target.len) - HEADER_BYTES as u64;
        Delivered { packets: 1, bytes, gso_packets: u64::from(self.is_gso), csum_completed: 0 }
    }

    /// Copies the frame into its buffer.
    #[inline]
    pub(crate) fn write(
        &self,
        map: &MemoryMap,
        source: &MemoryMap,
        header: &Header,
    ) -> Result<(), StaleSegment> {
        // A truncated frame has lost its metadata.
        let is_whole = self.delivered().bytes == u64::from(header.frame_len_bytes());
        let offload = if is_whole { header.offload } else { Offload::default() };
        write(map.place(self.target)?, (source, self.source), header, offload)
    }
}
