//! A fast driver's side of a ring: fixed slots, used in turn.

use std::sync::atomic::{Ordering, fence};

use crate::device::crossed;
use crate::driver::{AVAIL_NO_INTERRUPT, USED_NO_NOTIFY};
use crate::{BufferAccess, DESC_WRITE, Descriptor, DriverRingError, RingMemory, arm_and_recheck};

/// The driver's side of a ring whose slots are used in turn: slot `i` is always descriptor `i` and available entry `i`.
///
/// Once the table is written, making a slot available writes only its share of one index store. The device may complete
/// in any order; a slot is free again when all before it have returned.
///
/// ```text
///   positions    tail          taken out       published = available index
///                 |  in flight  .  .  .  .  .  .  |  free: the next to be given |
///   slot          = position modulo the ring's size
/// ```
#[derive(Debug)]
pub struct SlotRing {
    memory: RingMemory,
    /// Position of the oldest slot that the device has.
    tail: u16,
    /// Position of the next slot to be given to the device.
    next: u16,
    published: u16,
    /// used.idx as last read.
    seen_used: u16,
    next_used: u16,
    /// Slots after the tail that returned out of order.
    early: Box<[bool]>,
    early_count: u16,
    /// Length of each slot in its descriptor, in bytes.
    lens: Box<[u32]>,
    event_idx: bool,
    kicked: u16,
    kicked_valid: bool,
}

/// A slot that the device returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Returned {
    /// The slot.
    pub slot: u16,
    /// Bytes that the device claims to have written; not checked.
    pub len: u32,
}

impl SlotRing {
    /// Uses the ring of a [`DriverRing`](crate::DriverRing) that began at `position` and added no chain; that one must
    /// not be used any more. The device may be running. Slot `i` is `slot_bytes` at guest address `first_addr + i *
    /// stride_bytes`.
    #[must_use]
    pub fn new(
        memory: RingMemory,
        event_idx: bool,
        position: u16,
        direction: BufferAccess,
        (first_addr, stride_bytes, slot_bytes): (u64, u32, u32),
    ) -> Self {
        let entries = memory.entries();
        let flags = if direction == BufferAccess::Writable { DESC_WRITE } else { 0 };
        for index in 0..entries {
            let addr = first_addr + u64::from(index) * u64::from(stride_bytes);
            memory.set_descriptor(index, Descriptor { addr, len: slot_bytes, flags, next: 0 });
            memory.set_available_entry(index, index);
        }
        // This driver polls, so it suppresses signals; with EVENT_IDX a stale used_event has the same effect.
        memory.set_available_flags(if event_idx { 0 } else { AVAIL_NO_INTERRUPT });
        memory.set_used_event(position.wrapping_sub(1));
        Self {
            memory,
            tail: position,
            next: position,
            published: position,
            seen_used: position,
            next_used: position,
            early: vec![false; usize::from(entries)].into(),
            early_count: 0,
            lens: vec![slot_bytes; usize::from(entries)].into(),
            event_idx,
            kicked: position,
            kicked_valid: false,
        }
    }

    #[inline(always)]
    fn slot(&self, position: u16) -> u16 {
        position & (self.memory.entries() - 1)
    }

    /// Number of slots that can be added.
    #[inline(always)]
    #[must_use]
    pub fn room(&self) -> u16 {
        self.memory.entries() - self.next.wrapping_sub(self.tail)
    }

    /// The next slot to be added; valid only if there is [`Self::room`].
    #[inline(always)]
    #[must_use]
    pub fn next_slot(&self) -> u16 {
        self.slot(self.next)
    }

    /// Adds the next slot with `len` bytes; the device sees it at [`Self::publish`]. There must be room.
    #[inline(always)]
    pub fn give(&mut self, len: u32) {
        let slot = self.next_slot();
        let known = &mut self.lens[usize::from(slot)];
        if *known != len {
            *known = len;
            self.memory.set_descriptor_len(slot, len);
        }
        self.next = self.next.wrapping_add(1);
    }

    /// Adds all free slots, with their previous lengths.
    #[inline(always)]
    pub fn give_all(&mut self) {
        self.next = self.tail.wrapping_add(self.memory.entries());
    }

    /// Publishes the added chains. Returns whether the device wants a kick.
    #[inline(always)]
    #[must_use]
    pub fn publish(&mut self) -> bool {
        self.published = self.next;
        self.memory.set_available_index(self.published);
        self.needs_kick()
    }

    #[inline(always)]
    fn needs_kick(&mut self) -> bool {
        let (old, new) = (self.kicked, self.published);
        if old == new && self.kicked_valid {
            return false;
        }
        // As in `DriverRing::needs_kick`: the index was stored, then the event index is read.
        fence(Ordering::SeqCst);
        self.kicked = new;
        if !std::mem::replace(&mut self.kicked_valid, true) {
            return true;
        }
        if self.event_idx {
            crossed(self.memory.available_event(), new, old)
        } else {
            self.memory.used_flags() & USED_NO_NOTIFY == 0
        }
    }

    /// Number of slots added and not published yet.
    #[inline(always)]
    #[must_use]
    pub fn unpublished(&self) -> u16 {
        self.next.wrapping_sub(self.published)
    }

    /// Number of slots that the device has.
    #[must_use]
    pub fn in_flight(&self) -> u16 {
        self.published.wrapping_sub(self.tail)
    }

    /// Number of completions that can be taken now.
    ///
    /// # Errors
    /// [`DriverRingError::UsedIndexJump`].
    #[inline(always)]
    pub fn pending(&mut self) -> Result<u16, DriverRingError> {
        if self.seen_used == self.next_used {
            let seen = self.memory.used_index();
            let ahead = seen.wrapping_sub(self.next_used);
            let in_flight = self.published.wrapping_sub(self.next_used);
            if ahead > in_flight {
                return Err(DriverRingError::UsedIndexJump(ahead, in_flight));
            }
            self.seen_used = seen;
        }
        Ok(self.seen_used.wrapping_sub(self.next_used))
    }

    /// Takes the next of the [pending](Self::pending) completions.
    ///
    /// # Errors
    /// A fault of the device; see [`DriverRingError`].
    #[inline(always)]
    pub fn take(&mut self) -> Result<Returned, DriverRingError> {
        let (id, len) = self.memory.used_entry(self.next_used);
        let slot = id as u16; // all of it is compared below
        self.next_used = self.next_used.wrapping_add(1);
        if id == u32::from(self.slot(self.tail)) && self.early_count == 0 {
            self.tail = self.tail.wrapping_add(1);
        } else {
            self.take_unordered(id)?;
        }
        Ok(Returned { slot, len })
    }

    /// Takes a slot that returned out of order.
    #[cold]
    fn take_unordered(&mut self, id: u32) -> Result<(), DriverRingError> {
        let entries = self.memory.entries();
        let slot = u16::try_from(id).ok().filter(|slot| *slot < entries);
        let slot = slot.ok_or(DriverRingError::UsedOutOfRange(id, entries))?;
        let age = slot.wrapping_sub(self.tail) & (entries - 1);
        let early = &mut self.early[usize::from(slot)];
        if *early || age >= self.published.wrapping_sub(self.tail) {
            return Err(DriverRingError::NotInFlight(slot));
        }
        *early = true;
        self.early_count += 1;
        while self.early_count > 0 && std::mem::take(&mut self.early[usize::from(self.slot(self.tail))]) {
            self.early_count -= 1;
            self.tail = self.tail.wrapping_add(1);
        }
        Ok(())
    }

    /// Arms the signal for the next completion, and checks once more. True if there is one: the caller must not sleep.
    #[must_use]
    pub fn arm_calls(&mut self) -> bool {
        arm_and_recheck(
            self,
            |ring| match ring.event_idx {
                true => ring.memory.set_used_event(ring.next_used),
                false => ring.memory.set_available_flags(0),
            },
            |ring| ring.memory.used_index() != ring.next_used,
        )
    }

    /// Suppresses signals of the device.
    pub fn suppress_calls(&mut self) {
        match self.event_idx {
            true => self.memory.set_used_event(self.next_used.wrapping_sub(1)),
            false => self.memory.set_available_flags(AVAIL_NO_INTERRUPT),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lasthop_guestmem::{Mapping, MemoryMap, Region};

    use super::*;
    use crate::{DeviceRing, DriverRing, RingAddresses};

    const ENTRIES: u32 = 8;

    fn pair(position: u16) -> (SlotRing, DeviceRing) {
        let mapping = Arc::new(Mapping::anonymous(16384).unwrap());
        let map = MemoryMap::new(vec![Region { guest_addr: 0, user_addr: 0, mapping }]).unwrap();
        let memory = || {
            let addresses = RingAddresses { descriptors: 0, available: 4096, used: 8192 };
            RingMemory::new(&map, ENTRIES, addresses).unwrap()
        };
        let _fresh = DriverRing::starting_at(memory(), true, position);
        let driver = SlotRing::new(memory(), true, position, BufferAccess::Readable, (1000, 64, 60));
        (driver, DeviceRing::new(memory(), position, true))
    }

    fn heads(device: &mut DeviceRing) -> Vec<u16> {
        (0..device.pending().unwrap()).map(|ahead| device.head(ahead).unwrap()).collect()
    }

    #[test]
    fn slots_go_round_in_order_and_lengths_follow() {
        let (mut driver, mut device) = pair(65_530);
        assert!(driver.publish(), "the first publication kicks");
        for round in 0..50_u32 {
            for number in 0..3 {
                assert_eq!(u32::from(driver.next_slot()), (65_530 + 3 * round + number) % ENTRIES);
                driver.give(20 + number);
            }
            assert!(!driver.publish() || round == 0 || device.arm_kicks().unwrap());
            for number in 0..3 {
                let head = device.head(0).unwrap();
                let descriptor = device.descriptor(head);
                assert_eq!(descriptor.addr, 1000 + 64 * u64::from(head));
                assert_eq!((descriptor.len, descriptor.flags), (20 + number, 0));
                device.take(1);
                device.complete(head, number);
            }
            device.publish();
            assert_eq!((driver.pending().unwrap(), driver.room()), (3, 5));
            for number in 0..3 {
                assert_eq!(driver.take().unwrap().len, number);
            }
            assert_eq!((driver.pending().unwrap(), driver.room(), driver.in_flight()), (0, 8, 0));
        }
    }

    #[test]
    fn a_slot_waits_for_older_ones() {
        let (mut driver, mut device) = pair(6);
        driver.give_all();
        assert!(driver.publish());
        assert_eq!(heads(&mut device), [6, 7, 0, 1, 2, 3, 4, 5]);
        device.take(8);
        let mut come_back = |driver: &mut SlotRing, head: u16| {
            device.complete(head, 0);
            device.publish();
            assert_eq!(driver.pending().unwrap(), 1);
            driver.take().map(|returned| (returned.slot, driver.room()))
        };
        for (head, room) in [(7, 0), (0, 0), (6, 3), (1, 4), (3, 4), (2, 6)] {
            assert_eq!(come_back(&mut driver, head), Ok((head, room)));
        }
        assert_eq!(come_back(&mut driver, 5), Ok((5, 6)));
        assert_eq!(come_back(&mut driver, 5), Err(DriverRingError::NotInFlight(5)));
    }

    #[test]
    fn a_device_that_cheats_is_caught() {
        let (mut driver, mut device) = pair(0);
        driver.give(10);
        assert!(driver.publish());
        device.complete(9, 0);
        device.publish();
        assert_eq!(driver.pending(), Ok(1));
        assert_eq!(driver.take(), Err(DriverRingError::UsedOutOfRange(9, 8)));
        device.complete(0, 0);
        device.complete(0, 0);
        device.publish();
        assert!(matches!(driver.pending(), Err(DriverRingError::UsedIndexJump(2, 0))));
        let (mut driver, mut device) = pair(0);
        driver.give(10);
        assert!(driver.publish());
        device.complete(1, 0);
        device.publish();
        assert_eq!(driver.pending(), Ok(1));
        assert_eq!(driver.take(), Err(DriverRingError::NotInFlight(1)));
    }

    #[test]
    fn a_signal_comes_only_if_it_is_asked_for() {
        let (mut driver, mut device) = pair(0);
        driver.give_all();
        assert!(driver.publish());
        let mut complete = |driver: &mut SlotRing, head| {
            device.complete(head, 0);
            device.publish();
            let signal = device.needs_signal();
            driver.pending().unwrap();
            driver.take().unwrap();
            signal
        };
        assert!(complete(&mut driver, 0), "the first publication always signals");
        assert!(!complete(&mut driver, 1));
        assert!(!driver.arm_calls());
        assert!(complete(&mut driver, 2));
        assert!(!driver.arm_calls());
        driver.suppress_calls();
        assert!(!complete(&mut driver, 3));
    }
}
