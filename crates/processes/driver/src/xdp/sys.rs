//! The memory of one AF_XDP ring: mapped from the kernel, with indices that both sides write.
//!
//! ```text
//!   one mapping   [ .. producer .. consumer .. flags .. | entry 0 | entry 1 | ... | entry n-1 ]
//!                 offsets as in XDP_MMAP_OFFSETS; n is a power of two, so every index is masked into the table
//! ```
//!
//! This module trusts no index: `rings.rs` interprets them. For any value, accesses stay inside the mapping.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::net::xdp::XdpRingOffset;

use crate::sys::KernelMemory;

use super::rings::{Entry, RING_ENTRIES_MAX};

/// More bytes than the kernel puts before a ring's entries.
const LEAD_BYTES_MAX: u64 = 1 << 16;

/// One mapped ring of entries of type `E`.
#[derive(Debug)]
pub(super) struct RingMemory<E> {
    memory: KernelMemory,
    producer: usize,
    consumer: usize,
    flags: usize,
    entries_at: usize,
    mask: u32,
    entry: PhantomData<E>,
}

// SAFETY: the memory is shared with the kernel, which writes it at any time; access is by atomics and volatile copies
// through raw pointers, and no reference to entries is ever made, so threads add nothing to that.
unsafe impl<E: Entry> Send for RingMemory<E> {}

impl<E: Entry> RingMemory<E> {
    /// Maps the ring of `entries` entries (a power of two) that `socket` has at file offset `page_offset`.
    ///
    /// # Errors
    /// Errors of mmap(2); offsets that no kernel gives.
    pub(super) fn of_socket(
        socket: BorrowedFd<'_>,
        page_offset: u64,
        at: &XdpRingOffset,
        entries: u32,
    ) -> Result<Self, Errno> {
        let memory = KernelMemory::of_socket(socket, page_offset, check::<E>(at, entries)?)?;
        // `check` has compared the offsets with LEAD_BYTES_MAX.
        let place = |offset: u64| offset as usize;
        Ok(Self {
            memory,
            producer: place(at.producer),
            consumer: place(at.consumer),
            flags: place(at.flags.unwrap_or(at.producer)),
            entries_at: place(at.desc),
            mask: entries - 1,
            entry: PhantomData,
        })
    }

    /// A ring that two parts of a test share.
    #[cfg(test)]
    pub(super) fn of_file(file: BorrowedFd<'_>, entries: u32) -> Result<Self, Errno> {
        let at = XdpRingOffset { producer: 0, consumer: 64, desc: 192, flags: Some(128) };
        Self::of_socket(file, 0, &at, entries)
    }

    pub(super) fn entries(&self) -> u32 {
        self.mask + 1
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `check` found `at` aligned and four bytes of it inside the mapping, which lives as long as `self`; the
        // kernel reads and writes the word atomically, and here it is only ever used as an atomic.
        unsafe { self.memory.base().add(at).cast::<AtomicU32>().as_ref() }
    }

    pub(super) fn producer(&self) -> u32 {
        self.word(self.producer).load(Ordering::Acquire)
    }

    pub(super) fn set_producer(&self, position: u32) {
        self.word(self.producer).store(position, Ordering::Release);
    }

    pub(super) fn consumer(&self) -> u32 {
        self.word(self.consumer).load(Ordering::Acquire)
    }

    pub(super) fn set_consumer(&self, position: u32) {
        self.word(self.consumer).store(position, Ordering::Release);
    }

    /// The kernel's flags of the ring now.
    pub(super) fn flags(&self) -> u32 {
        self.word(self.flags).load(Ordering::Relaxed)
    }

    /// For tests, which play the kernel.
    #[cfg(test)]
    pub(super) fn set_flags(&self, flags: u32) {
        self.word(self.flags).store(flags, Ordering::Relaxed);
    }

    fn place(&self, position: u32) -> *mut E {
        let index = (position & self.mask) as usize;
        // SAFETY: the index is below the number of entries, and `check` found all of them inside the mapping.
        unsafe { self.memory.base().as_ptr().add(self.entries_at + index * size_of::<E>()).cast() }
    }

    /// A copy of the entry at `position`, modulo the number of entries.
    pub(super) fn read(&self, position: u32) -> E {
        // SAFETY: `place` lies in the mapping and is aligned as `check` found; any bytes are an `E` (see `Entry`).
        unsafe { self.place(position).read_volatile() }
    }

    /// Overwrites the entry at `position`, modulo the number of entries.
    pub(super) fn write(&self, position: u32, entry: E) {
        // SAFETY: as for `read`.
        unsafe { self.place(position).write_volatile(entry) };
    }
}

/// Bytes to map, if everything that `at` describes is aligned and inside them.
fn check<E: Entry>(at: &XdpRingOffset, entries: u32) -> Result<usize, Errno> {
    let words = [at.producer, at.consumer, at.flags.unwrap_or(at.producer)];
    let words_fit =
        words.iter().all(|word| word.is_multiple_of(4) && *word + 4 <= at.desc.min(LEAD_BYTES_MAX));
    let table_fits = at.desc.is_multiple_of(8) && at.desc <= LEAD_BYTES_MAX;
    if !words_fit || !table_fits || !entries.is_power_of_two() || entries > RING_ENTRIES_MAX {
        return Err(Errno::PROTO); // no kernel describes a ring like that
    }
    Ok((at.desc + u64::from(entries) * size_of::<E>() as u64) as usize) // at most 1.1 MiB
}
