//! The fast path for usual packets: TCP without flags that open or end a connection, and UDP, over IP without options,
//! extension headers and fragments, with one VLAN tag at most, of connections that have seen both directions. Nearly all
//! packets are usual. Those over IPv6 are neither translated, nor do their verdicts have labels and original direction.
//!
//! The first packets of connections are in [`beginning`], those of young connections of UDP in [`young`].
//!
//! [`crate::established`] can track them as well. This path costs less than a tenth of that: it reads the headers once
//! into a few numbers, and reads and stores the connection's packed words. For any other packet it returns `None` and
//! changes nothing; the packet takes the general path. A property test compares both paths.

use arrayvec::ArrayVec;
use lasthop_ct_packet::{Direction, IS_IPV6, PROTO_SHIFT, ZONE_SHIFT};
use lasthop_flow::ct_state::{ESTABLISHED, REPLY, TRACKED};
use lasthop_sync::Version;
use lasthop_wire::headers::{PROTO_TCP, PROTO_UDP};

use crate::bounds::CT_BATCH_MAX;
use crate::connection::{self, ASSURED, DYING, EXPECTED, SEEN_REPLY, SEQUENCE_ADJUSTED};
use crate::index::Buckets;
use crate::place::Place;
use crate::places::Rows;
use crate::policy::{Policies, PolicyRef};
use crate::progress::UDP_STREAM_MS;
use crate::request::nat_bits_of;
use crate::shard::Shared;
use crate::tcp::plain::PlainStep;
use crate::tcp::{TcpState, TcpTimeout};

mod beginning;
mod packet;
mod young;

pub use beginning::{BEGINNING_STATE, NewTuples, UnusualVerdict};
pub use packet::{UsualPacket, UsualPacket4, UsualPacket6, WINDOW4_BYTES, WINDOW6_BYTES};

/// Buckets of a zone's shard with which its connections take 2 MiB, a second-level cache, or more.
const BUCKETS_LARGE: u32 = 1 << 14;
/// Shifts of helper and policy in the status word of a connection.
const HELPER_SHIFT: u32 = 40;
const POLICY_SHIFT: u32 = 32;

/// Bits of the status word of connections that take the general path.
const RARE: u64 = (DYING | SEQUENCE_ADJUSTED | EXPECTED) as u64 | 0xff << HELPER_SHIFT;

/// Source and destination of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsualEnds {
    /// Source in the lower half, destination in the upper one, each as a little-endian load reads it.
    pub addresses: u64,
    /// Ports; the source's is in the upper half.
    pub ports: u32,
}

/// `lasthop_flow::ct_state` bits of each usual packet.
pub const USUAL_STATE: u32 = TRACKED | ESTABLISHED;

/// The verdict for a usual packet of a connection. `state` includes the bits of its translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsualVerdict {
    /// `lasthop_flow::ct_state` bits.
    pub state: u32,
    /// IP protocol.
    pub proto: u8,
    /// The connection's mark.
    pub mark: u32,
    /// The connection's labels, each half as a little-endian load reads it; zeros if not requested.
    pub labels: [u64; 2],
    /// The connection's original direction; zeros if not requested.
    pub original: UsualEnds,
    /// The ends that the packet leaves with, if they differ and were requested.
    pub translation: Option<UsualEnds>,
}

/// The table for usual packets of a zone, at one time.
#[derive(Clone, Copy, Debug)]
pub struct UsualZone<'a> {
    shared: &'a Shared,
    places: Rows<'a>,
    buckets: Buckets<'a>,
    key: [u64; 2],
    policies: &'a Policies,
    /// The zone, shifted as in a tuple's last word.
    zone: u64,
    is_translated: bool,
    now_ms: u64,
    /// The expiry times of the default policy.
    ends: UsualTimes,
}

/// The expiry times of connections after a packet at this time, in milliseconds.
#[derive(Clone, Copy, Debug)]
struct UsualTimes {
    established: u64,
    /// Same, with unacknowledged data.
    unacknowledged: u64,
    udp_stream: u64,
}

impl UsualEnds {
    #[inline(always)]
    fn of(place: Place<'_>, direction: Direction) -> Self {
        let [src, dst, last] = place.tuple4(direction);
        Self { addresses: src | dst << 32, ports: (last >> 32) as u32 }
    }

    #[inline(always)]
    fn reversed(self) -> Self {
        Self { addresses: self.addresses.rotate_left(32), ports: self.ports.rotate_left(16) }
    }
}

impl Shared {
    /// The fast path for packets at `ct(zone=...)`, with `nat` if `is_translated`.
    pub(crate) fn usual_zone(&self, zone: u16, is_translated: bool, now_ms: u64) -> UsualZone<'_> {
        UsualZone {
            shared: self,
            places: self.places.rows(),
            // Without a result a packet takes the general path, which checks connections that another process left.
            buckets: if self.adoption.is_over() {
                self.shard(zone).index.buckets()
            } else {
                self.no_index.buckets()
            },
            key: self.key.pair(),
            policies: &self.policies,
            zone: u64::from(zone) << ZONE_SHIFT,
            is_translated,
            now_ms,
            ends: UsualTimes::of(self.policies.get(0), now_ms),
        }
    }
}

impl UsualZone<'_> {
    /// Tracks a usual packet that no action `ct` has seen before. `WHOLE`: the verdict has labels, original direction
    /// and the zone's translation, for IPv4 only; without it packets are not translated. Returns `None`, without a
    /// change, if the packet has to take the general path.
    #[inline(always)]
    // The length is asked for where it is used: all registers are needed.
    pub fn track<const WHOLE: bool, const WINDOW: usize>(
        &self,
        packet: &UsualPacket<'_, WINDOW>,
        frame_len_bytes: impl Fn() -> u32,
    ) -> Option<UsualVerdict> {
        const { assert!(!WHOLE || !UsualPacket::<WINDOW>::IS_IPV6) };
        const WANTED: u64 = (SEEN_REPLY | ASSURED) as u64;
        const POLICY: u64 = 0xff << POLICY_SHIFT;
        let (place, direction, version) = self.find(packet)?;
        let (status, expires_ms) = (place.status_word(), place.expires_ms());
        if expires_ms <= self.now_ms {
            return None;
        }
        let own_times;
        let mut times = &self.ends;
        if status & (WANTED | RARE | POLICY) != WANTED {
            if status & (WANTED | RARE) != WANTED {
                return None;
            }
            own_times = self.times_of(place);
            times = &own_times;
        }
        let known = Known { place, version, now_ms: self.now_ms, times, frame_len_bytes };
        let verdict = |direction| self.verdict::<WHOLE>(place, (direction, packet.proto()), status);
        let (lasts_until_ms, verdict) = match direction {
            Direction::Original => known.advance::<false, _, _>(packet, || verdict(Direction::Original))?,
            Direction::Reply => known.advance::<true, _, _>(packet, || verdict(Direction::Reply))?,
        };
        if lasts_until_ms < expires_ms {
            self.note_change(place);
        }
        Some(verdict)
    }

    /// Finds the connection of a packet.
    #[inline(always)]
    fn find<const WINDOW: usize>(
        &self,
        packet: &UsualPacket<'_, WINDOW>,
    ) -> Option<(Place<'_>, Direction, Version)> {
        let (hash, last) = (self.hash_of(packet), self.last_word_of(packet));
        if UsualPacket::<WINDOW>::IS_IPV6 {
            // Addresses are compared where they are: there are not enough registers.
            let [.., last] = packet.tuple_words(last);
            let has_tuple = |place, direction| packet.is_of6(place, direction, last);
            return self.buckets.find_by(self.places, hash, has_tuple);
        }
        let UsualEnds { addresses, ports } = packet.ends4();
        let tuple = [addresses & 0xffff_ffff, addresses >> 32, u64::from(ports) << 32 | last];
        self.buckets.find_by(self.places, hash, move |place, direction| place.has_tuple4(direction, tuple))
    }

    /// The zone's number.
    fn number(&self) -> u16 {
        (self.zone >> ZONE_SHIFT) as u16
    }

    /// Zone, IP version and protocol as in a tuple's last word.
    #[inline(always)]
    fn last_word_of<const WINDOW: usize>(&self, packet: &UsualPacket<'_, WINDOW>) -> u64 {
        let ip_version = u64::from(UsualPacket::<WINDOW>::IS_IPV6) * IS_IPV6;
        u64::from(packet.proto()) << PROTO_SHIFT | (self.zone | ip_version)
    }

    /// Whether the connections exceed the second-level cache. [`Self::prefetch`] gains time then.
    #[inline]
    #[must_use]
    pub fn is_large(&self) -> bool {
        self.buckets.len() >= BUCKETS_LARGE
    }

    /// Prefetches the connections of these packets, at most [`CT_BATCH_MAX`], side by side.
    #[inline(always)]
    pub fn prefetch<'p, const WINDOW: usize>(&self, packets: impl Iterator<Item = UsualPacket<'p, WINDOW>>) {
        let mut hashes = ArrayVec::<u32, CT_BATCH_MAX>::new();
        for packet in packets.take(CT_BATCH_MAX) {
            let hash = self.hash_of(&packet);
            self.buckets.prefetch_head(hash);
            hashes.push(hash);
        }
        hashes.iter().for_each(|hash| self.buckets.prefetch_first(self.places, *hash));
    }

    #[inline(always)]
    fn hash_of<const WINDOW: usize>(&self, packet: &UsualPacket<'_, WINDOW>) -> u32 {
        let last = self.last_word_of(packet);
        if UsualPacket::<WINDOW>::IS_IPV6 {
            return self.shared.key.of_words_of_tuple(&packet.tuple_words(last));
        }
        let ends = packet.ends4();
        crate::hash::of_two_words(self.key, ends.addresses, u64::from(ends.ports) << 32 | last)
    }

    /// The expiry times of a connection with a policy of its own.
    #[inline(never)]
    fn times_of(&self, place: Place<'_>) -> UsualTimes {
        UsualTimes::of(self.policies.get((place.status_word() >> POLICY_SHIFT) as u8), self.now_ms)
    }

    /// Notes a connection that now expires sooner, so that the lists follow.
    #[inline(never)]
    fn note_change(&self, place: Place<'_>) {
        let shard = self.shared.shard(self.number());
        self.shared.note_change(shard, self.places.index_of(place));
    }

    #[inline(always)]
    fn verdict<const WHOLE: bool>(
        &self,
        place: Place<'_>,
        (direction, proto): (Direction, u8),
        status: u64,
    ) -> UsualVerdict {
        const TRANSLATED: u64 = (connection::SRC_NAT | connection::DST_NAT) as u64;
        let state = USUAL_STATE | if direction == Direction::Reply { REPLY } else { 0 };
        let (mark, labels, original) = (place.mark(), [0; 2], UsualEnds::default());
        let mut verdict = UsualVerdict { state, proto, mark, labels, original, translation: None };
        if WHOLE {
            verdict.labels = place.label_words();
            verdict.original = UsualEnds::of(place, Direction::Original);
        }
        if WHOLE && self.is_translated && status & TRANSLATED != 0 {
            verdict.state |= nat_bits_of(status as u16, direction);
            // The packet leaves with the inverse of the other direction's tuple.
            verdict.translation = Some(UsualEnds::of(place, direction.inverse()).reversed());
        }
        verdict
    }
}

/// The connection of a usual packet.
struct Known<'a, L> {
    place: Place<'a>,
    version: Version,
    now_ms: u64,
    times: &'a UsualTimes,
    frame_len_bytes: L,
}

impl<L: Fn() -> u32> Known<'_, L> {
    /// Advances the connection, and returns its time of expiry and what `read` returns while the connection is taken.
    /// `None` if nothing has changed.
    #[inline(always)]
    fn advance<const REPLY: bool, R, const WINDOW: usize>(
        &self,
        packet: &UsualPacket<'_, WINDOW>,
        read: impl FnOnce() -> R,
    ) -> Option<(u64, R)> {
        let Self { place, now_ms, times, ref frame_len_bytes, .. } = *self;
        let proto = packet.proto();
        let lasts_until_ms;
        if proto == PROTO_TCP {
            let segment = packet.segment(frame_len_bytes())?;
            let step = PlainStep::of::<REPLY>(|at| place.progress_word(at), &segment)?;
            lasts_until_ms = if step.is_unacknowledged { times.unacknowledged } else { times.established };
            if !place.take(self.version) {
                return None;
            }
            step.store::<REPLY>(|at, word| place.put_progress_word(at, word));
        } else {
            let is_stream = now_ms > place.progress_word(0).saturating_add(UDP_STREAM_MS);
            lasts_until_ms = times.udp_stream;
            if proto != PROTO_UDP
                || !is_stream
                || !packet.is_datagram(frame_len_bytes())
                || !place.take(self.version)
            {
                return None;
            }
        }
        place.put_expires_ms(lasts_until_ms);
        place.count(if REPLY { Direction::Reply } else { Direction::Original }, frame_len_bytes());
        let result = read();
        place.give_back(self.version);
        Some((lasts_until_ms, result))
    }
}

impl UsualTimes {
    #[inline]
    fn of(policy: PolicyRef<'_>, now_ms: u64) -> Self {
        let end = |seconds: u32| now_ms.saturating_add(1000 * u64::from(seconds));
        let timeout = |which| policy.tcp().timeout(which);
        let established = timeout(TcpTimeout::Of(TcpState::Established));
        Self {
            established: end(established),
            unacknowledged: end(established.min(timeout(TcpTimeout::Unacknowledged))),
            udp_stream: end(policy.udp_s(true)),
        }
    }
}

#[cfg(test)]
mod tests;
