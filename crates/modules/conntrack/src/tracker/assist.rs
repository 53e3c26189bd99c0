//! Runs helpers: expectations, and translated announcements.

use lasthop_ct_packet::{
    Announced, CtSplice, CtTuple, Direction, Editor, NotInImage, PacketImage, announced, write_address,
};

use super::Tracking;
use crate::connection::SEQUENCE_ADJUSTED;
use crate::place::{Change, Moving};
use crate::tcp::Segment;

/// Ports in a row that are tried for an expected connection.
const PORTS_TRIED_MAX: u16 = 128;

impl Tracking<'_> {
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
        // A host may announce its own address only; otherwise it could open another host's ports to strangers.
        if found.address.is_some_and(|address| address != own.src) {
            return Ok(());
        }
        let Some(master) = self.table.id(index) else { return Ok(()) };
        // The tuple as other hosts see it, towards the sender's translated address.
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
            self.put_in(editor, packet, (index, direction), splice)?;
        }
        self.expect(&expected, (master, connection.in_port), direction, &found, now_ms);
        Ok(())
    }

    fn expect(
        &mut self,
        expected: &CtTuple,
        master: (crate::CtId, u16),
        direction: Direction,
        found: &Announced,
        now_ms: u64,
    ) {
        // Without room there is no expectation: the connection will be an ordinary new one.
        let expectations = &mut self.table.state.expectations;
        let _ = expectations.add(expected, master, direction.inverse(), found.port, now_ms);
        self.tell_expected();
    }

    /// The announced tuple, or one with another port that no other connection expects.
    fn free_expectation(&self, announced: &CtTuple, master: crate::CtId, now_ms: u64) -> Option<CtTuple> {
        let ports = (0..PORTS_TRIED_MAX).map(|offset| announced.dst_port.wrapping_add(offset).max(1));
        let mut candidates = ports.map(|dst_port| CtTuple { dst_port, ..*announced });
        candidates.find(|candidate| !self.table.state.expectations.is_taken(candidate, master, now_ms))
    }

    /// Replaces text in a segment; later sequence numbers are adjusted from then on.
    fn put_in(
        &mut self,
        editor: &mut Editor<'_>,
        packet: &PacketImage<'_>,
        (index, direction): (u32, Direction),
        splice: CtSplice,
    ) -> Result<(), NotInImage> {
        let grown = splice.inserted.len() as i32 - i32::from(splice.removed_bytes);
        let (Some(segment), Some(place)) = (Segment::of(packet), self.table.place(index)) else {
            return Err(NotInImage);
        };
        editor.splice(splice)?;
        if grown == 0 {
            return Ok(());
        }
        let adjusted = place.update(|place| {
            let mut connection = place.connection();
            connection.status |= SEQUENCE_ADJUSTED;
            let is_kept = connection.shifts.add(direction, segment.seq, grown);
            is_kept.then(|| ((), Change::Shifts(connection.shifts, Moving::of(&connection))))
        });
        adjusted.ok_or(NotInImage)
    }
}
