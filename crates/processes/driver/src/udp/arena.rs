//! Bytes of frames in the vNIC's memory: copied out, summed, copied in.

use lasthop_frontend::VnicPair;
use lasthop_guestmem::{Segment, StaleSegment};
use lasthop_wire::Sum;

use crate::sys::Span;

/// Bytes that are copied at a time to be summed.
const SUMMED_BYTES: u32 = 1024;

/// Sums `len` bytes that `read` copies out, from as many on as it is told.
pub(super) fn add_to(
    sum: &mut Sum,
    len: u32,
    read: impl Fn(u32, &mut [u8]) -> Result<(), StaleSegment>,
) -> Result<(), StaleSegment> {
    let mut piece = [0; SUMMED_BYTES as usize];
    for skip in (0..len).step_by(piece.len()) {
        let piece = &mut piece[..SUMMED_BYTES.min(len - skip) as usize];
        read(skip, piece)?;
        sum.add(piece);
    }
    Ok(())
}

/// Copies out a part of a span, from `skip` bytes on.
pub(super) fn read_span(pair: &VnicPair, span: Span, skip: u32, out: &mut [u8]) -> Result<(), StaleSegment> {
    pair.map().read(segment(pair, span), skip, out)
}

/// Copies bytes to an offset of the arena.
pub(super) fn write_at(pair: &VnicPair, offset: u32, bytes: &[u8]) -> Result<(), StaleSegment> {
    let len = bytes.len() as u32; // a header
    pair.map().write(segment(pair, Span { offset, len }), 0, bytes)
}

fn segment(pair: &VnicPair, span: Span) -> Segment {
    let arena = pair.arena();
    Segment { offset: arena.offset + u64::from(span.offset), len: span.len, ..arena }
}
