//! The usual delivery, a batch at a time: frames in one piece, into receive buffers in one piece, as they are.

use lasthop_guestmem::{MemoryMap, Rest, Segment, StaleSegment};
use lasthop_module_api::{BATCH_PACKETS_MAX, Header};
use lasthop_ring::{DESC_WRITE, DeviceRing};
use lasthop_wire::Offload;
use lasthop_wire::vnet::HEADER_BYTES;

use crate::Capabilities;
use crate::frame::{Source, shape};
use crate::reference::{Delivered, PacketCopy};
use crate::rx::deliver::as_received;
use crate::rx::receive_ring::RxQueue;
use crate::stages::{Stages, WorkStage};

/// The virtio-net header of a frame to which nothing is left to be done, in one buffer.
const PLAIN: [u8; HEADER_BYTES] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];

/// Buffers reserved for the first packets of a list, with their frames.
///
/// ```text
///   reserve: descriptor, check, translate, ask for the lines   x n   (cache misses side by side)
///   copy:    header, image, rest                               x n
///   complete: used entries                                     x n   published later, by one index store
/// ```
#[derive(Debug)]
pub(crate) struct Express {
    places: [ReservedFrame; BATCH_PACKETS_MAX],
}

/// A receive buffer, and the frame that it is for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReservedFrame {
    head: u16,
    len: u32,
    target: Segment,
    source: Segment,
    is_gso: bool,
}

impl Default for Express {
    fn default() -> Self {
        Self { places: [ReservedFrame::default(); BATCH_PACKETS_MAX] }
    }
}

impl Express {
    /// Delivers the first of `copies`, up to the first that is not a usual one or finds no buffer; how many. The others
    /// are for [`crate::rx::deliver::Delivery`].
    #[inline]
    pub(crate) fn run(
        &mut self,
        queue: &mut RxQueue,
        (map, capabilities): (&MemoryMap, Capabilities),
        source: &Source<'_>,
        copies: &[PacketCopy<'_>],
        (delivered, stages): (&mut Delivered, &Stages),
    ) -> usize {
        let reserved = self.reserve(queue, (map, capabilities), source, copies);
        stages.mark(WorkStage::Queue);
        let places = &self.places[..reserved];
        let copied = copy_all(map, source, copies, places);
        stages.mark(WorkStage::Copy);
        complete(&mut queue.ring, &places[..copied.packets as usize]);
        queue.note_filled();
        delivered.add(&copied);
        copied.packets as usize
    }

    /// As `run`, without the copying: used entries are written, the frames are to follow before they are published.
    #[inline]
    pub(crate) fn lease(
        &mut self,
        queue: &mut RxQueue,
        to: (&MemoryMap, Capabilities),
        source: &Source<'_>,
        copies: &[PacketCopy<'_>],
    ) -> &[ReservedFrame] {
        let reserved = self.reserve(queue, to, source, copies);
        let places = &self.places[..reserved];
        complete(&mut queue.ring, places);
        places
    }

    /// Finds buffers, and asks for their lines. A function of its own: the loop has the registers to itself.
    #[inline(never)]
    fn reserve(
        &mut self,
        queue: &mut RxQueue,
        (map, capabilities): (&MemoryMap, Capabilities),
        source: &Source<'_>,
        copies: &[PacketCopy<'_>],
    ) -> usize {
        if capabilities.header_bytes != HEADER_BYTES || source.vnet_bytes() != HEADER_BYTES {
            return 0;
        }
        // An invalid index is found and reported by the slow path, which takes all packets.
        let pending = usize::from(queue.ring.pending().unwrap_or_default());
        let count = pending.min(copies.len()).min(BATCH_PACKETS_MAX);
        for (ahead, (copy, place)) in copies[..count].iter().zip(&mut self.places).enumerate() {
            let (len, offload) = shape(copy.header, copy.truncate_len_bytes);
            let buffer = buffer(&queue.ring, map, &mut queue.hint, ahead as u16);
            let (Some((head, target)), Some(source)) = (buffer, source.only_segment(copy.packet)) else {
                return ahead;
            };
            let len = HEADER_BYTES as u32 + len;
            if target.len < len || !(is_plain(offload) || is_taken_as_it_is(offload, capabilities)) {
                return ahead;
            }
            map.prefetch_write(target, len);
            *place = ReservedFrame { head, len, target, source, is_gso: offload.is_gso() };
        }
        count
    }
}

/// Whether the sender has left nothing to be done.
#[inline]
fn is_plain(offload: Offload) -> bool {
    offload.flags | offload.gso_type == 0
}

/// Whether the receiver accepts the frame with its offloads undone.
fn is_taken_as_it_is(offload: Offload, capabilities: Capabilities) -> bool {
    (!offload.needs_csum() || capabilities.csum) && (!offload.is_gso() || capabilities.takes_gso(offload))
}

/// Copies frames into their buffers, up to the first that cannot be copied.
#[inline(never)]
fn copy_all(
    map: &MemoryMap,
    source: &Source<'_>,
    copies: &[PacketCopy<'_>],
    places: &[ReservedFrame],
) -> Delivered {
    let (mut packets, mut bytes, mut gso_packets) = (0, 0, 0);
    for (copy, place) in copies.iter().zip(places) {
        if place.write(map, source, copy.header).is_err() {
            break;
        }
        packets += 1;
        bytes += u64::from(place.len) - HEADER_BYTES as u64;
        gso_packets += u64::from(place.is_gso);
    }
    Delivered { packets, bytes, gso_packets, csum_completed: 0 }
}

/// Takes the buffers and writes their used entries.
#[inline]
fn complete(ring: &mut DeviceRing, places: &[ReservedFrame]) {
    ring.take(places.len() as u16); // at most a batch
    for place in places {
        ring.complete(place.head, place.len);
    }
}

impl ReservedFrame {
    /// The counters of this frame once it is written.
    #[inline]
    pub(crate) fn delivered(&self) -> Delivered {
        let bytes = u64::from(self.len) - HEADER_BYTES as u64;
        Delivered { packets: 1, bytes, gso_packets: u64::from(self.is_gso), csum_completed: 0 }
    }

    /// Copies the frame into its buffer.
    #[inline(always)]
    pub(crate) fn write(
        &self,
        map: &MemoryMap,
        source: &Source<'_>,
        header: &Header,
    ) -> Result<(), StaleSegment> {
        let image = header.bytes();
        let payload = self.len as usize - HEADER_BYTES;
        let image = &image[..image.len().min(payload)];
        let rest = Rest {
            map: source.map(),
            segment: self.source,
            skip: HEADER_BYTES as u32 + header.covers_bytes(),
            len: payload - image.len(),
        };
        // A truncated frame has lost its metadata.
        let offload =
            if payload == header.frame_len_bytes() as usize { header.offload } else { Offload::default() };
        if is_plain(offload) {
            return map.write_frame(self.target, &PLAIN, image, rest);
        }
        map.write_frame(self.target, &as_received(offload).emit(1), image, rest)
    }
}

/// Receive buffer `ahead`, if it is one whole piece of memory.
#[inline]
fn buffer(ring: &DeviceRing, map: &MemoryMap, hint: &mut u16, ahead: u16) -> Option<(u16, Segment)> {
    let head = ring.head(ahead).ok()?;
    let descriptor = ring.descriptor(head);
    if descriptor.flags != DESC_WRITE {
        return None;
    }
    Some((head, map.translate_whole(descriptor.addr, descriptor.len, hint)?))
}
