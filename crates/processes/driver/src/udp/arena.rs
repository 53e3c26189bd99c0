//! Bytes of frames in the vNIC's memory: copied out, summed, copied in.

use lasthop_frontend::VnicPair;
use lasthop_guestmem::{Segment, StaleSegment};
use lasthop_wire::Sum;

use crate::sys::Span;

/// Adds a span to a sum, from `skip` bytes on.
pub(super) fn add_span(sum: &mut Sum, pair: &VnicPair, span: Span, skip: u32) -> Result<(), StaleSegment> {
    let len = span.len.saturating_sub(skip) as usize;
    sum.add_partial(pair.map().sum(segment(pair, span), skip, len)?, len);
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
