//! Counters as a row of words, to be kept where they outlive the process.

use lasthop_verdict::DropReason;

use crate::counters::{Drops, PortCounters};

const REASONS: usize = DropReason::ALL.len();
/// Words in front of the drop counters.
const PLAIN: usize = 13;

impl PortCounters {
    /// Words that the counters of one port are.
    pub const WORDS: usize = PLAIN + 2 * REASONS;

    /// The counters as words, for [`Self::of_words`].
    #[must_use]
    pub fn words(&self) -> [u64; Self::WORDS] {
        let mut words = [0; Self::WORDS];
        let (plain, drops) = words.split_at_mut(PLAIN);
        let mut copy = *self;
        plain.iter_mut().zip(copy.plain()).for_each(|(word, counter)| *word = *counter);
        let (received, sent) = drops.split_at_mut(REASONS);
        received.copy_from_slice(self.rx_drops.all());
        sent.copy_from_slice(self.tx_drops.all());
        words
    }

    /// Counters that were kept as words; words that are missing count as 0.
    #[must_use]
    pub fn of_words(words: &[u64]) -> Self {
        let mut counters = Self::default();
        let mut words = words.iter().copied();
        counters.plain().into_iter().zip(&mut words).for_each(|(counter, word)| *counter = word);
        counters.rx_drops = Drops::of_counts(words.by_ref().take(REASONS));
        counters.tx_drops = Drops::of_counts(words.take(REASONS));
        counters
    }

    fn plain(&mut self) -> [&mut u64; PLAIN] {
        [
            &mut self.rx_packets,
            &mut self.rx_bytes,
            &mut self.rx_gso_packets,
            &mut self.injected,
            &mut self.copies_added,
            &mut self.segments_added,
            &mut self.forwarded,
            &mut self.waiting,
            &mut self.tx_packets,
            &mut self.tx_bytes,
            &mut self.tx_gso_packets,
            &mut self.tx_csum_completed,
            &mut self.signals,
        ]
    }

    /// Makes counters of a worker that was killed whole: what had not come to its end then is counted by who takes over, and
    /// what was counted on one side only is on both.
    pub fn close(&mut self) {
        self.rx_packets = self.rx_packets.saturating_sub(std::mem::take(&mut self.waiting));
        let (taken_in, accounted_for) = (self.taken_in(), self.accounted_for());
        self.rx_drops.count_all(DropReason::Restart, taken_in.saturating_sub(accounted_for));
        self.rx_packets += accounted_for.saturating_sub(taken_in);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters() -> PortCounters {
        PortCounters::of_words(&(1..=PortCounters::WORDS as u64).collect::<Vec<_>>())
    }

    #[test]
    fn counters_are_what_they_were() {
        let counters = counters();
        assert_eq!((counters.rx_packets, counters.signals), (1, 13));
        assert_eq!(counters.rx_drops.of(DropReason::TooShort), 14);
        assert_eq!(counters.tx_drops.of(DropReason::ALL[REASONS - 1]), PortCounters::WORDS as u64);
        assert_eq!(PortCounters::of_words(&counters.words()), counters);
        assert_eq!(PortCounters::of_words(&[]), PortCounters::default());
    }

    #[test]
    fn closed_counters_are_conserved() {
        let mut one = PortCounters { rx_packets: 10, forwarded: 5, waiting: 3, ..PortCounters::default() };
        one.close();
        assert_eq!((one.rx_packets, one.rx_drops.of(DropReason::Restart)), (7, 2));
        let mut other = PortCounters { rx_packets: 1, forwarded: 5, ..PortCounters::default() };
        other.close();
        assert!(one.is_conserved() && other.is_conserved());
    }
}
