//! Ports in use in crowded ranges: finds the last free port without trying all, and knows when there is none.
//!
//! While a fifth of a range is free, random tries find a port soon. After many failures all ports of the range are
//! tried once. The result is kept as a bitmap, which every insertion and removal updates. This takes as many
//! connections as there are ports in use, so a sender cannot cause more work than its connections pay for.

use lasthop_ct_packet::CtTuple;

/// Crowded ranges with a bitmap at a time, 8 KiB each.
const CROWDS_MAX: usize = 32;
const WORDS: usize = 1 << 10;

/// The port of a tuple that is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortSide {
    Source,
    Destination,
}

impl PortSide {
    pub(crate) fn with(self, tuple: &CtTuple, port: u16) -> CtTuple {
        match self {
            Self::Source => CtTuple { src_port: port, ..*tuple },
            Self::Destination => CtTuple { dst_port: port, ..*tuple },
        }
    }

    fn port(self, tuple: &CtTuple) -> u16 {
        match self {
            Self::Source => tuple.src_port,
            Self::Destination => tuple.dst_port,
        }
    }
}

/// One bit for each port, set if it is in use.
#[derive(Debug)]
pub(crate) struct PortBits(Box<[u64]>);

impl Default for PortBits {
    fn default() -> Self {
        Self(vec![0; WORDS].into_boxed_slice())
    }
}

impl PortBits {
    pub(crate) fn set(&mut self, port: u16, is_taken: bool) {
        let (word, bit) = (usize::from(port) / 64, 1 << (port % 64));
        let Some(word) = self.0.get_mut(word) else { return };
        *word = if is_taken { *word | bit } else { *word & !bit };
    }

    /// The first free port between `from` and `to`; tests a word at a time.
    fn free_in(&self, from: usize, to: usize) -> Option<u16> {
        for word in from / 64..=to / 64 {
            let mut free = !self.0.get(word)?;
            if word == from / 64 {
                free &= !0 << (from % 64);
            }
            let port = 64 * word + free.trailing_zeros() as usize;
            if free != 0 {
                return (port <= to).then_some(port as u16);
            }
        }
        None
    }
}

/// Translated tuples that differ in this port only.
#[derive(Debug)]
struct CrowdedRange {
    /// The tuple, with port 0.
    tuple: CtTuple,
    side: PortSide,
    first: u16,
    last: u16,
    taken: PortBits,
    used: u64,
}

/// All ranges that are known to be crowded.
#[derive(Debug, Default)]
pub(crate) struct CrowdedRanges {
    crowds: Vec<CrowdedRange>,
    uses: u64,
}

impl CrowdedRange {
    fn is(&self, tuple: &CtTuple, side: PortSide) -> bool {
        self.side == side && side.with(tuple, 0) == self.tuple
    }

    fn free_from(&self, start: u16) -> Option<u16> {
        let (first, last) = (usize::from(self.first), usize::from(self.last));
        let start = usize::from(start).clamp(first, last);
        self.taken.free_in(start, last).or_else(|| self.taken.free_in(first, start))
    }
}

impl CrowdedRanges {
    /// Finds a free port of a crowded range, from `start` on; `Err` if the range is not known to be crowded.
    pub(crate) fn free_port(
        &mut self,
        tuple: &CtTuple,
        side: PortSide,
        (first, last): (u16, u16),
        start: u16,
    ) -> Result<Option<u16>, ()> {
        self.uses += 1;
        let is_it =
            |crowd: &&mut CrowdedRange| crowd.is(tuple, side) && (crowd.first, crowd.last) == (first, last);
        let crowd = self.crowds.iter_mut().find(is_it).ok_or(())?;
        crowd.used = self.uses;
        Ok(crowd.free_from(start))
    }

    /// Adds a crowded range, with the ports that are in use.
    pub(crate) fn add(
        &mut self,
        tuple: &CtTuple,
        side: PortSide,
        (first, last): (u16, u16),
        taken: PortBits,
    ) {
        let crowd = CrowdedRange { tuple: side.with(tuple, 0), side, first, last, taken, used: self.uses };
        if self.crowds.len() == CROWDS_MAX {
            let oldest = (0..CROWDS_MAX).min_by_key(|index| self.crowds[*index].used);
            oldest.map(|index| self.crowds.swap_remove(index));
        }
        self.crowds.push(crowd);
    }

    /// Whether no range is crowded, so that there is nothing to follow.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.crowds.is_empty()
    }

    /// Marks a tuple's port as in use, or as free.
    pub(crate) fn follow(&mut self, tuple: &CtTuple, is_taken: bool) {
        // A connection whose packets leave with the inverse of this tuple needs it for replies, so this decides about
        // the inverse's port.
        let Some(translated) = tuple.inverse() else { return };
        for crowd in &mut self.crowds {
            if crowd.is(&translated, crowd.side) {
                let port = crowd.side.port(&translated);
                crowd.taken.set(port, is_taken);
            }
        }
    }
}
