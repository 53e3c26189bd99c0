//! Helpers at work: expectations, and translated announcements.

use super::Tracker;
use crate::connection::SEQUENCE_ADJUSTED;
use crate::edit::{CtSplice, Editor, NotInImage};
use crate::helper::{Announced, announced, write_address};
use crate::packet::PacketImage;
use crate::tcp::Segment;
use crate::tuple::{CtTuple, Direction};

/// Ports that are tried for an expected connection, in a row.
const PORTS_TRIED_MAX: u16 = 128;
/// Connections with adjusted sequence numbers at a time: 3 MiB.
const SHIFTS_MAX: usize = 1 << 16;

impl Tracker {
    /// Looks for announcements in a packet.
    pub(super) fn assist(
        &mut self,
        editor: &mut Editor<'_>,
        packet: &PacketImage<'_>,
        index: u32,
        direction: Direction,
        now_ms: u64,
    ) -> Result<(), NotInImage> {
        let Some(connection) = self.table.get(index) else { return Ok(()) };
        let (own, other) = (*connection.tuple(direction), *connection.tuple(direction.inverse()));
        let Some(helper) = connection.helper else { return Ok(()) };
        let Some(found) = announced(helper, packet, &own, direction) else { return Ok(()) };
        // A host may announce its own address only: another host's address would be opened to strangers.
        if found.address.is_some_and(|address| address != own.src) {
            return Ok(());
        }
        let Some(master) = self.table.id(index) else { return Ok(()) };
        // As others see it: towards the sender's address behind translation.
        let announced = CtTuple { src: other.src, dst: other.dst, src_port: 0, dst_port: found.port, ..own };
        let expected = if found.written.is_none() {
            CtTuple { dst_port: other.dst_port, ..announced }
        } else if own.src == other.dst {
            announced
        } else {
            match self.free_expectation(&announced, master, now_ms) {
                Some(expected) => expected,
                None => return Err(NotInImage),
            }
        };
        if let Some(written) = found.written.filter(|_| own.src != other.dst) {
            let text =
                write_address(&written, expected.dst.to_ip(own.l3()), expected.dst_port).ok_or(NotInImage)?;
            let splice =
                CtSplice { at: written.at as u16, removed_bytes: written.len as u16, inserted: text };
            self.put_in(editor, packet, (index, direction), splice, now_ms)?;
        }
        self.expect(&expected, master, direction, &found, now_ms);
        Ok(())
    }

    fn expect(
        &mut self,
        expected: &CtTuple,
        master: crate::CtId,
        direction: Direction,
        found: &Announced,
        now_ms: u64,
    ) {
        // Without room nothing is expected: the connection will come as a new one.
        let _ = self.expectations.add(expected, master, direction.inverse(), found.port, now_ms);
    }

    /// The announced tuple, or one with a port that no other connection awaits.
    fn free_expectation(&self, announced: &CtTuple, master: crate::CtId, now_ms: u64) -> Option<CtTuple> {
        let ports = (0..PORTS_TRIED_MAX).map(|offset| announced.dst_port.wrapping_add(offset).max(1));
        let mut candidates = ports.map(|dst_port| CtTuple { dst_port, ..*announced });
        candidates.find(|candidate| !self.expectations.is_taken(candidate, master, now_ms))
    }

    /// Other text goes into a segment; sequence numbers behind it are adjusted from then on.
    fn put_in(
        &mut self,
        editor: &mut Editor<'_>,
        packet: &PacketImage<'_>,
        (index, direction): (u32, Direction),
        splice: CtSplice,
        now_ms: u64,
    ) -> Result<(), NotInImage> {
        let grown = splice.inserted.len() as i32 - i32::from(splice.removed_bytes);
        let (Some(segment), Some(id)) = (Segment::of(packet), self.table.id(index)) else {
            return Err(NotInImage);
        };
        let has_shifts = self.shifts.contains_key(&id);
        if grown != 0 && !has_shifts && self.shifts.len() >= SHIFTS_MAX {
            let table = &self.table;
            self.shifts
                .retain(|id, _| table.named(*id).is_some_and(|connection| connection.expires_ms > now_ms));
            if self.shifts.len() >= SHIFTS_MAX {
                return Err(NotInImage);
            }
        }
        editor.splice(splice)?;
        if grown != 0 {
            self.shifts.entry(id).or_default().add(direction, segment.seq, grown);
            if let Some(connection) = self.table.get_mut(index) {
                connection.status |= SEQUENCE_ADJUSTED;
            }
        }
        Ok(())
    }
}
