//! The chains of a transmit ring that are postponed, or can be.

use std::collections::VecDeque;

/// No number: some segments of the frame were delivered.
const RULED_OUT: u64 = u64::MAX;

/// The order of a waiting chain, for postponing it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rank {
    /// Which one it is of those that were ranked; 0, or anything if it does not wait: there may be several copies of it.
    number: u64,
    /// As it was counted when it was taken.
    pub(crate) frame_bytes: u32,
    pub(crate) is_gso: bool,
}

/// The chains of one transmit ring that are postponed, or can be.
#[derive(Debug)]
pub(crate) struct Postponement {
    /// Heads to be taken before all others; as the ledger has it.
    pub(crate) next: VecDeque<u16>,
    /// By head.
    ranks: Box<[Rank]>,
    last_number: u64,
    /// By rank, chains that wait no more and are not in the ledger yet.
    withdrawn: Vec<(u64, u16)>,
}

impl Postponement {
    /// Of a ring with `entries`, where `next` were postponed before.
    pub(crate) fn new(entries: u16, next: Vec<u16>) -> Self {
        let ranks = vec![Rank::default(); usize::from(entries)].into_boxed_slice();
        let mut postponement = Self { next: VecDeque::new(), ranks, last_number: 0, withdrawn: Vec::new() };
        // They count as not taken, so there is nothing to be uncounted.
        next.iter().for_each(|head| postponement.rank(*head, 0, false));
        postponement.next = next.into();
        postponement
    }

    /// Whether there are chains to be taken once more.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        !self.next.is_empty()
    }

    /// A copy of the chain at `head` begins to wait. Unless it turns out to be the only one, it cannot be postponed.
    pub(crate) fn forget(&mut self, head: u16) {
        self.ranks[usize::from(head)].number = 0;
    }

    /// Of the chain at `head`, taken after all others that were ranked, there is one copy.
    pub(crate) fn rank(&mut self, head: u16, frame_bytes: u32, is_gso: bool) {
        self.last_number += 1;
        let rank = &mut self.ranks[usize::from(head)];
        if rank.number != RULED_OUT {
            *rank = Rank { number: self.last_number, frame_bytes, is_gso };
        }
    }

    /// Some of the chain at `head`, which waits, was delivered.
    pub(crate) fn rule_out(&mut self, head: u16) {
        self.ranks[usize::from(head)].number = RULED_OUT;
    }

    /// Whether the chain at `head`, which waits, can be postponed.
    pub(crate) fn is_possible(&self, head: u16) -> bool {
        !matches!(self.ranks[usize::from(head)].number, 0 | RULED_OUT)
    }

    /// The chain at `head` does not wait any more.
    pub(crate) fn withdraw(&mut self, head: u16) -> Rank {
        let rank = self.ranks[usize::from(head)];
        self.withdrawn.push((rank.number, head));
        rank
    }

    /// All chains to be taken again, in order: those fetched again that wait come before the others. `None`:
    /// nothing is new.
    pub(crate) fn gather(&mut self) -> Option<Vec<u16>> {
        if self.withdrawn.is_empty() {
            return None;
        }
        self.withdrawn.sort_unstable();
        let withdrawn = self.withdrawn.drain(..).map(|(_, head)| head);
        Some(withdrawn.chain(self.next.drain(..)).collect())
    }
}
