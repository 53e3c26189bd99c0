use std::fmt;

use lasthop_ring::RingError;

use crate::memory::prefetch;
use crate::{BATCH_FRAMES, End, Pass, SNAPSHOT_BYTES};

/// The virtio-net header comes first; its last half-word is the number of receive buffers (virtio 1.2, 5.1.6.1).
const HEADER_BYTES: usize = 12;
const NUM_BUFFERS_AT: usize = 10;
/// One bucket for each value of a 16-bit hash, 512 KiB together, as in a table of many addresses.
const BUCKETS: usize = 1 << 16;
const LINE_BYTES: usize = 64;

/// A frame in a batch. Its size gives each one separate cache lines.
#[repr(align(64))]
struct Frame {
    head: u16,
    len: u32,
    data: *const u8,
    hash: u16,
    snapshot: [u8; SNAPSHOT_BYTES],
}

impl Frame {
    const EMPTY: Self =
        Self { head: 0, len: 0, data: std::ptr::null(), hash: 0, snapshot: [0; SNAPSHOT_BYTES] };

    /// Destination MAC address.
    #[inline(always)]
    fn mac(&self) -> u64 {
        let word = self.snapshot[HEADER_BYTES..].first_chunk().expect("longer");
        u64::from_le_bytes(*word) & 0xffff_ffff_ffff
    }
}

/// The algorithm of a switch that copies once, without anything else.
pub struct Limit {
    frames: Box<[Frame; BATCH_FRAMES as usize]>,
    buckets: Box<[u64; BUCKETS]>,
    look: fn(&mut [Frame]),
}

// SAFETY: the pointers in `frames` are only used in the call that stored them.
unsafe impl Send for Limit {}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limit").finish_non_exhaustive()
    }
}

impl Default for Limit {
    fn default() -> Self {
        let frames = Box::new([Frame::EMPTY; BATCH_FRAMES as usize]);
        Self { frames, buckets: Box::new([0; BUCKETS]), look: choose_look() }
    }
}

#[cfg(test)]
impl Limit {
    /// Without AVX.
    pub(crate) fn plain() -> Self {
        Self { look: look_by_any, ..Self::default() }
    }
}

impl Pass for Limit {
    #[inline(always)]
    fn run(&mut self, from: &mut End, to: &mut End, frames: u16) -> Result<(), RingError> {
        let batch = &mut self.frames[..usize::from(frames)];
        for (ahead, frame) in (0..).zip(&mut *batch) {
            frame.head = from.ring.head(ahead)?;
            from.ring.prefetch_descriptor(frame.head);
        }
        for frame in &mut *batch {
            let descriptor = from.ring.descriptor(frame.head);
            frame.len = descriptor.len;
            frame.data = from.memory.at(descriptor.addr, descriptor.len.max(SNAPSHOT_BYTES as u32));
            prefetch(frame.data);
            prefetch(frame.data.wrapping_add(LINE_BYTES));
        }
        (self.look)(batch);
        let buckets = batch.iter().map(|frame| self.buckets[usize::from(frame.hash)]);
        std::hint::black_box(buckets.fold(0, u64::wrapping_add));
        for (ahead, frame) in (0..).zip(&*batch) {
            let head = to.ring.head(ahead)?;
            let buffer = to.ring.descriptor(head);
            debug_assert!(frame.len <= buffer.len, "a frame longer than its receive buffer");
            deliver(frame, to.memory.at(buffer.addr, frame.len));
            to.ring.complete(head, frame.len);
        }
        to.ring.take(frames);
        to.ring.publish();
        for frame in &*batch {
            from.ring.complete(frame.head, 0);
        }
        from.ring.take(frames);
        from.ring.publish();
        Ok(())
    }
}

#[inline(always)]
fn take_snapshot(frame: &mut Frame) {
    // SAFETY: the guest is trusted to have this much memory there (see the crate's documentation), which the End keeps
    // mapped; the snapshot is ours, and not guest memory.
    unsafe { std::ptr::copy_nonoverlapping(frame.data, frame.snapshot.as_mut_ptr(), SNAPSHOT_BYTES) };
    frame.snapshot[NUM_BUFFERS_AT..HEADER_BYTES].copy_from_slice(&1_u16.to_le_bytes());
}

#[inline(always)]
fn deliver(frame: &Frame, out: *mut u8) {
    let len = frame.len as usize;
    let start = len.min(SNAPSHOT_BYTES);
    // SAFETY: both guests are trusted to have `len` bytes there (see the crate's documentation), which the Ends keep
    // mapped. The snapshot is ours; two guests do not share memory, and transmit and receive buffers of one are not the
    // same.
    unsafe {
        std::ptr::copy_nonoverlapping(frame.snapshot.as_ptr(), out, start);
        std::ptr::copy_nonoverlapping(frame.data.add(start), out.add(start), len - start);
    }
}

/// Takes the snapshots and hashes the destination addresses.
fn choose_look() -> fn(&mut [Frame]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx") && std::arch::is_x86_feature_detected!("sse4.2") {
        return look_by_avx;
    }
    look_by_any
}

/// By CRC-32C, with wide registers: otherwise the address would span two stores, and the load would wait for both.
#[cfg(target_arch = "x86_64")]
fn look_by_avx(frames: &mut [Frame]) {
    #[target_feature(enable = "avx,sse4.2")]
    fn look(frames: &mut [Frame]) {
        for frame in frames {
            take_snapshot(frame);
            frame.hash = std::arch::x86_64::_mm_crc32_u64(0, frame.mac()) as u16; // one of 65536 buckets
        }
    }
    // SAFETY: choose_look checked that the processor has both features.
    unsafe { look(frames) }
}

fn look_by_any(frames: &mut [Frame]) {
    for frame in &mut *frames {
        take_snapshot(frame);
    }
    for frame in frames {
        frame.hash = (frame.mac().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16;
    }
}
