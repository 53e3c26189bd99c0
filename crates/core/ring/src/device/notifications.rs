//! Signals and kicks: which the other side wants, and which this one does.

use std::sync::atomic::{Ordering, fence};

use super::DeviceRing;
use crate::packed_memory::{EVENT_DESC, EVENT_DISABLE, EVENT_ENABLE};
use crate::{RingError, arm_and_recheck};

const USED_NO_NOTIFY: u16 = 1;
const AVAIL_NO_INTERRUPT: u16 = 1;

impl DeviceRing {
    /// Whether the driver wants a signal for chains published since the last call (virtio 1.2, 2.7.7).
    #[inline]
    #[must_use]
    pub fn needs_signal(&mut self) -> bool {
        if self.signalled == self.published && self.signalled_valid {
            return false;
        }
        // Orders both sides: the driver stores its event index, then reads used.idx; this side stored used.idx, then
        // reads the event index.
        fence(Ordering::SeqCst);
        self.needs_signal_behind_fence()
    }

    /// As [`Self::needs_signal`], if this thread passed a full fence after it published the last chains.
    #[inline(always)] // left to itself the compiler calls it
    #[must_use]
    pub fn needs_signal_behind_fence(&mut self) -> bool {
        let (old, new) = (self.signalled, self.published);
        let was_valid = std::mem::replace(&mut self.signalled_valid, true);
        self.signalled = new;
        if !was_valid {
            return true;
        }
        if !self.has_used_event {
            return old != new && self.needs_signal_otherwise(new, old);
        }
        // False if nothing was published.
        let is_wanted = crossed(self.memory.used_event(), new, old);
        if is_wanted {
            self.signalled_available = self.memory.available_index();
        }
        is_wanted
    }

    /// Whether the driver asks for a signal in another way than by the used event of a split ring.
    #[inline(never)]
    fn needs_signal_otherwise(&mut self, new: u16, old: u16) -> bool {
        let Some(packed) = &self.packed else {
            let is_wanted = self.wants_signal_for(new, old);
            if is_wanted {
                self.signalled_available = self.memory.available_index();
            }
            return is_wanted;
        };
        let wish = self.memory.driver_event();
        let is_wanted = self.memory.is_wanted(wish, new, old);
        if is_wanted {
            self.signalled_available = packed.available_index(&self.memory);
            self.signalled_wish = Some(wish);
        }
        is_wanted
    }

    /// Whether the driver asks for a signal for the used entries from `old` to before `new`.
    fn wants_signal_for(&self, new: u16, old: u16) -> bool {
        match (self.is_packed, self.event_idx) {
            (false, true) => crossed(self.memory.used_event(), new, old),
            (false, false) => self.memory.available_flags() & AVAIL_NO_INTERRUPT == 0,
            (true, _) => self.memory.is_wanted(self.memory.driver_event(), new, old),
        }
    }

    /// Whether the driver seems to have missed its last signal: since then it made no buffer available and asked for no
    /// other signal. Without EVENT_IDX this cannot be known, and the result is false.
    #[must_use]
    pub fn is_unheeded(&self) -> bool {
        let (end, oldest) = (self.signalled, self.signalled.wrapping_sub(self.entries()));
        self.event_idx
            && self.signalled_valid
            && self.available_index() == self.signalled_available
            && self.wants_signal_for(end, oldest)
            && (!self.is_packed || self.is_used_before(end))
    }

    /// Whether the driver still wants the signal of the last [`Self::needs_signal`] that was true, which was not sent yet.
    /// False if it has taken all published chains, or polls: then it looks at the ring once more before it waits.
    #[must_use]
    pub fn wants_delayed_signal(&self) -> bool {
        let (end, oldest) = (self.signalled, self.signalled.wrapping_sub(self.entries()));
        self.wants_signal_for(end, oldest)
    }

    /// Whether the driver has taken all chains, as far as it tells: it wants a signal for the next one, or has made every
    /// descriptor available again. An old event index of a split ring looks like that once in 65536 chains. In a packed ring
    /// it would once in two laps, so one for which the driver was signalled does not count.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        !self.has_unpublished() && (self.is_awaited() || self.is_full())
    }

    /// Whether the driver wants a signal for the next used entry.
    fn is_awaited(&self) -> bool {
        match (self.event_idx, self.is_packed) {
            (false, _) => false,
            // Linux writes an event index of 0 where it wants no signal.
            (true, false) => self.next_used != 0 && self.memory.used_event() == self.next_used,
            (true, true) => {
                let wish = self.memory.driver_event();
                self.memory.is_awaited(wish, self.next_used) && self.signalled_wish != Some(wish)
            }
        }
    }

    /// Whether every descriptor is available.
    fn is_full(&self) -> bool {
        match self.is_packed {
            false => self.memory.available_index().wrapping_sub(self.next_avail) == self.entries(),
            true => self.is_lap_available(),
        }
    }

    /// Whether a wanted signal shows that the driver has taken the chains of the last one. Without EVENT_IDX it does not.
    #[must_use]
    pub fn has_event_index(&self) -> bool {
        self.event_idx
    }

    /// Suppresses kicks, since this ring is polled.
    #[inline]
    pub fn suppress_kicks(&mut self) {
        if self.kicks_armed {
            self.kicks_armed = false;
            if self.is_packed {
                return self.memory.set_device_event(0, EVENT_DISABLE);
            }
            // With EVENT_IDX a stale avail_event has the same effect: the index passes it once in 65536 heads.
            if !self.event_idx {
                self.memory.set_used_flags(USED_NO_NOTIFY);
            }
        }
    }

    /// As [`Self::suppress_kicks`], for a kick that was armed for a head that the driver has not added.
    pub fn suppress_next_kick(&mut self) {
        if self.kicks_armed && self.event_idx && !self.is_packed {
            // The head before the next one: the driver's index passes it in 65536 heads.
            self.memory.set_available_event(self.next_avail.wrapping_sub(1));
        }
        self.suppress_kicks();
    }

    /// Arms the kick for the next head, and checks once more. True if heads are pending: the caller must not sleep.
    ///
    /// # Errors
    /// [`RingError::IndexJump`].
    pub fn arm_kicks(&mut self) -> Result<bool, RingError> {
        let seen = self.next_avail;
        let moved = self.arm_kicks_past(seen);
        self.pending().map(|pending| moved || pending > 0)
    }

    /// Arms the kick for the time when the driver's index passes `seen`, and checks once more. True if it has passed
    /// already.
    #[must_use]
    pub fn arm_kicks_past(&mut self, seen: u16) -> bool {
        arm_and_recheck(self, |ring| ring.ask_for_kick(seen), |ring| ring.has_moved_past(seen))
    }

    pub(crate) fn ask_for_kick(&mut self, seen: u16) {
        self.kicks_armed = true;
        if self.is_packed {
            let flags = if self.event_idx { EVENT_DESC } else { EVENT_ENABLE };
            return self.memory.set_device_event(seen, flags);
        }
        if self.event_idx {
            self.memory.set_available_event(seen);
        } else {
            self.memory.set_used_flags(0);
        }
    }

    pub(crate) fn has_moved_past(&self, seen: u16) -> bool {
        match self.is_packed {
            false => self.memory.available_index() != seen,
            true => self.has_found_past(seen),
        }
    }
}

/// Whether an index that went from `old` to `new` passed `event` (virtio 1.2, 2.7.10.1).
#[inline]
pub(crate) fn crossed(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
