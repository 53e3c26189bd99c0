//! The accesses to a packed ring (virtio 1.2, 2.8).
//!
//! ```text
//!   descriptor   word 0: address     word 1: length, 32 bits | buffer ID, 16 bits | flags, 16 bits
//!   event        descriptor's position in the ring, 15 bits | wrap counter, 1 bit | flags, 16 bits
//! ```
//!
//! Positions count descriptors without end. A position's lap gives its wrap counter, since rings have a power of two of
//! entries: 1 in the first lap, 0 in the second.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use lasthop_guestmem::counted;

use crate::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Descriptor, RingMemory};

/// Flag of a descriptor: equal to the driver's wrap counter when it is available (virtio 1.2, 2.8.1).
const AVAIL: u16 = 1 << 7;
/// Flag of a descriptor: different from [`AVAIL`] when it is available, equal when it is used.
const USED: u16 = 1 << 15;
/// The wrap counter in a position as messages and event suppression have it.
pub(crate) const WRAP: u16 = 1 << 15;
/// Notifications are wanted.
pub(crate) const EVENT_ENABLE: u16 = 0;
/// Notifications are not wanted.
pub(crate) const EVENT_DISABLE: u16 = 1;
/// A notification is wanted for one descriptor.
pub(crate) const EVENT_DESC: u16 = 2;

/// The second word of a packed descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedWord(pub(crate) u64);

impl PackedWord {
    #[inline]
    pub(crate) fn new(len_bytes: u32, id: u16, flags: u16) -> Self {
        Self(u64::from(len_bytes) | u64::from(id) << 32 | u64::from(flags) << 48)
    }

    #[inline]
    pub(crate) fn len_bytes(self) -> u32 {
        self.0 as u32
    }

    #[inline]
    pub(crate) fn id(self) -> u16 {
        (self.0 >> 32) as u16
    }

    #[inline]
    pub(crate) fn flags(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// Whether the driver made the descriptor available in the lap with wrap counter `wrap`.
    #[inline]
    pub(crate) fn is_available(self, wrap: bool) -> bool {
        self.flags() & (AVAIL | USED) == available_flags(wrap)
    }

    /// As [`Self::is_available`], for a descriptor that is a chain of its own.
    #[inline]
    pub(crate) fn is_available_alone(self, wrap: bool) -> bool {
        self.flags() & (AVAIL | USED | DESC_NEXT) == available_flags(wrap)
    }

    /// Whether the device used the descriptor in the lap with wrap counter `wrap`.
    #[inline]
    pub(crate) fn is_used(self, wrap: bool) -> bool {
        self.flags() & (AVAIL | USED) == used_flags(wrap)
    }

    /// Whether the device used the descriptor in that lap, and perhaps the driver made it available again since.
    pub(crate) fn was_used(self, wrap: bool) -> bool {
        (self.flags() & USED != 0) == wrap
    }
}

/// Flags of an available descriptor.
#[inline]
pub(crate) fn available_flags(wrap: bool) -> u16 {
    if wrap { AVAIL } else { USED }
}

/// Flags of a used descriptor.
#[inline]
pub(crate) fn used_flags(wrap: bool) -> u16 {
    if wrap { AVAIL | USED } else { 0 }
}

/// The second words of a ring's descriptors, as a value for loops.
#[derive(Clone, Copy)]
pub(crate) struct PackedWords<'a> {
    descriptors: NonNull<u64>,
    /// Number of entries less one.
    last: u16,
    ring: PhantomData<&'a RingMemory>,
}

impl PackedWords<'_> {
    #[inline(always)]
    fn word(&self, position: u16) -> &AtomicU64 {
        counted::ring_word();
        // SAFETY: the table, which the borrowed ring pins, has two aligned words for each entry, of which there are a power of
        // two. Both sides access them as atomics.
        unsafe {
            AtomicU64::from_ptr(self.descriptors.as_ptr().add(2 * usize::from(position & self.last) + 1))
        }
    }

    #[inline(always)]
    pub(crate) fn get(&self, position: u16) -> PackedWord {
        PackedWord(u64::from_le(self.word(position).load(Ordering::Acquire)))
    }

    #[inline(always)]
    pub(crate) fn set(&self, position: u16, word: PackedWord) {
        self.word(position).store(word.0.to_le(), Ordering::Relaxed);
    }
}

/// One side's wish for notifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventWish {
    /// Position in the ring, and the wrap counter as its highest bit; of [`EVENT_DESC`] only.
    at: u16,
    pub(crate) flags: u16,
}

impl RingMemory {
    /// The position, within two laps, at which a packed ring begins that a front end sets to `wire` (see
    /// [`wire_position`]).
    ///
    /// A packed ring has no used index from which a front end could tell where a back end that died had come to. QEMU then
    /// sets the position at which that one had begun. User-mode Linux sets 0 for a fresh ring, although its wrap counter
    /// is 1 (virtio 1.2, 2.8.1). So the used flags of the descriptors count, if they tell one place:
    ///
    /// ```text
    ///   used flag   [ w w w w|! ! ! ! ! ! ]     w: of this lap      ^ the next descriptor to be used
    /// ```
    #[must_use]
    pub fn packed_base(&self, wire: u16) -> u16 {
        let told = position_of_wire(wire, self.entries());
        match self.used_boundary() {
            Some(found) if !self.ends_chain(found, told) => found,
            _ => told,
        }
    }

    /// The position of the next descriptor to be used, if the used flags tell one. Of chains of several descriptors only the
    /// first has such a flag.
    fn used_boundary(&self) -> Option<u16> {
        let is_flagged = |slot| self.packed_word(slot).flags() & USED != 0;
        let mut changes = (1..self.entries()).filter(|slot| is_flagged(*slot) != is_flagged(slot - 1));
        let (first, change, another) = (is_flagged(0), changes.next(), changes.next());
        let lap = |wrap| if wrap { 0 } else { self.entries() };
        match (change, another) {
            (None, _) => Some(lap(!first)),
            (Some(slot), None) => Some(slot | lap(first)),
            (Some(_), Some(_)) => None,
        }
    }

    /// Whether the descriptors from `found` to before `told` are the rest of a chain, the first of which stands before them.
    fn ends_chain(&self, found: u16, told: u16) -> bool {
        let count = self.within_two_laps(told.wrapping_sub(found));
        let is_rest = |ahead: u16| {
            let position = found.wrapping_add(ahead);
            let word = self.packed_word(position);
            let leads_on = word.flags() & DESC_NEXT != 0;
            word.is_available(self.wrap(position)) && leads_on == (ahead + 1 < count)
        };
        count <= self.entries() && (0..count).all(is_rest)
    }

    /// The descriptors' second words, for loops.
    #[inline]
    pub(crate) fn packed_words(&self) -> PackedWords<'_> {
        PackedWords { descriptors: self.descriptors(), last: self.entries() - 1, ring: PhantomData }
    }

    /// The wrap counter of a position.
    #[inline]
    pub(crate) fn wrap(&self, position: u16) -> bool {
        position & self.entries() == 0
    }

    /// The second word of the descriptor at `position`.
    #[inline]
    pub(crate) fn packed_word(&self, position: u16) -> PackedWord {
        PackedWord(u64::from_le(self.descriptor_word(position, 1).load(Ordering::Acquire)))
    }

    #[inline]
    pub(crate) fn set_packed_word(&self, position: u16, word: PackedWord) {
        self.descriptor_word(position, 1).store(word.0.to_le(), Ordering::Relaxed);
    }

    /// As [`Self::set_packed_word`], for the word that lets the other side see all stores before it.
    #[inline]
    pub(crate) fn publish_packed_word(&self, position: u16, word: PackedWord) {
        self.descriptor_word(position, 1).store(word.0.to_le(), Ordering::Release);
    }

    /// Sets the address of the descriptor at `position`.
    #[inline]
    pub(crate) fn set_packed_address(&self, position: u16, addr: u64) {
        self.descriptor_word(position, 0).store(addr.to_le(), Ordering::Relaxed);
    }

    /// The descriptor at `position`, with the flags and the link that it would have in a split ring.
    #[inline]
    pub(crate) fn packed_descriptor(&self, position: u16) -> Descriptor {
        let rest = PackedWord(u64::from_le(self.descriptor_word(position, 1).load(Ordering::Relaxed)));
        self.packed_descriptor_with(position, rest)
    }

    /// As [`Self::packed_descriptor`], for one whose second word was read.
    #[inline]
    pub(crate) fn packed_descriptor_with(&self, position: u16, rest: PackedWord) -> Descriptor {
        let addr = u64::from_le(self.descriptor_word(position, 0).load(Ordering::Relaxed));
        let flags = rest.flags() & (DESC_NEXT | DESC_WRITE | DESC_INDIRECT);
        let next = position.wrapping_add(1) & (self.entries() - 1);
        Descriptor { addr, len: rest.len_bytes(), flags, next }
    }

    /// The `count` descriptors from `first` on.
    pub(crate) fn packed_chain(
        &self,
        first: u16,
        count: u16,
    ) -> impl ExactSizeIterator<Item = Descriptor> + '_ {
        (0..count.min(self.entries())).map(move |ahead| self.packed_descriptor(first.wrapping_add(ahead)))
    }

    #[inline]
    fn event(&self, is_device: bool) -> EventWish {
        let word = u32::from_le(self.event_word(is_device).load(Ordering::Relaxed));
        EventWish { at: word as u16, flags: (word >> 16) as u16 & 3 }
    }

    /// The driver's wish for signals.
    #[inline]
    pub(crate) fn driver_event(&self) -> EventWish {
        self.event(false)
    }

    /// The device's wish for kicks.
    #[inline]
    pub(crate) fn device_event(&self) -> EventWish {
        self.event(true)
    }

    #[inline]
    fn set_event(&self, is_device: bool, position: u16, flags: u16) {
        // One store, so the other side never sees the flags with another position.
        let word = u32::from(wire_position(position, self.entries())) | u32::from(flags) << 16;
        self.event_word(is_device).store(word.to_le(), Ordering::Relaxed);
    }

    /// Wishes signals, as the driver; `position` counts with [`EVENT_DESC`] only.
    pub(crate) fn set_driver_event(&self, position: u16, flags: u16) {
        self.set_event(false, position, flags);
    }

    /// Wishes kicks, as the device; `position` counts with [`EVENT_DESC`] only.
    pub(crate) fn set_device_event(&self, position: u16, flags: u16) {
        self.set_event(true, position, flags);
    }

    /// Whether the position of `wish` is among those from `old` to before `new`, at most a lap (virtio 1.2, 2.8.10). A
    /// position beyond the ring is in none.
    #[inline]
    pub(crate) fn is_passed(&self, wish: EventWish, new: u16, old: u16) -> bool {
        if wish.at & !WRAP >= self.entries() {
            return false;
        }
        let position = position_of_wire(wish.at, self.entries());
        self.within_two_laps(new.wrapping_sub(position).wrapping_sub(1)) < new.wrapping_sub(old)
    }

    /// Whether `wish` is for a notification about the descriptors from `old` to before `new`.
    #[inline]
    pub(crate) fn is_wanted(&self, wish: EventWish, new: u16, old: u16) -> bool {
        match wish.flags {
            EVENT_DISABLE => false,
            EVENT_DESC => self.is_passed(wish, new, old),
            // The fourth value is reserved.
            _ => true,
        }
    }

    /// Whether `wish` is for a notification about the descriptor at `position` and no earlier one.
    pub(crate) fn is_awaited(&self, wish: EventWish, position: u16) -> bool {
        wish.flags == EVENT_DESC && self.is_passed(wish, position.wrapping_add(1), position)
    }

    /// A position's equal within two laps, after which wrap counters repeat.
    pub(crate) fn within_two_laps(&self, position: u16) -> u16 {
        position & (2 * self.entries() - 1)
    }
}

/// The position of a packed ring of `entries` as vhost-user tells it (vhost-user specification, "Multiple virtqueue ...
/// vring base"): the descriptor's index, and the wrap counter as the highest bit.
#[must_use]
pub fn wire_position(position: u16, entries: u16) -> u16 {
    let wrap = if position & entries == 0 { WRAP } else { 0 };
    position & (entries - 1) | wrap
}

/// The reverse of [`wire_position`]: a position within two laps. An index beyond the ring is taken modulo its size.
#[must_use]
pub fn position_of_wire(wire: u16, entries: u16) -> u16 {
    let lap = if wire & WRAP == 0 { entries } else { 0 };
    wire & (entries - 1) | lap
}
