//! The driver's side of a ring: adds chains, publishes them, and takes used chains back.

use std::sync::atomic::{Ordering, fence};

use lasthop_guestmem::{MemoryMap, Segment, StaleSegment};
use thiserror::Error;

use crate::device::crossed;
use crate::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Descriptor, RingFormat, RingMemory, arm_and_recheck};
use packed::PackedDriver;

mod packed;

pub(crate) const USED_NO_NOTIFY: u16 = 1;
pub(crate) const AVAIL_NO_INTERRUPT: u16 = 1;

/// A fault of the device. The ring has to be reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DriverRingError {
    /// The used index ran ahead by more than the device was given.
    #[error("used index jumped by {0} with {1} chains in flight")]
    UsedIndexJump(u16, u16),
    /// A used id beyond the table.
    #[error("used id {0} in a table of {1}")]
    UsedOutOfRange(u32, u16),
    /// A used id that is not the head of a chain in flight.
    #[error("used id {0} is not in flight")]
    NotInFlight(u16),
    /// The device agreed to use chains in order, and used a later one first.
    #[error("used id {0} where {1} was made available first")]
    OutOfOrder(u16, u16),
}

/// A chain that the device has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// Its first descriptor, or its buffer ID in a packed ring; free again.
    pub head: u16,
    /// The token that was passed when the chain was added.
    pub token: u32,
    /// Bytes that the device claims to have written; not checked.
    pub len: u32,
}

/// The driver's private record of a descriptor. The device can write the table, so the driver reads nothing back from
/// it.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// The table's contents. An equal store would only take the cache line away from the device.
    written: Descriptor,
    /// The next descriptor of the chain, or of the free list.
    next: u16,
    /// For a head in flight: its last descriptor.
    tail: u16,
    /// For a head in flight: number of descriptors of the chain; else 0.
    count: u16,
    token: u32,
}

/// The driver's side of one ring. In a packed ring, heads are buffer IDs, and positions count descriptors. The picture
/// is of a split ring.
///
/// ```text
///   free_head -> [3] -> [1] -> [7] <- free_tail     free_count of them, linked by Slot::next; first in, first out,
///                                                  so that an in-order device always sees the same table
///   chain     -> [4] -> [5]                        Slot[4] { tail: 5, count: 2 }, given back in one step
///
///   avail.ring [ . . p p p|n n|. . ]    used.ring [ . . u u|. . . ]
///                     published^   ^next_avail         ^next_used ^used.idx
/// ```
#[derive(Debug)]
pub struct DriverRing {
    memory: RingMemory,
    slots: Box<[Slot]>,
    /// The contents of the available ring.
    heads: Box<[u16]>,
    free_head: u16,
    /// Valid unless `free_count` is 0.
    free_tail: u16,
    free_count: u16,
    /// Position of the next head to add; avail.idx follows at `publish`.
    next_avail: u16,
    published: u16,
    /// avail.idx at the last decision whether to kick the device.
    kicked: u16,
    /// Whether `kicked` is valid: the first publication always kicks.
    kicked_valid: bool,
    next_used: u16,
    /// used.idx as last read, which saves reading the device's cache line for every entry.
    seen_used: u16,
    event_idx: bool,
    calls_armed: bool,
    in_order: bool,
    /// For a packed ring; then the fields from `slots` to `seen_used` are not used.
    packed: Option<Box<PackedDriver>>,
}

impl DriverRing {
    /// Makes a fresh ring in `memory`, which must be zeroed and not in use by a device.
    #[must_use]
    pub fn new(memory: RingMemory, event_idx: bool) -> Self {
        Self::starting_at(memory, event_idx, 0)
    }

    /// As [`Self::new`] with both indices at `position`, which the device needs as its base.
    #[must_use]
    pub fn starting_at(memory: RingMemory, event_idx: bool, position: u16) -> Self {
        let entries = memory.entries();
        let packed = match memory.format() {
            RingFormat::Packed => Some(Box::new(PackedDriver::starting_at(&memory, position))),
            RingFormat::Split => {
                Self::reset_split(&memory, position);
                None
            }
        };
        Self {
            packed,
            memory,
            slots: (1..=entries).map(|next| Slot { next, ..Slot::default() }).collect(),
            heads: vec![0; usize::from(entries)].into(),
            free_head: 0,
            free_tail: entries - 1,
            free_count: entries,
            next_avail: position,
            published: position,
            kicked: position,
            kicked_valid: false,
            next_used: position,
            seen_used: position,
            event_idx,
            calls_armed: true,
            in_order: false,
        }
    }

    fn reset_split(memory: &RingMemory, position: u16) {
        memory.set_available_flags(0);
        memory.set_available_index(position);
        memory.set_used_event(position);
        memory.set_used_flags(0);
        memory.set_used_index(position);
        memory.set_available_event(position);
        for index in 0..memory.entries() {
            memory.set_descriptor(index, Descriptor::default());
            memory.set_available_entry(index, 0);
        }
    }

    /// The ring's format.
    #[must_use]
    pub fn format(&self) -> RingFormat {
        self.memory.format()
    }

    /// Expects the device to use chains in the order in which they are made available (VIRTIO_F_IN_ORDER). The free
    /// list is first in, first out, so descriptors are then used in ring order, which the driver must ensure (virtio
    /// 1.2, 2.7.13.1).
    #[must_use]
    pub fn in_order(mut self, in_order: bool) -> Self {
        self.in_order = in_order;
        self
    }

    /// Entries of the ring.
    #[must_use]
    pub fn entries(&self) -> u16 {
        self.memory.entries()
    }

    /// Number of descriptors that are not in flight.
    #[must_use]
    pub fn free_descriptors(&self) -> u16 {
        self.packed.as_ref().map_or(self.free_count, |packed| packed.free_descriptors())
    }

    /// The head of the next chain; `None` if no descriptor is free.
    #[inline]
    #[must_use]
    pub fn next_head(&self) -> Option<u16> {
        match &self.packed {
            None => (self.free_count > 0).then_some(self.free_head),
            Some(packed) => packed.next_id(),
        }
    }

    /// Number of chains published and not yet taken back.
    #[must_use]
    pub fn in_flight(&self) -> u16 {
        match &self.packed {
            None => self.published.wrapping_sub(self.next_used),
            Some(packed) => packed.in_flight(),
        }
    }

    /// Position after the last published head.
    #[must_use]
    pub fn published_position(&self) -> u16 {
        self.packed.as_ref().map_or(self.published, |packed| packed.published_position())
    }

    /// Position of the next used entry to be taken.
    #[must_use]
    pub fn used_position(&self) -> u16 {
        self.packed.as_ref().map_or(self.next_used, |packed| packed.used_position())
    }

    /// Adds a chain of buffers (guest address, bytes): first those that the device reads, then those that it writes.
    /// The device sees it at [`Self::publish`]. `None` if there are too few free descriptors, or no buffer.
    #[inline]
    pub fn add(&mut self, readable: &[(u64, u32)], writable: &[(u64, u32)], token: u32) -> Option<u16> {
        let count = readable.len() + writable.len();
        if let Some(packed) = &mut self.packed {
            let readable = readable.iter().map(|buffer| (*buffer, 0));
            let buffers = readable.chain(writable.iter().map(|buffer| (*buffer, DESC_WRITE)));
            return packed.add(&self.memory, buffers, count, token);
        }
        if count == 0 || count > usize::from(self.free_count) {
            return None;
        }
        let head = self.free_head;
        let (mut index, mut tail) = (head, head);
        for (number, (addr, len)) in readable.iter().chain(writable).copied().enumerate() {
            let next = self.slots[usize::from(index)].next;
            let (more, link) = if number + 1 < count { (DESC_NEXT, next) } else { (0, 0) };
            let direction = if number < readable.len() { 0 } else { DESC_WRITE };
            self.write(index, Descriptor { addr, len, flags: more | direction, next: link });
            (tail, index) = (index, next);
        }
        self.enter(head, tail, count as u16, token, index); // count is at most free_count
        Some(head)
    }

    /// Adds a chain whose descriptors are in an indirect table of `len` bytes at guest address `addr`, which the caller
    /// wrote (see [`write_table`]). `None` if no descriptor is free.
    #[inline]
    pub fn add_indirect(&mut self, addr: u64, len: u32, token: u32) -> Option<u16> {
        if let Some(packed) = &mut self.packed {
            return packed.add(&self.memory, std::iter::once(((addr, len), DESC_INDIRECT)), 1, token);
        }
        if self.free_count == 0 {
            return None;
        }
        let head = self.free_head;
        let next = self.slots[usize::from(head)].next;
        self.write(head, Descriptor { addr, len, flags: DESC_INDIRECT, next: 0 });
        self.enter(head, head, 1, token, next);
        Some(head)
    }

    /// Removes the chain from the free list and appends its head to the available ring.
    #[inline]
    fn enter(&mut self, head: u16, tail: u16, count: u16, token: u32, free_head: u16) {
        let slot = &mut self.slots[usize::from(head)];
        (slot.tail, slot.count, slot.token) = (tail, count, token);
        self.free_head = free_head;
        self.free_count -= count;
        self.append(head);
    }

    #[inline]
    fn write(&mut self, index: u16, descriptor: Descriptor) {
        let slot = &mut self.slots[usize::from(index)];
        if slot.written != descriptor {
            slot.written = descriptor;
            self.memory.set_descriptor(index, descriptor);
        }
    }

    #[inline]
    fn append(&mut self, head: u16) {
        let entry = &mut self.heads[usize::from(self.next_avail & (self.memory.entries() - 1))];
        if *entry != head {
            *entry = head;
            self.memory.set_available_entry(self.next_avail, head);
        }
        self.next_avail = self.next_avail.wrapping_add(1);
    }

    /// Publishes all added chains, by one store.
    #[inline]
    pub fn publish(&mut self) {
        if let Some(packed) = &mut self.packed {
            return packed.publish(&self.memory);
        }
        self.published = self.next_avail;
        self.memory.set_available_index(self.published);
    }

    /// Whether the device wants a kick for chains published since the last call (virtio 1.2, 2.7.10).
    #[inline]
    #[must_use]
    pub fn needs_kick(&mut self) -> bool {
        if let Some(packed) = &mut self.packed {
            if !packed.has_news() {
                return false;
            }
            fence(Ordering::SeqCst);
            return packed.needs_kick(&self.memory);
        }
        let (old, new) = (self.kicked, self.published);
        if old == new && self.kicked_valid {
            return false;
        }
        // Orders both sides: the device stores its event index, then reads avail.idx; this side stored avail.idx, then
        // reads the event index.
        fence(Ordering::SeqCst);
        let was_valid = std::mem::replace(&mut self.kicked_valid, true);
        self.kicked = new;
        if !was_valid {
            return true;
        }
        if !self.event_idx {
            return self.memory.used_flags() & USED_NO_NOTIFY == 0;
        }
        crossed(self.memory.available_event(), new, old)
    }

    /// Takes the next used chain; its descriptors are free again.
    ///
    /// # Errors
    /// A fault of the device; see [`DriverRingError`].
    #[inline]
    pub fn take_used(&mut self) -> Result<Option<Used>, DriverRingError> {
        if let Some(used) = self.take_seen() {
            return Ok(Some(used));
        }
        Ok(if self.look_for_used()? { self.take_seen() } else { None })
    }

    /// As [`Self::take_used`], but only takes a chain that [`Self::look_for_used`] saw; `None` also for a faulty one, which that names. A
    /// loop around both has no result to pass by memory for each chain.
    #[inline(always)]
    pub fn take_seen(&mut self) -> Option<Used> {
        if let Some(packed) = &mut self.packed {
            let used = packed.next_used(&self.memory, self.in_order).ok()??;
            return Some(packed.take(used));
        }
        if self.next_used == self.seen_used {
            return None;
        }
        let (head, len) = self.next_seen().ok()?;
        let token = self.release(head);
        self.next_used = self.next_used.wrapping_add(1);
        Some(Used { head, token, len })
    }

    /// Reads the used index. Returns whether there is a used chain for [`Self::take_seen`].
    ///
    /// # Errors
    /// A fault of the device; see [`DriverRingError`].
    #[inline]
    pub fn look_for_used(&mut self) -> Result<bool, DriverRingError> {
        if let Some(packed) = &self.packed {
            return packed.next_used(&self.memory, self.in_order).map(|used| used.is_some());
        }
        if !self.look()? {
            return Ok(false);
        }
        self.next_seen().map(|_| true)
    }

    /// The next used chain and its length. The device may write another one meanwhile.
    #[inline(always)]
    fn next_seen(&self) -> Result<(u16, u32), DriverRingError> {
        let (id, len) = self.memory.used_entry(self.next_used);
        let head = u16::try_from(id).ok().filter(|head| *head < self.entries());
        let head = head.ok_or(DriverRingError::UsedOutOfRange(id, self.entries()))?;
        let first = self.heads[usize::from(self.next_used & (self.memory.entries() - 1))];
        if self.in_order && head != first {
            return Err(DriverRingError::OutOfOrder(head, first));
        }
        if self.slots[usize::from(head)].count == 0 {
            return Err(DriverRingError::NotInFlight(head));
        }
        Ok((head, len))
    }

    /// Number of used entries to be taken.
    ///
    /// # Errors
    /// [`DriverRingError::UsedIndexJump`].
    #[inline]
    pub fn used_pending(&mut self) -> Result<u16, DriverRingError> {
        if let Some(packed) = &self.packed {
            return packed.used_pending(&self.memory);
        }
        self.look()?;
        Ok(self.seen_used.wrapping_sub(self.next_used))
    }

    /// The position behind the used entries to be taken, from which another device would continue.
    ///
    /// # Errors
    /// As [`Self::used_pending`].
    pub fn used_end(&mut self) -> Result<u16, DriverRingError> {
        match &self.packed {
            Some(packed) => packed.used_end(&self.memory),
            None => Ok(self.next_used.wrapping_add(self.used_pending()?)),
        }
    }

    /// Reads the used index. Returns whether there is a used entry to take.
    #[inline]
    fn look(&mut self) -> Result<bool, DriverRingError> {
        let seen = self.memory.used_index();
        let ahead = seen.wrapping_sub(self.next_used);
        if ahead > self.in_flight() {
            return Err(DriverRingError::UsedIndexJump(ahead, self.in_flight()));
        }
        self.seen_used = seen;
        Ok(ahead > 0)
    }

    /// Frees the descriptors of a chain that is in flight. Returns its token.
    #[inline]
    fn release(&mut self, head: u16) -> u32 {
        let Slot { tail, count, token, .. } = self.slots[usize::from(head)];
        self.slots[usize::from(head)].count = 0;
        if self.free_count == 0 {
            self.free_head = head;
        } else {
            self.slots[usize::from(self.free_tail)].next = head;
        }
        self.free_tail = tail;
        self.free_count += count;
        token
    }

    /// Suppresses signals, since the used ring is polled.
    #[inline]
    pub fn suppress_calls(&mut self) {
        if self.calls_armed {
            self.calls_armed = false;
            if let Some(packed) = &self.packed {
                return packed.suppress_calls(&self.memory);
            }
            // With EVENT_IDX a stale used_event has the same effect: the index passes it once in 65536 entries.
            if !self.event_idx {
                self.memory.set_available_flags(AVAIL_NO_INTERRUPT);
            }
        }
    }

    /// Arms the signal for the next used entry, and checks once more. True if there is an entry: the caller must not
    /// sleep.
    #[must_use]
    pub fn arm_calls(&mut self) -> bool {
        self.arm_calls_ahead(0)
    }

    /// Arms the signal for the time when more than `ahead` used entries wait (without EVENT_IDX: for the next entry),
    /// and checks once more. True if they wait already: the caller must not sleep.
    #[must_use]
    pub fn arm_calls_ahead(&mut self, ahead: u16) -> bool {
        arm_and_recheck(self, |ring| ring.ask_for_call(ahead), |ring| ring.has_used(ahead))
    }

    #[inline]
    pub(crate) fn ask_for_call(&mut self, ahead: u16) {
        self.calls_armed = true;
        if let Some(packed) = &self.packed {
            return packed.ask_for_call(&self.memory, self.event_idx, ahead);
        }
        if self.event_idx {
            self.memory.set_used_event(self.next_used.wrapping_add(ahead));
        } else {
            self.memory.set_available_flags(0);
        }
    }

    #[inline]
    pub(crate) fn has_used(&self, ahead: u16) -> bool {
        match &self.packed {
            None => self.memory.used_index().wrapping_sub(self.next_used) > ahead,
            Some(packed) => packed.has_used(&self.memory, ahead),
        }
    }

    /// For tests of back ends: writes descriptor `index` (modulo the table) without regard to the free list. In a packed ring
    /// the next [`Self::publish_raw_head`] writes it, behind all others.
    pub fn set_raw_descriptor(&mut self, index: u16, descriptor: Descriptor) {
        if let Some(packed) = &mut self.packed {
            return packed.set_raw(descriptor);
        }
        self.slots[usize::from(index & (self.entries() - 1))].written = descriptor;
        self.memory.set_descriptor(index, descriptor);
    }

    /// For tests of back ends: publishes any head, together with the added chains. It does not count as in flight, so
    /// its completion is an error.
    pub fn publish_raw_head(&mut self, head: u16) {
        if let Some(packed) = &mut self.packed {
            return packed.publish_raw(&self.memory, head);
        }
        self.append(head);
        self.publish();
    }

    /// For tests of back ends: stores only the available index. A packed ring has none, so it publishes a descriptor with a
    /// buffer ID that no ring has.
    pub fn set_raw_index(&mut self, index: u16) {
        if let Some(packed) = &mut self.packed {
            return packed.publish_raw(&self.memory, u16::MAX);
        }
        self.memory.set_available_index(index);
    }
}

/// Writes an indirect table of the given buffers (guest address, bytes) at the start of `table`, for a ring of `format`.
/// Returns its length in bytes, for [`DriverRing::add_indirect`].
///
/// # Errors
/// [`StaleSegment`] if the table is too short or not in `map`.
pub fn write_table(
    format: RingFormat,
    map: &MemoryMap,
    table: Segment,
    readable: &[(u64, u32)],
    writable: &[(u64, u32)],
) -> Result<u32, StaleSegment> {
    let count = readable.len() + writable.len();
    if count as u64 * u64::from(Descriptor::BYTES) > u64::from(table.len) {
        return Err(StaleSegment);
    }
    for (number, (addr, len)) in readable.iter().chain(writable).copied().enumerate() {
        let more = if number + 1 < count { DESC_NEXT } else { 0 };
        let direction = if number < readable.len() { 0 } else { DESC_WRITE };
        // `next` overflows beyond 65535 entries; no device accepts as many.
        let descriptor = match format {
            RingFormat::Split => Descriptor { addr, len, flags: more | direction, next: (number + 1) as u16 },
            // The ID stands where a split ring has the flags, and the flags where it has the link.
            RingFormat::Packed => Descriptor { addr, len, flags: 0, next: direction },
        };
        map.write(table, number as u32 * Descriptor::BYTES, &descriptor.to_le_bytes())?;
    }
    Ok(count as u32 * Descriptor::BYTES)
}
