use std::sync::atomic::{Ordering, fence};

use crate::ledger::order;
use crate::{Descriptor, InflightLog, Ledger, LedgerError, RingError, RingMemory, arm_and_recheck};

const USED_NO_NOTIFY: u16 = 1;
const AVAIL_NO_INTERRUPT: u16 = 1;

/// The device's side of one split ring.
#[derive(Debug)]
pub struct DeviceRing {
    memory: RingMemory,
    ledger: Ledger,
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
    /// The driver's available index when it was last signalled as it asked for.
    signalled_available: u16,
    event_idx: bool,
    kicks_armed: bool,
    /// For a front end that keeps track, too.
    log: Option<Box<InflightLog>>,
}

impl DeviceRing {
    /// As `begin`, without anything being kept for a successor.
    #[must_use]
    pub fn new(memory: RingMemory, base: u16, event_idx: bool) -> Self {
        let ledger = Ledger::private(memory.entries());
        Self::begin(memory, ledger, base, event_idx)
    }

    /// A ring that goes on at `base`, the next position of the available ring (GET_VRING_BASE's answer), and is written
    /// down in `ledger`, which is for as many entries.
    #[must_use]
    pub fn begin(memory: RingMemory, ledger: Ledger, base: u16, event_idx: bool) -> Self {
        let used = memory.used_index();
        ledger.begin(base, used);
        Self::at(memory, ledger, (base, used), event_idx)
    }

    /// As `begin`, for a ring whose chains are completed in any order and written down in `log`, too. Chains that are in flight
    /// there were those of a device that is gone with its ledger: they are marked, as after [`Self::take_over`], and the ring
    /// goes on behind them, wherever `base` is. Also returns whether there were any.
    #[must_use]
    pub fn begin_logged(
        memory: RingMemory,
        ledger: Ledger,
        mut log: InflightLog,
        base: u16,
        event_idx: bool,
    ) -> (Self, bool) {
        let used = memory.used_index();
        let mut heads = log.recover(used);
        // A driver that began anew in the meantime has made fewer available than were taken.
        if usize::from(memory.available_index().wrapping_sub(used)) < heads.len() {
            log.begin(used);
            heads.clear();
        }
        let was_taken = !heads.is_empty();
        let mut ring = Self::begin(memory, ledger, if was_taken { used } else { base }, event_idx);
        heads.iter().for_each(|head| ring.set_mark(*head, 1));
        ring.take(heads.len() as u16); // at most the ring's entries
        ring.ledger.set_taken(ring.next_avail);
        ring.log = Some(Box::new(log));
        (ring, was_taken)
    }

    /// As `take_over`, for a ring that is written down in `log`, too.
    ///
    /// # Errors
    /// [`LedgerError`]; nothing is changed in the ring then.
    pub fn take_over_logged(
        memory: RingMemory,
        ledger: Ledger,
        mut log: InflightLog,
        event_idx: bool,
    ) -> Result<Self, LedgerError> {
        let seen = memory.used_index();
        log.recover(seen);
        let (base, used) = ledger.where_marked(seen)?;
        let mut ring = Self::at(memory, ledger, (base, used), event_idx);
        (ring.published, ring.log) = (seen, Some(Box::new(log)));
        ring.ledger.set_taken(base);
        ring.publish();
        Ok(ring)
    }

    /// A ring whose device is dead, as `ledger` has it. What that one had completed is published; chains that it had taken
    /// and not completed are marked still ([`Self::marked`]), and are to be completed by [`Self::settle`].
    ///
    /// # Errors
    /// [`LedgerError`]; nothing is changed then.
    pub fn take_over(memory: RingMemory, ledger: Ledger, event_idx: bool) -> Result<Self, LedgerError> {
        let (base, used) = ledger.where_marked(memory.used_index())?;
        let mut ring = Self::at(memory, ledger, (base, used), event_idx);
        // Else a successor of this one would take what is completed next for what is not taken.
        ring.ledger.set_taken(base);
        ring.publish();
        Ok(ring)
    }

    /// As `take_over`, for a ring whose buffers are used in the order in which they were taken: those that were not filled
    /// are pending again.
    ///
    /// # Errors
    /// [`LedgerError`]; nothing is changed then.
    pub fn take_over_in_order(
        memory: RingMemory,
        ledger: Ledger,
        event_idx: bool,
    ) -> Result<Self, LedgerError> {
        let (base, used) = ledger.where_filled(memory.used_index())?;
        let mut ring = Self::at(memory, ledger, (base, used), event_idx);
        ring.publish();
        Ok(ring)
    }

    fn at(memory: RingMemory, ledger: Ledger, (base, next_used): (u16, u16), event_idx: bool) -> Self {
        Self {
            memory,
            ledger,
            next_avail: base,
            next_used,
            published: next_used,
            signalled: next_used,
            signalled_valid: false,
            signalled_available: base,
            event_idx,
            kicks_armed: true,
            log: None,
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

    /// As `take`, for heads that were all marked, which are completed in any order.
    #[inline]
    pub fn take_marked(&mut self, count: u16) {
        if self.log.is_some() {
            self.log_taken(count);
        }
        self.take(count);
        self.ledger.set_taken(self.next_avail);
    }

    /// Heads are read a second time here, and what is read goes to the driver's own front end alone.
    #[cold]
    fn log_taken(&mut self, count: u16) {
        for ahead in 0..count {
            let head = self.memory.available_entry(self.next_avail.wrapping_add(ahead));
            self.log.iter_mut().for_each(|log| log.take(head));
        }
    }

    /// What is left to be done of the chain at `head`; 0: the driver has it.
    #[inline(always)]
    #[must_use]
    pub fn mark(&self, head: u16) -> u16 {
        self.ledger.mark(head)
    }

    /// Notes how much is to be done of the chain at `head`, at least 1: before it is done, whoever takes over will know.
    #[inline(always)]
    pub fn set_mark(&mut self, head: u16, left: u16) {
        self.ledger.set_mark(head, left);
    }

    /// Heads that are marked.
    pub fn marked(&self) -> impl Iterator<Item = u16> + '_ {
        self.ledger.marked()
    }

    /// Chains that are marked with 1 are to be taken once more, in this order and before any other, by this device or its successor:
    /// nothing was done of them, and nothing is until [`Self::resume`]. How many of them, from the first on: there may not be room
    /// for all.
    pub fn postpone(&mut self, heads: &[u16]) -> usize {
        self.ledger.postpone(heads)
    }

    /// The next `count` of those that were postponed are taken: from now on, whoever takes over will not take them again.
    pub fn resume(&mut self, count: u16) {
        self.ledger.resume(count);
    }

    /// Chains that were postponed and not resumed, in their order.
    #[must_use]
    pub fn postponed(&self) -> Vec<u16> {
        self.ledger.postponed()
    }

    /// One more of what was to be done of the marked chain at `head` is done; true if that was the last: it is completed.
    #[inline]
    pub fn settle(&mut self, head: u16) -> bool {
        let mark = self.ledger.mark(head);
        debug_assert!(mark > 0, "a chain is settled once for each copy");
        let left = mark.saturating_sub(1);
        if left == 0 {
            self.complete(head, 0);
            order();
        }
        self.ledger.set_mark(head, left);
        left == 0
    }

    /// Completes the marked chain at `head`, however much was to be done of it.
    pub fn give_up(&mut self, head: u16) {
        self.complete(head, 0);
        order();
        self.ledger.set_mark(head, 0);
    }

    /// All used entries written so far are of buffers that are filled: whoever takes over publishes them.
    #[inline]
    pub fn note_filled(&mut self) {
        self.ledger.set_filled(self.next_used);
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

    /// Reads the memory of the next `count` used entries, so that a later write need not wait for its pages.
    pub fn touch_used(&self, count: u16) {
        let ends = [self.next_used, self.next_used.wrapping_add(count)];
        let entries = ends.map(|position| self.memory.used_entry(position));
        std::hint::black_box((self.memory.used_index(), entries));
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
        if self.log.is_some() {
            return self.publish_logged(position);
        }
        self.publish_plain(position);
    }

    #[inline]
    fn publish_plain(&mut self, position: u16) {
        self.published = position;
        self.ledger.set_filled(position);
        order();
        self.memory.set_used_index(position);
        order();
    }

    /// The heads are those of the used entries, as the driver's memory has them: see `log_taken`.
    #[cold]
    fn publish_logged(&mut self, position: u16) {
        let (mut at, chains) = (self.published, position.wrapping_sub(self.published));
        while at != position {
            let (head, _) = self.memory.used_entry(at);
            self.log.iter_mut().for_each(|log| log.link(head as u16));
            at = at.wrapping_add(1);
        }
        self.publish_plain(position);
        self.log.iter_mut().for_each(|log| log.published(position, chains));
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
        let is_wanted = crossed(self.memory.used_event(), new, old);
        if is_wanted {
            self.signalled_available = self.memory.available_index();
        }
        is_wanted
    }

    /// Whether the driver seems not to have reacted to its last signal: it has made nothing available since, and has not
    /// asked for another signal. Without EVENT_IDX nobody can tell, and it counts as one that has.
    #[must_use]
    pub fn is_unheeded(&self) -> bool {
        let (end, oldest) = (self.signalled, self.signalled.wrapping_sub(self.entries()));
        self.event_idx
            && self.signalled_valid
            && self.memory.available_index() == self.signalled_available
            && crossed(self.memory.used_event(), end, oldest)
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
