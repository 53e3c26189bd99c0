//! The second flows of recent packets, for cache entries whose flow is `ct(...),recirc(...)`.
//!
//! Packets of one entry of the first cache differ only in the state of their connections, as far as flows can tell. So
//! the state and the entry identify the second flow without another key and hash. There is one place for each
//! direction. All other packets are looked up in the cache of later passes.
//!
//! ```text
//!   entry of the first cache, direction ─> [ version ][ program ][ statistics entry ][ words of connection tracking: 5 ]
//! ```

use crate::cache::{CacheSlot, Hit};

/// Words of connection tracking, of IPv4. Those of IPv6 packets that are tracked here have the first one only.
pub(crate) const CT4_WORDS: usize = 5;

/// The second flows for all entries of a cache.
#[derive(Debug)]
pub(crate) struct SecondPasses {
    /// Two lines for each cache line of an entry: version, program, statistics entry (0: empty), words of connection tracking. They are
    /// allocated at the first `put`, since most flow tables track nothing; untouched zeros take no memory.
    lines: Vec<[u64; LINE_WORDS]>,
    /// Cache lines of the cache, at most.
    cache_lines: usize,
}

/// The second flow of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SecondHit {
    pub(crate) program: u64,
    pub(crate) stats: u32,
}

/// Words of a cache line, which is the size of a cache entry and of a line here.
const LINE_WORDS: usize = 8;
const CT_AT: usize = 3;
const _: () = assert!(CT_AT + CT4_WORDS == LINE_WORDS);

#[inline(always)]
fn line(slot: CacheSlot, is_reply: bool) -> usize {
    slot.0 / LINE_WORDS * 2 + usize::from(is_reply)
}

impl SecondPasses {
    /// For a cache of at most this many lines.
    pub(crate) fn new(cache_lines: usize) -> Self {
        Self { lines: Vec::new(), cache_lines }
    }

    /// Whether the first word of the last packet was `word`, and its second flow counts in `stats`, which is not 0.
    #[inline(always)]
    pub(crate) fn has(
        &self,
        (slot, is_reply): (CacheSlot, bool),
        word: u64,
        version: u64,
        stats: u32,
    ) -> bool {
        let last = self.lines.get(line(slot, is_reply));
        last.is_some_and(|[its_version, _, its_stats, its_word, ..]| {
            *its_word == word && *its_version == version && *its_stats == u64::from(stats)
        })
    }

    /// The second flow of the last packet, if all its words were `ct`.
    pub(crate) fn find_whole(
        &self,
        at: (CacheSlot, bool),
        ct: &[u64; CT4_WORDS],
        version: u64,
    ) -> Option<SecondHit> {
        let line = self.lines.get(line(at.0, at.1))?;
        let [its_version, program, stats, ..] = *line;
        let is_it = line[CT_AT..] == *ct && its_version == version && stats != 0;
        is_it.then_some(SecondHit { program, stats: stats as u32 })
    }

    /// Stores the second flow of a packet.
    pub(crate) fn put(&mut self, (slot, is_reply): (CacheSlot, bool), ct: &[u64; CT4_WORDS], hit: Hit) {
        if self.lines.is_empty() {
            // One more, since the cache's first entry is aligned to a cache line.
            self.lines = vec![[0; LINE_WORDS]; 2 * (self.cache_lines + 1)];
        }
        if let Some(last) = self.lines.get_mut(line(slot, is_reply)) {
            last[..CT_AT].copy_from_slice(&[hit.version, hit.program, hit.stats.into()]);
            last[CT_AT..].copy_from_slice(ct);
        }
    }

    /// Clears the lines of a cache entry that was replaced.
    pub(crate) fn forget(&mut self, slot: CacheSlot) {
        let first = line(slot, false);
        if let Some(both) = self.lines.get_mut(first..first + 2) {
            both.fill([0; LINE_WORDS]);
        }
    }

    /// Clears all lines.
    pub(crate) fn clear(&mut self) {
        self.lines = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HIT: Hit = Hit { flow: 5, generation: 1, version: 9, stats: 2, program: 77 };
    const CT: [u64; CT4_WORDS] = [1, 2, 3, 4, 5];

    #[test]
    fn a_pass_is_known_by_entry_direction_version_and_state() {
        let mut passes = SecondPasses::new(4);
        let (slot, known) = (CacheSlot(2 * LINE_WORDS), Some(SecondHit { program: 77, stats: 2 }));
        assert_eq!(passes.find_whole((slot, true), &CT, 9), None);
        passes.put((slot, true), &CT, HIT);
        assert_eq!(passes.find_whole((slot, true), &CT, 9), known);
        let others = [((CacheSlot(0), true), 9), ((slot, false), 9), ((slot, true), 8)];
        assert!(others.iter().all(|(at, version)| passes.find_whole(*at, &CT, *version).is_none()));
        for word in 0..CT4_WORDS {
            let mut ct = CT;
            ct[word] += 1;
            assert_eq!(passes.find_whole((slot, true), &ct, 9), None);
            assert_eq!(passes.has((slot, true), ct[0], 9, HIT.stats), word > 0);
        }
        let is_known = |at, version, stats| passes.has((slot, at), CT[0], version, stats);
        assert!(
            is_known(true, 9, 2) && !is_known(false, 9, 2) && !is_known(true, 8, 2) && !is_known(true, 9, 3)
        );
        passes.put((CacheSlot(4 * LINE_WORDS), true), &CT, HIT);
        passes.forget(slot);
        assert_eq!(passes.find_whole((slot, true), &CT, 9), None);
        assert_eq!(passes.find_whole((CacheSlot(4 * LINE_WORDS), true), &CT, 9), known);
        passes.clear();
        assert_eq!(passes.find_whole((CacheSlot(4 * LINE_WORDS), true), &CT, 9), None);
    }
}
