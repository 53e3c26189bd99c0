//! The times of expiry: a wheel of slots of one second each.
//!
//! A packet only writes its connection's time of expiry. The connection stays in its slot, and is checked when the slot
//! is due: it has expired, or moves to the slot of its present time. Times beyond the wheel's end are checked once a
//! turn. So a packet moves a connection only if its time comes closer.

use crate::links::{Links, List, ListKind};

/// Milliseconds of a slot.
const SLOT_MS: u64 = 1000;
/// Slots: a turn takes 17 minutes.
const SLOTS: usize = 1024;

/// The slots.
#[derive(Debug)]
pub(crate) struct Wheel {
    slots: Box<[List]>,
    /// The current time, in slots since zero.
    reached: u64,
}

impl Wheel {
    pub(crate) fn new(now_ms: u64) -> Self {
        Self { slots: vec![List::default(); SLOTS].into_boxed_slice(), reached: now_ms / SLOT_MS }
    }

    /// The slot of a time. It lies behind the slot that is being processed, so that processing ends.
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

    /// Moves a connection to a later slot.
    pub(crate) fn put_off(&mut self, links: &Links, index: u32, expires_ms: u64) {
        self.remove(links, index);
        self.add(links, index, expires_ms);
    }

    /// Moves a connection to an earlier slot, if its time came closer.
    pub(crate) fn hasten(&mut self, links: &Links, index: u32, expires_ms: u64) {
        let turn = |slot: u16| (u64::from(slot) + SLOTS as u64 - self.reached % SLOTS as u64) % SLOTS as u64;
        if turn(self.slot_of(expires_ms)) < turn(links.get(index, ListKind::Wheel).extra) {
            self.put_off(links, index, expires_ms);
        }
    }

    /// Any connection in this slot or a later one, and its slot.
    pub(crate) fn any(&self, from: usize) -> Option<(usize, u32)> {
        let slots = self.slots.iter().enumerate().skip(from);
        slots.filter_map(|(at, slot)| Some((at, slot.first()?))).next()
    }

    /// The next connection to be checked; `None` if all until `now_ms` were, or `steps` are used up.
    pub(crate) fn due(&mut self, now_ms: u64, steps: &mut u32) -> Option<u32> {
        let now = now_ms / SLOT_MS;
        // After a long pause one turn is enough.
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
