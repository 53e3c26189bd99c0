//! The address table: a fixed array of cache lines, each a bucket of four slots. A keyed hash selects the bucket, since
//! guests choose their addresses.
//!
//! ```text
//!   hash(key) ──► home bucket      | key value | key value | key value | key value |   one 64-byte line
//!            └──► overflow bucket  | key value | key value | key value | key value |   only if the home is full
//! ```
//!
//! An address is in its home bucket, or in its overflow bucket if the home was full when it was learned. So nearly
//! every look-up that succeeds reads one line, and one that fails reads two. The second bucket allows a well-filled
//! table. With one bucket and a quarter of 16384 slots in use, one new address in 50 would find no room; with two it is
//! one in 2500. 1023 static addresses find no room once in 50000 tables.

use std::hash::{BuildHasher, RandomState};

use lasthop_wire::mix::{GOLDEN_RATIO, folded_product};

use super::slot::{FdbValue, Slot, Stamp};

/// Slots of a bucket: one cache line.
const BUCKET_SLOTS: usize = 4;

/// Bytes of a table that a core's own cache holds along with the other data in use.
const CACHED_BYTES_MAX: usize = 512 << 10;

#[derive(Debug, Default)]
#[repr(align(64))]
struct Bucket {
    slots: [Slot; BUCKET_SLOTS],
}

const _: () = assert!(size_of::<Bucket>() == 64 && align_of::<Bucket>() == 64);

impl Bucket {
    /// The slot and place of `key`. Most are in the first slot. A branch predictor cannot predict the others, so
    /// those are compared all at once: with a branch for each, every second address would be mispredicted.
    #[inline(always)]
    fn find(&self, key: u64) -> Option<(&Slot, FdbValue)> {
        if let Some(place) = self.slots[0].place_of(key) {
            return Some((&self.slots[0], place));
        }
        let slot = self.find_behind(key)?;
        slot.place_of(key).map(|place| (slot, place))
    }

    #[inline(never)]
    fn find_behind(&self, key: u64) -> Option<&Slot> {
        let holds = |number: usize| u32::from(self.slots[number].holds(key)) << number;
        self.slots.get((holds(1) | holds(2) | holds(3)).trailing_zeros() as usize)
    }
}

/// The number that is XORed with that of a key's home to give its overflow bucket. It comes from other bits of the hash
/// and is odd, so the overflow bucket differs from the home whenever there are two buckets.
#[inline]
fn overflow_bits(hash: u64) -> usize {
    (hash >> 32) as usize | 1
}

/// Bits of a key that are the address; above them is the filter id.
const MAC_BITS: u32 = 48;
const MAC_MASK: u64 = (1 << MAC_BITS) - 1;
/// The filter id of static addresses that are valid in all VLANs of their port; not a VID.
pub(crate) const EVERYWHERE: u16 = 1 << 12;

/// The key of the address `mac`, a number, in the table of a filter id: a VID, or 0 for untagged frames.
#[inline]
pub(crate) fn key_in(filter: u16, mac: u64) -> u64 {
    u64::from(filter) << MAC_BITS | mac
}

/// The address of a key, as a number.
#[inline]
pub(crate) fn mac_bits(key: u64) -> u64 {
    key & MAC_MASK
}

/// The filter id of a key: a VID, 0, or [`EVERYWHERE`].
#[inline]
pub(crate) fn vid_of(key: u64) -> u16 {
    (key >> MAC_BITS) as u16
}

/// Addresses and their places. Reading needs no lock. All changes except refreshing a stamp need the bridge's writer
/// lock.
#[derive(Debug)]
pub(crate) struct Table {
    buckets: Box<[Bucket]>,
    secret: Secret,
    ageing: Stamp,
}

impl Table {
    /// Returns a table of at least `entries` slots: rounded up to a power of two, and to one bucket. Entries age out
    /// after `ageing_ns`.
    pub(crate) fn new(entries: usize, secret: [u64; 2], ageing_ns: u64) -> Self {
        let buckets = entries.div_ceil(BUCKET_SLOTS).next_power_of_two();
        Self {
            buckets: (0..buckets).map(|_| Bucket::default()).collect(),
            secret: Secret::of(secret),
            ageing: Stamp::at(ageing_ns),
        }
    }

    /// Whether a learned place is so old that it counts as absent.
    ///
    /// All is rounded down to units of 67 ms, so it begins at most one unit before `ageing_ns` and at most
    /// two after it. A stamp of another worker's clock, slightly ahead, is not old.
    #[inline]
    pub(crate) fn is_aged(&self, place: FdbValue, now: Stamp) -> bool {
        !place.is_static() && place.stamp().after(self.ageing) < now
    }

    /// The slot and place of `key`, aged or not.
    #[inline(always)] // twice for every frame; left to itself the compiler calls it
    pub(crate) fn find(&self, key: u64) -> Option<(&Slot, FdbValue)> {
        if key == 0 {
            return None; // these are the contents of empty slots
        }
        let hash = self.secret.hash(key);
        match self.bucket(hash as usize).find(key) {
            Some(found) => Some(found),
            None => self.find_overflowed(key, hash),
        }
    }

    #[inline(never)]
    fn find_overflowed(&self, key: u64, hash: u64) -> Option<(&Slot, FdbValue)> {
        self.bucket(hash as usize ^ overflow_bits(hash)).find(key)
    }

    /// The bucket of this number, modulo their number.
    #[inline(always)]
    fn bucket(&self, number: usize) -> &Bucket {
        &self.buckets[number & (self.buckets.len() - 1)]
    }

    /// Where `key` is reached at `now`.
    #[inline(always)]
    pub(crate) fn look_up(&self, key: u64, now: Stamp) -> Option<FdbValue> {
        match self.find(key) {
            Some((_, place)) if !self.is_aged(place, now) => Some(place),
            _ => None,
        }
    }

    /// Returns a slot for the new key: an empty or aged one of its home bucket, or else of its overflow bucket. The
    /// second value is the aged place that the new key replaces. `None` if all slots are in use.
    pub(crate) fn vacancy(&self, key: u64, now: Stamp) -> Option<(&Slot, Option<FdbValue>)> {
        self.candidates(key).find_map(|slot| match slot.read() {
            None => Some((slot, None)),
            Some((_, place)) => self.is_aged(place, now).then_some((slot, Some(place))),
        })
    }

    /// The learned entry that a static one may displace: the least recently seen one in the buckets of `key`.
    pub(crate) fn weakest(&self, key: u64) -> Option<(&Slot, FdbValue)> {
        let learned = |slot| Some((slot, Slot::read(slot)?.1)).filter(|(_, place)| !place.is_static());
        self.candidates(key).filter_map(learned).min_by_key(|(_, place)| place.stamp())
    }

    /// All occupied slots.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&Slot, u64, FdbValue)> {
        let slots = self.buckets.iter().flat_map(|bucket| &bucket.slots);
        slots.filter_map(|slot| slot.read().map(|(key, place)| (slot, key, place)))
    }

    /// Whether prefetching pays: for a smaller table the processor's speculation is enough.
    #[inline]
    pub(crate) fn is_large(&self) -> bool {
        size_of_val(&*self.buckets) > CACHED_BYTES_MAX
    }

    /// Number of the home bucket of `key`.
    #[inline]
    pub(crate) fn home(&self, key: u64) -> usize {
        self.secret.hash(key) as usize & (self.buckets.len() - 1)
    }

    /// Prefetches buckets by plain loads. A processor has a bounded number of instructions in flight, so fewer other
    /// instructions mean more lines in parallel.
    pub(crate) fn touch(&self, homes: &[usize]) {
        let touched = homes.iter().fold(0, |sum, home| sum ^ self.buckets[*home].slots[0].touch());
        std::hint::black_box(touched);
    }

    /// The home bucket of `key`, and its overflow bucket.
    #[inline]
    fn choices(&self, key: u64) -> [&Bucket; 2] {
        let hash = self.secret.hash(key);
        let home = hash as usize;
        [home, home ^ overflow_bits(hash)].map(|number| self.bucket(number))
    }

    fn candidates(&self, key: u64) -> impl Iterator<Item = &Slot> {
        self.choices(key).into_iter().flat_map(|bucket| &bucket.slots)
    }
}

/// Returns 128 unguessable bits, from the standard library's source of randomness for hash tables.
///
/// Each `RandomState` is seeded from the system's random numbers. The bits are two of its keyed hashes, so they do not
/// reveal its keys.
#[must_use]
pub fn random_key() -> [u64; 2] {
    [RandomState::new().hash_one(GOLDEN_RATIO), RandomState::new().hash_one(!GOLDEN_RATIO)]
}

/// The secret of the hash, as the numbers that it needs for each key.
#[derive(Debug)]
struct Secret {
    before: u64,
    factor: u64,
    between: u64,
}

impl Secret {
    fn of(secret: [u64; 2]) -> Self {
        // Both factors are odd, so they are never 0, which would map everything to one value. Secrets that a person
        // chose, like 1 or -1, would be poor factors; the exclusive or corrects that and does not weaken random
        // secrets.
        let factor = (secret[1] ^ GOLDEN_RATIO) | 1;
        Self { before: secret[0], factor, between: secret[1].rotate_left(32) }
    }

    /// The hash of `key`: two multiplications, and the halves of each product are folded together.
    ///
    /// Without the secret, no set of addresses is known to collide. With it, guests could fill chosen buckets and
    /// prevent the learning of others' addresses.
    #[inline(always)]
    fn hash(&self, key: u64) -> u64 {
        folded_product(folded_product(key ^ self.before, self.factor) ^ self.between, GOLDEN_RATIO)
    }
}

#[cfg(test)]
mod tests {
    use lasthop_module_api::{Mac, PortId};

    use super::*;

    fn now() -> Stamp {
        Stamp::at(1 << 40)
    }

    fn put(table: &Table, key: u64) -> bool {
        let vacancy = table.vacancy(key, now());
        vacancy.inspect(|(slot, _)| slot.occupy(key, FdbValue::learned(PortId(key as u16), now()))).is_some()
    }

    #[test]
    fn keys_and_addresses_convert_both_ways() {
        let mac = Mac([0x02, 0x34, 0x56, 0x78, 0x9a, 0xbc]);
        assert_eq!(mac.to_bits(), 0x0234_5678_9abc);
        assert_eq!(Mac::from_bits(mac.to_bits()), mac);
        let key = key_in(4095, mac.to_bits());
        assert_eq!((vid_of(key), mac_bits(key), Mac::from_bits(key)), (4095, mac.to_bits(), mac));
    }

    #[test]
    fn the_size_is_rounded_up() {
        for (entries, slots) in [(0, 4), (1, 4), (4, 4), (5, 8), (16384, 16384), (16385, 32768)] {
            assert_eq!(Table::new(entries, [1, 2], 0).buckets.len() * BUCKET_SLOTS, slots);
        }
    }

    #[test]
    fn inserted_keys_are_found_and_no_others() {
        let table = Table::new(16384, [1, 2], 0);
        assert!((1..=1000).all(|key| put(&table, key)));
        for key in 1..=1000 {
            assert_eq!(table.look_up(key, now()).map(FdbValue::port), Some(PortId(key as u16)));
        }
        assert!((1001..2000).chain([0]).all(|key| table.find(key).is_none()));
        assert_eq!(table.entries().count(), 1000);
    }

    #[test]
    fn a_quarter_full_table_has_room_for_nearly_all() {
        for secret in 0..8 {
            let table = Table::new(16384, [secret, !secret], 0);
            let refused = (1..=4096).filter(|key| !put(&table, *key)).count();
            assert!(refused <= 8, "{refused} of 4096 refused");
        }
    }

    #[test]
    fn as_many_static_addresses_as_ports_find_room() {
        for secret in 0..64 {
            let table = Table::new(16384, [secret, !secret], 0);
            assert!((1..1024).all(|key| put(&table, 0x0200_0000_0000 + key)));
        }
    }

    /// The number of keys in the fullest of 1024 buckets. With 4096 `keys` the average is 4.
    fn fullest_bucket(keys: impl Iterator<Item = u64>, secret: [u64; 2]) -> u32 {
        let mut buckets = [0; 1024];
        keys.for_each(|key| buckets[(Secret::of(secret).hash(key) & 1023) as usize] += 1);
        buckets.into_iter().max().unwrap_or(0)
    }

    #[test]
    fn patterned_addresses_spread_over_all_buckets() {
        let secret = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];
        // Poisson with mean 4: more than 20 in any of 1024 buckets has a probability below one in a million.
        for step in [1, 2, 256, 1 << 16, 1 << 24, 1 << 32, 0x0101_0101] {
            let keys = (0..4096u64).map(|n| 0x0200_0000_0000 + n * step);
            assert!(fullest_bucket(keys, secret) <= 20, "step {step:#x}");
        }
    }

    #[test]
    fn the_secret_decides_collisions() {
        let (mine, other) = ([1, 2], [3, 4]);
        let crowd = (0..1 << 22).filter(|key| Secret::of(mine).hash(*key) & 1023 == 7).take(4096);
        assert!(fullest_bucket(crowd, other) <= 20);
    }

    #[test]
    fn keys_differ_from_call_to_call() {
        assert_ne!(random_key(), random_key());
    }
}
