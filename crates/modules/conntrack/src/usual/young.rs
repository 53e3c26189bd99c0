//! Datagrams of UDP connections that have replies, but are not assured yet: for two seconds, and for the packet that assures them.

use lasthop_ct_packet::Direction;

use super::{POLICY_SHIFT, RARE, UsualPacket, UsualVerdict, UsualZone};
use crate::connection::{ASSURED, SEEN_REPLY};
use crate::index::Found;
use crate::progress::UDP_STREAM_MS;

impl UsualZone<'_> {
    /// Tracks a valid datagram of the connection that was found for it. `None`, without a change, if it has to take the general path.
    #[inline(always)]
    pub(super) fn track_young<const WHOLE: bool, const WINDOW: usize>(
        &self,
        packet: &UsualPacket<'_, WINDOW>,
        frame_len_bytes: u32,
        found: Found,
    ) -> Option<UsualVerdict> {
        let Found { index, direction, version } = found;
        let (place, version) = (self.places.get(index)?, version.published());
        let (status, expires_ms) = (place.status_word(), place.expires_ms());
        let is_reply = direction == Direction::Reply;
        let was_replied = status & u64::from(SEEN_REPLY) != 0;
        let is_other = status & (RARE | u64::from(ASSURED)) != 0 || !(was_replied || is_reply);
        if is_other || expires_ms <= self.now_ms {
            return None;
        }
        let is_stream = was_replied && self.now_ms > place.progress_word(0).saturating_add(UDP_STREAM_MS);
        let timeout_s = self.policies.get((status >> POLICY_SHIFT) as u8).udp_s(is_stream);
        let lasts_until_ms = self.now_ms.saturating_add(1000 * u64::from(timeout_s));
        if !place.take(version) {
            return None;
        }
        place.put_status_word(status | u64::from(SEEN_REPLY) | if is_stream { ASSURED.into() } else { 0 });
        place.put_expires_ms(lasts_until_ms);
        place.count(direction, frame_len_bytes);
        let verdict = self.verdict::<WHOLE>(place, (direction, packet.proto()), status);
        place.give_back(version);
        if is_stream || lasts_until_ms < expires_ms {
            self.note_change(place);
        }
        Some(verdict)
    }
}
