//! The three areas of a ring in guest memory, and the accesses to those of a split ring.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use lasthop_guestmem::{Mapping, MemoryMap, counted};

use crate::{DESC_INDIRECT, PACKED_ENTRIES_MAX, RING_ENTRIES_MAX, RingError, death};

/// Descriptors of an indirect table that are touched, at most: more than a usual frame has.
const INDIRECT_TOUCHED_MAX: usize = 20;
/// Pages that are touched for one ring, at most: a table full of frames of 64 KiB. A guest may write any contents.
const TOUCHED_PAGES_MAX: u32 = 4096;
/// The smallest page, in bytes.
const PAGE_BYTES: u32 = 4096;
/// Bytes touched of one buffer, at most: enough for any frame.
const TOUCHED_BYTES_MAX: u32 = 64 * 1024;

/// One descriptor, read once (virtio 1.2, 2.7.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Guest address.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// `DESC_*`.
    pub flags: u16,
    /// The next descriptor of the chain, if `DESC_NEXT` is set.
    pub next: u16,
}

impl Descriptor {
    /// Bytes of a descriptor.
    pub const BYTES: u32 = 16;

    #[inline]
    pub(crate) fn from_words(addr: u64, rest: u64) -> Self {
        Self { addr, len: rest as u32, flags: (rest >> 32) as u16, next: (rest >> 48) as u16 }
    }

    #[inline]
    pub(crate) fn to_words(self) -> [u64; 2] {
        [self.addr, u64::from(self.len) | u64::from(self.flags) << 32 | u64::from(self.next) << 48]
    }

    #[inline]
    pub(crate) fn from_le_bytes(bytes: [u8; 16]) -> Self {
        let value = u128::from_le_bytes(bytes);
        Self::from_words(value as u64, (value >> 64) as u64)
    }

    #[inline]
    pub(crate) fn to_le_bytes(self) -> [u8; 16] {
        let [addr, rest] = self.to_words();
        (u128::from(addr) | u128::from(rest) << 64).to_le_bytes()
    }
}

/// The addresses of a ring in the front end's own address space, as SET_VRING_ADDR gives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingAddresses {
    /// Descriptor table, or descriptor ring.
    pub descriptors: u64,
    /// Available ring, or driver event suppression: written by the driver.
    pub available: u64,
    /// Used ring, or device event suppression: written by the device.
    pub used: u64,
}

/// The format of a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RingFormat {
    /// Three areas (virtio 1.2, 2.7).
    #[default]
    Split,
    /// One ring of descriptors that both sides write (virtio 1.2, 2.8).
    Packed,
}

/// Maps pages of a guest, up to a limit.
struct Touch<'a> {
    map: &'a MemoryMap,
    hint: u16,
    pages_left: u32,
}

impl Touch<'_> {
    /// Touches a buffer, and if it is an indirect table, the buffers in it.
    fn chain_from(&mut self, descriptor: Descriptor) {
        self.buffer(descriptor);
        if descriptor.flags & DESC_INDIRECT != 0 {
            let entries = (0..descriptor.len / Descriptor::BYTES).take(INDIRECT_TOUCHED_MAX);
            let places =
                entries.map(|entry| descriptor.addr.wrapping_add(u64::from(entry * Descriptor::BYTES)));
            places.for_each(|at| self.buffer_of(at));
        }
    }

    fn buffer(&mut self, Descriptor { addr, len, .. }: Descriptor) {
        let len = len.min(TOUCHED_BYTES_MAX).min(self.pages_left * PAGE_BYTES);
        let Some(segment) = self.map.translate(addr, len, &mut self.hint) else { return };
        self.map.touch(segment);
        self.pages_left = self.pages_left.saturating_sub(segment.len.div_ceil(PAGE_BYTES));
    }

    /// Touches the buffer of the descriptor at `addr`.
    fn buffer_of(&mut self, addr: u64) {
        let mut bytes = [0; Descriptor::BYTES as usize];
        let place = self.map.translate_whole(addr, Descriptor::BYTES, &mut self.hint);
        if let Some(Ok(())) = place.map(|place| self.map.read(place, 0, &mut bytes)) {
            // Address and length are at the same place in both formats.
            self.buffer(Descriptor::from_le_bytes(bytes));
        }
    }
}

/// The three areas of a ring, pinned.
#[derive(Debug)]
pub struct RingMemory {
    entries: u16,
    format: RingFormat,
    descriptors: NonNull<[u8; 16]>,
    /// Of a packed ring: driver event suppression, two half-words.
    available: NonNull<u16>,
    /// Of a packed ring: device event suppression, two half-words.
    used: NonNull<u16>,
    _pins: [Arc<Mapping>; 3],
}

// SAFETY: the pointers stay valid as long as the pins do; everything behind them is accessed by atomics or volatile.
unsafe impl Send for RingMemory {}

impl RingMemory {
    /// The ring of `entries` at `addresses`. Checks that each area is aligned and in one region of `map`.
    ///
    /// # Errors
    /// [`RingError::BadSize`] and [`RingError::BadArea`].
    pub fn new(map: &MemoryMap, entries: u32, addresses: RingAddresses) -> Result<Self, RingError> {
        Self::of(RingFormat::Split, map, entries, addresses)
    }

    /// As [`Self::new`], for a ring of either format. A packed ring, too, has a power of two of entries.
    ///
    /// # Errors
    /// [`RingError::BadSize`], [`RingError::PackedTooLarge`] and [`RingError::BadArea`].
    pub fn of(
        format: RingFormat,
        map: &MemoryMap,
        entries: u32,
        addresses: RingAddresses,
    ) -> Result<Self, RingError> {
        if !entries.is_power_of_two() || entries > u32::from(RING_ENTRIES_MAX) {
            return Err(RingError::BadSize(entries));
        }
        let is_packed = format == RingFormat::Packed;
        if is_packed && entries > u32::from(PACKED_ENTRIES_MAX) {
            return Err(RingError::PackedTooLarge(entries));
        }
        let area = |name, addr, len, align| {
            map.translate_user(addr, len)
                .and_then(|segment| map.pin(segment, align).ok())
                .ok_or(RingError::BadArea(name, addr))
        };
        let (names, lens, align) = match format {
            RingFormat::Split => (["available", "used"], [6 + 2 * entries, 6 + 8 * entries], 2),
            RingFormat::Packed => (["driver event", "device event"], [4, 4], 4),
        };
        let (descriptors, pin0) = area("descriptor", addresses.descriptors, 16 * entries, 16)?;
        let (available, pin1) = area(names[0], addresses.available, lens[0], align)?;
        let (used, pin2) = area(names[1], addresses.used, lens[1], 4)?;
        Ok(Self {
            entries: entries as u16,
            format,
            descriptors: descriptors.cast(),
            available: available.cast(),
            used: used.cast(),
            _pins: [pin0, pin1, pin2],
        })
    }

    /// Number of entries, a power of two.
    #[must_use]
    pub fn entries(&self) -> u16 {
        self.entries
    }

    /// The ring's format.
    #[must_use]
    pub fn format(&self) -> RingFormat {
        self.format
    }

    #[inline]
    pub(crate) fn slot(&self, position: u16) -> usize {
        usize::from(position & (self.entries - 1))
    }

    /// Maps the ring's pages, and those of the buffers that its table names in `map`, the ring's own map. A thread that
    /// takes over a running ring then has no page faults. Values read here are not used. The work is bounded for any
    /// contents.
    pub fn touch(&self, map: &MemoryMap) {
        let last = self.entries - 1;
        match self.format {
            RingFormat::Split => {
                [0, last]
                    .into_iter()
                    .for_each(|entry| _ = (self.available_entry(entry), self.used_entry(entry)));
            }
            RingFormat::Packed => _ = (self.driver_event(), self.device_event()),
        }
        let mut touch = Touch { map, hint: 0, pages_left: TOUCHED_PAGES_MAX };
        let descriptor = |index| match self.format {
            RingFormat::Split => self.descriptor(index),
            RingFormat::Packed => self.packed_descriptor(index),
        };
        (0..self.entries).for_each(|index| touch.chain_from(descriptor(index)));
    }

    /// Half-word `index` of the available area.
    #[inline]
    fn available_word(&self, index: usize) -> &AtomicU16 {
        debug_assert!(self.format == RingFormat::Split && index < 3 + usize::from(self.entries));
        counted::ring_word();
        // SAFETY: the area has 3 + entries half-words, pinned and 2-aligned. Both sides access them as atomics.
        unsafe { AtomicU16::from_ptr(self.available.as_ptr().add(index)) }
    }

    /// Half-word `index` of the used area: 0 flags, 1 index, then 4 per entry, then avail_event.
    #[inline]
    fn used_word(&self, index: usize) -> &AtomicU16 {
        debug_assert!(self.format == RingFormat::Split && index < 3 + 4 * usize::from(self.entries));
        counted::ring_word();
        // SAFETY: the area has 3 + 4 * entries half-words, pinned and 4-aligned. Both sides access them as atomics.
        unsafe { AtomicU16::from_ptr(self.used.as_ptr().add(index)) }
    }

    /// The event suppression structure of a packed ring: the driver's or the device's.
    #[inline]
    pub(crate) fn event_word(&self, is_device: bool) -> &AtomicU32 {
        debug_assert!(self.format == RingFormat::Packed);
        counted::ring_word();
        let area = if is_device { self.used } else { self.available };
        // SAFETY: each area of a packed ring is four bytes, pinned and 4-aligned; one of a split ring is larger, and is never
        // asked for here. Both sides access them as atomics.
        unsafe { AtomicU32::from_ptr(area.as_ptr().cast()) }
    }

    /// The table's words, two for each entry, for as long as this ring is borrowed.
    #[inline]
    pub(crate) fn descriptors(&self) -> NonNull<u64> {
        self.descriptors.cast()
    }

    /// Half `half` (0 or 1) of a descriptor. Two words, since the compiler turns a volatile read of 16 bytes into 16
    /// reads.
    #[inline]
    pub(crate) fn descriptor_word(&self, index: u16, half: usize) -> &AtomicU64 {
        debug_assert!(half < 2);
        counted::ring_word();
        // SAFETY: slot() is below entries; the table is pinned, 16-aligned, and has two words for each entry.
        unsafe {
            AtomicU64::from_ptr(self.descriptors.as_ptr().add(self.slot(index)).cast::<u64>().add(half))
        }
    }

    /// Descriptor `index`, taken modulo the table's size.
    #[inline]
    pub(crate) fn descriptor(&self, index: u16) -> Descriptor {
        let word = |half| u64::from_le(self.descriptor_word(index, half).load(Ordering::Relaxed));
        Descriptor::from_words(word(0), word(1))
    }

    #[inline]
    pub(crate) fn set_descriptor(&self, index: u16, descriptor: Descriptor) {
        for (half, word) in descriptor.to_words().into_iter().enumerate() {
            self.descriptor_word(index, half).store(word.to_le(), Ordering::Relaxed);
        }
    }

    /// Sets the length of a descriptor; the rest in the table is unchanged.
    #[inline]
    pub(crate) fn set_descriptor_len(&self, index: u16, len: u32) {
        let rest = u64::from_le(self.descriptor_word(index, 1).load(Ordering::Relaxed));
        let rest = rest & !u64::from(u32::MAX) | u64::from(len);
        self.descriptor_word(index, 1).store(rest.to_le(), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn prefetch_descriptor(&self, index: u16) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: slot() is below entries, so the address is inside the table; a prefetch has no effect on memory.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(self.descriptors.as_ptr().add(self.slot(index)).cast::<i8>())
            };
        }
    }

    #[inline]
    pub(crate) fn available_flags(&self) -> u16 {
        u16::from_le(self.available_word(0).load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn set_available_flags(&self, flags: u16) {
        self.available_word(0).store(flags.to_le(), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn available_index(&self) -> u16 {
        u16::from_le(self.available_word(1).load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn set_available_index(&self, index: u16) {
        self.available_word(1).store(index.to_le(), Ordering::Release);
    }

    #[inline]
    pub(crate) fn available_entry(&self, position: u16) -> u16 {
        u16::from_le(self.available_word(2 + self.slot(position)).load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn set_available_entry(&self, position: u16, head: u16) {
        self.available_word(2 + self.slot(position)).store(head.to_le(), Ordering::Relaxed);
    }

    /// "Signal me when you publish past this" (EVENT_IDX).
    #[inline]
    pub(crate) fn used_event(&self) -> u16 {
        u16::from_le(self.available_word(2 + usize::from(self.entries)).load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn set_used_event(&self, index: u16) {
        self.available_word(2 + usize::from(self.entries)).store(index.to_le(), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn used_flags(&self) -> u16 {
        u16::from_le(self.used_word(0).load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn set_used_flags(&self, flags: u16) {
        self.used_word(0).store(flags.to_le(), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn used_index(&self) -> u16 {
        u16::from_le(self.used_word(1).load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn set_used_index(&self, index: u16) {
        death::may_come();
        self.used_word(1).store(index.to_le(), Ordering::Release);
    }

    /// Head and length of used entry `position`.
    #[inline]
    pub(crate) fn used_entry(&self, position: u16) -> (u32, u32) {
        self.used_entries().get(position)
    }

    #[inline]
    pub(crate) fn set_used_entry(&self, position: u16, head: u32, len: u32) {
        self.used_entries().set(position, head, len);
    }

    /// The used entries as a value, so that a loop that writes them need not reload their address after each store.
    #[inline]
    pub(crate) fn used_entries(&self) -> UsedEntries<'_> {
        UsedEntries { used: self.used, last: self.entries - 1, ring: PhantomData }
    }

    /// "Kick me when you make available past this" (EVENT_IDX).
    #[inline]
    pub(crate) fn available_event(&self) -> u16 {
        u16::from_le(self.used_word(2 + 4 * usize::from(self.entries)).load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn set_available_event(&self, index: u16) {
        self.used_word(2 + 4 * usize::from(self.entries)).store(index.to_le(), Ordering::Relaxed);
    }
}

/// The used entries of a ring. The area is only 4-aligned, so each entry is two 32-bit words. The index store publishes
/// them, so the words may be written separately.
#[derive(Clone, Copy)]
pub(crate) struct UsedEntries<'a> {
    used: NonNull<u16>,
    /// Number of entries less one.
    last: u16,
    ring: PhantomData<&'a RingMemory>,
}

impl UsedEntries<'_> {
    #[inline]
    fn word(&self, position: u16, index: usize) -> &AtomicU32 {
        debug_assert!(index < 2);
        counted::ring_word();
        // SAFETY: the area has 3 + 4 * entries half-words, pinned by the ring that is borrowed; behind flags and index, entry
        // `position & last` has four of them. It is 4-aligned, and so are these words.
        unsafe {
            let entry = self.used.as_ptr().add(2 + 4 * usize::from(position & self.last));
            AtomicU32::from_ptr(entry.add(2 * index).cast())
        }
    }

    #[inline]
    fn get(&self, position: u16) -> (u32, u32) {
        let word = |index| u32::from_le(self.word(position, index).load(Ordering::Relaxed));
        (word(0), word(1))
    }

    #[inline]
    pub(crate) fn set(&self, position: u16, head: u32, len: u32) {
        death::may_come();
        self.word(position, 0).store(head.to_le(), Ordering::Relaxed);
        self.word(position, 1).store(len.to_le(), Ordering::Relaxed);
    }
}
