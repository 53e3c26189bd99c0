use std::collections::HashSet;

use lasthop_ring::RingError;

use crate::{BATCH_FRAMES, End, Pass};

/// `num_buffers` of the virtio-net header (virtio 1.2, 5.1.6.1).
const NUM_BUFFERS_AT: usize = 10;
/// Bytes of the virtio-net header.
const HEADER_BYTES: usize = 12;
/// After this number of full rings without a new buffer, all buffers are known.
const RINGS_FULL: u32 = 4;

/// Passes ring entries; writes bytes only when a receive buffer is used for the first time.
///
/// So a receiver sees frames with the right lengths in its buffers, but old ones. Its ring has to be restarted before
/// frames of another kind are sent.
#[derive(Debug, Default)]
pub struct Null {
    heads: [u16; BATCH_FRAMES as usize],
}

impl Pass for Null {
    #[inline(always)]
    fn run(&mut self, from: &mut End, to: &mut End, frames: u16) -> Result<(), RingError> {
        let heads = &mut self.heads[..usize::from(frames)];
        for (ahead, head) in (0..).zip(&mut *heads) {
            *head = from.ring.head(ahead)?;
            from.ring.prefetch_descriptor(*head);
        }
        for (ahead, head) in (0..).zip(&*heads) {
            let buffer_head = to.ring.head(ahead)?;
            if !to.seen.all {
                copy_once(from, *head, to, buffer_head);
            }
            to.ring.complete(buffer_head, from.ring.descriptor(*head).len);
        }
        to.ring.take(frames);
        to.ring.publish();
        for head in &*heads {
            from.ring.complete(*head, 0);
        }
        from.ring.take(frames);
        from.ring.publish();
        Ok(())
    }
}

/// Receive buffers that already have a frame, identified by their addresses, as drivers combine them with other
/// descriptors.
#[derive(Debug)]
pub(crate) struct SeenBuffers {
    addresses: HashSet<u64>,
    /// Uses of buffers since the last new one.
    known_uses: u32,
    entries: u16,
    /// Whether all buffers are known.
    all: bool,
}

impl SeenBuffers {
    pub(crate) fn new(entries: u16) -> Self {
        Self { addresses: HashSet::new(), known_uses: 0, entries, all: false }
    }

    /// Whether a buffer is used for the first time.
    fn is_new(&mut self, guest_addr: u64) -> bool {
        let new = self.addresses.insert(guest_addr);
        self.known_uses = if new { 0 } else { self.known_uses + 1 };
        self.all = self.known_uses >= RINGS_FULL * u32::from(self.entries);
        new
    }
}

#[cold]
fn copy_once(from: &End, head: u16, to: &mut End, buffer_head: u16) {
    let (data, buffer) = (from.ring.descriptor(head), to.ring.descriptor(buffer_head));
    if !to.seen.is_new(buffer.addr) {
        return;
    }
    debug_assert!(data.len <= buffer.len, "a frame longer than its receive buffer");
    debug_assert!(data.len as usize >= HEADER_BYTES, "a frame shorter than its header");
    let (source, out) = (from.memory.at(data.addr, data.len), to.memory.at(buffer.addr, data.len));
    // SAFETY: both guests are trusted to have this many bytes there (see the crate's documentation), which the Ends
    // keep mapped, and not to transmit from receive buffers.
    unsafe {
        std::ptr::copy_nonoverlapping(source, out, data.len as usize);
        let one = 1_u16.to_le_bytes();
        std::ptr::copy_nonoverlapping(one.as_ptr(), out.add(NUM_BUFFERS_AT), HEADER_BYTES - NUM_BUFFERS_AT);
    }
}
