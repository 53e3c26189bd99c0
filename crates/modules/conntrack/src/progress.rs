//! The effect of a packet on its connection, by protocol.

use lasthop_ct_packet::{CtTuple, Direction, PacketImage, is_icmp_request};
use lasthop_wire::headers::{PROTO_ICMP, PROTO_ICMPV6, PROTO_SCTP, PROTO_TCP, PROTO_UDP};

use crate::connection::{ASSURED, DYING, Progress, SEEN_REPLY};
use crate::place::Moving;
use crate::policy::PolicyRef;
use crate::sctp::{Sctp, SctpOutcome};
use crate::tcp::{Context, Outcome, Segment, Tcp, TcpTimeout};

/// Age at which a UDP connection with replies is a stream, in milliseconds.
pub(crate) const UDP_STREAM_MS: u64 = 2000;
/// An invalid packet shortens only connections with at least this much time left, in milliseconds: as in the kernel.
const HASTENED_MS_MIN: u64 = 120_000;
/// Bytes of a UDP header.
const UDP_BYTES: usize = 8;

/// The effect of a packet on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advance {
    /// The packet belongs to the connection. The timeout becomes this, in ms; `None` leaves it.
    Accepted(Option<u64>),
    /// The packet belongs to the connection, and ends it.
    Last,
    /// The packet does not belong to it. The timeout is cut to this, in ms, if [`HASTENED_MS_MIN`] are left.
    Invalid(Option<u64>),
    /// The packet begins another connection in this one's place.
    Reopened,
}

/// Whether the transport header is complete and valid.
pub(crate) fn is_well_formed(packet: &PacketImage<'_>) -> bool {
    let Some(end) = packet.end() else { return false };
    let l4 = packet.l4();
    let is_whole = match packet.layers.l4_proto {
        PROTO_TCP => Segment::of(packet).is_some(),
        PROTO_UDP => match packet.word(l4 + 4) {
            // A frame to be segmented may be too large for the length field.
            Some(len) => {
                packet.offload.is_gso() || (usize::from(len) >= UDP_BYTES && l4 + usize::from(len) <= end)
            }
            None => false,
        },
        PROTO_SCTP => l4 + 12 <= end,
        PROTO_ICMP | PROTO_ICMPV6 => l4 + 8 <= end,
        _ => true,
    };
    is_whole && !packet.has_wrong_checksum()
}

/// The state and timeout of a connection that begins with this packet; `None` if it cannot begin one.
pub(crate) fn first(
    packet: &PacketImage<'_>,
    tuple: &CtTuple,
    policy: PolicyRef<'_>,
    now_ms: u64,
) -> Option<(Progress, u64)> {
    match tuple.proto {
        PROTO_TCP => {
            let segment = Segment::of(packet)?;
            let mut tcp = Tcp::first(&segment, policy.tcp())?;
            let context = Context {
                policy: policy.tcp(),
                direction: Direction::Original,
                is_replied: false,
                is_assured: false,
                ack_offset: 0,
            };
            match tcp.advance(&segment, &context) {
                Outcome::Accepted { timeout, .. } => {
                    Some((Progress::Tcp(tcp), milliseconds(policy.tcp().timeout(timeout))))
                }
                _ => None,
            }
        }
        PROTO_SCTP => {
            let mut sctp = Sctp::first(packet)?;
            let outcome = sctp.advance(packet, Direction::Original, true);
            (outcome != SctpOutcome::Invalid).then(|| (Progress::Sctp(sctp), sctp_timeout(&sctp, policy)))
        }
        PROTO_ICMP | PROTO_ICMPV6 => {
            let [kind, _] = tuple.dst_port.to_be_bytes();
            is_icmp_request(tuple.proto, kind)
                .then(|| (Progress::Other, milliseconds(policy.icmp_s(tuple.is_ipv6))))
        }
        PROTO_UDP => Some((Progress::Udp { since_ms: now_ms }, milliseconds(policy.udp_s(false)))),
        _ => Some((Progress::Other, milliseconds(policy.generic_s()))),
    }
}

/// A connection that a packet ended is kept this long for the rest of that packet's actions, in milliseconds.
const LAST_PACKET_MS: u64 = 1000;

/// Does [`advance`], and updates status and expiry. Returns true if the packet counts for the connection.
#[inline]
pub(crate) fn step(
    moving: &mut Moving,
    packet: &PacketImage<'_>,
    (tuple, direction): (&CtTuple, Direction),
    policy: PolicyRef<'_>,
    ack_offset: impl FnOnce(u32) -> u32,
    now_ms: u64,
) -> (Advance, bool) {
    let advance = advance(moving, packet, (tuple, direction), policy, ack_offset, now_ms);
    match advance {
        Advance::Accepted(None) => {}
        Advance::Accepted(Some(timeout_ms)) => moving.expires_ms = now_ms.saturating_add(timeout_ms),
        Advance::Last => {
            moving.status |= DYING;
            moving.expires_ms = now_ms.saturating_add(LAST_PACKET_MS);
        }
        Advance::Invalid(Some(timeout_ms)) => {
            let left_ms = moving.expires_ms.saturating_sub(now_ms);
            if left_ms >= HASTENED_MS_MIN && left_ms > timeout_ms {
                moving.expires_ms = now_ms.saturating_add(timeout_ms);
            }
            return (advance, false);
        }
        Advance::Invalid(None) | Advance::Reopened => return (advance, false),
    }
    if direction == Direction::Reply {
        moving.status |= SEEN_REPLY;
    }
    (advance, true)
}

/// Advances the protocol state by a packet with this tuple and direction. `ack_offset`: see [`Context`].
#[inline]
fn advance(
    moving: &mut Moving,
    packet: &PacketImage<'_>,
    (tuple, direction): (&CtTuple, Direction),
    policy: PolicyRef<'_>,
    ack_offset: impl FnOnce(u32) -> u32,
    now_ms: u64,
) -> Advance {
    let is_replied = moving.status & SEEN_REPLY != 0;
    let (is_assured, timeout_ms) = match &mut moving.progress {
        Progress::Tcp(tcp) => {
            let Some(segment) = Segment::of(packet) else { return Advance::Invalid(None) };
            let context = Context {
                policy: policy.tcp(),
                direction,
                is_replied,
                is_assured: moving.status & ASSURED != 0,
                ack_offset: ack_offset(segment.ack),
            };
            match tcp.advance(&segment, &context) {
                Outcome::Accepted { timeout, is_assured } => {
                    (is_assured, Some(milliseconds(policy.tcp().timeout(timeout))))
                }
                Outcome::Ignored => (false, None),
                Outcome::Last => return Advance::Last,
                Outcome::Invalid { hastens } => {
                    let timeout_s = policy.tcp().timeout(TcpTimeout::Unacknowledged);
                    return Advance::Invalid(hastens.then(|| milliseconds(timeout_s)));
                }
                Outcome::Reopened => return Advance::Reopened,
            }
        }
        Progress::Sctp(sctp) => match sctp.advance(packet, direction, false) {
            SctpOutcome::Accepted { is_assured } => (is_assured, Some(sctp_timeout(sctp, policy))),
            SctpOutcome::Ignored => (false, None),
            SctpOutcome::Invalid => return Advance::Invalid(None),
        },
        Progress::Udp { since_ms } => {
            let is_stream = is_replied && now_ms > since_ms.saturating_add(UDP_STREAM_MS);
            (is_stream, Some(milliseconds(policy.udp_s(is_stream))))
        }
        Progress::Other => {
            let timeout_s = if tuple.is_icmp() { policy.icmp_s(tuple.is_ipv6) } else { policy.generic_s() };
            // For these protocols only a reply shows that there is a connection.
            (is_replied || direction == Direction::Reply, Some(milliseconds(timeout_s)))
        }
    };
    if is_assured {
        moving.status |= ASSURED;
    }
    Advance::Accepted(timeout_ms)
}

fn sctp_timeout(sctp: &Sctp, policy: PolicyRef<'_>) -> u64 {
    u64::from(policy.sctp_ms(sctp.state()))
}

fn milliseconds(seconds: u32) -> u64 {
    1000 * u64::from(seconds)
}
