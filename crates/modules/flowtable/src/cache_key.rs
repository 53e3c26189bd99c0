//! Keys of the caches: all header bits that any flow matches on, from one pass over a packet.
//!
//! Packets that differ in other bits only have the same flow, so they share an entry of the cache. If flows match
//! Ethernet addresses only, all connections between two guests share one entry. A change of these bits invalidates all
//! entries.
//!
//! ```text
//!   masks of all flows ── or ──> union ──┐
//!   header ──> mini key or key ────────────and──> hash, compared bits
//! ```

use lasthop_wire::Key;
use lasthop_wire::key::{
    CT_WORD, CtWords, KEY_WORDS, MINI_KEY4_WORDS, MINI_KEY6_WORDS, MiniKey, PLAIN_KEY_WORDS, TUNNEL_WORD,
};

use crate::bounds::UNION_NARROWS_AFTER;
use crate::cache::Sought;
use crate::hash::Secret;
use crate::second_pass::CT4_WORDS;

/// The bits that flows match on, or more: it widens at once and narrows after a delay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnionMask {
    key: Key,
    mini_key4: MiniKey<MINI_KEY4_WORDS>,
    mini_key6: MiniKey<MINI_KEY6_WORDS>,
    /// Whether flows match on labels or original tuples of connections.
    pub(crate) has_whole_ct: bool,
    /// The bits of the first word of connection tracking that flows match on.
    pub(crate) first_ct_word: u64,
    /// Number of the change that made this mask; never 0.
    time: u16,
    /// The bits that flows match on now, and the batches until the mask narrows to them; 0 if it need not.
    wanted: Key,
    batches_left: u32,
}

impl Default for UnionMask {
    fn default() -> Self {
        Self::new(Key::default(), 1)
    }
}

/// The union mask for packets of one port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortUnionMask {
    mini_key4: MiniKey<MINI_KEY4_WORDS>,
    mini_key6: MiniKey<MINI_KEY6_WORDS>,
    tag: u32,
    hash: u64,
}

impl UnionMask {
    fn new(key: Key, time: u16) -> Self {
        let (mini_key4, mini_key6) =
            (MiniKey::<MINI_KEY4_WORDS>::mask_of(&key), MiniKey::<MINI_KEY6_WORDS>::mask_of(&key));
        let has_whole_ct = key.0[CT_WORD + 1..TUNNEL_WORD].iter().any(|word| *word != 0);
        let first_ct_word = key.0[CT_WORD];
        Self { key, mini_key4, mini_key6, has_whole_ct, first_ct_word, time, wanted: key, batches_left: 0 }
    }

    /// Sets the bits that flows match on. Returns true if the number of an earlier mask is used again: the caller must
    /// empty the caches, since old entries could match.
    #[must_use]
    pub(crate) fn aim(&mut self, bits: Key) -> bool {
        self.wanted = bits;
        if bits.masked(&self.key) != bits {
            return self.change();
        }
        if bits == self.key {
            self.batches_left = 0;
        } else if self.batches_left == 0 {
            self.batches_left = UNION_NARROWS_AFTER;
        }
        false
    }

    /// Begins a batch. Returns true as [`Self::aim`] does.
    #[inline]
    #[must_use]
    pub(crate) fn begin(&mut self) -> bool {
        self.batches_left > 0 && self.count_down()
    }

    #[cold]
    fn count_down(&mut self) -> bool {
        self.batches_left -= 1;
        self.batches_left == 0 && self.change()
    }

    fn change(&mut self) -> bool {
        let (time, is_over) = self.time.overflowing_add(1);
        *self = Self::new(self.wanted, time.max(1));
        is_over
    }

    /// Number of the change that made this mask. It is never 0 and is reused late.
    pub(crate) fn time(&self) -> u16 {
        self.time
    }

    /// The mask for packets of the port with this number; the port is always part of the key.
    #[inline]
    pub(crate) fn at(&self, port: u16, secret: &Secret) -> PortUnionMask {
        let tag = u32::from(self.time) << 16 | u32::from(port);
        let hash = secret.of_word(MINI_KEY6_WORDS, u64::from(port));
        PortUnionMask { mini_key4: self.mini_key4, mini_key6: self.mini_key6, tag, hash }
    }

    /// The key under the union mask.
    #[inline]
    pub(crate) fn of_key(&self, key: &Key) -> Key {
        key.masked(&self.key)
    }

    /// Masks a key without a tunnel.
    #[inline]
    pub(crate) fn mask_plain(&self, key: &mut Key) {
        key.mask_plain(&self.key);
    }

    /// The look-up of a packet without a mini key and without a tunnel; `counted` is its flow key under the union mask.
    #[inline]
    pub(crate) fn sought<'a>(&self, counted: &'a Key, secret: &Secret) -> Sought<'a, PLAIN_KEY_WORDS> {
        let key = counted.plain();
        Sought { hash: secret.of_words(key), tag: u32::from(self.time) << 16, key }
    }

    /// The look-up of a packet from a tunnel.
    pub(crate) fn sought_tunnelled<'a>(&self, counted: &'a Key, secret: &Secret) -> Sought<'a, KEY_WORDS> {
        Sought { hash: secret.of_words(&counted.0), tag: u32::from(self.time) << 16, key: &counted.0 }
    }
}

/// The kind of a cache key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A mini key of IPv4.
    #[default]
    Four,
    /// A mini key of IPv6.
    Six,
    /// A flow key.
    Other,
}

impl Kind {
    /// The kind of keys that are mini keys of this many words.
    #[inline(always)]
    const fn of_mini_key(words: usize) -> Self {
        if words == MINI_KEY4_WORDS { Self::Four } else { Self::Six }
    }
}

/// The cache key of one packet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CacheKey {
    /// The mini key under the union mask.
    words: [u64; MINI_KEY6_WORDS],
    hash: u64,
    tag: u32,
    pub(crate) tcp_flags: u16,
    pub(crate) kind: Kind,
}

impl CacheKey {
    /// Sets this to the key of a received packet that begins with `head`. Returns false and changes nothing if that is
    /// no usual IPv4 packet.
    #[inline(always)]
    pub(crate) fn see4(&mut self, head: &[u8], union: &PortUnionMask, secret: &Secret) -> bool {
        let Some(whole) = MiniKey::<MINI_KEY4_WORDS>::of(head) else { return false };
        let mini_key = whole.masked(&union.mini_key4);
        self.words[..MINI_KEY4_WORDS].copy_from_slice(&mini_key.0);
        self.hash = secret.of_mini_key(&mini_key.0, union.hash);
        (self.tag, self.tcp_flags, self.kind) = (union.tag, whole.tcp_flags(), Kind::Four);
        true
    }

    /// The same for IPv6.
    #[inline(always)]
    pub(crate) fn see6(&mut self, head: &[u8], union: &PortUnionMask, secret: &Secret) -> bool {
        let Some(whole) = MiniKey::<MINI_KEY6_WORDS>::of(head) else { return false };
        self.words = whole.masked(&union.mini_key6).0;
        self.hash = secret.of_mini_key(&self.words, union.hash);
        (self.tag, self.tcp_flags, self.kind) = (union.tag, whole.tcp_flags(), Kind::Six);
        true
    }

    /// Counts the keys at the start of `others` that are the same as this key of a usual packet, whose mini key has `KEY` words.
    #[inline(always)]
    pub(crate) fn count_alike<const KEY: usize>(&self, others: &[Self]) -> usize {
        // As values they stay in registers. The hash follows from them.
        let (tag, words) = (self.tag, self.words);
        let is_alike = |other: &&Self| {
            let is_same_mask = other.kind == Kind::of_mini_key(KEY) && other.tag == tag;
            is_same_mask && (0..KEY.min(MINI_KEY6_WORDS)).all(|at| other.words[at] == words[at])
        };
        others.iter().take_while(is_alike).count()
    }

    /// The look-up of a usual packet whose mini key has `KEY` words; `None` for another packet.
    #[inline(always)]
    pub(crate) fn usual<const KEY: usize>(&self) -> Option<Sought<'_, KEY>> {
        let key = self.words.first_chunk().filter(|_| self.kind == Kind::of_mini_key(KEY))?;
        Some(Sought { hash: self.hash, tag: self.tag, key })
    }

    /// The hash of the key.
    #[inline(always)]
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// The number of the union mask that the key was made with.
    pub(crate) fn time(&self) -> u16 {
        (self.tag >> 16) as u16
    }

    /// Sets this to the key of a packet without a mini key.
    pub(crate) fn see_other(&mut self, sought: Sought<'_, PLAIN_KEY_WORDS>, tcp_flags: u16) {
        (self.hash, self.tag) = (sought.hash, sought.tag);
        (self.tcp_flags, self.kind) = (tcp_flags, Kind::Other);
    }

    /// The look-up of a packet without a mini key; `counted` is its flow key under the union mask.
    #[inline]
    pub(crate) fn other<'a>(&self, counted: &'a Key) -> Sought<'a, PLAIN_KEY_WORDS> {
        Sought { hash: self.hash, tag: self.tag, key: counted.plain() }
    }
}

/// Words of a later key: a mini key, the recirculation id, and the words of connection tracking for IPv4.
pub(crate) const LATER_KEY_WORDS: usize = MINI_KEY4_WORDS + 1 + CT4_WORDS;
/// The words that may differ while no flow matches on labels and original tuples.
const LATER_KEY_WORDS_SHORT: usize = MINI_KEY4_WORDS + 2;

/// The cache key of a usual IPv4 packet in a later pass. Its only metadata are the recirculation id and the state of
/// its connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaterKey {
    words: [u64; LATER_KEY_WORDS],
    hash: u64,
    tag: u32,
    pub(crate) tcp_flags: u16,
}

impl UnionMask {
    /// The words of connection tracking for IPv4, under the union mask.
    #[inline(always)]
    pub(crate) fn of_ct(&self, ct: &CtWords) -> [u64; CT4_WORDS] {
        std::array::from_fn(|at| ct.0[at] & self.key.0[CT_WORD + at])
    }

    /// The key of a packet that still has its received headers; `first` is its key in the first pass.
    #[inline(always)]
    pub(crate) fn later(
        &self,
        first: &CacheKey,
        (recirc_id, ct): (u32, &CtWords),
        secret: &Secret,
    ) -> LaterKey {
        let [a, b, c, d, ..] = first.words;
        self.later_of([a, b, c, d], (first.hash, first.tag, first.tcp_flags), (recirc_id, ct), secret)
    }

    /// The key of a packet that begins with `head`; `None` if it has no mini key.
    #[inline]
    pub(crate) fn later_at(
        &self,
        head: &[u8],
        port: u16,
        pass: (u32, &CtWords),
        secret: &Secret,
    ) -> Option<LaterKey> {
        let mut first = CacheKey::default();
        first.see4(head, &self.at(port, secret), secret).then(|| self.later(&first, pass, secret))
    }

    #[inline(always)]
    fn later_of(
        &self,
        [a, b, c, d]: [u64; MINI_KEY4_WORDS],
        (first, tag, tcp_flags): (u64, u32, u16),
        (recirc_id, ct): (u32, &CtWords),
        secret: &Secret,
    ) -> LaterKey {
        let pass = u64::from(recirc_id);
        let [e, f, g, h, i] = self.of_ct(ct);
        let mut hash = secret.of_later(first, pass, e);
        if self.has_whole_ct {
            hash = secret.of_later(secret.of_later(hash, f, g), h, i.rotate_left(32));
        }
        LaterKey { words: [a, b, c, d, pass, e, f, g, h, i], hash, tag, tcp_flags }
    }
}

impl LaterKey {
    /// The look-up of this key.
    #[inline(always)]
    pub(crate) fn sought(&self) -> Sought<'_, LATER_KEY_WORDS> {
        Sought { hash: self.hash, tag: self.tag, key: &self.words }
    }

    /// The look-up while no flow matches on labels and original tuples.
    #[inline(always)]
    pub(crate) fn sought_short(&self) -> Option<Sought<'_, LATER_KEY_WORDS_SHORT>> {
        Some(Sought { hash: self.hash, tag: self.tag, key: self.words.first_chunk()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NARROW: Key = Key([1; KEY_WORDS]);
    const WIDE: Key = Key([3; KEY_WORDS]);

    #[test]
    fn keys_are_alike_up_to_the_first_difference() {
        let first = CacheKey { words: [7; MINI_KEY6_WORDS], hash: 1, tag: 2, ..CacheKey::default() };
        let alike = CacheKey { tcp_flags: 3, ..first };
        assert_eq!(first.count_alike::<MINI_KEY4_WORDS>(&[first, alike, first]), 3);
        let word = |at: usize| {
            let mut other = first;
            other.words[at] += 1;
            other
        };
        let others = [CacheKey { tag: 3, ..first }, CacheKey { kind: Kind::Six, ..first }];
        for other in (0..MINI_KEY4_WORDS).map(word).chain(others) {
            let keys = [first, alike, other, first];
            assert_eq!(first.count_alike::<MINI_KEY4_WORDS>(&keys), 2, "{other:?}");
        }
        let first = CacheKey { kind: Kind::Six, ..first };
        for at in 0..MINI_KEY6_WORDS {
            let mut other = first;
            other.words[at] += 1;
            assert_eq!(first.count_alike::<MINI_KEY6_WORDS>(&[first, other, first]), 1, "{at}");
        }
    }

    #[test]
    fn a_scope_becomes_wider_at_once_and_narrower_later() {
        let mut union = UnionMask::default();
        assert!(!union.aim(WIDE) && union.of_key(&WIDE) == WIDE);
        let other = Key([2; KEY_WORDS]);
        for bits in [NARROW, other, NARROW] {
            assert!(!union.aim(bits) && union.of_key(&WIDE) == WIDE);
        }
        (1..UNION_NARROWS_AFTER).for_each(|_| assert!(!union.begin()));
        assert_eq!((union.time, union.of_key(&WIDE)), (2, WIDE));
        assert!(!union.begin());
        assert_eq!((union.time, union.of_key(&WIDE)), (3, NARROW));
        assert!(!union.begin() && union.batches_left == 0);
        assert!(!union.aim(other) && union.of_key(&WIDE) == other, "it is no part of the other");
    }

    #[test]
    fn a_scope_that_is_wanted_again_stays() {
        let mut union = UnionMask::default();
        assert!(![WIDE, NARROW, WIDE].into_iter().any(|bits| union.aim(bits)));
        assert_eq!((union.time, union.batches_left), (2, 0));
    }

    #[test]
    fn a_number_that_is_used_again_is_told() {
        let mut union = UnionMask::default();
        let bits = |change: u32| if change.is_multiple_of(2) { NARROW } else { Key([2; KEY_WORDS]) };
        let again = (0..u32::from(u16::MAX)).filter(|change| union.aim(bits(*change)));
        assert_eq!(again.collect::<Vec<_>>(), [u32::from(u16::MAX) - 1]);
        assert_eq!(union.time, 1);
    }
}
