//! The tunnel's end cuts TSO and USO frames into datagrams, and completes partial checksums, which the switch leaves to it. The segments are those that
//! the switch would make (`lasthop_wire::gso`), byte by byte.
//!
//! ```text
//!   frame       | headers | payload 1 | payload 2 | payload 3 |                 in the vNIC's memory, in buffers of the ring
//!   datagrams   [ tunnel, headers 1 ] payload 1   [ tunnel, headers 2 ] payload 2   ...
//!                 in the outbox       where it is                                     summed, and not copied
//! ```

use lasthop_device::DeviceDropReason;
use lasthop_frontend::VnicPair;
use lasthop_guestmem::StaleSegment;
use lasthop_wire::{Offload, Segmentation, Sum, check_partial};

use super::arena::{SpanCursor, add_span, read_start, write_at};
use super::departures::{Departures, Spans};
use crate::bounds::INNER_BYTES_MAX;
use crate::sys::Span;

/// Whether a frame could be entered, or why it is lost.
type Entered = Result<(), DeviceDropReason>;

impl Departures {
    /// Enters the last frame, which lies in these spans, after doing what its virtio-net header asks for.
    pub(super) fn enter_offloaded(
        &mut self,
        head: &[u8],
        offload: Offload,
        spans: &Spans,
        pair: &VnicPair,
    ) -> Result<Entered, StaleSegment> {
        let len_bytes: u32 = spans.iter().map(|span| span.len).sum(); // SEND_PARTS_MAX short ones
        if offload.is_gso() {
            return self.cut(head, offload, (spans, len_bytes), pair);
        }
        if offload.needs_csum() && !complete(offload, (spans, len_bytes), pair)? {
            return Ok(Err(DeviceDropReason::BadGso));
        }
        self.enter_whole(head, spans, len_bytes as usize);
        Ok(Ok(()))
    }

    /// Cuts a frame. All or none of its datagrams are entered.
    fn cut(
        &mut self,
        head: &[u8],
        offload: Offload,
        (spans, len_bytes): (&[Span], u32),
        pair: &VnicPair,
    ) -> Result<Entered, StaleSegment> {
        let (mut start, mut inner) = ([0; INNER_BYTES_MAX], [0; INNER_BYTES_MAX]);
        let seen = read_start(pair, spans, &mut start)?;
        let start = &start[..seen];
        let Ok(plan) = Segmentation::plan(start, &offload, len_bytes) else {
            return Ok(Err(DeviceDropReason::BadGso));
        };
        let inner = &mut inner[..plan.header_len() as usize]; // they are in sight
        let mut cursor = SpanCursor::new(spans);
        cursor.advance(plan.header_len());
        for index in 0..plan.count() {
            let payload = plan.payload(index);
            let partial = plan.write_header(index, start, inner);
            let mut sum = Sum::default();
            sum.add(&inner[usize::from(partial.csum_start)..]);
            let pieces = cursor.take(payload.end - payload.start);
            for piece in &pieces {
                add_span(&mut sum, pair, *piece, 0)?;
            }
            let field = usize::from(partial.csum_start + partial.csum_offset);
            inner[field..field + 2].copy_from_slice(&sum.complete(&partial).to_be_bytes());
            let (len_bytes, skip) = (plan.header_len() + (payload.end - payload.start), self.placeholder());
            // The plan's headers begin with Ethernet.
            self.enter(head, (&inner[skip..], len_bytes as usize - skip), &pieces);
        }
        Ok(Ok(()))
    }
}

/// Completes a frame's checksum where it lies. False if its place is none.
fn complete(
    offload: Offload,
    (spans, len_bytes): (&[Span], u32),
    pair: &VnicPair,
) -> Result<bool, StaleSegment> {
    let mut start = [0; INNER_BYTES_MAX];
    let seen = read_start(pair, spans, &mut start)?;
    if !check_partial(&offload, &start[..seen], len_bytes) {
        return Ok(false);
    }
    let (mut cursor, mut sum) = (SpanCursor::new(spans), Sum::default());
    cursor.advance(u32::from(offload.csum_start));
    let mut field = cursor.clone();
    field.advance(u32::from(offload.csum_offset));
    for piece in &cursor.take(len_bytes - u32::from(offload.csum_start)) {
        add_span(&mut sum, pair, *piece, 0)?;
    }
    for byte in sum.complete(&offload).to_be_bytes() {
        for piece in &field.take(1) {
            write_at(pair, piece.offset, &[byte])?;
        }
    }
    Ok(true)
}
