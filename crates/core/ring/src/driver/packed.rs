//! The driver's side of a packed ring (virtio 1.2, 2.8).
//!
//! ```text
//!   descriptors   [ . . u u|i i i|p p|n n|. . ]     u used, i in flight, n added
//!               next_used ^           ^   ^ next_avail
//!                                     published, whose flags are written last
//! ```

use std::collections::VecDeque;

use super::{DriverRingError, Used};
use crate::packed_memory::{EVENT_DESC, EVENT_DISABLE, EVENT_ENABLE, PackedWord, available_flags};
use crate::{DESC_NEXT, Descriptor, RingMemory};

/// A chain in flight, by buffer ID.
#[derive(Clone, Copy, Debug, Default)]
struct Flight {
    /// Number of descriptors; 0 if the ID is free.
    count: u16,
    token: u32,
}

/// The state of the driver's side of a packed ring.
#[derive(Debug)]
pub(super) struct PackedDriver {
    flights: Box<[Flight]>,
    /// First in, first out.
    free_ids: VecDeque<u16>,
    /// IDs of chains in flight, in the order in which they were added.
    order: VecDeque<u16>,
    free_count: u16,
    /// Position of the next descriptor to be written.
    next_avail: u16,
    /// The second word of the first descriptor that is not published.
    first_word: Option<PackedWord>,
    published: u16,
    /// Number of chains that are published and not taken back.
    in_flight: u16,
    added: u16,
    next_used: u16,
    kicked: u16,
    kicked_valid: bool,
    /// For tests of back ends.
    raw: Descriptor,
}

impl PackedDriver {
    /// Begins a ring in `memory` at `position`.
    pub(super) fn starting_at(memory: &RingMemory, position: u16) -> Self {
        let entries = memory.entries();
        memory.set_driver_event(0, EVENT_ENABLE);
        memory.set_device_event(0, EVENT_ENABLE);
        // Used in the lap before `position`.
        for ahead in 0..entries {
            let at = position.wrapping_add(ahead);
            memory.set_packed_address(at, 0);
            let was = crate::packed_memory::used_flags(!memory.wrap(at));
            memory.publish_packed_word(at, PackedWord::new(0, 0, was));
        }
        Self {
            flights: vec![Flight::default(); usize::from(entries)].into(),
            free_ids: (0..entries).collect(),
            order: VecDeque::with_capacity(usize::from(entries)),
            free_count: entries,
            next_avail: position,
            first_word: None,
            published: position,
            in_flight: 0,
            added: 0,
            next_used: position,
            kicked: position,
            kicked_valid: false,
            raw: Descriptor::default(),
        }
    }

    pub(super) fn free_descriptors(&self) -> u16 {
        self.free_count
    }

    pub(super) fn next_id(&self) -> Option<u16> {
        self.free_ids.front().copied().filter(|_| self.free_count > 0)
    }

    pub(super) fn in_flight(&self) -> u16 {
        self.in_flight
    }

    pub(super) fn published_position(&self) -> u16 {
        self.published
    }

    pub(super) fn used_position(&self) -> u16 {
        self.next_used
    }

    /// Adds a chain of `count` buffers with their flags, at least one. Returns its ID; `None` if there is no room.
    pub(super) fn add(
        &mut self,
        memory: &RingMemory,
        buffers: impl Iterator<Item = ((u64, u32), u16)>,
        count: usize,
        token: u32,
    ) -> Option<u16> {
        if count == 0 || count > usize::from(self.free_count) {
            return None;
        }
        let id = self.free_ids.pop_front()?;
        let first = self.next_avail;
        let mut first_word = PackedWord(0);
        for (number, ((addr, len), flags)) in buffers.enumerate() {
            let position = first.wrapping_add(number as u16); // at most free_count
            let more = if number + 1 < count { DESC_NEXT } else { 0 };
            let word = PackedWord::new(len, id, flags | more | available_flags(memory.wrap(position)));
            memory.set_packed_address(position, addr);
            match number {
                0 => first_word = word,
                _ => memory.set_packed_word(position, word),
            }
        }
        let count = count as u16;
        match self.first_word {
            None => self.first_word = Some(first_word),
            Some(_) => memory.publish_packed_word(first, first_word),
        }
        self.flights[usize::from(id)] = Flight { count, token };
        self.order.push_back(id);
        self.next_avail = first.wrapping_add(count);
        self.free_count -= count;
        self.added += 1;
        Some(id)
    }

    /// Sets the descriptor for [`Self::publish_raw`].
    pub(super) fn set_raw(&mut self, descriptor: Descriptor) {
        self.raw = descriptor;
    }

    /// Publishes a descriptor with any buffer ID, together with the added chains. It does not count as in flight.
    pub(super) fn publish_raw(&mut self, memory: &RingMemory, id: u16) {
        let Descriptor { addr, len, flags, .. } = self.raw;
        let position = self.next_avail;
        memory.set_packed_address(position, addr);
        let word = PackedWord::new(len, id, flags | available_flags(memory.wrap(position)));
        memory.publish_packed_word(position, word);
        self.next_avail = position.wrapping_add(1);
        self.publish(memory);
    }

    pub(super) fn publish(&mut self, memory: &RingMemory) {
        if let Some(word) = self.first_word.take() {
            memory.publish_packed_word(self.published, word);
        }
        self.published = self.next_avail;
        self.in_flight += std::mem::take(&mut self.added);
    }

    /// Whether there is something to decide about a kick.
    pub(super) fn has_news(&self) -> bool {
        self.kicked != self.published || !self.kicked_valid
    }

    /// Whether the device wants a kick for what was published since the last call.
    pub(super) fn needs_kick(&mut self, memory: &RingMemory) -> bool {
        let old = std::mem::replace(&mut self.kicked, self.published);
        let was_valid = std::mem::replace(&mut self.kicked_valid, true);
        !was_valid || memory.is_wanted(memory.device_event(), self.published, old)
    }

    /// The used chain at `position`: ID, length, descriptors.
    fn used_at(
        &self,
        memory: &RingMemory,
        position: u16,
    ) -> Result<Option<(u16, u32, u16)>, DriverRingError> {
        let word = memory.packed_word(position);
        if !word.is_used(memory.wrap(position)) || self.in_flight == 0 {
            return Ok(None);
        }
        let (id, entries) = (word.id(), memory.entries());
        let flight = self.flights.get(usize::from(id));
        match flight.ok_or(DriverRingError::UsedOutOfRange(u32::from(id), entries))?.count {
            0 => Err(DriverRingError::NotInFlight(id)),
            count => Ok(Some((id, word.len_bytes(), count))),
        }
    }

    /// The next used chain, not taken back.
    pub(super) fn next_used(
        &self,
        memory: &RingMemory,
        in_order: bool,
    ) -> Result<Option<(u16, u32)>, DriverRingError> {
        let Some((id, len, _)) = self.used_at(memory, self.next_used)? else { return Ok(None) };
        match self.order.front() {
            Some(first) if in_order && *first != id => Err(DriverRingError::OutOfOrder(id, *first)),
            _ => Ok(Some((id, len))),
        }
    }

    /// Number of used chains that were not taken back.
    pub(super) fn used_pending(&self, memory: &RingMemory) -> Result<u16, DriverRingError> {
        self.look_behind_used(memory).map(|(pending, _)| pending)
    }

    /// The position behind them.
    pub(super) fn used_end(&self, memory: &RingMemory) -> Result<u16, DriverRingError> {
        self.look_behind_used(memory).map(|(_, position)| position)
    }

    fn look_behind_used(&self, memory: &RingMemory) -> Result<(u16, u16), DriverRingError> {
        let (mut position, mut pending) = (self.next_used, 0);
        while pending < self.in_flight
            && let Some((_, _, count)) = self.used_at(memory, position)?
        {
            position = position.wrapping_add(count);
            pending += 1;
        }
        Ok((pending, position))
    }

    /// Takes back the chain that [`Self::next_used`] told.
    pub(super) fn take(&mut self, (id, len): (u16, u32)) -> Used {
        let Flight { count, token } = std::mem::take(&mut self.flights[usize::from(id)]);
        if let Some(at) = self.order.iter().position(|other| *other == id) {
            self.order.remove(at);
        }
        self.free_ids.push_back(id);
        self.free_count += count;
        self.in_flight -= 1;
        self.next_used = self.next_used.wrapping_add(count);
        Used { head: id, token, len }
    }

    pub(super) fn suppress_calls(&self, memory: &RingMemory) {
        memory.set_driver_event(0, EVENT_DISABLE);
    }

    /// Asks for a signal when more than `ahead` used descriptors wait.
    pub(super) fn ask_for_call(&self, memory: &RingMemory, event_idx: bool, ahead: u16) {
        let position = self.next_used.wrapping_add(ahead);
        memory.set_driver_event(position, if event_idx { EVENT_DESC } else { EVENT_ENABLE });
    }

    /// Whether more than `ahead` used chains wait.
    pub(super) fn has_used(&self, memory: &RingMemory, ahead: u16) -> bool {
        self.used_pending(memory).is_ok_and(|pending| pending > ahead)
    }
}
