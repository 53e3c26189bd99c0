//! Usual packets that begin a connection: a SYN or a UDP datagram that belongs to none.
//!
//! ```text
//!   ct(zone=Z),recirc      no connection has the tuple ─> +new               (no lock)
//!   ct(commit,zone=Z)      under the lock: still none, nor of the replies' tuple ─> entered
//! ```
//!
//! A packet that does not fit in takes the general path, and nothing is changed before.

use std::sync::atomic::Ordering;

use lasthop_ct_packet::{CtTuple, TUPLE_WORDS};
use lasthop_flow::ct_state::{NEW, TRACKED};
use lasthop_flow::{Nat, NatRange, NatSource};
use lasthop_wire::headers::{PROTO_TCP, PROTO_UDP};

use super::{UsualEnds, UsualPacket, UsualVerdict, UsualZone};
use crate::begun::Entry;
use crate::index::Search;
use crate::nat::Selection;
use crate::place::{Beginning, BeginningProgress, status_word};
use crate::request::{CtCommit, CtRequest};
use crate::table::Table;
use crate::tcp::Tcp;

/// `lasthop_flow::ct_state` bits of each usual packet that begins a connection.
pub const BEGINNING_STATE: u32 = TRACKED | NEW;

/// The tuples of a packet that begins a connection in one zone, for [`UsualZone::commit`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewTuples {
    original: [u64; TUPLE_WORDS],
    /// Of the original tuple and of untranslated replies.
    hashes: [u32; 2],
}

/// The verdict for a packet that is not usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnusualVerdict {
    /// It begins a connection; its state is [`BEGINNING_STATE`].
    Begins(NewTuples),
    /// It belongs to a young connection of UDP.
    Young(UsualVerdict),
}

impl UsualZone<'_> {
    /// Tracks a packet if it begins a connection, or belongs to a young one of UDP: no packet that [`Self::track`] tracks. A packet that neither
    /// of them tracks has to take the general path, and nothing has changed. `WHOLE`: as for [`Self::track`].
    #[inline(always)]
    #[must_use]
    pub fn track_unusual<const WHOLE: bool, const WINDOW: usize>(
        &self,
        packet: &UsualPacket<'_, WINDOW>,
        frame_len_bytes: u32,
    ) -> Option<UnusualVerdict> {
        let is_sound = match packet.proto() {
            PROTO_TCP => packet.is_syn(frame_len_bytes),
            PROTO_UDP => packet.is_datagram(frame_len_bytes),
            _ => false,
        };
        if !is_sound || !self.shared.adoption.is_over() {
            return None;
        }
        let (shard, original) = (self.shared.shard(self.number()), self.words_of(packet));
        let hash = |words| self.shared.key.of_words_of_tuple(words);
        let hashes = [hash(&original), hash(&inverse_words(&original))];
        // Most new ones are committed: what the commit reads comes while the flow of the second pass is looked up.
        self.buckets.prefetch_head(hashes[1]);
        match shard.index.find(&self.shared.places, hashes[0], &original) {
            Search::Found(found) if packet.proto() == PROTO_UDP => {
                self.track_young::<WHOLE, _>(packet, frame_len_bytes, found).map(UnusualVerdict::Young)
            }
            // A connection that a helper expects takes the lock.
            Search::Absent if shard.expected.load(Ordering::Acquire) == 0 => {
                self.buckets.prefetch_first(self.places, hashes[1]);
                Some(UnusualVerdict::Begins(NewTuples { original, hashes }))
            }
            _ => None,
        }
    }

    /// Commits the connection of a packet that begins one ([`UnusualVerdict::Begins`]), as `ct(commit)` of the same zone requests. Returns the ends that the packet leaves with,
    /// if they differ. `None` if that has to take the general path, which also finds the reason for a refusal.
    #[must_use]
    pub fn commit<const WINDOW: usize>(
        &self,
        (packet, new): (&UsualPacket<'_, WINDOW>, &NewTuples),
        (frame_len_bytes, in_port): (u32, u16),
        request: &CtRequest,
    ) -> Option<Option<UsualEnds>> {
        let is_plain = request.commit != CtCommit::No && request.helper.is_none();
        let nat = request.nat.filter(|nat| !keeps_ends(nat));
        if !is_plain || request.zone != self.number() || (nat.is_some() && UsualPacket::<WINDOW>::IS_IPV6) {
            return None;
        }
        let policy = self.policies.get(request.policy);
        let (progress, timeout_s) = match packet.proto() {
            PROTO_UDP => (BeginningProgress::Udp(self.now_ms), policy.udp_s(false)),
            _ => {
                let (tcp, timeout) = Tcp::opened(&packet.syn(frame_len_bytes)?, policy.tcp());
                (BeginningProgress::Tcp(tcp.words()), policy.tcp().timeout(timeout))
            }
        };
        let NewTuples { original, mut hashes } = *new;
        let mut table = Table::for_first_packet(self.shared, request.zone);
        if table.shard.expected.load(Ordering::Relaxed) != 0 {
            return None;
        }
        let (mut replies, mut status) = (inverse_words(&original), 0);
        if let Some(nat) = &nat {
            // The ports in use have to be known.
            table.list_begun();
            let mut selection = Selection { table: &mut table, now_ms: self.now_ms };
            let translation = selection.choose(&CtTuple::from_words(original), nat)?;
            (replies, status) = (translation.reply.words(), translation.status);
            hashes[1] = self.shared.key.of_words_of_tuple(&replies);
        }
        let tuples = [original, replies];
        if !table.has_rooms(hashes) {
            return None;
        }
        let labels = request.labels.0.as_chunks().0.iter().zip(request.labels.1.as_chunks().0);
        let mut labels = labels.map(|(value, mask)| u64::from_le_bytes(*value) & u64::from_le_bytes(*mask));
        let beginning = Beginning {
            tuples,
            hashes,
            status: status_word(status, in_port, request.policy, None),
            expires_ms: self.now_ms.saturating_add(1000 * u64::from(timeout_s)),
            mark: request.mark.value & request.mark.mask,
            labels: std::array::from_fn(|_| labels.next().unwrap_or(0)),
            bytes: frame_len_bytes,
            progress,
        };
        let Beginning { expires_ms, .. } = beginning;
        let entry = Entry { in_port, zone: request.zone, expires_ms, is_evictable: true };
        table.begin(entry, &beginning).ok()?;
        let [src, dst, .., ports] = replies;
        let replies = UsualEnds { addresses: src | dst << 32, ports: (ports >> 32) as u32 };
        Some((status != 0).then(|| replies.reversed()))
    }

    fn words_of<const WINDOW: usize>(&self, packet: &UsualPacket<'_, WINDOW>) -> [u64; TUPLE_WORDS] {
        packet.tuple_words(self.last_word_of(packet))
    }
}

/// The words of the replies' tuple.
#[inline]
fn inverse_words([src, dst, src_high, dst_high, last]: &[u64; TUPLE_WORDS]) -> [u64; TUPLE_WORDS] {
    let ports = (last >> 32) as u32;
    let last = u64::from(ports.rotate_left(16)) << 32 | u64::from(*last as u32);
    [*dst, *src, *dst_high, *src_high, last]
}

/// Whether a translation leaves addresses and ports as they are, unless they clash.
fn keeps_ends(nat: &Nat) -> bool {
    let is_random = nat.is_random || nat.is_hashed;
    nat.source != Some(NatSource::Dst) && nat.range == NatRange::default() && !is_random
}
