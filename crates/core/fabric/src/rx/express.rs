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
///   ahead:   head, ask for the descriptor                      x n
///   reserve: descriptor, check, translate, ask for the lines   x n   (cache misses side by side)
///   copy:    header, image, rest                               x n
///   complete: used entries                                     x n   published later, by one index store
/// ```
#[derive(Debug)]
pub(crate) struct Express {
    /// Of the next buffers.
    heads: [u16; BATCH_PACKETS_MAX],
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
        Self { heads: [0; BATCH_PACKETS_MAX], places: [ReservedFrame::default(); BATCH_PACKETS_MAX] }
    }
}

impl Express {
    /// Delivers the first of `frames`, which lie in the memory `source`, up to the first that is not a usual one or finds no buffer; how
    /// many. The others are for [`crate::rx::deliver::Delivery`].
    #[inline]
    pub(crate) fn run<'h>(
        &mut self,
        queue: &mut RxQueue,
        (map, capabilities): (&MemoryMap, Capabilities),
        (source, frames): (&MemoryMap, impl ExactSizeIterator<Item = UsualFrame<'h>> + Clone),
        stages: &Stages,
    ) -> Delivered {
        let reserved = self.reserve(queue, (map, capabilities), frames.clone());
        stages.mark(WorkStage::Queue);
        let places = &self.places[..reserved];
        let copied = copy_all(map, source, frames.map(|frame| frame.header), places);
        stages.mark(WorkStage::Copy);
        complete(&mut queue.ring, &places[..copied.packets as usize]);
        queue.note_filled();
        copied
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
        let reserved = self.reserve(queue, to, copied_from(source, copies));
        let places = &self.places[..reserved];
        complete(&mut queue.ring, places);
        places
    }

    /// Finds buffers for the first of `frames`, a batch at most, and asks for their lines; how many.
    // A function of its own: the loop has the registers to itself.
    #[inline(never)]
    fn reserve<'h>(
        &mut self,
        queue: &mut RxQueue,
        (map, capabilities): (&MemoryMap, Capabilities),
        frames: impl ExactSizeIterator<Item = UsualFrame<'h>>,
    ) -> usize {
        if capabilities.header_bytes != HEADER_BYTES {
            return 0;
        }
        // An invalid index or head is found and reported by the slow path, which takes all packets.
        let pending = usize::from(queue.ring.pending().unwrap_or_default());
        let wanted = pending.min(frames.len()).min(BATCH_PACKETS_MAX);
        let (found, _) = queue.ring.read_heads(&mut self.heads[..wanted]);
        let mut count = 0;
        for ((head, place), frame) in self.heads[..found].iter().zip(&mut self.places).zip(frames) {
            let Some(source) = frame.source else { break };
            let descriptor = queue.ring.descriptor(*head);
            if descriptor.flags != DESC_WRITE {
                break;
            }
            let target = map.translate_whole(descriptor.addr, descriptor.len, &mut queue.hint);
            let Some(target) = target else { break };
            let len = HEADER_BYTES as u32 + frame.len;
            if target.len < len
                || !(is_plain(frame.offload) || is_taken_as_it_is(frame.offload, capabilities))
            {
                break;
            }
            map.prefetch_write(target, len);
            *place = ReservedFrame { head: *head, len, target, source, is_gso: frame.offload.is_gso() };
            count += 1;
        }
        count
    }
}

/// A frame that may be a usual one.
#[derive(Clone, Copy)]
pub(crate) struct UsualFrame<'h> {
    pub(crate) header: &'h Header,
    /// Bytes to deliver.
    pub(crate) len: u32,
    pub(crate) offload: Offload,
    /// Where it lies, if that is one piece.
    pub(crate) source: Option<Segment>,
}

/// Frames of packets that are listed.
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
fn copy_all<'h>(
    map: &MemoryMap,
    source: &MemoryMap,
    headers: impl Iterator<Item = &'h Header>,
    places: &[ReservedFrame],
) -> Delivered {
    let (mut packets, mut bytes, mut gso_packets) = (0, 0, 0);
    for (place, header) in places.iter().zip(headers) {
        if place.write(map, source, header).is_err() {
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
    ring.complete_all(places.iter().map(|place| (place.head, place.len)));
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
        source: &MemoryMap,
        header: &Header,
    ) -> Result<(), StaleSegment> {
        let image = header.bytes();
        let payload = self.len as usize - HEADER_BYTES;
        let image = &image[..image.len().min(payload)];
        let rest = Rest {
            map: source,
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
