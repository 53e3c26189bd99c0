//! Counters as a row of words, for memory that outlives the process, with names for the reader.

use lasthop_module_api::DropReason;

use crate::counters::PortCounters;

const REASONS: usize = DropReason::ALL.len();
/// Number of words before the drop counters.
const PLAIN: usize = 16;
/// The prefix of the names of drop counters.
pub const RX_DROPS: &str = "rx_drops.";
/// As [`RX_DROPS`].
pub const TX_DROPS: &str = "tx_drops.";

impl PortCounters {
    /// Number of words for the counters of one port.
    pub const WORDS: usize = PLAIN + 2 * REASONS;

    /// The counters as words, in the order of [`Self::names`].
    #[must_use]
    pub fn words(&self) -> [u64; Self::WORDS] {
        let mut words = [0; Self::WORDS];
        let (plain, drops) = words.split_at_mut(PLAIN);
        let mut copy = *self;
        plain.iter_mut().zip(copy.plain()).for_each(|(word, (_, counter))| *word = *counter);
        let (received, sent) = drops.split_at_mut(REASONS);
        received.copy_from_slice(self.rx_drops.all());
        sent.copy_from_slice(self.tx_drops.all());
        words
    }

    /// Restores counters from [`Self::words`]; missing words count as 0.
    #[must_use]
    pub fn from_words(words: &[u64]) -> Self {
        let (mut counters, mut left) = (Self::default(), words.iter().copied());
        let mut next = || left.next().unwrap_or(0);
        counters.plain().into_iter().for_each(|(_, counter)| *counter = next());
        for reason in DropReason::ALL {
            counters.rx_drops.count_all(*reason, next());
        }
        for reason in DropReason::ALL {
            counters.tx_drops.count_all(*reason, next());
        }
        counters
    }

    /// The names of the words, in order. Another version of the program may have other names in another order.
    pub fn names() -> impl Iterator<Item = String> {
        let plain = Self::default().plain().map(|(name, _)| name.to_owned());
        let drops = [RX_DROPS, TX_DROPS]
            .into_iter()
            .flat_map(|side| DropReason::ALL.iter().map(move |reason| format!("{side}{}", reason.name())));
        plain.into_iter().chain(drops)
    }

    /// Adds to the counter of this name. False if there is none.
    pub fn add_to(&mut self, name: &str, count: u64) -> bool {
        let reason = |name| DropReason::ALL.iter().find(|reason| reason.name() == name);
        if let Some(name) = name.strip_prefix(RX_DROPS) {
            return reason(name).map(|reason| self.rx_drops.count_all(*reason, count)).is_some();
        }
        if let Some(name) = name.strip_prefix(TX_DROPS) {
            return reason(name).map(|reason| self.tx_drops.count_all(*reason, count)).is_some();
        }
        let counter = self.plain().into_iter().find(|(known, _)| *known == name);
        counter.map(|(_, counter)| *counter += count).is_some()
    }

    fn plain(&mut self) -> [(&'static str, &mut u64); PLAIN] {
        [
            ("rx_packets", &mut self.rx_packets),
            ("rx_bytes", &mut self.rx_bytes),
            ("rx_gso_packets", &mut self.rx_gso_packets),
            ("injected", &mut self.injected),
            ("copies_added", &mut self.copies_added),
            ("segments_added", &mut self.segments_added),
            ("forwarded", &mut self.forwarded),
            ("upcalls", &mut self.upcalls),
            ("flooded_to_none", &mut self.flooded_to_none),
            ("waiting", &mut self.waiting),
            ("detached", &mut self.detached),
            ("tx_packets", &mut self.tx_packets),
            ("tx_bytes", &mut self.tx_bytes),
            ("tx_gso_packets", &mut self.tx_gso_packets),
            ("tx_csum_completed", &mut self.tx_csum_completed),
            ("signals", &mut self.signals),
        ]
    }

    /// Makes the counters of a killed worker consistent. Its successor counts the packets that were under way; packets
    /// counted on one side only are counted on both. `unknown` packets were dropped for reasons that have no counter
    /// here.
    pub fn close(&mut self, unknown: u64) {
        self.rx_packets = self.rx_packets.saturating_sub(std::mem::take(&mut self.waiting));
        let (taken_in, accounted_for) = (self.taken_in(), self.accounted_for() + unknown);
        self.rx_drops.count_all(DropReason::Restart, taken_in.saturating_sub(accounted_for));
        self.rx_packets += accounted_for.saturating_sub(taken_in);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_restored() {
        let mut counters = PortCounters::default();
        for (name, count) in PortCounters::names().zip(1..) {
            assert!(counters.add_to(&name, count), "{name}");
        }
        assert_eq!((counters.rx_packets, counters.signals), (1, 16));
        assert_eq!(counters.rx_drops.of(DropReason::TooShort), 17);
        assert_eq!(counters.tx_drops.of(DropReason::ALL[REASONS - 1]), PortCounters::WORDS as u64);
        assert_eq!(counters.words().to_vec(), (1..=PortCounters::WORDS as u64).collect::<Vec<_>>());
        assert_eq!(PortCounters::from_words(&counters.words()), counters);
        assert_eq!(PortCounters::from_words(&[1]).words().iter().sum::<u64>(), 1, "words are missing");
        assert!(!counters.add_to("rx_drops.moon", 1) && !counters.add_to("too_short", 1));
    }

    #[test]
    fn closed_counters_are_conserved() {
        let mut one = PortCounters { rx_packets: 10, forwarded: 5, waiting: 3, ..PortCounters::default() };
        one.close(0);
        assert_eq!((one.rx_packets, one.rx_drops.of(DropReason::Restart)), (7, 2));
        let mut other = PortCounters { rx_packets: 1, forwarded: 5, ..PortCounters::default() };
        other.close(0);
        assert!(one.is_conserved() && other.is_conserved());
        let mut third = PortCounters { rx_packets: 4, ..PortCounters::default() };
        third.close(3);
        assert_eq!((third.rx_packets, third.rx_drops.of(DropReason::Restart)), (4, 1));
    }
}
