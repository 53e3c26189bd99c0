//! Puts one frame into one receive ring: reserves buffers, copies, publishes. Does offloads in software that the
//! receiver did not negotiate.

use std::ops::Range;

use lasthop_guestmem::{Cursor, MemoryMap, Segment, StaleSegment};
use lasthop_module_api::{DropReason, IMAGE_BYTES};
use lasthop_ring::RingError;
use lasthop_wire::tunnel::TUNNEL_BYTES;
use lasthop_wire::vnet::{F_NEEDS_CSUM, GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, HEADER_BYTES};
use lasthop_wire::{Fragmentation, Offload, Segmentation, Sum};

use crate::Capabilities;
use crate::frame::Frame;
use crate::reference::{Attempt, Delivered, Outcome};
use crate::rx::receive_ring::RxQueue;
use crate::rx::reservation::{Refusal, Reservation};

/// A receive ring, its guest's memory and capabilities, and the worker's scratch memory.
pub(crate) struct Delivery<'a> {
    pub(crate) queue: &'a mut RxQueue,
    pub(crate) map: &'a MemoryMap,
    pub(crate) capabilities: Capabilities,
    pub(crate) delivered: &'a mut Delivered,
    pub(crate) reservation: &'a mut Reservation,
    /// Whether the buffers are read before they are written.
    pub(crate) is_metered: bool,
}

/// The reason why a packet was not written.
enum Failure {
    NoBuffers(u16),
    Drop(DropReason),
    Broken(RingError),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NoBuffers(seen) => Self::NoBuffers(seen),
            Refusal::TooSmall => Self::Drop(DropReason::RxBufferSmall),
            Refusal::Broken(error) => Self::Broken(error),
        }
    }
}

impl From<StaleSegment> for Failure {
    fn from(_: StaleSegment) -> Self {
        Self::Drop(DropReason::Recalled)
    }
}

/// The source of the bytes of one delivered packet.
enum Body<'a> {
    /// The frame as it is.
    Whole,
    /// New headers, then bytes `.0` to `.1` of the frame.
    Segment(&'a [u8], u32, u32),
}

impl Body<'_> {
    /// Bytes of the packet.
    #[inline]
    fn len(&self, frame: &Frame<'_>) -> u32 {
        match *self {
            Body::Whole => frame.len,
            Body::Segment(head, from, to) => head.len() as u32 + (to - from),
        }
    }
}

impl Delivery<'_> {
    /// Delivers `frame`. A frame that needs segmentation continues at segment `next_segment`, which is advanced.
    #[inline]
    pub(crate) fn deliver(&mut self, frame: &Frame<'_>, next_segment: &mut u32) -> Attempt {
        let is_gso = frame.offload.is_gso();
        if is_gso && (*next_segment > 0 || !self.capabilities.takes_gso(frame.offload)) {
            return self.deliver_segments(frame, next_segment);
        }
        match self.write(frame, frame.offload, &Body::Whole) {
            Ok(()) => Attempt { outcome: Outcome::Done, delivered: 1 },
            // A small ring never has room for 64 KiB, but the segments may fit.
            Err(Failure::Drop(DropReason::RxBufferSmall)) if is_gso => {
                self.deliver_segments(frame, next_segment)
            }
            Err(failure) => Attempt { outcome: self.outcome(failure), delivered: 0 },
        }
    }

    fn outcome(&mut self, failure: Failure) -> Outcome {
        match failure {
            Failure::NoBuffers(seen) => {
                self.queue.seen_available = seen;
                Outcome::Wait
            }
            Failure::Drop(reason) => Outcome::Drop(reason),
            Failure::Broken(error) => {
                self.queue.broken = Some(error);
                Outcome::Drop(DropReason::RxRingBroken)
            }
        }
    }

    fn deliver_segments(&mut self, frame: &Frame<'_>, next_segment: &mut u32) -> Attempt {
        let mut out = [0; IMAGE_BYTES]; // the header image of a segment
        let first = *next_segment;
        let result = match frame.offload.is_fragmented() {
            true => self.write_fragments(frame, next_segment, &mut out),
            false => self.write_segments(frame, next_segment, &mut out),
        };
        let outcome = match result {
            Ok(()) => Outcome::Done,
            Err(failure) => self.outcome(failure),
        };
        Attempt { outcome, delivered: *next_segment - first }
    }

    fn write_segments(
        &mut self,
        frame: &Frame<'_>,
        next_segment: &mut u32,
        out: &mut [u8],
    ) -> Result<(), Failure> {
        // Headers beyond the image would have to be read again at each attempt, and the guest could change them.
        let head = frame.header.bytes();
        let plan = Segmentation::plan(head, &frame.offload, frame.len)
            .map_err(|_| Failure::Drop(DropReason::BadGso))?;
        let out = out.get_mut(..plan.header_len() as usize).ok_or(Failure::Drop(DropReason::BadGso))?;
        while *next_segment < plan.count() {
            let payload = plan.payload(*next_segment);
            let offload = plan.write_header(*next_segment, head, out);
            self.write(frame, offload, &Body::Segment(out, payload.start, payload.end))?;
            *next_segment += 1;
        }
        Ok(())
    }

    #[cold]
    fn write_fragments(
        &mut self,
        frame: &Frame<'_>,
        next_fragment: &mut u32,
        out: &mut [u8],
    ) -> Result<(), Failure> {
        let head = frame.header.bytes();
        let impossible = || Failure::Drop(DropReason::BadGso);
        let plan = Fragmentation::plan(head, &frame.offload, frame.len).map_err(|_| impossible())?;
        let out = out.get_mut(..plan.header_len() as usize).ok_or_else(impossible)?;
        while *next_fragment < plan.count() {
            let payload = plan.payload(*next_fragment);
            plan.write_header(*next_fragment, head, out);
            self.write(frame, Offload::default(), &Body::Segment(out, payload.start, payload.end))?;
            *next_fragment += 1;
        }
        Ok(())
    }

    /// Reserves, copies and completes one packet.
    #[inline]
    fn write(&mut self, frame: &Frame<'_>, offload: Offload, body: &Body<'_>) -> Result<(), Failure> {
        let header_bytes = self.capabilities.header_bytes;
        let len = body.len(frame);
        let reservation = &mut *self.reservation;
        let (ring, hint) = (&mut self.queue.ring, &mut self.queue.hint);
        reservation.take(ring, self.map, hint, header_bytes as u32 + len, self.capabilities.mergeable)?;
        let complete_csum = self.capabilities.lack_csum(offload);
        let buffers =
            Buffers { segments: reservation.segments(), count: reservation.buffers(), header_bytes };
        if self.is_metered {
            touch(self.map, buffers.segments);
        }
        if let Err(stale) = copy_out(self.map, &buffers, frame, offload, body, complete_csum) {
            reservation.put_back(ring);
            return Err(stale.into());
        }
        reservation.complete(ring);
        self.queue.note_filled();
        self.delivered.packets += 1;
        self.delivered.bytes += u64::from(len);
        self.delivered.gso_packets += u64::from(offload.is_gso());
        self.delivered.csum_completed += u64::from(complete_csum);
        Ok(())
    }
}

/// The buffers that one packet is copied to.
pub(crate) struct Buffers<'a> {
    pub(crate) segments: &'a [Segment],
    /// Number of receive buffers: the header's `num_buffers`.
    pub(crate) count: u16,
    pub(crate) header_bytes: usize,
}

impl Buffers<'_> {
    /// Copies a frame that needs no segmentation. Does not need the claim.
    pub(crate) fn fill(
        &self,
        map: &MemoryMap,
        capabilities: Capabilities,
        frame: &Frame<'_>,
    ) -> Result<Delivered, StaleSegment> {
        self.fill_with(map, capabilities, frame, (frame.offload, &Body::Whole))
    }

    /// Copies a segment of a frame: `head`, then the bytes `payload` of the frame. Does not need the claim.
    pub(crate) fn fill_segment(
        &self,
        map: &MemoryMap,
        capabilities: Capabilities,
        frame: &Frame<'_>,
        offload: Offload,
        (head, payload): (&[u8], Range<u32>),
    ) -> Result<Delivered, StaleSegment> {
        let body = Body::Segment(head, payload.start, payload.end);
        self.fill_with(map, capabilities, frame, (offload, &body))
    }

    fn fill_with(
        &self,
        map: &MemoryMap,
        capabilities: Capabilities,
        frame: &Frame<'_>,
        (offload, body): (Offload, &Body<'_>),
    ) -> Result<Delivered, StaleSegment> {
        let complete_csum = capabilities.lack_csum(offload);
        copy_out(map, self, frame, offload, body, complete_csum)?;
        Ok(Delivered {
            packets: 1,
            bytes: u64::from(body.len(frame)),
            gso_packets: u64::from(offload.is_gso()),
            csum_completed: u64::from(complete_csum),
        })
    }
}

/// Reads a byte of each page of the buffers. A page fault by a read maps the pages around it that are in memory, 64 KiB by
/// default (`fault_around_bytes` of the kernel), and one by a write maps a single page.
#[cold]
fn touch(map: &MemoryMap, segments: &[Segment]) {
    segments.iter().for_each(|segment| map.touch(*segment));
}

/// Writes virtio-net header and packet into the reserved buffers.
#[inline]
fn copy_out(
    map: &MemoryMap,
    buffers: &Buffers<'_>,
    frame: &Frame<'_>,
    offload: Offload,
    body: &Body<'_>,
    complete_csum: bool,
) -> Result<(), StaleSegment> {
    let mut target = Cursor::new(map, buffers.segments);
    let shown = if complete_csum { Offload::default() } else { as_received(offload) };
    let vnet = shown.emit(buffers.count);
    match vnet.get(..buffers.header_bytes) {
        Some(vnet) => target.write(vnet)?,
        None => write_tunnelled(&mut target, &vnet, frame)?,
    };
    let packet = target;
    if !complete_csum {
        return match *body {
            Body::Whole => frame.copy_range(0, frame.len, &mut target, None),
            Body::Segment(head, from, to) => {
                target.write(head)?;
                frame.copy_range(from, to, &mut target, None)
            }
        };
    }
    let mut sum = Sum::default();
    let start = u32::from(offload.csum_start);
    match *body {
        Body::Whole => {
            frame.copy_range(0, start, &mut target, None)?;
            frame.copy_range(start, frame.len, &mut target, Some(&mut sum))?;
        }
        Body::Segment(head, from, to) => {
            target.write(head)?;
            sum.add(head.get(start as usize..).unwrap_or_default());
            frame.copy_range(from, to, &mut target, Some(&mut sum))?;
        }
    }
    store_checksum(packet, offload, sum)
}

/// Writes the virtio-net header and the tunnel metadata behind it. If no action set a tunnel, the packet's own one is
/// written, if any.
#[cold]
fn write_tunnelled(
    target: &mut Cursor<'_>,
    vnet: &[u8; HEADER_BYTES],
    frame: &Frame<'_>,
) -> Result<usize, StaleSegment> {
    let (tunnel, mut place) = (frame.header.tunnel(), [0; TUNNEL_BYTES]);
    place.iter_mut().zip(tunnel).for_each(|(place, byte)| *place = *byte);
    target.write(vnet)?;
    target.write(&place)
}

/// Puts the completed checksum into the receiver's copy.
fn store_checksum(mut packet: Cursor<'_>, offload: Offload, sum: Sum) -> Result<(), StaleSegment> {
    packet.advance(usize::from(offload.csum_start) + usize::from(offload.csum_offset));
    packet.write(&sum.complete(&offload).to_be_bytes()).map(|_| ())
}

/// The metadata for a receiver, without facts that only the sender claims.
#[inline]
pub(crate) fn as_received(offload: Offload) -> Offload {
    if offload.needs_csum() { Offload { flags: F_NEEDS_CSUM, ..offload } } else { Offload::default() }
}

impl Capabilities {
    /// Whether the checksum of a frame is completed for the receiver. A tunnel's end gets partial checksums of large frames only:
    /// those of others cost less while they are copied than later.
    #[inline(always)]
    fn lack_csum(&self, offload: Offload) -> bool {
        let is_tunnel = self.header_bytes > HEADER_BYTES;
        offload.needs_csum() && (!self.csum || (is_tunnel && !offload.is_gso()))
    }

    /// Whether checksums are completed for the receiver, of the frame or of its segments.
    pub(crate) fn sums(&self, offload: Offload) -> bool {
        self.lack_csum(offload) || (self.cuts(offload) && !self.csum)
    }

    /// Whether a frame is cut into segments for the receiver.
    #[inline]
    pub(crate) fn cuts(&self, offload: Offload) -> bool {
        offload.is_gso() && !self.takes_gso(offload)
    }

    /// Whether the receiver takes this GSO frame as it is.
    #[inline(always)] // left to itself the compiler calls it, which takes registers from loops
    pub(crate) fn takes_gso(&self, offload: Offload) -> bool {
        let kind = match offload.gso_kind() {
            GSO_TCPV4 => self.tso4,
            GSO_TCPV6 => self.tso6,
            GSO_UDP_L4 => self.uso,
            _ => false,
        };
        kind && self.csum && (self.ecn || offload.gso_type & GSO_ECN == 0)
    }
}
