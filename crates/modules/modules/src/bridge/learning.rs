//! Learning from source addresses.
//!
//! An address that has not moved costs one look-up, and one compare-and-swap per 67 ms. A new or moved address needs
//! the writer lock. A refusal that is certain (limit reached, no room) needs no lock, so that a guest that forges
//! addresses does not delay the learning of others.

use std::hint;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, TryLockError};

use lasthop_bridge_policy::SourceEntry;
use lasthop_module_api::PortId;

use super::slot::{FdbValue, Slot, Stamp};
use super::{Bridge, Control};

/// Attempts to take the writer lock while a frame is decided: some microseconds, longer than a learner holds it. A
/// frame never sleeps for it. If the holder lost its core, the next frame from the address is learned from.
const LOCK_TRIES: u32 = 64;
/// Shortest time between two sweeps, each of which reads the whole table. It bounds the work that ports at their limit
/// can cause. It is also the longest time until such a port profits from aged addresses.
const SWEEP_PAUSE_NS: u64 = 1_000_000_000;

/// The result of learning from a source address without a static entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LearnOutcome {
    /// The table's addresses are unchanged.
    Nothing,
    /// The address is now reached through the port that received the frame.
    Learned,
}

impl Bridge {
    /// Learns that `key`, a valid unicast address, is behind `port`, which has no static address.
    #[inline(never)]
    pub(crate) fn learn(&self, key: u64, port: PortId, now: Stamp) -> SourceEntry<LearnOutcome> {
        match self.table.find(key) {
            Some((_, place)) if place.is_static() => static_entry(place, port),
            Some((slot, place)) if place.port() == port => SourceEntry::None(self.refresh(slot, place, now)),
            None => match self.find_everywhere(key) {
                Some(place) => static_entry(place, port),
                None if self.is_hopeless(key, port, now) => SourceEntry::None(LearnOutcome::Nothing),
                None => self.learn_news(key, port, now),
            },
            Some(_) => self.learn_news(key, port, now),
        }
    }

    /// Whether [`Self::learn`] has nothing to do: the address is known to be behind `port`, and was seen just now.
    #[inline(always)]
    pub(crate) fn is_known(&self, key: u64, port: PortId, now: Stamp) -> bool {
        self.table.find(key).is_some_and(|(_, place)| place.is_seen(port, now))
    }

    /// Whether a valid unicast address without a static entry is learned behind `port`, or would be by [`Self::learn`];
    /// and the port behind which it is at present.
    pub(crate) fn would_learn(&self, key: u64, port: PortId, now: Stamp) -> (bool, Option<PortId>) {
        let known = self.table.find(key).map(|(_, place)| place);
        let seen = known.filter(|place| !self.table.is_aged(*place, now)).map(FdbValue::port);
        let is_here = known.is_some_and(|place| place.port() == port);
        let has_slot = || known.is_some() || self.table.vacancy(key, now).is_some();
        let is_learned = is_here || self.ports.is_live(port) && self.has_room(port, now) && has_slot();
        (is_learned, seen)
    }

    /// Whether a port may have one more learned address, for which aged ones would go.
    fn has_room(&self, port: PortId, now: Stamp) -> bool {
        let is_old = |place: FdbValue| place.port() == port && self.table.is_aged(place, now);
        !self.ports.is_full(port)
            || self.is_sweep_due(now) && self.table.entries().any(|(_, _, place)| is_old(place))
    }

    fn refresh(&self, slot: &Slot, place: FdbValue, now: Stamp) -> LearnOutcome {
        slot.refresh(place, now);
        if self.table.is_aged(place, now) { LearnOutcome::Learned } else { LearnOutcome::Nothing }
    }

    /// Whether a new address would be refused, as far as this is known without the lock.
    fn is_hopeless(&self, key: u64, port: PortId, now: Stamp) -> bool {
        if !self.ports.is_live(port) {
            return true;
        }
        if self.ports.is_full(port) && !self.is_sweep_due(now) {
            self.counts.limit_hit.raise();
            return true;
        }
        let is_crowded = self.table.vacancy(key, now).is_none();
        if is_crowded {
            self.counts.bucket_full.raise();
        }
        is_crowded
    }

    fn learn_news(&self, key: u64, port: PortId, now: Stamp) -> SourceEntry<LearnOutcome> {
        let Some(mut control) = self.control_soon() else {
            self.counts.busy.raise();
            return SourceEntry::None(LearnOutcome::Nothing);
        };
        // All checks are repeated: other threads could change everything before the lock was taken. A port that is
        // being removed has lost its bit before the lock was released, so no address of it gets into the table
        // afterwards.
        if !self.ports.is_live(port) {
            return SourceEntry::None(LearnOutcome::Nothing);
        }
        if self.ports.is_full(port) && self.is_sweep_due(now) {
            self.sweep(&control, now);
        }
        match self.table.find(key) {
            Some((_, place)) if place.is_static() => static_entry(place, port),
            Some((slot, place)) if place.port() == port => SourceEntry::None(self.refresh(slot, place, now)),
            Some((slot, place)) => {
                control.moves.note(key, (place.port(), port), now.as_ns());
                SourceEntry::None(self.relocate(&control, slot, place, FdbValue::learned(port, now)))
            }
            None => match self.find_everywhere(key) {
                Some(place) => static_entry(place, port),
                None => SourceEntry::None(self.insert(&control, key, FdbValue::learned(port, now))),
            },
        }
    }

    /// Moves an address to another port. If the new port is at its limit the address is removed instead: frames to it
    /// are flooded and arrive, instead of going to its old port.
    fn relocate(&self, _lock: &Control, slot: &Slot, old: FdbValue, new: FdbValue) -> LearnOutcome {
        if self.ports.is_full(new.port()) {
            slot.vacate();
            self.counts.limit_hit.raise();
        } else {
            slot.relocate(new);
            self.ports.take_slot(new.port());
            self.count_arrival(self.table.is_aged(old, new.stamp()));
        }
        self.ports.release_slot(old.port());
        LearnOutcome::Learned
    }

    fn count_arrival(&self, was_aged: bool) {
        if was_aged {
            self.counts.aged_out.raise();
            self.counts.learned.raise();
        } else {
            self.counts.moved.raise();
        }
    }

    fn insert(&self, _lock: &Control, key: u64, place: FdbValue) -> LearnOutcome {
        if self.ports.is_full(place.port()) {
            self.counts.limit_hit.raise();
            return LearnOutcome::Nothing;
        }
        let Some((slot, aged)) = self.table.vacancy(key, place.stamp()) else {
            self.counts.bucket_full.raise();
            return LearnOutcome::Nothing;
        };
        if let Some(aged) = aged {
            self.ports.release_slot(aged.port());
            self.counts.aged_out.raise();
        }
        slot.occupy(key, place);
        self.ports.take_slot(place.port());
        self.counts.learned.raise();
        LearnOutcome::Learned
    }

    fn is_sweep_due(&self, now: Stamp) -> bool {
        now.as_ns() >= self.sweep_at_ns.load(Ordering::Relaxed)
    }

    /// Removes aged entries, so that limits count live addresses only.
    fn sweep(&self, _lock: &Control, now: Stamp) {
        let next_ns = now.as_ns().saturating_add(SWEEP_PAUSE_NS);
        self.sweep_at_ns.store(next_ns, Ordering::Relaxed);
        for (slot, _, place) in self.table.entries().filter(|(_, _, place)| self.table.is_aged(*place, now)) {
            slot.vacate();
            self.ports.release_slot(place.port());
            self.counts.aged_out.raise();
        }
    }

    /// Takes the writer lock if it is free at once or after a few attempts.
    fn control_soon(&self) -> Option<MutexGuard<'_, Control>> {
        for _ in 0..LOCK_TRIES {
            match self.control.try_lock() {
                Ok(control) => return Some(control),
                Err(TryLockError::Poisoned(control)) => return Some(control.into_inner()),
                Err(TryLockError::WouldBlock) => hint::spin_loop(),
            }
        }
        None
    }
}

/// Static addresses are not learned; a frame from another port than the address's own is spoofed.
fn static_entry(place: FdbValue, port: PortId) -> SourceEntry<LearnOutcome> {
    if place.port() == port { SourceEntry::Here } else { SourceEntry::Elsewhere }
}
