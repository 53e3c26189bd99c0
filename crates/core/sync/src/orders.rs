//! Orders to other workers, one at a time for each place of work.

use crate::queue::Bounded;
use crate::sync::{AtomicBool, Ordering};

/// Whether a worker has the order to work at a place. Any worker may give one, into the mailbox of another.
///
/// ```text
///   giver:    is_given? ──no──> given ──> mailbox ──> wakes its owner, if it sleeps
///   owner:                                  └──> pops it, works, ends it          then another may be given
/// ```
///
/// A hint: a giver may see an order that is about to end, and gives none then. So the work must not depend on it.
#[derive(Debug)]
pub struct OrderFlag(AtomicBool);

impl Default for OrderFlag {
    fn default() -> Self {
        Self(AtomicBool::new(false))
    }
}

impl OrderFlag {
    /// Whether an order is given and has not ended.
    #[inline]
    #[must_use]
    pub fn is_given(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Puts `order` into `mailbox`, unless one is given. Returns whether it did; a full fence and a look at the owner's
    /// sleep follow then. If the mailbox is full, no order is given.
    #[must_use]
    pub fn give<T>(&self, mailbox: &Bounded<T>, order: T) -> bool {
        // Only one of several givers sees `false`.
        if self.0.swap(true, Ordering::Relaxed) {
            return false;
        }
        let is_given = mailbox.push(order).is_ok();
        if !is_given {
            self.end();
        }
        is_given
    }

    /// Ends the order. Only its owner calls this, once for each order.
    pub fn end(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_order_at_a_time_and_none_if_the_mailbox_is_full() {
        let mailbox = Bounded::new(2);
        let flags: [OrderFlag; 3] = Default::default();
        assert!(flags[0].give(&mailbox, 'a') && !flags[0].give(&mailbox, 'b'));
        assert!(flags[1].give(&mailbox, 'c'));
        assert!(!flags[2].give(&mailbox, 'd') && !flags[2].is_given());
        assert_eq!((mailbox.pop(), flags[0].is_given()), (Some('a'), true), "until it ends");
        flags[0].end();
        assert!(flags[0].give(&mailbox, 'e'));
        assert_eq!([mailbox.pop(), mailbox.pop(), mailbox.pop()], [Some('c'), Some('e'), None]);
    }
}
