use std::sync::atomic::{Ordering, fence};

use crate::{Descriptor, RingError, RingMemory, arm_and_recheck};

const USED_NO_NOTIFY: u16 = 1;
const AVAIL_NO_INTERRUPT: u16 = 1;

/// The device's side of one split ring.
#[derive(Debug)]
pub struct DeviceRing {
    memory: RingMemory,
    /// Position of the next head to take.
    next_avail: u16,
    /// Position of the next used entry to write; used.idx follows at `publish`.
    next_used: u16,
    /// used.idx as the driver sees it.
    published: u16,
    /// used.idx when the driver was last considered for a signal.
    signalled: u16,
    /// Whether `signalled` means anything: the first publication after a start always signals.
    signalled_valid: bool,
    event_idx: bool,
    kicks_armed: bool,
}

impl DeviceRing {
    /// A ring that goes on at `base`, the next position of the available ring (GET_VRING_BASE's answer).
    #[must_use]
    pub fn new(memory: RingMemory, base: u16, event_idx: bool) -> Self {
        let next_used = memory.used_index();
        Self {
            memory,
            next_avail: base,
            next_used,
            published: next_used,
            signalled: next_used,
            signalled_valid: false,
            event_idx,
            kicks_armed: true,
        }
    }

    /// Entries of the ring.
    #[must_use]
    pub fn entries(&self) -> u16 {
        self.memory.entries()
    }

    /// Where another back end would go on, if everything taken was completed.
    #[must_use]
    pub fn base(&self) -> u16 {
        self.next_avail
    }

    /// Position just behind what `taken` heads ago was the next one; the driver's index as last trusted.
    #[inline]
    #[must_use]
    pub fn available_index(&self) -> u16 {
        self.memory.available_index()
    }

    /// Heads that wait to be taken.
    ///
    /// # Errors
    /// [`RingError::IndexJump`].
    #[inline]
    pub fn pending(&self) -> Result<u16, RingError> {
        let pending = self.memory.available_index().wrapping_sub(self.next_avail);
        if pending > self.entries() {
            Err(RingError::IndexJump(pending, self.entries()))
        } else {
            Ok(pending)
        }
    }

    /// Head number `ahead` of the pending ones.
    ///
    /// # Errors
    /// [`RingError::DescriptorOutOfRange`].
    #[inline]
    pub fn head(&self, ahead: u16) -> Result<u16, RingError> {
        let head = self.memory.available_entry(self.next_avail.wrapping_add(ahead));
        if head < self.entries() {
            Ok(head)
        } else {
            Err(RingError::DescriptorOutOfRange(head, self.entries()))
        }
    }

    /// Goes past `count` pending heads, which the caller read.
    #[inline]
    pub fn take(&mut self, count: u16) {
        self.next_avail = self.next_avail.wrapping_add(count);
    }

    /// Gives back the `count` heads taken last: they are pending again.
    #[inline]
    pub fn put_back(&mut self, count: u16) {
        self.next_avail = self.next_avail.wrapping_sub(count);
    }

    /// Descriptor `index` of the table, read now.
    #[inline]
    #[must_use]
    pub fn descriptor(&self, index: u16) -> Descriptor {
        self.memory.descriptor(index)
    }

    /// Asks for the cache line of a descriptor.
    #[inline]
    pub fn prefetch_descriptor(&self, index: u16) {
        self.memory.prefetch_descriptor(index);
    }

    /// Writes a used entry behind those written before; the driver sees it at `publish`.
    #[inline]
    pub fn complete(&mut self, head: u16, written_bytes: u32) {
        self.memory.set_used_entry(self.next_used, u32::from(head), written_bytes);
        self.next_used = self.next_used.wrapping_add(1);
    }

    /// Shows the driver all completed entries, by one store.
    #[inline]
    pub fn publish(&mut self) {
        self.publish_up_to(self.next_used);
    }

    /// As [`Self::publish`], but only entries before `position`: those behind it are not finished yet.
    #[inline]
    pub fn publish_up_to(&mut self, position: u16) {
        self.published = position;
        self.memory.set_used_index(position);
    }

    /// Position just behind the last used entry written.
    #[inline]
    #[must_use]
    pub fn used_position(&self) -> u16 {
        self.next_used
    }

    /// Position just behind the last used entry that the driver sees.
    #[inline]
    #[must_use]
    pub fn published_position(&self) -> u16 {
        self.published
    }

    /// Whether the driver wants to be signalled for what was published since the last call (virtio 1.2, 2.7.7).
    #[inline]
    #[must_use]
    pub fn needs_signal(&mut self) -> bool {
        let (old, new) = (self.signalled, self.published);
        if old == new && self.signalled_valid {
            return false;
        }
        // The driver stores its event index, then looks at used.idx; we stored used.idx, then look at the event index.
        fence(Ordering::SeqCst);
        let was_valid = std::mem::replace(&mut self.signalled_valid, true);
        self.signalled = new;
        if !was_valid {
            return true;
        }
        if !self.event_idx {
            return self.memory.available_flags() & AVAIL_NO_INTERRUPT == 0;
        }
        crossed(self.memory.used_event(), new, old)
    }

    /// Tells the driver that it need not kick: this ring is being looked at anyway.
    #[inline]
    pub fn suppress_kicks(&mut self) {
        if self.kicks_armed {
            self.kicks_armed = false;
            // With EVENT_IDX a stale avail_event does the same: it is passed once in 65536 heads.
            if !self.event_idx {
                self.memory.set_used_flags(USED_NO_NOTIFY);
            }
        }
    }

    /// Asks for a kick for the next head, and looks once more. True: heads are pending, do not sleep.
    ///
    /// # Errors
    /// [`RingError::IndexJump`].
    pub fn arm_kicks(&mut self) -> Result<bool, RingError> {
        let seen = self.next_avail;
        let moved = self.arm_kicks_past(seen);
        self.pending().map(|pending| moved || pending > 0)
    }

    /// Asks for a kick once the driver's index passes `seen`, and looks once more. True: it has already.
    #[must_use]
    pub fn arm_kicks_past(&mut self, seen: u16) -> bool {
        arm_and_recheck(self, |ring| ring.ask_for_kick(seen), |ring| ring.has_moved_past(seen))
    }

    pub(crate) fn ask_for_kick(&mut self, seen: u16) {
        self.kicks_armed = true;
        if self.event_idx {
            self.memory.set_available_event(seen);
        } else {
            self.memory.set_used_flags(0);
        }
    }

    pub(crate) fn has_moved_past(&self, seen: u16) -> bool {
        self.memory.available_index() != seen
    }
}

/// Whether going from `old` to `new` passed `event` (virtio 1.2, 2.7.10.1).
#[inline]
pub(crate) fn crossed(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
