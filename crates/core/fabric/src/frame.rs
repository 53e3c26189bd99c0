//! Frames for delivery: a header image, and the rest in the sender's memory.

use lasthop_guestmem::{Cursor, MemoryMap, Segment, StaleSegment, copy, copy_and_sum};
use lasthop_module_api::Header;
use lasthop_wire::{Offload, Sum};

use crate::reference::{PacketCopy, PacketRef};
use crate::side_table::{Chains, SegmentBuffer};

/// A frame for delivery: its header image, and the rest in the sender's memory.
///
/// ```text
///   as delivered   |<-- image (len) -->|<------------- rest ------------->|
///   as sent   |hdr |<-- covers -->|<------------- rest ------------->|
///             `--- segments start here
/// ```
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) map: &'a MemoryMap,
    pub(crate) segments: &'a [Segment],
    /// Bytes of the virtio-net header in front of the frame.
    pub(crate) vnet_bytes: usize,
    pub(crate) header: &'a Header,
    /// Bytes to deliver.
    pub(crate) len: u32,
    /// The offload metadata of the header; empty if the frame is truncated.
    pub(crate) offload: Offload,
}

/// Reads the first bytes of a delivered frame into `out`: the header image, then bytes from the sender's memory as far
/// as they exist. Returns their number.
pub(crate) fn gather(
    source: Option<&Source<'_>>,
    copy: &PacketCopy<'_>,
    out: &mut [u8],
    buffer: &mut SegmentBuffer,
) -> usize {
    let image = copy.header.bytes();
    let image = &image[..image.len().min(out.len())];
    let (head, rest) = out.split_at_mut(image.len());
    head.copy_from_slice(image);
    let Some(source) = source.filter(|_| !rest.is_empty()) else { return image.len() };
    let Some(segments) = source.segments(copy.packet, buffer) else { return image.len() };
    let mut cursor = Cursor::new(source.map(), segments);
    cursor.advance(source.vnet_bytes() + copy.header.covers_bytes() as usize);
    image.len() + cursor.read(rest).unwrap_or(0)
}

/// Length and metadata of a frame as it is delivered.
#[inline]
pub(crate) fn shape(header: &Header, truncate_len_bytes: u32) -> (u32, Offload) {
    let whole = header.frame_len_bytes();
    let len = whole.min(truncate_len_bytes);
    // A truncated frame is for inspection only: the metadata does not describe the rest of it.
    (len, if len == whole { header.offload } else { Offload::default() })
}

impl<'a> Frame<'a> {
    pub(crate) fn new(
        map: &'a MemoryMap,
        segments: &'a [Segment],
        vnet_bytes: usize,
        header: &'a Header,
        truncate_len_bytes: u32,
    ) -> Self {
        let (len, offload) = shape(header, truncate_len_bytes);
        Self { map, segments, vnet_bytes, header, len, offload }
    }

    /// Copies bytes `from..to` of the frame to `target`. Adds those from `sum_from` on to the sum, if there is one.
    #[inline]
    pub(crate) fn copy_range(
        &self,
        from: u32,
        to: u32,
        target: &mut Cursor<'_>,
        sum: Option<&mut Sum>,
    ) -> Result<(), StaleSegment> {
        let image = self.header.bytes();
        let image_end = (image.len() as u32).min(to);
        let head = if from < image_end { &image[from as usize..image_end as usize] } else { &[] };
        target.write(head)?;
        let rest_from = from.max(image_end);
        if rest_from >= to {
            if let Some(sum) = sum {
                sum.add(head);
            }
            return Ok(());
        }
        let mut source = Cursor::new(self.map, self.segments);
        let covered = self.vnet_bytes + self.header.covers_bytes() as usize;
        source.advance(covered + rest_from as usize - image.len());
        let len = (to - rest_from) as usize;
        let copied = match sum {
            None => copy(&mut source, target, len)?,
            Some(sum) => {
                sum.add(head);
                copy_and_sum(&mut source, target, len, |piece, bytes| sum.add_partial(piece, bytes))?
            }
        };
        if copied == len { Ok(()) } else { Err(StaleSegment) }
    }
}

/// The memory of the packets of one transmit ring.
pub(crate) struct Source<'a> {
    pub(crate) map: &'a MemoryMap,
    pub(crate) chains: &'a Chains,
    pub(crate) vnet_bytes: usize,
}

impl<'a> Source<'a> {
    pub(crate) fn map(&self) -> &'a MemoryMap {
        self.map
    }

    /// Bytes of the virtio-net header in front of each frame.
    pub(crate) fn vnet_bytes(&self) -> usize {
        self.vnet_bytes
    }

    /// The segments of a packet, unless its slot is gone.
    pub(crate) fn segments<'b>(
        &self,
        packet: PacketRef,
        buffer: &'b mut SegmentBuffer,
    ) -> Option<&'b [Segment]> {
        self.chains.segments(packet.head, packet.epoch, buffer)
    }

    /// The segment of a frame that is in one piece, unless its slot is gone.
    #[inline]
    pub(crate) fn only_segment(&self, packet: PacketRef) -> Option<Segment> {
        self.chains.only_segment(packet.head, packet.epoch)
    }

    /// The frame behind a reference, unless its slot is gone.
    #[inline]
    pub(crate) fn frame<'b>(
        &self,
        packet: PacketRef,
        header: &'b Header,
        truncate_len_bytes: u32,
        buffer: &'b mut SegmentBuffer,
    ) -> Option<Frame<'b>>
    where
        'a: 'b,
    {
        let segments = self.chains.segments(packet.head, packet.epoch, buffer)?;
        Some(Frame::new(self.map, segments, self.vnet_bytes, header, truncate_len_bytes))
    }
}
