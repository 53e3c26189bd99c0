//! Copies of the descriptors of chains that wait, for a packed ring, where the ring's own may be overwritten.
//!
//! ```text
//!   heads   by buffer ID:  [ - | 3 | - | 0 ]        where the chain begins, or that it is not kept
//!   nodes                  [ d | d>4| . | d>1| d ]   descriptors, each with the place of the next one; the others are free
//! ```

use crate::{DESC_NEXT, Descriptor, Ledger};

/// The beginning of a kept chain.
#[derive(Clone, Copy, Debug, Default)]
struct KeptHead {
    /// The position at which the chain began.
    first: u16,
    node: u16,
    is_valid: bool,
}

/// The kept chains of one ring: as many descriptors as the ring has.
#[derive(Debug)]
pub(super) struct KeptChains {
    heads: Box<[KeptHead]>,
    nodes: Box<[Descriptor]>,
    free: Vec<u16>,
}

impl KeptChains {
    pub(super) fn new(entries: u16) -> Self {
        let count = usize::from(entries);
        Self {
            heads: vec![KeptHead::default(); count].into(),
            nodes: vec![Descriptor::default(); count].into(),
            free: (0..entries).rev().collect(),
        }
    }

    /// Keeps the chain with buffer ID `id`, which began at position `first`. A chain for which there is no room is not kept.
    pub(super) fn keep(
        &mut self,
        ledger: &Ledger,
        (id, first): (u16, u16),
        chain: impl ExactSizeIterator<Item = Descriptor>,
    ) {
        self.forget(id);
        if chain.len() > self.free.len() {
            // A chain that no longer waits was not noticed.
            (0..self.heads.len() as u16).filter(|id| ledger.mark(*id) == 0).for_each(|id| self.forget(id));
        }
        let count = chain.len();
        let Some(mut rest) = self.free.len().checked_sub(count).filter(|_| count > 0) else { return };
        rest += count;
        let node = self.free[rest - 1];
        for descriptor in chain {
            rest -= 1;
            let next = self.free[rest.saturating_sub(1)];
            self.nodes[usize::from(self.free[rest])] = Descriptor { next, ..descriptor };
        }
        self.free.truncate(rest);
        if let Some(head) = self.heads.get_mut(usize::from(id)) {
            *head = KeptHead { first, node, is_valid: true };
        }
    }

    /// Whether no chain is kept.
    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.nodes.len()
    }

    pub(super) fn forget(&mut self, id: u16) {
        let Some(head) = self.heads.get_mut(usize::from(id)) else { return };
        if !std::mem::take(&mut head.is_valid) {
            return;
        }
        let mut node = head.node;
        for _ in 0..self.nodes.len() {
            self.free.push(node);
            let Descriptor { flags, next, .. } = self.nodes[usize::from(node)];
            if flags & DESC_NEXT == 0 {
                return;
            }
            node = next;
        }
    }

    /// The first descriptor of the chain with buffer ID `id`, which begins at position `first`, if it is kept.
    pub(super) fn start(&self, id: u16, first: u16) -> Option<Descriptor> {
        let head = self.heads.get(usize::from(id))?;
        (head.is_valid && head.first == first).then(|| self.nodes[usize::from(head.node)])
    }

    /// The descriptor to which a kept one leads.
    pub(super) fn linked(&self, node: u16) -> Descriptor {
        self.nodes.get(usize::from(node)).copied().unwrap_or_default()
    }

    /// All descriptors of a kept chain that begins with `start`.
    pub(super) fn chain(&self, start: Descriptor) -> impl Iterator<Item = Descriptor> + '_ {
        std::iter::successors(Some(start), |last| {
            (last.flags & DESC_NEXT != 0).then(|| self.linked(last.next))
        })
        .take(self.nodes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RingFormat;

    fn chain(addresses: std::ops::Range<u64>) -> Vec<Descriptor> {
        let end = addresses.end;
        let descriptor =
            |addr| Descriptor { addr, len: 1, flags: if addr + 1 < end { DESC_NEXT } else { 0 }, next: 0 };
        addresses.map(descriptor).collect()
    }

    fn addresses(kept: &KeptChains, id: u16, first: u16) -> Option<Vec<u64>> {
        let start = kept.start(id, first)?;
        Some(kept.chain(start).map(|descriptor| descriptor.addr).collect())
    }

    #[test]
    fn chains_are_kept_whole_until_they_are_replaced_or_no_longer_marked() {
        let ledger = Ledger::private(RingFormat::Packed, 8);
        let mut kept = KeptChains::new(8);
        (0..4).for_each(|id| ledger.set_mark(id, 1));
        kept.keep(&ledger, (1, 100), chain(10..13).into_iter());
        kept.keep(&ledger, (2, 103), chain(20..21).into_iter());
        assert_eq!(addresses(&kept, 1, 100), Some(vec![10, 11, 12]));
        assert_eq!(addresses(&kept, 2, 103), Some(vec![20]));
        assert_eq!(
            [addresses(&kept, 1, 101), addresses(&kept, 0, 0)],
            [None, None],
            "of another lap, not kept"
        );
        kept.keep(&ledger, (1, 104), chain(30..34).into_iter());
        assert_eq!((addresses(&kept, 1, 100), addresses(&kept, 1, 104)), (None, Some(vec![30, 31, 32, 33])));
        kept.keep(&ledger, (3, 108), chain(40..45).into_iter());
        assert_eq!(addresses(&kept, 3, 108), None, "no room");
        ledger.set_mark(2, 0);
        ledger.set_mark(1, 0);
        kept.keep(&ledger, (3, 108), chain(40..48).into_iter());
        assert_eq!(addresses(&kept, 3, 108), Some((40..48).collect()), "room of those that are gone");
        kept.keep(&ledger, (3, 116), chain(50..51).into_iter());
        kept.keep(&ledger, (0, 117), chain(60..67).into_iter());
        assert_eq!(addresses(&kept, 0, 117), Some((60..67).collect()));
        assert_eq!(addresses(&kept, 3, 116), Some(vec![50]));
    }
}
