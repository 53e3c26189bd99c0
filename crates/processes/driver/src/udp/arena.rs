//! Bytes of frames in the vNIC's memory: copied out, summed, copied in.

use arrayvec::ArrayVec;
use lasthop_frontend::VnicPair;
use lasthop_guestmem::{Segment, StaleSegment};
use lasthop_wire::Sum;

use crate::bounds::SEND_PARTS_MAX;
use crate::sys::Span;

/// A position in a frame that lies in several spans.
#[derive(Clone, Debug)]
pub(super) struct SpanCursor<'a> {
    spans: &'a [Span],
    skip: u32,
}

impl<'a> SpanCursor<'a> {
    pub(super) fn new(spans: &'a [Span]) -> Self {
        Self { spans, skip: 0 }
    }

    /// The contiguous piece at the cursor, at most `len` bytes, which the cursor passes. None at the end.
    fn next_piece(&mut self, len: u32) -> Option<Span> {
        loop {
            let (first, rest) = self.spans.split_first()?;
            let room = first.len - self.skip;
            if room > 0 {
                let piece = Span { offset: first.offset + self.skip, len: len.min(room) };
                self.skip += piece.len;
                return Some(piece);
            }
            (self.spans, self.skip) = (rest, 0);
        }
    }

    /// Passes `len` bytes, or those that there are.
    pub(super) fn advance(&mut self, mut len: u32) {
        while len > 0
            && let Some(piece) = self.next_piece(len)
        {
            len -= piece.len;
        }
    }

    /// The next `len` bytes, or those that there are, which the cursor passes.
    pub(super) fn take(&mut self, mut len: u32) -> ArrayVec<Span, SEND_PARTS_MAX> {
        let mut pieces = ArrayVec::new();
        while len > 0
            && let Some(piece) = self.next_piece(len)
        {
            len -= piece.len;
            pieces.push(piece); // at most one of each span
        }
        pieces
    }
}

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

/// Copies out the first bytes that lie in these spans; their number.
pub(super) fn read_start(pair: &VnicPair, spans: &[Span], out: &mut [u8]) -> Result<usize, StaleSegment> {
    let mut seen = 0;
    for piece in &SpanCursor::new(spans).take(out.len() as u32) {
        let end = seen + piece.len as usize;
        read_span(pair, *piece, 0, &mut out[seen..end])?;
        seen = end;
    }
    Ok(seen)
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
