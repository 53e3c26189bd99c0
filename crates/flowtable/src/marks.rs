//! Which packets may have to go to the control plane behind others of their flow, told from their sights alone.
//!
//! Whether one has to is known by all of its key ([`crate::pending`]). That would make every packet dear while the control plane is
//! asked about any, so flows that it is asked about leave marks by what was seen of their packets: who finds no mark need not look.
//!
//! ```text
//!   sight's hash ─> count of pending flows there, of this scope     + those of other scopes, or of packets that nobody saw
//! ```

use crate::sight::Sight;

const MARKS: usize = 4096;

/// How a pending flow's packets are known again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mark {
    /// By the sight that was caught of them in the scope of this time.
    Seen { time: u16, at: u16 },
    /// By their key alone.
    #[default]
    Unseen,
    /// They were in the table before, and whoever goes on there looks by the key anyway.
    Inner,
}

impl Mark {
    pub(crate) fn of(sight: &Sight) -> Self {
        Self::Seen { time: sight.time(), at: (sight.hash() % MARKS as u64) as u16 }
    }
}

/// The marks of one worker's pending flows.
#[derive(Debug)]
pub(crate) struct Marks {
    counts: Box<[u16; MARKS]>,
    /// Of the scope that the counts are of.
    time: u16,
    seen: u32,
    /// Pending flows that packets of this scope are not known by.
    unseen: u32,
}

impl Marks {
    pub(crate) fn new() -> Self {
        Self { counts: Box::new([0; MARKS]), time: 0, seen: 0, unseen: 0 }
    }

    /// Another scope may have begun: marks of those before say nothing of its sights.
    #[inline]
    pub(crate) fn begin(&mut self, time: u16) {
        if time != self.time {
            self.turn_to(time);
        }
    }

    #[cold]
    fn turn_to(&mut self, time: u16) {
        if self.seen > 0 {
            self.counts.fill(0);
        }
        (self.time, self.unseen, self.seen) = (time, self.unseen + self.seen, 0);
    }

    /// Whether a packet of this scope is none of any marked flow's for sure.
    #[inline(always)]
    pub(crate) fn is_clear(&self, sight: &Sight) -> bool {
        self.unseen == 0 && self.counts[sight.hash() as usize % MARKS] == 0
    }

    fn count(&mut self, mark: Mark) -> Option<(&mut u32, Option<&mut u16>)> {
        match mark {
            Mark::Inner => None,
            Mark::Seen { time, at } if time == self.time => {
                Some((&mut self.seen, self.counts.get_mut(usize::from(at))))
            }
            Mark::Seen { .. } | Mark::Unseen => Some((&mut self.unseen, None)),
        }
    }

    /// A flow is pending from now on.
    pub(crate) fn add(&mut self, mark: Mark) {
        if let Some((all, here)) = self.count(mark) {
            *all += 1;
            here.into_iter().for_each(|here| *here += 1);
        }
    }

    /// It is not any more.
    pub(crate) fn remove(&mut self, mark: Mark) {
        if let Some((all, here)) = self.count(mark) {
            *all -= 1;
            here.into_iter().for_each(|here| *here -= 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use lasthop_wire::Key;

    use super::*;
    use crate::hash::Secret;
    use crate::sight::Scope;

    /// A sight of something, and how it is known again.
    fn sight(scope: &Scope, number: u64) -> (Sight, Mark) {
        let mut sight = Sight::default();
        sight.see_other(scope.sought(&Key([number; 18]), &Secret::random()), 0);
        (sight, Mark::of(&sight))
    }

    #[test]
    fn who_is_not_marked_is_clear() {
        let (mut marks, scope) = (Marks::new(), Scope::default());
        marks.begin(scope.time());
        let ((one, mark), (other, _)) = (sight(&scope, 1), sight(&scope, 2));
        assert!(marks.is_clear(&one));
        (0..2).for_each(|_| marks.add(mark));
        marks.add(Mark::Inner);
        assert_eq!(
            (marks.is_clear(&one), marks.is_clear(&other)),
            (false, one.hash() % 4096 != other.hash() % 4096)
        );
        marks.remove(mark);
        assert!(!marks.is_clear(&one));
        marks.remove(mark);
        marks.remove(Mark::Inner);
        assert!(marks.is_clear(&one));
        marks.add(Mark::Unseen);
        assert!(!marks.is_clear(&other), "it may be of that flow");
        marks.remove(Mark::Unseen);
        assert!(marks.is_clear(&other));
    }

    #[test]
    fn in_another_scope_nobody_is_clear_until_the_flows_before_it_are_through() {
        let (mut marks, mut scope) = (Marks::new(), Scope::default());
        marks.begin(scope.time());
        let (_, before) = sight(&scope, 1);
        marks.add(before);
        assert!(!scope.aim(Key([1; 18])));
        marks.begin(scope.time());
        let (one, mark) = sight(&scope, 2);
        assert!(!marks.is_clear(&one));
        marks.add(mark);
        marks.remove(before);
        assert!(!marks.is_clear(&one));
        marks.remove(mark);
        assert!(marks.is_clear(&one));
    }
}
