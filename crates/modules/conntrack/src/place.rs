//! A connection as words that several workers share and that outlive the process.
//!
//! ```text
//!   word  0 version      generation : 32, changes : 31, busy : 1       an odd generation: there is a connection
//!         1 status : 16, port : 16, policy : 8, helper : 8             2 time of expiry
//!         3 mark         4, 5 labels          6 .. 13 protocol        13 .. 17 packets and bytes
//!        17 hashes      18 next in the chains, by direction           19 .. 24 .. 29 tuples
//!        29 master      30, 31 sequence offsets
//! ```
//!
//! A search reads the first cache line and one of the last two; a packet reads the first two. This order keeps the
//! number of touched lines low in a large table.
//!
//! Workers read and change the words under a version ([`lasthop_sync::Version`]). Tuples, hashes, port and policy do
//! not change within a generation; the index owns the chains.

use std::sync::atomic::{AtomicU64, Ordering};

use lasthop_ct_packet::{CtHelper, CtTuple, Direction, TUPLE_WORDS};
use lasthop_sync::{Version, prefetch};

use crate::adjust::SequenceShifts;
use crate::connection::{Connection, CtId, Progress};
use crate::sctp::Sctp;
use crate::tcp::{TCP_WORDS, Tcp};
use lasthop_wire::headers::{PROTO_SCTP, PROTO_TCP, PROTO_UDP};

/// Words of a connection.
pub(crate) const PLACE_WORDS: usize = 32;

const VERSION_AT: usize = 0;
const STATUS_AT: usize = 1;
const EXPIRES_AT: usize = 2;
const MARK_AT: usize = 3;
const LABELS_AT: usize = 4;
const PROGRESS_AT: usize = 6;
const COUNTS_AT: usize = 13;
const HASHES_AT: usize = 17;
const CHAIN_AT: usize = 18;
const TUPLES_AT: usize = 19;
const MASTER_AT: usize = 29;
const SHIFTS_AT: usize = 30;

const _: () = assert!(PROGRESS_AT + TCP_WORDS == COUNTS_AT && COUNTS_AT + 4 == HASHES_AT);
const _: () = assert!(TUPLES_AT + 2 * TUPLE_WORDS == MASTER_AT && SHIFTS_AT + 2 == PLACE_WORDS);

/// Attempts to change a connection before the caller gives up.
const TRIES_MAX: u32 = 64;

/// The fields that packets change: all except marks and labels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moving {
    pub(crate) status: u16,
    pub(crate) policy: u8,
    pub(crate) helper: Option<CtHelper>,
    in_port: u16,
    pub(crate) expires_ms: u64,
    pub(crate) progress: Progress,
}

/// A connection that begins: those of its words that are not zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beginning {
    pub(crate) tuples: [[u64; TUPLE_WORDS]; 2],
    pub(crate) hashes: [u32; 2],
    /// See [`status_word`].
    pub(crate) status: u64,
    pub(crate) expires_ms: u64,
    pub(crate) mark: u32,
    pub(crate) labels: [u64; 2],
    /// Of its first packet.
    pub(crate) bytes: u32,
    pub(crate) progress: BeginningProgress,
}

/// The protocol's state of a connection that begins.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BeginningProgress {
    Tcp([u64; TCP_WORDS]),
    /// The start, in milliseconds.
    Udp(u64),
}

/// The words of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a>(pub(crate) &'a [AtomicU64; PLACE_WORDS]);

impl<'a> Place<'a> {
    #[inline]
    fn load(self, at: usize) -> u64 {
        self.0[at].load(Ordering::Relaxed)
    }

    #[inline]
    fn store(self, at: usize, word: u64) {
        self.0[at].store(word, Ordering::Relaxed);
    }

    #[inline]
    fn version_word(self) -> &'a AtomicU64 {
        &self.0[VERSION_AT]
    }

    #[inline]
    pub(crate) fn version(self) -> Version {
        Version::of(self.version_word())
    }

    /// Whether nothing has changed since version `then`; ask after the reads.
    #[inline]
    pub(crate) fn is_still(self, then: Version) -> bool {
        then.is_still(self.version_word())
    }

    /// Whether it is still the connection of version `then`; ask after the reads.
    #[inline]
    pub(crate) fn is_still_connection(self, then: Version) -> bool {
        then.is_still_generation(self.version_word())
    }

    /// A version that no worker is changing; `None` if the place stays busy.
    #[inline]
    pub(crate) fn quiet_version(self) -> Option<Version> {
        Version::quiet(self.version_word())
    }

    /// Takes the place: only the caller changes it until it calls [`Self::give_back`]. Returns false if it has changed
    /// since `then`.
    #[inline]
    pub(crate) fn take(self, then: Version) -> bool {
        then.take(self.version_word())
    }

    /// Publishes the next version, with all stores.
    #[inline]
    pub(crate) fn give_back(self, then: Version) {
        then.give_back(self.version_word());
    }

    /// Removes the connection from a place that the caller took.
    pub(crate) fn vacate(self, then: Version) {
        then.end(self.version_word());
    }

    /// Changes a connection, depending on its present state. `None` if other workers kept changing it, if there is no
    /// connection, or if `change` returns `None`.
    pub(crate) fn update<R>(self, mut change: impl FnMut(Self) -> Option<(R, Change)>) -> Option<R> {
        for _ in 0..TRIES_MAX {
            let version = self.quiet_version()?;
            if !version.is_live() {
                return None;
            }
            let changed = change(self);
            if !self.is_still(version) {
                continue;
            }
            let (result, change) = changed?;
            if self.take(version) {
                change.store(self);
                self.give_back(version);
                return Some(result);
            }
        }
        None
    }

    #[inline]
    pub(crate) fn hash(self, direction: Direction) -> u32 {
        (self.load(HASHES_AT) >> (32 * direction.index())) as u32
    }

    /// Prefetches hashes and chains.
    #[inline]
    pub(crate) fn prefetch_chains(self) {
        prefetch(&self.0[CHAIN_AT]);
    }

    /// The next link in the chain of a direction.
    #[inline]
    pub(crate) fn chain(self, direction: Direction) -> u32 {
        (self.0[CHAIN_AT].load(Ordering::Acquire) >> (32 * direction.index())) as u32
    }

    /// Sets that link; requires the shard's lock.
    pub(crate) fn set_chain(self, direction: Direction, next: u32) {
        let shift = 32 * direction.index();
        let word = self.load(CHAIN_AT) & !(0xffff_ffff << shift) | u64::from(next) << shift;
        self.0[CHAIN_AT].store(word, Ordering::Release);
    }

    #[inline(always)]
    pub(crate) fn tuple_atomics(self, direction: Direction) -> &'a [AtomicU64; TUPLE_WORDS] {
        &self.0[TUPLES_AT..MASTER_AT].as_chunks().0[direction.index()]
    }

    #[inline]
    fn tuple_words(self, direction: Direction) -> [u64; TUPLE_WORDS] {
        self.tuple_atomics(direction).each_ref().map(|word| word.load(Ordering::Relaxed))
    }

    /// Whether it has this IPv4 tuple: addresses and last word.
    #[inline(always)]
    pub(crate) fn has_tuple4(self, direction: Direction, [src, dst, last]: [u64; 3]) -> bool {
        // One after the other: each word is compared where it is, without a register of its own.
        let [own_src, own_dst, _, _, own_last] = self.tuple_atomics(direction);
        let is = |own: &AtomicU64, word: u64| own.load(Ordering::Relaxed) == word;
        is(own_last, last) && is(own_src, src) && is(own_dst, dst)
    }

    /// The same for any tuple's words.
    #[inline(always)]
    pub(crate) fn has_tuple(self, direction: Direction, words: &[u64; TUPLE_WORDS]) -> bool {
        let own = self.tuple_atomics(direction).iter().zip(words).rev();
        own.fold(true, |is, (own, word)| is && own.load(Ordering::Relaxed) == *word)
    }

    /// Source, destination and last word of an IPv4 tuple.
    #[inline(always)]
    pub(crate) fn tuple4(self, direction: Direction) -> [u64; 3] {
        let start = TUPLES_AT + TUPLE_WORDS * direction.index();
        [start, start + 1, start + TUPLE_WORDS - 1].map(|at| self.load(at))
    }

    #[inline]
    pub(crate) fn tuple(self, direction: Direction) -> CtTuple {
        CtTuple::from_words(self.tuple_words(direction))
    }

    #[inline]
    pub(crate) fn zone(self) -> u16 {
        CtTuple::zone_in_words(self.load(TUPLES_AT + TUPLE_WORDS - 1))
    }

    #[inline]
    pub(crate) fn expires_ms(self) -> u64 {
        self.load(EXPIRES_AT)
    }

    #[inline]
    pub(crate) fn mark(self) -> u32 {
        self.load(MARK_AT) as u32
    }

    #[inline(always)]
    pub(crate) fn label_words(self) -> [u64; 2] {
        [self.load(LABELS_AT), self.load(LABELS_AT + 1)]
    }

    #[inline]
    pub(crate) fn labels(self) -> [u8; 16] {
        let [low, high] = [self.load(LABELS_AT), self.load(LABELS_AT + 1)];
        (u128::from(low) | u128::from(high) << 64).to_le_bytes()
    }

    #[inline]
    pub(crate) fn master(self) -> Option<CtId> {
        let word = self.load(MASTER_AT);
        let id = CtId { index: word as u32, generation: (word >> 32) as u32 };
        (id.generation & 1 == 1).then_some(id)
    }

    #[inline]
    pub(crate) fn in_port(self) -> u16 {
        (self.load(STATUS_AT) >> 16) as u16
    }

    #[inline]
    pub(crate) fn status(self) -> u16 {
        self.load(STATUS_AT) as u16
    }

    /// The fields that packets change, for a connection of this protocol.
    #[inline]
    pub(crate) fn moving(self, proto: u8) -> Moving {
        let word = self.load(STATUS_AT);
        Moving {
            status: word as u16,
            in_port: (word >> 16) as u16,
            policy: (word >> 32) as u8,
            helper: CtHelper::of_number((word >> 40) as u8),
            expires_ms: self.load(EXPIRES_AT),
            progress: self.progress(proto),
        }
    }

    /// The word of status, port, policy and helper.
    #[inline(always)]
    pub(crate) fn status_word(self) -> u64 {
        self.load(STATUS_AT)
    }

    #[inline(always)]
    pub(crate) fn put_status_word(self, word: u64) {
        self.store(STATUS_AT, word);
    }

    #[inline(always)]
    pub(crate) fn put_expires_ms(self, expires_ms: u64) {
        self.store(EXPIRES_AT, expires_ms);
    }

    /// Word number `at` of the protocol's state.
    #[inline(always)]
    pub(crate) fn progress_word(self, at: usize) -> u64 {
        self.load(PROGRESS_AT + at)
    }

    #[inline(always)]
    pub(crate) fn put_progress_word(self, at: usize, word: u64) {
        self.store(PROGRESS_AT + at, word);
    }

    #[inline]
    fn progress(self, proto: u8) -> Progress {
        let word = |at: usize| self.load(PROGRESS_AT + at);
        match proto {
            PROTO_TCP => Progress::Tcp(Tcp::from_words(std::array::from_fn(word))),
            PROTO_UDP => Progress::Udp { since_ms: word(0) },
            PROTO_SCTP => Progress::Sctp(Sctp::from_words([word(0), word(1)])),
            _ => Progress::Other,
        }
    }

    /// Stores the fields that packets change; the caller has taken the place.
    #[inline]
    pub(crate) fn store_moving(self, moving: &Moving) {
        self.store(STATUS_AT, status_word(moving.status, moving.in_port, moving.policy, moving.helper));
        self.store(EXPIRES_AT, moving.expires_ms);
        match &moving.progress {
            Progress::Tcp(tcp) => {
                let words = tcp.words();
                words.iter().enumerate().for_each(|(at, word)| self.store(PROGRESS_AT + at, *word));
            }
            Progress::Sctp(sctp) => {
                let words = sctp.words();
                words.iter().enumerate().for_each(|(at, word)| self.store(PROGRESS_AT + at, *word));
            }
            Progress::Udp { since_ms } => self.store(PROGRESS_AT, *since_ms),
            Progress::Other => {}
        }
    }

    /// Counts a packet; the caller has taken the place.
    #[inline]
    pub(crate) fn count(self, direction: Direction, bytes: u32) {
        let at = COUNTS_AT + 2 * direction.index();
        self.store(at, self.load(at).wrapping_add(1));
        self.store(at + 1, self.load(at + 1).wrapping_add(u64::from(bytes)));
    }

    #[inline]
    pub(crate) fn shifts(self) -> SequenceShifts {
        SequenceShifts::from_words([self.load(SHIFTS_AT), self.load(SHIFTS_AT + 1)])
    }

    /// Reads the whole connection. It is consistent only if the version stays the same meanwhile.
    pub(crate) fn connection(self) -> Connection {
        let tuples = [Direction::Original, Direction::Reply].map(|direction| self.tuple(direction));
        let moving = self.moving(tuples[0].proto);
        let counts = |at: usize| [self.load(COUNTS_AT + at), self.load(COUNTS_AT + 2 + at)];
        Connection {
            tuples,
            expires_ms: moving.expires_ms,
            packets: counts(0),
            bytes: counts(1),
            progress: moving.progress,
            labels: self.labels(),
            mark: self.mark(),
            master: self.master(),
            status: moving.status,
            in_port: moving.in_port,
            policy: moving.policy,
            helper: moving.helper,
            shifts: self.shifts(),
        }
    }

    /// Enters a connection into a vacant place, in no chain yet; requires the shard's lock.
    pub(crate) fn enter(self, connection: &Connection, hashes: [u32; 2]) {
        let vacant = self.version();
        self.0[CHAIN_AT].store(0, Ordering::Relaxed);
        self.store_all(connection, hashes);
        vacant.end(self.version_word());
    }

    /// Enters a connection that begins; as [`Self::enter`] would.
    #[inline]
    pub(crate) fn begin(self, beginning: &Beginning) {
        let vacant = self.version();
        self.0[CHAIN_AT].store(0, Ordering::Relaxed);
        let Beginning { tuples, hashes, status, expires_ms, mark, labels, bytes, progress } = beginning;
        self.store(STATUS_AT, *status);
        self.store(EXPIRES_AT, *expires_ms);
        self.store(MARK_AT, u64::from(*mark));
        self.store(LABELS_AT, labels[0]);
        self.store(LABELS_AT + 1, labels[1]);
        match progress {
            BeginningProgress::Udp(since_ms) => self.store(PROGRESS_AT, *since_ms),
            BeginningProgress::Tcp(words) => {
                words.iter().enumerate().for_each(|(at, word)| self.store(PROGRESS_AT + at, *word));
            }
        }
        self.store(COUNTS_AT, 1);
        self.store(COUNTS_AT + 1, u64::from(*bytes));
        self.store(COUNTS_AT + 2, 0);
        self.store(COUNTS_AT + 3, 0);
        self.store(HASHES_AT, u64::from(hashes[0]) | u64::from(hashes[1]) << 32);
        for (words, direction) in tuples.iter().zip(Direction::BOTH) {
            let own = self.tuple_atomics(direction).iter();
            own.zip(words).for_each(|(own, word)| own.store(*word, Ordering::Relaxed));
        }
        (MASTER_AT..PLACE_WORDS).for_each(|at| self.store(at, 0));
        vacant.end(self.version_word());
    }

    /// Rewrites a connection that another process left, under the same identity. Searches may meanwhile follow its
    /// chains, but do nothing else.
    pub(crate) fn restore(self, connection: &Connection, hashes: [u32; 2]) {
        let version = self.version();
        self.store_all(connection, hashes);
        self.give_back(version);
    }

    fn store_all(self, connection: &Connection, hashes: [u32; 2]) {
        for (direction, tuple) in [Direction::Original, Direction::Reply].into_iter().zip(&connection.tuples)
        {
            let start = TUPLES_AT + TUPLE_WORDS * direction.index();
            tuple.words().iter().enumerate().for_each(|(at, word)| self.store(start + at, *word));
        }
        self.store(HASHES_AT, u64::from(hashes[0]) | u64::from(hashes[1]) << 32);
        self.store(MARK_AT, connection.mark.into());
        self.store_labels(connection.labels);
        let master = connection.master.map_or(0, |id| u64::from(id.generation) << 32 | u64::from(id.index));
        self.store(MASTER_AT, master);
        for at in 0..2 {
            self.store(COUNTS_AT + 2 * at, connection.packets[at]);
            self.store(COUNTS_AT + 2 * at + 1, connection.bytes[at]);
        }
        self.store_moving(&Moving::of(connection));
        self.store_shifts(connection.shifts);
    }

    fn store_labels(self, labels: [u8; 16]) {
        let labels = u128::from_le_bytes(labels);
        self.store(LABELS_AT, labels as u64);
        self.store(LABELS_AT + 1, (labels >> 64) as u64);
    }

    fn store_shifts(self, shifts: SequenceShifts) {
        let [positions, offsets] = shifts.words();
        self.store(SHIFTS_AT, positions);
        self.store(SHIFTS_AT + 1, offsets);
    }

    /// Clears a place that another process left in any state.
    pub(crate) fn clear(self) {
        let version = self.version();
        if version.is_live() {
            version.end(self.version_word());
        } else if version.is_busy() {
            version.give_back(self.version_word());
        }
    }
}

impl Moving {
    pub(crate) fn of(connection: &Connection) -> Self {
        Self {
            status: connection.status,
            policy: connection.policy,
            helper: connection.helper,
            in_port: connection.in_port,
            expires_ms: connection.expires_ms,
            progress: connection.progress,
        }
    }
}

/// The word of status, port, policy and helper.
#[inline]
pub(crate) fn status_word(status: u16, in_port: u16, policy: u8, helper: Option<CtHelper>) -> u64 {
    u64::from(status)
        | u64::from(in_port) << 16
        | u64::from(policy) << 32
        | u64::from(CtHelper::number(helper)) << 40
}

/// A change of a connection by something else than a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// Mark, labels and the changing fields.
    Over(u32, [u8; 16], Moving),
    /// A packet: the changing fields, its direction and its bytes.
    Packet(Moving, Option<(Direction, u32)>),
    /// Sequence offsets and the changing fields.
    Shifts(SequenceShifts, Moving),
}

impl Change {
    fn store(&self, place: Place<'_>) {
        match self {
            Self::Over(mark, labels, moving) => {
                place.store(MARK_AT, u64::from(*mark));
                place.store_labels(*labels);
                place.store_moving(moving);
            }
            Self::Packet(moving, counted) => {
                place.store_moving(moving);
                if let Some((direction, bytes)) = counted {
                    place.count(*direction, *bytes);
                }
            }
            Self::Shifts(shifts, moving) => {
                place.store_shifts(*shifts);
                place.store_moving(moving);
            }
        }
    }
}
