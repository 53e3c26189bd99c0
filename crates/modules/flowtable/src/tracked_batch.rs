//! The packets of a batch that have one flow, `ct(...),recirc(...)`, on their way: what was found of each.
//!
//! Each step is a loop of its own: few values are at hand in each, so they stay in registers.

use lasthop_conntrack::{UsualEnds, UsualPacket, UsualVerdict, UsualZone};
use lasthop_flow::ct_state::REPLY;
use lasthop_module_api::{BATCH_PACKETS_MAX, Header};
use lasthop_wire::key::CtWords;

use crate::cache::CacheSlot;
use crate::cache_key::CacheKey;
use crate::ct_words::{first_word_of_usual, words_of_usual};
use crate::lane::Lane;
use crate::stats::CountedRun;

/// Results of the packets of a run, by the number in the run.
#[derive(Debug)]
pub(crate) struct TrackedBatch {
    /// Where the first flow is in the first cache.
    pub(crate) slots: [CacheSlot; BATCH_PACKETS_MAX],
    /// The first of their words of connection tracking.
    words: [u64; BATCH_PACKETS_MAX],
    /// All words, and translations; for runs that need them.
    whole: [(CtWords, Option<UsualEnds>); BATCH_PACKETS_MAX],
}

impl TrackedBatch {
    pub(crate) fn new() -> Self {
        Self {
            slots: [CacheSlot(0); BATCH_PACKETS_MAX],
            words: [0; BATCH_PACKETS_MAX],
            whole: [(CtWords([0; _]), None); BATCH_PACKETS_MAX],
        }
    }

    /// Packets from the first one on that have this first flow.
    #[inline(never)]
    pub(crate) fn alike(&mut self, lane: &Lane, cache_keys: &[CacheKey], flow: (u64, u32)) -> usize {
        let (mut count, known) = (0, lane.known4());
        for (cache_key, slot) in cache_keys.iter().zip(&mut self.slots) {
            match known.find(cache_key) {
                Some((at, hit)) if (hit.program, hit.stats) == flow => *slot = at,
                _ => break,
            }
            count += 1;
        }
        count
    }

    /// Tracks packets up to the first one that is not usual; their number.
    #[inline(never)]
    pub(crate) fn track(&mut self, zone: &UsualZone<'_>, number: u16, headers: &[Header]) -> usize {
        let mut count = 0;
        for (header, word) in headers.iter().zip(&mut self.words) {
            let Some(verdict) = tracked::<false>(zone, header) else { break };
            *word = first_word_of_usual(&verdict, number);
            count += 1;
        }
        count
    }

    /// The same, with all words and translations.
    #[inline(never)]
    pub(crate) fn track_whole(&mut self, zone: &UsualZone<'_>, number: u16, headers: &[Header]) -> usize {
        let mut count = 0;
        for (header, (word, whole)) in headers.iter().zip(self.words.iter_mut().zip(&mut self.whole)) {
            let Some(verdict) = tracked::<true>(zone, header) else { break };
            *word = first_word_of_usual(&verdict, number);
            *whole = (words_of_usual(&verdict, number), verdict.translation);
            count += 1;
        }
        count
    }

    /// Adds packets from number `at` on up to the first one whose second flow is not known to have these statistics.
    #[inline(never)]
    pub(crate) fn count_alike(
        &self,
        lane: &Lane,
        (at, stats): (usize, u32),
        (headers, cache_keys): (&[Header], &[CacheKey]),
        sent: &mut CountedRun,
    ) {
        let places = self.slots.iter().zip(&self.words).skip(at);
        let mut all = *sent;
        for ((slot, word), (header, cache_key)) in places.zip(headers.iter().zip(cache_keys)) {
            let known = lane.known_second((*slot, is_reply(*word)), *word);
            if known.is_none_or(|known| known.stats != stats) {
                break;
            }
            all.add(header.frame_len_bytes(), cache_key.tcp_flags);
        }
        *sent = all;
    }

    /// All words of a packet, those that are not known zero; and its translation.
    pub(crate) fn whole(&self, at: usize, is_whole: bool) -> (CtWords, Option<UsualEnds>) {
        if is_whole {
            return self.whole[at];
        }
        let mut ct = CtWords::default();
        ct.0[0] = self.words[at];
        (ct, None)
    }
}

#[inline(always)]
fn tracked<const WHOLE: bool>(zone: &UsualZone<'_>, header: &Header) -> Option<UsualVerdict> {
    let usual = UsualPacket::of(header.bytes(), header.frame_len_bytes(), &header.offload)?;
    zone.track::<WHOLE>(&usual)
}

/// Whether a first word is that of a packet in reply direction.
#[inline(always)]
pub(crate) fn is_reply(word: u64) -> bool {
    word >> 56 & u64::from(REPLY) != 0
}
