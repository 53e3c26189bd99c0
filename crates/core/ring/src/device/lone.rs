//! The ways of a chain that is alone: no further one is behind it. Most packets come so when guests are not busy, so what is
//! saved here shortens a round trip.
//!
//! ```text
//!   transmit   lone_chain_in -> take_lone_in -> completed -> published       receive   next_chain -> fill_next -> published
//! ```
//!
//! Of packed rings, chains of several descriptors take the ways of several chains.

use super::packed::UsualChains;
use super::{AHEAD_CHAINS_MAX, DeviceRing};
use crate::Descriptor;

/// The result of a look for a lone chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoneChain {
    /// No chain is pending.
    None,
    /// Its head and first descriptor. It is the only pending chain, and not under way.
    One(u16, Descriptor),
    /// Anything else: several chains, or a faulty or unusual one.
    Other,
}

impl DeviceRing {
    /// Looks for a lone chain, and takes nothing.
    #[inline(always)]
    #[must_use]
    pub fn lone_chain_in<const PACKED: bool>(&self) -> LoneChain {
        debug_assert_eq!(PACKED, self.is_packed);
        if PACKED {
            return self.packed_lone_chain();
        }
        match self.memory.available_index().wrapping_sub(self.next_avail) {
            0 => LoneChain::None,
            1 => match self.split_head(0) {
                Ok(head) if self.mark(head) == 0 => LoneChain::One(head, self.memory.descriptor(head)),
                _ => LoneChain::Other,
            },
            _ => LoneChain::Other,
        }
    }

    /// Takes the chain of [`Self::lone_chain_in`], marked with 1.
    #[inline(always)]
    pub fn take_lone_in<const PACKED: bool>(&mut self, head: u16) {
        if let Some(packed) = self.packed.as_deref_mut().filter(|_| PACKED) {
            packed.enter_usual(&self.ledger, head);
        }
        self.set_mark(head, 1);
        if self.is_noted {
            self.note_taking(&[head]);
        }
        match self.packed.as_deref_mut().filter(|_| PACKED) {
            Some(packed) => packed.take_usual(),
            None => self.ahead_chains = 0,
        }
        self.next_avail = self.next_avail.wrapping_add(1);
        self.ledger.set_taken(self.next_avail);
    }

    #[inline(always)]
    fn packed_lone_chain(&self) -> LoneChain {
        let Some(packed) = self.packed.as_deref().filter(|packed| packed.has_found_none()) else {
            return LoneChain::Other;
        };
        let (position, behind) = (packed.found_end, packed.found_end.wrapping_add(1));
        let usual = UsualChains::of(&self.memory, &self.ledger, self.next_used);
        let word = usual.word(position);
        if !usual.is_available(position, word) {
            return LoneChain::None;
        }
        match usual.id(position, word) {
            Some(id) if !packed.has_waiting() && !usual.is_available(behind, usual.word(behind)) => {
                LoneChain::One(id, self.memory.packed_descriptor_with(position, word))
            }
            _ => LoneChain::Other,
        }
    }

    /// Reads the next chain. Others are on the line that this one is on, so reading them ahead would save nothing.
    #[inline(always)]
    pub(super) fn read_packed_ahead(&mut self) {
        let Some((id, descriptor)) = self.find_next() else { return };
        let place = usize::from(self.next_avail % AHEAD_CHAINS_MAX);
        (self.ahead_heads[place], self.ahead_descriptors[place]) = (id, descriptor);
        self.ahead_chains = 1;
    }

    /// Finds the next chain, and reads its first descriptor.
    #[inline(always)]
    fn find_next(&mut self) -> Option<(u16, Descriptor)> {
        if let Some(packed) = self.packed.as_deref_mut()
            && packed.has_found_none()
            && !packed.has_waiting()
        {
            let (position, usual) =
                (packed.found_end, UsualChains::of(&self.memory, &self.ledger, self.next_used));
            let word = usual.word(position);
            if let Some(id) = usual.id(position, word) {
                packed.enter_usual(&self.ledger, id);
                return Some((id, self.memory.packed_descriptor_with(position, word)));
            }
        }
        self.find_chains(1)?;
        Some((self.found_id(0)?, self.memory.packed_descriptor(self.next_avail)))
    }

    /// As [`Self::fill_next`], for a packed ring.
    #[inline(always)]
    pub(super) fn fill_packed(&mut self, id: u16, written_bytes: u32) {
        if let Some(packed) = &mut self.packed {
            self.next_avail = packed.take(1, self.next_avail, &self.ledger);
        }
        self.ahead_chains = 0;
        self.use_packed(id, written_bytes);
        self.note_filled();
    }
}
