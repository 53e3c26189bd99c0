//! Intermediate results for packets of a batch whose flow is `ct(...),recirc(...)`.
//!
//! Each step is a loop of its own, which needs few values, so they stay in registers.

use lasthop_conntrack::{NewTuples, UnusualVerdict, UsualEnds, UsualPacket, UsualPacket4, UsualZone};
use lasthop_flow::ct_state::{NEW, REPLY};
use lasthop_module_api::{BATCH_PACKETS_MAX, Header};
use lasthop_wire::key::CtWords;

use crate::cache::{CacheSlot, Hit};
use crate::cache_key::CacheKey;
use crate::ct_words::{
    common_of_usual, first_word_of_beginning, first_word_of_usual, words_of_beginning, words_of_usual,
};
use crate::stats::CountedRun;
use crate::worker_state::{Known, UsualKind, WorkerState};

/// Bytes of a VLAN tag.
const TAG_BYTES: usize = UsualPacket4::TAG_BYTES;

/// Results of the packets of a run, by index in the run.
#[derive(Debug)]
pub(crate) struct TrackedBatch {
    /// The place of each packet's first flow in the first cache.
    pub(crate) slots: [CacheSlot; BATCH_PACKETS_MAX],
    /// The first word of connection tracking of each packet.
    words: [u64; BATCH_PACKETS_MAX],
    /// All words and the translation of each packet; only for runs that need them.
    whole: [(CtWords, Option<UsualEnds>); BATCH_PACKETS_MAX],
    /// The tuples of the last unusual packet, if it began a connection.
    pub(crate) new: Option<NewTuples>,
}

impl TrackedBatch {
    pub(crate) fn new() -> Self {
        Self {
            slots: [CacheSlot(0); BATCH_PACKETS_MAX],
            words: [0; BATCH_PACKETS_MAX],
            whole: [(CtWords([0; _]), None); BATCH_PACKETS_MAX],
            new: None,
        }
    }

    /// Counts the packets at the start of the run that have the first flow of the first one, which was found.
    #[inline(never)]
    pub(crate) fn alike<const KEY: usize>(
        &mut self,
        local: &WorkerState,
        (first, cache_keys): (&CacheKey, &[CacheKey]),
        (first_slot, flow): (CacheSlot, Hit),
    ) -> usize
    where
        WorkerState: UsualKind<KEY>,
    {
        if cache_keys.len() == 1 {
            self.slots[0] = first_slot;
            return 1;
        }
        // Often they have the same key, for which there is no need to look again.
        let mut count = first.count_alike::<KEY>(cache_keys);
        self.slots.iter_mut().take(count).for_each(|slot| *slot = first_slot);
        let known: Known<'_, KEY> = local.known_usual();
        for (cache_key, slot) in cache_keys.iter().zip(&mut self.slots).skip(count) {
            match known.find(cache_key) {
                Some((at, hit)) if (hit.program, hit.stats) == (flow.program, flow.stats) => *slot = at,
                _ => break,
            }
            count += 1;
        }
        count
    }

    /// Tracks packets from index `first` on, up to the first unusual one. Returns that one's index. `WINDOW` selects the IP
    /// version.
    pub(crate) fn track<const WINDOW: usize>(
        &mut self,
        zone: &UsualZone<'_>,
        number: u16,
        (first, headers): (usize, &[Header]),
    ) -> usize {
        let is_untagged = |header: &Header| UsualPacket::<WINDOW>::is_untagged(header.bytes());
        let (common, mut count, mut last) = (common_of_usual(number), first, None);
        while let Some(next) = headers.get(count).map(is_untagged).filter(|next| last != Some(*next)) {
            let rest = (count, headers);
            count += match next {
                true => self.track_some::<0, WINDOW>(zone, common, rest),
                false => self.track_some::<TAG_BYTES, WINDOW>(zone, common, rest),
            };
            last = Some(next);
        }
        count
    }

    /// The same for packets with `TAG` bytes of a tag, from number `first` on, up to the first one without.
    #[inline(never)]
    fn track_some<const TAG: usize, const WINDOW: usize>(
        &mut self,
        zone: &UsualZone<'_>,
        common: u64,
        (first, headers): (usize, &[Header]),
    ) -> usize {
        let headers = &headers[first..];
        if zone.is_large() && headers.len() > 1 {
            prefetch::<TAG, WINDOW>(zone, headers);
        }
        let mut count = 0;
        for (header, word) in headers.iter().zip(&mut self.words[first..]) {
            let usual = UsualPacket::<WINDOW>::with_tag::<TAG>(header.bytes(), &header.offload);
            let len_bytes = || header.frame_len_bytes();
            let Some(verdict) = usual.and_then(|usual| zone.track::<false, _>(&usual, len_bytes)) else {
                break;
            };
            *word = first_word_of_usual(&verdict, common);
            count += 1;
        }
        count
    }

    /// The same, and stores all words and translations.
    #[inline(never)]
    pub(crate) fn track_whole(
        &mut self,
        zone: &UsualZone<'_>,
        number: u16,
        (first, headers): (usize, &[Header]),
    ) -> usize {
        if zone.is_large() {
            let usual = |header| UsualPacket4::of(Header::bytes(header), &header.offload);
            zone.prefetch(headers[first..].iter().map_while(usual));
        }
        let mut count = first;
        let places = self.words.iter_mut().zip(&mut self.whole);
        for (header, (word, whole)) in headers.iter().zip(places).skip(first) {
            let usual = UsualPacket4::of(header.bytes(), &header.offload);
            let len_bytes = || header.frame_len_bytes();
            let Some(verdict) = usual.and_then(|usual| zone.track::<true, _>(&usual, len_bytes)) else {
                break;
            };
            *word = first_word_of_usual(&verdict, common_of_usual(number));
            *whole = (words_of_usual(&verdict, number), verdict.translation);
            count += 1;
        }
        count
    }

    /// Tracks packets that are not usual, from index `first` on: those of young connections, up to one that begins a connection. Returns
    /// the index behind the last one, and whether that begins a connection.
    #[inline(never)]
    pub(crate) fn track_unusual<const WHOLE: bool, const WINDOW: usize>(
        &mut self,
        zone: &UsualZone<'_>,
        number: u16,
        (first, headers): (usize, &[Header]),
    ) -> (usize, bool) {
        let mut count = first;
        self.new = None;
        let places = self.words.iter_mut().zip(&mut self.whole);
        for (header, (word, whole)) in headers.iter().zip(places).skip(first) {
            let Some(usual) = UsualPacket::<WINDOW>::of(header.bytes(), &header.offload) else { break };
            match zone.track_unusual::<WHOLE, _>(&usual, header.frame_len_bytes()) {
                None => break,
                Some(UnusualVerdict::Young(verdict)) => {
                    *word = first_word_of_usual(&verdict, common_of_usual(number));
                    if WHOLE {
                        *whole = (words_of_usual(&verdict, number), verdict.translation);
                    }
                }
                Some(UnusualVerdict::Begins(new)) => {
                    self.new = Some(new);
                    *word = first_word_of_beginning(usual.proto(), number);
                    if WHOLE {
                        *whole = (words_of_beginning(*word, usual.ends4()), None);
                    }
                    return (count + 1, true);
                }
            }
            count += 1;
        }
        (count, false)
    }

    /// Adds packets from index `at` on to `sent`, up to the first one whose second flow is unknown or has other
    /// statistics.
    #[inline(never)]
    pub(crate) fn count_alike<const KEY: usize>(
        &self,
        local: &WorkerState,
        (at, stats): (usize, u32),
        (headers, cache_keys): (&[Header], &[CacheKey]),
        sent: &mut CountedRun,
    ) where
        WorkerState: UsualKind<KEY>,
    {
        let places = self.slots.iter().zip(&self.words).skip(at);
        let mut all = *sent;
        for ((slot, word), (header, cache_key)) in places.zip(headers.iter().zip(cache_keys)) {
            if !local.is_known_second((*slot, is_reply(*word)), *word, stats) {
                break;
            }
            all.add(header.frame_len_bytes(), cache_key.tcp_flags);
        }
        *sent = all;
    }

    /// All words of a packet and its translation. Without `is_whole` only the first word can be non-zero.
    pub(crate) fn whole(&self, at: usize, is_whole: bool) -> (CtWords, Option<UsualEnds>) {
        if is_whole {
            return self.whole[at];
        }
        let mut ct = CtWords::default();
        ct.0[0] = self.words[at];
        (ct, None)
    }
}

/// Prefetches the connections of packets with `TAG` bytes of a tag, up to the first one without.
#[inline(never)]
fn prefetch<const TAG: usize, const WINDOW: usize>(zone: &UsualZone<'_>, headers: &[Header]) {
    let usual = |header| UsualPacket::<WINDOW>::with_tag::<TAG>(Header::bytes(header), &header.offload);
    zone.prefetch(headers.iter().map_while(usual));
}

/// Whether a first word belongs to a packet that begins a connection.
#[inline(always)]
pub(crate) fn is_beginning(word: u64) -> bool {
    word >> 56 & u64::from(NEW) != 0
}

/// Whether a first word belongs to a packet in reply direction.
#[inline(always)]
pub(crate) fn is_reply(word: u64) -> bool {
    word >> 56 & u64::from(REPLY) != 0
}
