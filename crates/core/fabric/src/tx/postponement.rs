//! The chains of a transmit ring that are postponed or may be.

use std::collections::VecDeque;

/// In place of a number: some segments of the frame were delivered, so the chain cannot be postponed.
const RULED_OUT: u64 = u64::MAX;

/// The position of a waiting chain in the order of postponing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rank {
    /// Sequence number in the order of ranking. 0 if the chain has several copies; undefined if it does not wait.
    number: u64,
    /// Bytes that were counted when the chain was taken.
    pub(crate) frame_bytes: u32,
    pub(crate) is_gso: bool,
}

/// The chains of one transmit ring that are postponed or may be.
#[derive(Debug)]
pub(crate) struct Postponement {
    /// Heads to be taken before all others, in the ledger's order.
    pub(crate) next: VecDeque<u16>,
    /// Indexed by head.
    ranks: Box<[Rank]>,
    last_number: u64,
    /// Withdrawn chains that are not in the ledger yet, by rank.
    withdrawn: Vec<(u64, u16)>,
}

impl Postponement {
    /// For a ring with `entries`, where `next` were postponed before.
    pub(crate) fn new(entries: u16, next: Vec<u16>) -> Self {
        let ranks = vec![Rank::default(); usize::from(entries)].into_boxed_slice();
        let mut postponement = Self { next: VecDeque::new(), ranks, last_number: 0, withdrawn: Vec::new() };
        // They count as not taken, so no counter has to be corrected.
        next.iter().for_each(|head| postponement.rank(*head, 0, false));
        postponement.next = next.into();
        postponement
    }

    /// Whether there are postponed chains to take.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        !self.next.is_empty()
    }

    /// Notes that a copy of the chain at `head` begins to wait. The chain cannot be postponed unless `rank` follows.
    pub(crate) fn forget(&mut self, head: u16) {
        self.ranks[usize::from(head)].number = 0;
    }

    /// Ranks the chain at `head`, which has one copy, after all chains ranked before.
    pub(crate) fn rank(&mut self, head: u16, frame_bytes: u32, is_gso: bool) {
        self.last_number += 1;
        let rank = &mut self.ranks[usize::from(head)];
        if rank.number != RULED_OUT {
            *rank = Rank { number: self.last_number, frame_bytes, is_gso };
        }
    }

    /// Notes that the waiting chain at `head` was partly delivered.
    pub(crate) fn rule_out(&mut self, head: u16) {
        self.ranks[usize::from(head)].number = RULED_OUT;
    }

    /// Whether the waiting chain at `head` can be postponed.
    pub(crate) fn is_possible(&self, head: u16) -> bool {
        !matches!(self.ranks[usize::from(head)].number, 0 | RULED_OUT)
    }

    /// Notes that the chain at `head` no longer waits and is to be postponed. Returns its rank.
    pub(crate) fn withdraw(&mut self, head: u16) -> Rank {
        let rank = self.ranks[usize::from(head)];
        self.withdrawn.push((rank.number, head));
        rank
    }

    /// All chains to be taken again, in order: withdrawn chains first, since they were fetched before the others.
    /// `None` if no chain was withdrawn.
    pub(crate) fn gather(&mut self) -> Option<Vec<u16>> {
        if self.withdrawn.is_empty() {
            return None;
        }
        self.withdrawn.sort_unstable();
        let withdrawn = self.withdrawn.drain(..).map(|(_, head)| head);
        Some(withdrawn.chain(self.next.drain(..)).collect())
    }
}
