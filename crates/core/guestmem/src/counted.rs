//! Counts accesses to guest memory, for tests about the cost of a packet. Only builds with debug assertions count: in
//! others the functions are empty.

#[cfg(debug_assertions)]
use std::cell::Cell;

/// Accesses to guest memory by one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessCounts {
    /// Bytes copied from guest memory into the switch's own variables.
    pub read_bytes: u64,
    /// Bytes copied from the switch's own variables into guest memory.
    pub written_bytes: u64,
    /// Bytes copied from guest memory to guest memory. The memory of detached packets counts as a guest's.
    pub moved_bytes: u64,
    /// Words of rings that were looked at or written: index, flags, entry, half a descriptor.
    pub ring_words: u64,
}

#[cfg(debug_assertions)]
thread_local! {
    static COUNTS: Cell<AccessCounts> = const {
        Cell::new(AccessCounts { read_bytes: 0, written_bytes: 0, moved_bytes: 0, ring_words: 0 })
    };
}

/// The accesses that `work` makes on this thread. For tests, which compare them with bounds.
#[cfg(debug_assertions)]
pub fn during(work: impl FnOnce()) -> AccessCounts {
    COUNTS.set(AccessCounts::default());
    work();
    COUNTS.get()
}

#[inline(always)]
pub(crate) fn read(bytes: usize) {
    count(|counts| counts.read_bytes += bytes as u64);
}

#[inline(always)]
pub(crate) fn written(bytes: usize) {
    count(|counts| counts.written_bytes += bytes as u64);
}

#[inline(always)]
pub(crate) fn moved(bytes: usize) {
    count(|counts| counts.moved_bytes += bytes as u64);
}

/// Counts a word of a ring, which the crate `ring` accesses by itself.
#[inline(always)]
pub fn ring_word() {
    count(|counts| counts.ring_words += 1);
}

#[cfg(debug_assertions)]
#[inline]
fn count(add: impl FnOnce(&mut AccessCounts)) {
    let mut counts = COUNTS.get();
    add(&mut counts);
    COUNTS.set(counts);
}

#[cfg(not(debug_assertions))]
#[inline(always)]
fn count(_: impl FnOnce(&mut AccessCounts)) {}
