//! SCTP: states by chunk types, and verification tags (RFC 9260, 8.5), as Linux's nf_conntrack has them.

use lasthop_ct_packet::{Direction, PacketImage};

/// Bytes of the common header and of a chunk's header.
const HEADER_BYTES: usize = 12;
const CHUNK_BYTES: usize = 4;
/// Chunks of a packet that are read: more than fit into a header image.
const CHUNKS_MAX: usize = 32;

const DATA: u8 = 0;
const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const HEARTBEAT: u8 = 4;
const HEARTBEAT_ACK: u8 = 5;
const ABORT: u8 = 6;
const SHUTDOWN: u8 = 7;
const SHUTDOWN_ACK: u8 = 8;
const ERROR: u8 = 9;
const COOKIE_ECHO: u8 = 10;
const COOKIE_ACK: u8 = 11;
const SHUTDOWN_COMPLETE: u8 = 14;
/// A chunk's flag: the tag is the sender's own.
const FLAG_T: u8 = 1;

/// States, with the kernel's names and numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SctpState {
    /// No packet was seen.
    None,
    /// Closed, or an INIT.
    Closed,
    /// An INIT ACK.
    CookieWait,
    /// A COOKIE ECHO.
    CookieEchoed,
    /// A COOKIE ACK.
    Established,
    /// A SHUTDOWN in the original direction.
    ShutdownSent,
    /// A SHUTDOWN in the reply direction.
    ShutdownRecd,
    /// A SHUTDOWN ACK.
    ShutdownAckSent,
    /// A HEARTBEAT of a path that was not seen before.
    HeartbeatSent,
    /// The answer to that.
    HeartbeatAcked,
}

impl SctpState {
    /// All states, by number.
    pub const ALL: [Self; 10] = [
        Self::None,
        Self::Closed,
        Self::CookieWait,
        Self::CookieEchoed,
        Self::Established,
        Self::ShutdownSent,
        Self::ShutdownRecd,
        Self::ShutdownAckSent,
        Self::HeartbeatSent,
        Self::HeartbeatAcked,
    ];

    /// Whether the association is closing.
    pub(crate) fn is_closing(self) -> bool {
        matches!(self, Self::ShutdownSent | Self::ShutdownRecd | Self::ShutdownAckSent)
    }
}

/// An association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sctp {
    /// The verification tags of packets of each direction, in network order.
    tags: [u32; 2],
    state: SctpState,
    /// The direction of a heartbeat with another tag; its answer may confirm it.
    doubted: Option<Direction>,
}

/// The effect of a packet on its association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SctpOutcome {
    /// The packet belongs to it, and restarts the timeout of its state. `is_assured`: the handshake is complete.
    Accepted {
        is_assured: bool,
    },
    /// The packet belongs to it, and leaves its timeout.
    Ignored,
    Invalid,
}

/// A chunk: offset, type, flags.
#[derive(Clone, Copy)]
struct Chunk {
    at: usize,
    kind: u8,
    flags: u8,
}

/// The chunks of a packet within the image, and their types as a bitmap.
struct Chunks {
    list: arrayvec::ArrayVec<Chunk, CHUNKS_MAX>,
    kinds: u64,
    tag: u32,
}

impl Chunks {
    /// Returns `None` if the packet has no chunk, or chunks that must not be bundled.
    fn of(packet: &PacketImage<'_>) -> Option<Self> {
        let (l4, end) = (packet.l4(), packet.end()?);
        let tag = packet.long(l4 + 4)?;
        let mut chunks = Self { list: arrayvec::ArrayVec::new(), kinds: 0, tag };
        let mut at = l4 + HEADER_BYTES;
        let mut is_alone = false;
        while at < end && !chunks.list.is_full() {
            // Chunks beyond the image are not read.
            let Some([kind, flags, high, low]) = packet.bytes(at) else { break };
            let len = usize::from(u16::from_be_bytes([high, low]));
            is_alone |= matches!(kind, INIT | INIT_ACK | SHUTDOWN_COMPLETE);
            let has_to_be_first = is_alone || matches!(kind, COOKIE_ACK | COOKIE_ECHO);
            if len < CHUNK_BYTES || (has_to_be_first && !chunks.list.is_empty()) {
                return None;
            }
            chunks.list.push(Chunk { at, kind, flags });
            chunks.kinds |= 1 << kind.min(63);
            at += len.next_multiple_of(4);
        }
        (!chunks.list.is_empty()).then_some(chunks)
    }

    fn has(&self, kind: u8) -> bool {
        self.kinds & 1 << kind != 0
    }
}

impl Sctp {
    /// An association that begins with this packet; `None` if it cannot begin one.
    pub(crate) fn first(packet: &PacketImage<'_>) -> Option<Self> {
        let chunks = Chunks::of(packet)?;
        if [ABORT, SHUTDOWN_COMPLETE, COOKIE_ACK].iter().any(|kind| chunks.has(*kind)) {
            return None;
        }
        let mut tags = [0; 2];
        for chunk in &chunks.list {
            match chunk.kind {
                INIT if chunks.tag != 0 => return None,
                INIT => tags[1] = packet.long(chunk.at + CHUNK_BYTES)?,
                HEARTBEAT => tags[0] = chunks.tag,
                // Types that change no state cannot begin an association.
                _ if next_state(Direction::Original, SctpState::None, chunk.kind)? == SctpState::None => {
                    return None;
                }
                _ => tags[1] = chunks.tag,
            }
        }
        Some(Self { tags, state: SctpState::None, doubted: None })
    }

    /// Packs the state into words for shared memory.
    pub(crate) fn words(&self) -> [u64; 2] {
        let doubted = self.doubted.map_or(0, |direction| direction as u64 + 1);
        [u64::from(self.tags[0]) | u64::from(self.tags[1]) << 32, self.state as u64 | doubted << 8]
    }

    /// Unpacks [`Self::words`]. Any words are a valid association.
    pub(crate) fn from_words([tags, state]: [u64; 2]) -> Self {
        let doubted = match state >> 8 & 3 {
            1 => Some(Direction::Original),
            2 => Some(Direction::Reply),
            _ => None,
        };
        let state = *SctpState::ALL.get(usize::from(state as u8)).unwrap_or(&SctpState::None);
        Self { tags: [tags as u32, (tags >> 32) as u32], state, doubted }
    }

    pub(crate) fn state(&self) -> SctpState {
        self.state
    }

    /// The verification tags of original and reply direction.
    pub(crate) fn tags(&self) -> [u32; 2] {
        self.tags
    }

    /// Advances the association by a packet.
    pub(crate) fn advance(
        &mut self,
        packet: &PacketImage<'_>,
        direction: Direction,
        is_new: bool,
    ) -> SctpOutcome {
        let mut after = *self;
        let outcome = after.walk(packet, direction, is_new);
        if let Some(outcome) = outcome {
            *self = after;
            return outcome;
        }
        SctpOutcome::Invalid
    }

    fn walk(&mut self, packet: &PacketImage<'_>, direction: Direction, is_new: bool) -> Option<SctpOutcome> {
        const OWN_RULES: [u8; 7] =
            [INIT, SHUTDOWN_COMPLETE, COOKIE_ECHO, ABORT, SHUTDOWN_ACK, HEARTBEAT, HEARTBEAT_ACK];
        let chunks = Chunks::of(packet)?;
        let has_own_rule = OWN_RULES.iter().any(|kind| chunks.has(*kind));
        if !has_own_rule && chunks.tag != self.tags[direction.index()] {
            return None;
        }
        let mut is_ignored = false;
        let mut before = self.state;
        for chunk in &chunks.list {
            if !self.has_right_tag(&chunks, chunk, direction, &mut is_ignored)? {
                continue;
            }
            before = self.state;
            let next = next_state(direction, before, chunk.kind)?;
            if matches!(chunk.kind, INIT | INIT_ACK) {
                self.tags[direction.inverse().index()] = packet.long(chunk.at + CHUNK_BYTES)?;
                is_ignored |= !is_new && (before, next) == (SctpState::Closed, SctpState::Closed);
            }
            self.state = next;
        }
        let is_assured = before == SctpState::CookieEchoed
            && direction == Direction::Reply
            && self.state == SctpState::Established;
        Some(if is_ignored { SctpOutcome::Ignored } else { SctpOutcome::Accepted { is_assured } })
    }

    /// Checks the verification tag for a chunk (RFC 9260, 8.5.1). `None`: the packet is invalid. False: the chunk is
    /// skipped.
    fn has_right_tag(
        &mut self,
        chunks: &Chunks,
        chunk: &Chunk,
        direction: Direction,
        is_ignored: &mut bool,
    ) -> Option<bool> {
        let (own, peer) = (self.tags[direction.index()], self.tags[direction.inverse().index()]);
        let tag = chunks.tag;
        let is_right = match chunk.kind {
            INIT => tag == 0,
            ABORT => tag == own || tag == peer,
            SHUTDOWN_COMPLETE => tag == own || tag == peer || chunk.flags & FLAG_T == 0,
            COOKIE_ECHO => tag == own,
            HEARTBEAT | HEARTBEAT_ACK => return self.heartbeat(chunks, chunk.kind, direction, is_ignored),
            _ => true,
        };
        is_right.then_some(true)
    }

    fn heartbeat(
        &mut self,
        chunks: &Chunks,
        kind: u8,
        direction: Direction,
        is_ignored: &mut bool,
    ) -> Option<bool> {
        let own = &mut self.tags[direction.index()];
        if *own == 0 || *own == chunks.tag {
            if *own == chunks.tag {
                self.doubted = None;
            }
            *own = chunks.tag;
            return Some(true);
        }
        if chunks.has(DATA) || *is_ignored {
            return None;
        }
        if kind == HEARTBEAT {
            // The peer may have restarted; its answer will show.
            self.doubted = Some(direction);
            *is_ignored = true;
            return Some(false);
        }
        if self.doubted != Some(direction.inverse()) {
            return None;
        }
        *own = chunks.tag;
        self.tags[direction.inverse().index()] = 0;
        self.doubted = None;
        Some(true)
    }
}

/// The next state after a chunk; `None` if the chunk is invalid in this state.
fn next_state(direction: Direction, state: SctpState, kind: u8) -> Option<SctpState> {
    use SctpState::{
        Closed, CookieEchoed, CookieWait, Established, HeartbeatAcked, HeartbeatSent, None as Nothing,
        ShutdownAckSent, ShutdownRecd, ShutdownSent,
    };
    let is_known = matches!(kind, INIT..=INIT_ACK | HEARTBEAT..=COOKIE_ACK | SHUTDOWN_COMPLETE);
    if !is_known {
        return Some(state);
    }
    Some(match (direction, kind, state) {
        (Direction::Original, HEARTBEAT, Nothing) => HeartbeatSent,
        (Direction::Original, SHUTDOWN_ACK, Nothing | HeartbeatSent) => ShutdownAckSent,
        (Direction::Original, _, Nothing) => Closed,
        (Direction::Original, INIT, HeartbeatSent) => CookieWait,
        (Direction::Original, HEARTBEAT | HEARTBEAT_ACK, HeartbeatSent) => HeartbeatSent,
        (Direction::Original, _, HeartbeatSent) => Closed,
        (Direction::Original, COOKIE_ECHO, CookieWait) => CookieEchoed,
        (Direction::Original, SHUTDOWN, Established | HeartbeatAcked) => ShutdownSent,
        (Direction::Reply, _, Nothing) => return None,
        (Direction::Reply, HEARTBEAT, HeartbeatSent) => HeartbeatSent,
        (Direction::Reply, HEARTBEAT_ACK, HeartbeatSent) => HeartbeatAcked,
        (Direction::Reply, _, HeartbeatSent) => return None,
        (Direction::Reply, INIT_ACK, Closed) => CookieWait,
        (Direction::Reply, COOKIE_ACK, CookieEchoed) => Established,
        (Direction::Reply, ERROR, CookieEchoed) => Closed,
        (Direction::Reply, SHUTDOWN, Established | HeartbeatAcked) => ShutdownRecd,
        (_, ABORT, _) => Closed,
        (_, SHUTDOWN_ACK, ShutdownSent | ShutdownRecd) => ShutdownAckSent,
        (_, SHUTDOWN_COMPLETE, ShutdownAckSent) => Closed,
        _ => state,
    })
}
