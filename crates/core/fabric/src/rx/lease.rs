//! Copies made without the claim, so that several workers copy into one ring at the same time.
//!
//! ```text
//!   under the claim      used ring  [ published | A A A | B B | ... ]     entries are written when buffers are reserved
//!   without it           A copies, B copies                               in any order
//!   under the claim      A finished? publish A, then B if finished too    in the order of reservation
//! ```

use std::ops::Range;

use lasthop_guestmem::Segment;
use lasthop_module_api::{BATCH_PACKETS_MAX, DropReason, Header};

use crate::RingId;
use crate::bounds::{LEASE_PACKETS_MAX, LEASE_SEGMENTS_MAX, PACKET_BUFFER_SEGMENTS_MAX};
use crate::reference::{Attempt, Delivered, Outcome, PacketCopy, PacketRef};
use crate::rx::deliver::Buffers;
use crate::rx::express::ReservedFrame;
use crate::rx::receive_ring::ReceiveRing;
use crate::rx::reservation::Reservation;
use crate::side_table::SegmentBuffer;
use crate::tx::senders::Senders;

/// One packet with reserved buffers, to be copied.
#[derive(Debug)]
struct Item {
    ring: RingId,
    packet: PacketRef,
    image: u16,
    truncate_len_bytes: u32,
    buffers: u16,
    segments: Range<usize>,
    result: Result<Delivered, DropReason>,
}

/// A frame that is copied unchanged, and its one buffer.
#[derive(Debug)]
struct Usual {
    ring: RingId,
    packet: PacketRef,
    image: u16,
    place: ReservedFrame,
    is_copied: bool,
}

/// The reservations of one visit of a worker. Their memory is allocated once, at the start.
#[derive(Debug)]
pub(crate) struct Leases {
    usual: Vec<Usual>,
    items: Vec<Item>,
    segments: Vec<Segment>,
    rings: Vec<RingId>,
    /// Rings at which large frames of the visit wait, for this worker and a helper.
    shared: Vec<RingId>,
    /// Length of both lists.
    work: usize,
    /// Reservations are off.
    pub(crate) is_off: bool,
}

impl Leases {
    /// Allocates room for a visit. A worker that is alone needs none: it copies when it reserves.
    pub(crate) fn new(workers: usize) -> Self {
        let room = |entries| if workers > 1 { entries } else { 0 };
        Self {
            usual: Vec::with_capacity(room(LEASE_PACKETS_MAX)),
            items: Vec::with_capacity(room(LEASE_PACKETS_MAX)),
            segments: Vec::with_capacity(room(LEASE_SEGMENTS_MAX)),
            rings: Vec::with_capacity(room(2 * LEASE_PACKETS_MAX)), // each may have one packet, of either kind
            shared: Vec::with_capacity(room(BATCH_PACKETS_MAX)),    // beyond them the home copies alone
            work: 0,
            is_off: false,
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.work == 0
    }

    /// Number of usual frames that still fit.
    pub(crate) fn usual_room(&self) -> usize {
        self.usual.capacity() - self.usual.len()
    }

    /// Adds the first of `copies`, with the buffers `places`.
    #[inline]
    pub(crate) fn enter_usual(&mut self, ring: RingId, copies: &[PacketCopy<'_>], places: &[ReservedFrame]) {
        self.usual.extend(copies.iter().zip(places).map(|(copy, place)| Usual {
            ring,
            packet: copy.packet,
            image: copy.image,
            place: *place,
            is_copied: false,
        }));
    }

    pub(crate) fn has_room(&self) -> bool {
        self.items.len() < self.items.capacity()
            && self.segments.len() + PACKET_BUFFER_SEGMENTS_MAX <= self.segments.capacity()
    }

    /// Adds a packet with reserved buffers.
    pub(crate) fn enter(&mut self, ring: RingId, copy: &PacketCopy<'_>, reservation: &Reservation) {
        let from = self.segments.len();
        self.segments.extend_from_slice(reservation.segments());
        self.items.push(Item {
            ring,
            packet: copy.packet,
            image: copy.image,
            truncate_len_bytes: copy.truncate_len_bytes,
            buffers: reservation.buffers(),
            segments: from..self.segments.len(),
            result: Err(DropReason::Recalled),
        });
    }

    /// Notes that buffers of `ring` were reserved.
    pub(crate) fn begin(&mut self, ring: RingId) {
        self.rings.push(ring);
        self.work += 1;
    }

    /// The rings of which buffers were reserved, each once.
    pub(crate) fn rings(&self) -> &[RingId] {
        &self.rings
    }

    pub(crate) fn next_ring(&mut self) -> Option<RingId> {
        let ring = self.rings.pop()?;
        self.work -= 1;
        Some(ring)
    }

    /// Whether there is room for one more ring with large frames.
    pub(crate) fn can_share(&self) -> bool {
        self.shared.len() < self.shared.capacity()
    }

    /// Notes that large frames wait at `ring`.
    pub(crate) fn share(&mut self, ring: RingId) {
        self.shared.push(ring);
        self.work += 1;
    }

    pub(crate) fn next_shared(&mut self) -> Option<RingId> {
        let ring = self.shared.pop()?;
        self.work -= 1;
        Some(ring)
    }

    /// Copies all reserved packets.
    pub(crate) fn copy<'a>(
        &mut self,
        senders: &Senders,
        headers: &[Header],
        buffer: &mut SegmentBuffer,
        place: impl Fn(RingId) -> Option<&'a ReceiveRing>,
    ) {
        for group in self.usual.chunk_by_mut(|one, next| one.ring == next.ring) {
            let first = &group[0];
            let (Some(to), Some(source)) = (place(first.ring), senders.source(first.packet)) else {
                continue;
            };
            for usual in group {
                let header = &headers[usize::from(usual.image)];
                usual.is_copied = usual.place.write(&to.map, source.map(), header).is_ok();
            }
        }
        for item in &mut self.items {
            let delivered = place(item.ring).and_then(|place| {
                let header = &headers[usize::from(item.image)];
                let source = senders.source(item.packet)?;
                let frame = source.frame(item.packet, header, item.truncate_len_bytes, buffer)?;
                let segments = &self.segments[item.segments.clone()];
                let header_bytes = place.capabilities.header_bytes;
                let buffers = Buffers { segments, count: item.buffers, header_bytes };
                buffers.fill(&place.map, place.capabilities, &frame).ok()
            });
            // Neither memory can have changed since the reservation: no task runs during a visit.
            debug_assert!(delivered.is_some(), "a reserved packet can be copied");
            item.result = delivered.ok_or(DropReason::Recalled);
        }
    }

    /// One of the visit's packets; all come from one ring.
    pub(crate) fn first_packet(&self) -> Option<PacketRef> {
        let usual = self.usual.first().map(|usual| usual.packet);
        usual.or_else(|| self.items.first().map(|item| item.packet))
    }

    /// The result of each packet: delivered, or dropped.
    pub(crate) fn results(&self) -> impl Iterator<Item = (RingId, Result<Delivered, DropReason>)> + '_ {
        let usual = self.usual.iter().map(|usual| {
            let delivered = usual.place.delivered();
            (usual.ring, usual.is_copied.then_some(delivered).ok_or(DropReason::Recalled))
        });
        usual.chain(self.items.iter().map(|item| (item.ring, item.result)))
    }

    /// Shows captures the delivered and dropped packets.
    #[cold]
    pub(crate) fn tap(&self, senders: &mut Senders, headers: &[Header]) {
        for Usual { ring, packet, image, place, is_copied } in &self.usual {
            let header = &headers[usize::from(*image)];
            let truncate_len_bytes = place.delivered().bytes as u32; // of a frame, so it fits
            let copy = PacketCopy { packet: *packet, header, truncate_len_bytes, image: *image };
            let outcome = if *is_copied { Outcome::Done } else { Outcome::Drop(DropReason::Recalled) };
            senders.tap_copy(ring.port, &copy, outcome);
        }
        for item in &self.items {
            let Item { packet, image, truncate_len_bytes, .. } = *item;
            let copy = PacketCopy { packet, header: &headers[usize::from(image)], truncate_len_bytes, image };
            let outcome = item.result.map_or_else(Outcome::Drop, |_| Outcome::Done);
            senders.tap_copy(item.ring.port, &copy, outcome);
        }
    }

    /// Settles all packets and frees the room. All are copied and published.
    pub(crate) fn settle(&mut self, senders: &mut Senders) {
        let attempt = |result: Result<Delivered, DropReason>| match result {
            Ok(_) => Attempt { outcome: Outcome::Done, delivered: 1 },
            Err(reason) => Attempt::dropped(reason),
        };
        let outcome = |usual: &Usual| match usual.is_copied {
            true => Attempt { outcome: Outcome::Done, delivered: 1 },
            false => Attempt::dropped(DropReason::Recalled),
        };
        senders.settle_all(self.usual.iter().map(|usual| (usual.packet, outcome(usual))));
        senders.settle_all(self.items.iter().map(|item| (item.packet, attempt(item.result))));
        self.usual.clear();
        self.items.clear();
        self.segments.clear();
    }
}
