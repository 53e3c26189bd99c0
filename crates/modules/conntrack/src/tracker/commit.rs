//! Commits: enters connections into the table, with mark, labels, helper and translation.

use lasthop_ct_packet::{CtTuple, Direction, PacketImage};
use lasthop_flow::Nat;

use super::{Look, Tracking};
use crate::bounds::CtRefusal;
use crate::connection::{self, Connection};
use crate::expect::Expectation;
use crate::nat::{Selection, Translation};
use crate::place::{Change, Moving};
use crate::progress::first;
use crate::request::{CtCommit, CtMetadata, CtRequest, CtVerdict, metadata_of_new, with_state};
use crate::table::End;
use lasthop_flow::ct_state::{NEW, RELATED, TRACKED};

impl Tracking<'_> {
    /// Handles a packet that begins a connection, and enters the connection on request.
    pub(super) fn begin(
        &mut self,
        packet: &PacketImage<'_>,
        tuple: &CtTuple,
        expected: Option<Expectation>,
        request: &CtRequest,
        now_ms: u64,
    ) -> CtVerdict {
        let expected = expected.filter(|expected| self.table.named(expected.master).is_some());
        let metadata = self.metadata_of_new(tuple, expected.as_ref());
        if request.commit == CtCommit::No {
            return CtVerdict { metadata, ..CtVerdict::default() };
        }
        match self.commit(packet, tuple, expected.as_ref(), request, now_ms) {
            Ok((index, connection)) => {
                let look =
                    Look { index, direction: Direction::Original, is_first: true, is_translated: false };
                let verdict = self.pass(packet, look, (&connection, None), request, now_ms);
                if verdict.refused.is_some() {
                    self.table.remove(index, End::Deleted);
                }
                with_state(verdict, metadata.state)
            }
            Err(refusal) => {
                let refused = Some(self.table.refuse(refusal));
                CtVerdict { metadata, refused, ..CtVerdict::default() }
            }
        }
    }

    /// The fields of a packet whose connection is not in the table.
    fn metadata_of_new(&self, tuple: &CtTuple, expected: Option<&Expectation>) -> CtMetadata {
        let zone = tuple.zone;
        let Some(master) = expected.and_then(|expected| self.table.named(expected.master)) else {
            return metadata_of_new(tuple);
        };
        let original = Some(*master.tuple(Direction::Original));
        let state = TRACKED | NEW | RELATED;
        CtMetadata { state, zone, mark: master.mark, labels: master.labels, original }
    }

    fn commit(
        &mut self,
        packet: &PacketImage<'_>,
        tuple: &CtTuple,
        expected: Option<&Expectation>,
        request: &CtRequest,
        now_ms: u64,
    ) -> Result<(u32, Connection), CtRefusal> {
        let policy = self.table.shared.policies.get(request.policy);
        let (progress, timeout_ms) = first(packet, tuple, policy, now_ms).ok_or(CtRefusal::TupleTaken)?;
        let translation = self.translation(tuple, expected, request.nat.as_ref(), now_ms)?;
        let expires_ms = now_ms.saturating_add(timeout_ms);
        let mut connection = Connection::new([*tuple, translation.reply], progress, expires_ms);
        connection.status = translation.status;
        connection.in_port = packet.in_port;
        connection.policy = request.policy;
        (connection.packets[0], connection.bytes[0]) = (1, u64::from(packet.frame_len_bytes));
        let master = expected.and_then(|expected| self.table.named(expected.master));
        if let (Some(expected), Some(master)) = (expected, master) {
            connection.status |= connection::EXPECTED;
            connection.master = Some(expected.master);
            (connection.mark, connection.labels) = (master.mark, master.labels);
        }
        request.write_to(&mut connection);
        let index = self.table.insert(&connection, now_ms)?;
        if let Some(expected) = expected {
            self.table.state.expectations.remove(expected);
            self.tell_expected();
        }
        Ok((index, connection))
    }

    /// The reply tuple of a new connection.
    fn translation(
        &mut self,
        tuple: &CtTuple,
        expected: Option<&Expectation>,
        nat: Option<&Nat>,
        now_ms: u64,
    ) -> Result<Translation, CtRefusal> {
        let translated = expected.and_then(|expected| self.as_its_master(tuple, expected));
        let mut selection = Selection { table: &mut self.table, now_ms };
        let found = match (nat, translated) {
            (None, _) => selection.choose(tuple, &Nat::default()),
            (Some(_), Some(translated)) if translated != *tuple => {
                selection.without_clash(tuple, &translated)
            }
            (Some(nat), _) => selection.choose(tuple, nat),
        };
        found.ok_or(CtRefusal::NatExhausted)
    }

    /// The tuple of an expected connection with its master's translation.
    fn as_its_master(&self, tuple: &CtTuple, expected: &Expectation) -> Option<CtTuple> {
        let master = self.table.named(expected.master)?;
        let reply = master.tuple(expected.direction.inverse());
        Some(CtTuple { src: reply.dst, dst: reply.src, dst_port: expected.real_port, ..*tuple })
    }

    /// Writes mark, labels and helper of a connection in the table. Returns false if other workers kept changing it.
    pub(super) fn write_over(&mut self, index: u32, request: &CtRequest) -> bool {
        let Some(place) = self.table.place(index) else { return false };
        let written = place.update(|place| {
            let mut connection = place.connection();
            request.write_to(&mut connection);
            Some(((), Change::Over(connection.mark, connection.labels, Moving::of(&connection))))
        });
        written.is_some()
    }
}
