//! Chains that are completed in any order and used in the order in which they were made available (VIRTIO_F_IN_ORDER,
//! virtio 1.2, 2.7.9).
//!
//! ```text
//!   heads, by position   [ . . a b c d e . . ]     a is under way; b, d and e are completed, and held back
//!                 next_used ^         ^ next_avail
//! ```

use super::DeviceRing;
use crate::RingError;
use crate::ledger::HELD_BACK;

/// The chains of a ring that were taken and not used, in order.
#[derive(Debug)]
pub(super) struct UsedOrder {
    /// Checked heads, by position of the available ring.
    heads: Box<[u16]>,
    /// How far positions of the available ring are ahead of those of the used ring.
    lag: u16,
    /// Number of completed chains that wait for one before them.
    held_back: u16,
}

impl UsedOrder {
    /// An order of no chain yet, for a ring of `entries`.
    pub(super) fn new(entries: u16, lag: u16) -> Self {
        Self { heads: vec![0; usize::from(entries)].into(), lag, held_back: 0 }
    }

    /// Notes a chain that was taken before, and may be completed and held back.
    pub(super) fn note_known(&mut self, position: u16, head: u16, is_held_back: bool) {
        self.note(position, &[head]);
        self.held_back += u16::from(is_held_back);
    }

    /// Notes heads that were taken, the first one at `position`.
    #[inline(never)]
    pub(super) fn note(&mut self, position: u16, heads: &[u16]) {
        for (ahead, head) in (0..).zip(heads) {
            let slot = self.slot(position.wrapping_add(ahead));
            self.heads[slot] = *head;
        }
    }

    fn slot(&self, position: u16) -> usize {
        usize::from(position) & (self.heads.len() - 1)
    }

    /// The head of the chain whose used entry belongs at position `used`.
    #[inline]
    fn head(&self, used: u16) -> u16 {
        self.heads[self.slot(used.wrapping_add(self.lag))]
    }
}

impl DeviceRing {
    /// Makes the marked chains be used in the order in which they were taken. For a ring that was taken over, this
    /// order is read from the driver's available ring.
    ///
    /// # Errors
    /// [`RingError::ChainsInFlight`] if the driver overwrote those entries.
    pub fn keep_order(mut self) -> Result<Self, RingError> {
        let used_order = match self.is_packed {
            false => self.order_of_split()?,
            true => self.order_of_packed()?,
        };
        (self.is_noted, self.is_plain) = (true, false);
        self.used_order = Some(used_order);
        self.ledger.set_in_order();
        self.use_held_back();
        if self.next_used != self.published {
            self.publish();
        }
        Ok(self)
    }

    /// The order of the chains under way, from the driver's available ring.
    fn order_of_split(&self) -> Result<UsedOrder, RingError> {
        let lag = self.ledger.lag();
        let first = self.next_used.wrapping_add(lag);
        let mut used_order = UsedOrder::new(self.entries(), lag);
        let mut is_known = vec![false; usize::from(self.entries())];
        for ahead in 0..self.next_avail.wrapping_sub(first) {
            let position = first.wrapping_add(ahead);
            let head = self.memory.available_entry(position);
            let is_marked = head < self.entries() && self.ledger.mark(head) > 0;
            if !is_marked || std::mem::replace(&mut is_known[usize::from(head)], true) {
                return Err(RingError::ChainsInFlight(head));
            }
            used_order.note_known(position, head, self.ledger.mark(head) == HELD_BACK);
        }
        Ok(used_order)
    }

    /// The order of the chains under way, from the ledger.
    fn order_of_packed(&self) -> Result<UsedOrder, RingError> {
        let mut used_order = UsedOrder::new(self.entries(), 0);
        let mut ids: Vec<u16> = self.ledger.marked().collect();
        ids.sort_by_key(|id| self.ledger.first(*id).wrapping_sub(self.next_used));
        let mut position = self.next_used;
        for id in ids {
            if self.ledger.first(id) != position {
                return Err(RingError::ChainsInFlight(id));
            }
            used_order.note_known(position, id, self.ledger.mark(id) == HELD_BACK);
            position = position.wrapping_add(self.ledger.span(id));
        }
        Ok(used_order)
    }

    /// Notes `heads`, which are about to be taken, in the log and in the order.
    #[inline(never)]
    pub(super) fn note_taking(&mut self, heads: &[u16]) {
        if self.log.is_some() {
            self.log_taken(heads.len() as u16); // at most the ring's entries
        }
        self.log_packed(heads);
        let Some(used_order) = &mut self.used_order else { return };
        match self.packed {
            None => used_order.note(self.next_avail, heads),
            Some(_) => heads.iter().for_each(|id| used_order.note(self.ledger.first(*id), &[*id])),
        }
    }

    /// Whether chains are used in the order in which they were taken.
    #[must_use]
    pub fn keeps_order(&self) -> bool {
        self.used_order.is_some()
    }

    /// Number of completed chains that wait for one before them.
    #[inline]
    #[must_use]
    pub fn held_back(&self) -> u16 {
        self.used_order.as_ref().map_or(0, |used_order| used_order.held_back)
    }

    /// Whether the taken chain at `head` is the oldest one that is not used.
    #[inline]
    #[must_use]
    pub fn is_next_used(&self, head: u16) -> bool {
        self.used_order.as_ref().is_some_and(|used_order| used_order.head(self.next_used) == head)
    }

    /// The oldest chain, if it holds back completed ones.
    #[must_use]
    pub fn holding_back(&self) -> Option<u16> {
        let used_order = self.used_order.as_ref().filter(|used_order| used_order.held_back > 0)?;
        Some(used_order.head(self.next_used))
    }

    /// Completes the chain at `head`. If it is the oldest, uses it and those that waited for it.
    #[inline(never)]
    pub(super) fn complete_in_order(&mut self, head: u16) {
        let Some(used_order) = &mut self.used_order else { return };
        if used_order.head(self.next_used) != head {
            used_order.held_back += 1;
            return self.ledger.set_mark(head, HELD_BACK);
        }
        self.use_marked(head);
        self.use_held_back();
    }

    #[inline]
    pub(super) fn use_held_back(&mut self) {
        while let Some(used_order) = self.used_order.as_mut().filter(|used_order| used_order.held_back > 0) {
            let head = used_order.head(self.next_used);
            if self.ledger.mark(head) != HELD_BACK {
                return;
            }
            used_order.held_back -= 1;
            self.use_marked(head);
        }
    }

    /// Number of detached packet copies that are not delivered yet: they are lost if this device ends now, and the
    /// driver may have their chains back.
    #[must_use]
    pub fn detached(&self) -> u16 {
        self.ledger.detached()
    }

    /// Sets the number of detached copies, for a successor.
    pub fn set_detached(&mut self, count: u16) {
        self.ledger.set_detached(count);
    }
}
