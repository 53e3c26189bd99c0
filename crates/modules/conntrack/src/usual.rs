//! The fast path for usual packets: TCP without flags that open or end a connection, and UDP, over IPv4 without options
//! and fragments, with one VLAN tag at most, of connections that have seen both directions. Nearly all packets are
//! usual.
//!
//! [`crate::established`] can track them as well. This path costs less than a tenth of that: it reads the headers once
//! into a few numbers, and reads and stores the connection's packed words. For any other packet it returns `None` and
//! changes nothing; the packet takes the general path. A property test compares both paths.

use lasthop_flow::ct_state::{ESTABLISHED, REPLY, TRACKED};
use lasthop_sync::Version;
use lasthop_wire::headers::{PROTO_TCP, PROTO_UDP};
use lasthop_wire::vnet::{F_DATA_VALID, F_NEEDS_CSUM};
use lasthop_wire::{Offload, Sum};

use crate::connection::{self, ASSURED, DYING, EXPECTED, SEEN_REPLY, SEQUENCE_ADJUSTED};
use crate::index::Buckets;
use crate::place::Place;
use crate::places::Rows;
use crate::policy::{Policies, PolicyRef};
use crate::progress::UDP_STREAM_MS;
use crate::request::nat_bits_of;
use crate::shard::Shared;
use crate::tcp::plain::{PLAIN_FLAGS, PlainSegment, PlainStep};
use crate::tcp::state::ACK;
use crate::tcp::{TcpState, TcpTimeout};
use crate::tuple::{Direction, PROTO_SHIFT, ZONE_SHIFT};

const ETHERNET_BYTES: usize = 14;
/// Bytes of a tag.
const TAG_BYTES: usize = 4;
/// Offset of the EtherType; EtherType of a tag.
const TYPE_AT: usize = 12;
const TAG_TYPE: [u8; 2] = [0x81, 0];
const IPV4_BYTES: u32 = 20;
const L4_AT: usize = ETHERNET_BYTES + IPV4_BYTES as usize;
/// Bytes of the headers up to TCP without options.
const WINDOW_BYTES: usize = L4_AT + 20;
const UDP_BYTES: u32 = 8;
/// EtherType of IPv4, as a little-endian load reads it.
const IPV4: u16 = 0x00_08;
/// A time stamp option with its padding (RFC 7323, appendix A); words of a header with only that option, and without
/// options.
const TIME_STAMP: [u8; 4] = [1, 1, 8, 10];
const STAMPED_WORDS: u32 = 8;
const PLAIN_WORDS: u32 = 5;
/// Shifts of helper and policy in the status word of a connection.
const HELPER_SHIFT: u32 = 40;
const POLICY_SHIFT: u32 = 32;

/// A packet that may be usual.
#[derive(Clone, Copy, Debug)]
pub struct UsualPacket<'a> {
    /// The frame without its first four bytes if it has a tag, so that all headers are at the same offsets.
    head: &'a [u8],
    window: &'a [u8; WINDOW_BYTES],
    tag_bytes: u32,
    offload: &'a Offload,
}

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

impl<'a> UsualPacket<'a> {
    /// Bytes of a tag, for [`Self::with_tag`].
    pub const TAG_BYTES: usize = TAG_BYTES;

    /// Reads a frame that begins with `head` and has an IPv4 mini key ([`lasthop_wire::key::MiniKey`]). `None` if it is
    /// not usual.
    #[inline(always)]
    #[must_use]
    pub fn of(head: &'a [u8], offload: &'a Offload) -> Option<Self> {
        match Self::is_untagged(head) {
            true => Self::with_tag::<0>(head, offload),
            false => Self::with_tag::<TAG_BYTES>(head, offload),
        }
    }

    /// Whether a frame has IPv4 behind its Ethernet header.
    #[inline(always)]
    #[must_use]
    pub fn is_untagged(head: &[u8]) -> bool {
        head.get(TYPE_AT..TYPE_AT + 2) == Some(&IPV4.to_le_bytes()[..])
    }

    /// As [`Self::of`], for a frame with `TAG` bytes of a tag: none or [`Self::TAG_BYTES`].
    // `TAG` is constant, so that a loop over frames of one kind knows all offsets.
    #[inline(always)]
    #[must_use]
    pub fn with_tag<const TAG: usize>(head: &'a [u8], offload: &'a Offload) -> Option<Self> {
        if TAG != 0 && *head.get(TYPE_AT..)?.first_chunk()? != TAG_TYPE {
            return None;
        }
        let head = head.get(TAG..)?;
        let window: &[u8; WINDOW_BYTES] = head.first_chunk()?;
        let is_ipv4 = load(window, TYPE_AT) as u16 == IPV4;
        is_ipv4.then_some(Self { head, window, tag_bytes: TAG as u32, offload })
    }

    #[inline(always)]
    fn proto(&self) -> u8 {
        self.window[ETHERNET_BYTES + 9]
    }

    #[inline(always)]
    fn ends(&self) -> UsualEnds {
        let ports = (load(self.window, L4_AT - 4) >> 32) as u32;
        UsualEnds { addresses: load(self.window, ETHERNET_BYTES + 12), ports: ports.swap_bytes() }
    }

    /// Length of the IP packet; `None` if the frame is shorter, or the length is invalid.
    #[inline(always)]
    fn len_bytes(&self, frame_len_bytes: u32) -> Option<u32> {
        let len = u32::from(((load(self.window, TYPE_AT) >> 32) as u16).swap_bytes());
        let is_right = self.offload.flags & (F_NEEDS_CSUM | F_DATA_VALID) != 0;
        let is_whole = ETHERNET_BYTES as u32 + self.tag_bytes + len <= frame_len_bytes;
        (is_whole && (is_right || !is_summed_wrong(self.head, len, self.proto()))).then_some(len)
    }

    /// The numbers of a valid plain segment.
    #[inline(always)]
    fn segment(&self, frame_len_bytes: u32) -> Option<PlainSegment> {
        /// Masks of the header's length and flags in `rest`.
        const WORDS: u64 = 0xf0;
        const FLAGS: u64 = (PLAIN_FLAGS as u64) << 8;
        const PLAIN: u64 = (PLAIN_WORDS as u64) << 4 | (ACK as u64) << 8;
        const STAMPED: u64 = (STAMPED_WORDS as u64) << 4 | (ACK as u64) << 8;
        let rest = load(self.window, L4_AT + 12);
        let words = match rest & (WORDS | FLAGS) {
            PLAIN => PLAIN_WORDS,
            STAMPED if self.is_stamped() => STAMPED_WORDS,
            _ => return None,
        };
        let payload_bytes = self.len_bytes(frame_len_bytes)?.checked_sub(IPV4_BYTES + 4 * words)?;
        let seq_and_ack = load(self.window, L4_AT + 4).swap_bytes();
        Some(PlainSegment { seq_and_ack, payload_bytes, window: ((rest >> 16) as u16).swap_bytes() })
    }

    /// Whether the first option is a time stamp, which fills a header of [`STAMPED_WORDS`].
    #[inline(always)]
    fn is_stamped(&self) -> bool {
        let options = || self.head.get(WINDOW_BYTES..)?.first_chunk::<12>();
        options().is_some_and(|options| options.starts_with(&TIME_STAMP))
    }

    /// Whether it is a valid datagram.
    #[inline(always)]
    fn is_datagram(&self, frame_len_bytes: u32) -> bool {
        let len = u32::from((load(self.window, L4_AT + 4) as u16).swap_bytes());
        let is_sound = |packet: u32| len >= UDP_BYTES && IPV4_BYTES + len <= packet;
        self.len_bytes(frame_len_bytes).is_some_and(|packet| {
            packet >= IPV4_BYTES + UDP_BYTES && (self.offload.is_gso() || is_sound(packet))
        })
    }

    /// Writes the packet's new ends into its image, `head`. Checksums change by the difference (RFC 1624, equation 3);
    /// a partial one changes with addresses only.
    #[inline]
    pub fn translate(&self, head: &mut [u8], to: &UsualEnds) {
        match self.tag_bytes {
            0 => self.translate_at::<0>(head, to),
            _ => self.translate_tagged(head, to),
        }
    }

    #[inline(never)]
    fn translate_tagged(&self, head: &mut [u8], to: &UsualEnds) {
        if let Some(behind) = head.get_mut(TAG_BYTES..) {
            self.translate_at::<TAG_BYTES>(behind, to);
        }
    }

    /// Same for a frame with `TAG` bytes of a tag.
    #[inline(always)]
    fn translate_at<const TAG: usize>(&self, head: &mut [u8], to: &UsualEnds) {
        let (from, Some(window)) = (self.ends(), head.first_chunk_mut()) else { return };
        // Both halves of a word contribute to the sum in the same way.
        let halves = |word: u64| (word & 0xffff_ffff) + (word >> 32);
        let of_addresses = halves(!from.addresses) + halves(to.addresses);
        let (old_ports, ports) = (from.ports.swap_bytes(), to.ports.swap_bytes());
        let of_all = of_addresses + u64::from(!old_ports) + u64::from(ports);
        let sum_at = L4_AT + if self.proto() == PROTO_TCP { 16 } else { 6 };
        let partial_at = usize::from(self.offload.csum_start) + usize::from(self.offload.csum_offset);
        let field = field_of(window, sum_at);
        if self.offload.needs_csum() && partial_at == sum_at + TAG {
            put_field(window, sum_at, followed(field, of_addresses).partial());
        } else if self.proto() == PROTO_TCP {
            put_field(window, sum_at, followed(!field, of_all).finish());
        } else if field != 0 {
            put_field(window, sum_at, followed(!field, of_all).finish_udp());
        }
        let header_sum_at = ETHERNET_BYTES + 10;
        let header_sum = followed(!field_of(window, header_sum_at), of_addresses).finish();
        put_field(window, header_sum_at, header_sum);
        window[ETHERNET_BYTES + 12..L4_AT].copy_from_slice(&to.addresses.to_le_bytes());
        window[L4_AT..L4_AT + 4].copy_from_slice(&ports.to_le_bytes());
    }
}

/// Sums at most the bytes of the image; trusts a packet that the image does not have as a whole.
#[inline(never)]
fn is_summed_wrong(head: &[u8], len_bytes: u32, proto: u8) -> bool {
    let end = ETHERNET_BYTES + len_bytes as usize;
    let (Some(transport), Some(addresses)) = (head.get(L4_AT..end), head.get(ETHERNET_BYTES + 12..L4_AT))
    else {
        return false;
    };
    if proto == PROTO_UDP && transport.get(6..8) == Some(&[0, 0]) {
        return false;
    }
    let mut sum = Sum::default();
    sum.add(addresses);
    sum.add_word(transport.len() as u16);
    sum.add_word(proto.into());
    sum.add(transport);
    sum.finish() != 0
}

/// Reads eight bytes of the window.
#[inline(always)]
fn load(window: &[u8; WINDOW_BYTES], at: usize) -> u64 {
    window[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn field_of(window: &[u8; WINDOW_BYTES], at: usize) -> u16 {
    u16::from_be_bytes([window[at], window[at + 1]])
}

fn put_field(window: &mut [u8; WINDOW_BYTES], at: usize, value: u16) {
    window[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn followed(field: u16, difference: u64) -> Sum {
    let mut sum = Sum::default();
    sum.add_word(field);
    sum.add_partial(difference, 8);
    sum
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
    /// and the zone's translation; without it packets are not translated. Returns `None`, without a change, if the
    /// packet has to take the general path.
    #[inline(always)]
    // The length is asked for late: until the connection is found, all registers are needed.
    pub fn track<const WHOLE: bool>(
        &self,
        packet: &UsualPacket<'_>,
        frame_len_bytes: impl Fn() -> u32,
    ) -> Option<UsualVerdict> {
        const WANTED: u64 = (SEEN_REPLY | ASSURED) as u64;
        const RARE: u64 = (DYING | SEQUENCE_ADJUSTED | EXPECTED) as u64 | 0xff << HELPER_SHIFT;
        const POLICY: u64 = 0xff << POLICY_SHIFT;
        let ends = packet.ends();
        let last = u64::from(ends.ports) << 32 | u64::from(packet.proto()) << PROTO_SHIFT | self.zone;
        let hash = crate::hash::of_tuple4(self.key, ends.addresses, last);
        let tuple = (ends.addresses & 0xffff_ffff, ends.addresses >> 32, last);
        let (place, direction, version) = self.buckets.find4(self.places, hash, tuple)?;
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
        let known = Known { place, version, now_ms: self.now_ms, times, frame_len_bytes: frame_len_bytes() };
        let verdict = |direction| self.verdict::<WHOLE>(place, (direction, packet.proto()), status);
        let (lasts_until_ms, verdict) = match direction {
            Direction::Original => known.advance::<false, _>(packet, || verdict(Direction::Original))?,
            Direction::Reply => known.advance::<true, _>(packet, || verdict(Direction::Reply))?,
        };
        if lasts_until_ms < expires_ms {
            self.note_change(place);
        }
        Some(verdict)
    }

    /// The expiry times of a connection with a policy of its own.
    #[inline(never)]
    fn times_of(&self, place: Place<'_>) -> UsualTimes {
        UsualTimes::of(self.policies.get((place.status_word() >> POLICY_SHIFT) as u8), self.now_ms)
    }

    /// Notes a connection that now expires sooner, so that the lists follow.
    #[inline(never)]
    fn note_change(&self, place: Place<'_>) {
        let shard = self.shared.shard((self.zone >> ZONE_SHIFT) as u16);
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
struct Known<'a> {
    place: Place<'a>,
    version: Version,
    now_ms: u64,
    times: &'a UsualTimes,
    frame_len_bytes: u32,
}

impl Known<'_> {
    /// Advances the connection, and returns its time of expiry and what `read` returns while the connection is taken.
    /// `None` if nothing has changed.
    #[inline(always)]
    fn advance<const REPLY: bool, R>(
        &self,
        packet: &UsualPacket<'_>,
        read: impl FnOnce() -> R,
    ) -> Option<(u64, R)> {
        let Self { place, now_ms, times, frame_len_bytes, .. } = *self;
        let proto = packet.proto();
        let lasts_until_ms;
        if proto == PROTO_TCP {
            let segment = packet.segment(frame_len_bytes)?;
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
                || !packet.is_datagram(frame_len_bytes)
                || !place.take(self.version)
            {
                return None;
            }
        }
        place.put_expires_ms(lasts_until_ms);
        place.count(if REPLY { Direction::Reply } else { Direction::Original }, frame_len_bytes);
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
