//! The queue of events in virtual time. Events of one time come out in the order in which they went in, so a run is the
//! same each time.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// An event and its place in time.
#[derive(Debug)]
struct Timed<E> {
    at_ns: u64,
    number: u64,
    event: E,
}

impl<E> PartialEq for Timed<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Timed<E> {}

impl<E> PartialOrd for Timed<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Timed<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at_ns, self.number).cmp(&(other.at_ns, other.number))
    }
}

/// Events by time, then by age.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    heap: BinaryHeap<Reverse<Timed<E>>>,
    entered: u64,
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), entered: 0 }
    }
}

impl<E> EventQueue<E> {
    /// Enters an event.
    pub(crate) fn push(&mut self, at_ns: u64, event: E) {
        self.entered += 1;
        self.heap.push(Reverse(Timed { at_ns, number: self.entered, event }));
    }

    /// The next event, if it is before `end_ns`.
    pub(crate) fn pop_before(&mut self, end_ns: u64) -> Option<(u64, E)> {
        let Reverse(first) = self.heap.peek()?;
        if first.at_ns >= end_ns {
            return None;
        }
        self.heap.pop().map(|Reverse(timed)| (timed.at_ns, timed.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_time_keep_their_order() {
        let mut queue = EventQueue::default();
        for (at_ns, name) in [(5, 'c'), (3, 'a'), (5, 'd'), (3, 'b'), (9, 'e')] {
            queue.push(at_ns, name);
        }
        let order: String = std::iter::from_fn(|| queue.pop_before(9)).map(|(_, name)| name).collect();
        assert_eq!(order, "abcd");
        assert_eq!(queue.pop_before(10), Some((9, 'e')));
    }
}
