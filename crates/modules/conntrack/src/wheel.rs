//! When connections may be over: a wheel of slots of a second each.
//!
//! A packet writes its connection's time of expiry and no more. The connection stays in the slot where it was put, and is looked
//! at when that is due: it is over, or moves to the slot of its time as it is then. Times beyond the wheel's end are looked at
//! once a turn. So nothing is moved for a packet, but when a time comes closer.

use crate::links::{Links, List, ListKind};

/// Milliseconds of a slot.
const SLOT_MS: u64 = 1000;
/// Slots: a turn takes 17 minutes.
const SLOTS: usize = 1024;

/// The slots.
#[derive(Debug)]
pub(crate) struct Wheel {
    slots: Box<[List]>,
    /// The time that was reached, in slots since zero.
    reached: u64,
}

impl Wheel {
    pub(crate) fn new(now_ms: u64) -> Self {
        Self { slots: vec![List::default(); SLOTS].into_boxed_slice(), reached: now_ms / SLOT_MS }
    }

    /// The slot of a time: behind the one that is at work, which thus comes to an end.
    fn slot_of(&self, expires_ms: u64) -> u16 {
        let due = expires_ms / SLOT_MS + 1;
        let due = due.clamp(self.reached + 1, self.reached + SLOTS as u64 - 1);
        (due % SLOTS as u64) as u16
    }

    pub(crate) fn add(&mut self, links: &Links, index: u32, expires_ms: u64) {
        let slot = self.slot_of(expires_ms);
        self.slots[usize::from(slot)].push(links, ListKind::Wheel, index, slot);
    }

    pub(crate) fn remove(&mut self, links: &Links, index: u32) {
        let slot = links.get(index, ListKind::Wheel).extra;
        if let Some(slot) = self.slots.get_mut(usize::from(slot)) {
            slot.remove(links, ListKind::Wheel, index);
        }
    }

    /// A connection is to be looked at another time.
    pub(crate) fn put_off(&mut self, links: &Links, index: u32, expires_ms: u64) {
        self.remove(links, index);
        self.add(links, index, expires_ms);
    }

    /// A connection's time may have come closer.
    pub(crate) fn hasten(&mut self, links: &Links, index: u32, expires_ms: u64) {
        let turn = |slot: u16| (u64::from(slot) + SLOTS as u64 - self.reached % SLOTS as u64) % SLOTS as u64;
        if turn(self.slot_of(expires_ms)) < turn(links.get(index, ListKind::Wheel).extra) {
            self.put_off(links, index, expires_ms);
        }
    }

    /// Any connection, from this slot on, and its slot.
    pub(crate) fn any(&self, from: usize) -> Option<(usize, u32)> {
        let slots = self.slots.iter().enumerate().skip(from);
        slots.filter_map(|(at, slot)| Some((at, slot.first()?))).next()
    }

    /// The next connection to be looked at; none: all until `now_ms` were, or `steps` are used up.
    pub(crate) fn due(&mut self, now_ms: u64, steps: &mut u32) -> Option<u32> {
        let now = now_ms / SLOT_MS;
        // After a long pause once around is enough.
        self.reached = self.reached.max(now.saturating_sub(SLOTS as u64));
        while *steps > 0 {
            *steps -= 1;
            if let Some(index) = self.slots[(self.reached % SLOTS as u64) as usize].first() {
                return Some(index);
            }
            if self.reached >= now {
                return None;
            }
            self.reached += 1;
        }
        None
    }
}
