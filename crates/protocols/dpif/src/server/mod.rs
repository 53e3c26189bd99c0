//! The server without its sockets: takes clients' datagrams, and returns datagrams for clients.
//!
//! ```text
//!                        ┌ families: datapaths, vports, flows, packets, meters ──> Datapath (the switch)
//!   received(peer) ──> request ── one message at a time ──> answers ──┐
//!   upcall() ──────────────────────────────────────────────────────┐  │
//!                                                                  v  v
//!                                                           │ room again ──> continues the dump, then the request
//!                                                           │ room again ──> the dump continues, then the request
//! ```
//!
//! The server stops reading requests of a client that does not read its answers. Misses and notifications that find no
//! room are lost and counted. So memory per client is bounded, and the server never waits. Its owner sets the number of
//! messages to serve ([`Server::grant`]); the rest of a datagram waits for the next grant.

mod answer;
mod datapaths;
mod dump;
mod families;
mod flows;
mod meters;
mod netfilter;
mod packets;
mod peer;
mod private;
mod refused_flows;
mod removals;
mod request;
mod state;
mod vports;

use std::collections::{BTreeMap, BTreeSet};

pub use crate::datapath::PeerId;
pub use families::Family;
pub use packets::{DatapathUpcall, Reader, UpcallKind, Upcalled};
pub use state::DatapathRecord;

use crate::bounds::{DUMP_MESSAGES, FLUSH_MESSAGES, QUEUED_BYTES_MAX};
use crate::datapath::{Datapath, DatapathId, Port, RemovalId};
use crate::family::FamilyMessage;
use crate::message::{self, NetlinkHeader, NetlinkMessage};
use crate::private as private_messages;
use crate::refusal::{Errno, Refusal};
use crate::uapi::{command, ctrl, nlm, protocol};
use answer::Answer;
use dump::Dump;
use peer::{Flush, Peer, Removal};
use request::{Outcome, Request, RequestDatagram};
use state::State;
use vports::{Parked, PortNews};

/// Smaller types are netlink's own, and no requests.
const TYPE_MIN: u16 = 0x10;

/// The reason for closing a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DisconnectReason {
    /// The first datagram was something else.
    #[error("a client did not begin with HELLO; is it not one of ours?")]
    NoHello,
    /// Too many clients.
    #[error("the limit of 2048 control connections is reached")]
    TooMany,
    /// A request while an earlier one is not done.
    #[error("a client sent a request before the last one was done")]
    OutOfTurn,
}

/// Clients and their pending requests.
#[derive(Debug, Default)]
pub struct Server {
    state: State,
    peers: BTreeMap<PeerId, Peer>,
    port_ids: BTreeMap<u32, PeerId>,
    last_port_id: u32,
    told: BTreeSet<PeerId>,
    /// Clients waiting for final statistics of removed flows.
    settling: BTreeSet<PeerId>,
    /// Clients waiting for a port's device.
    parked: BTreeMap<PeerId, Parked>,
    /// Ports whose clients left while they waited for the device.
    unwanted: Vec<String>,
    /// Removed flows whose clients left.
    orphans: Vec<RemovalId>,
    queued_bytes: usize,
    port_news: PortNews,
    /// Number of messages that may be served now; `None` for any number.
    granted: Option<usize>,
    /// Clients that no longer receive a port's misses: they get pending ones while they are connected.
    former_readers: BTreeMap<(DatapathId, u32), PeerId>,
    /// Whether a client is a member of the flows' group; OVS never is.
    has_flow_members: bool,
    /// The bytes of the last upcall, to be used again.
    upcall_bytes: Vec<u8>,
    changes: u64,
    /// Counts clients that come or go.
    peer_changes: u64,
    /// The counts of changes at the last report to the datapath.
    told_of: (u64, u64),
}

impl Server {
    /// A server without clients and datapaths.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a datagram from a client; call it only if [`Server::wants_input`].
    ///
    /// # Errors
    /// If the connection has to be closed; the server has removed it.
    pub fn received(
        &mut self,
        id: PeerId,
        datagram: Vec<u8>,
        datapath: &mut dyn Datapath,
    ) -> Result<(), DisconnectReason> {
        let result = match self.peers.get_mut(&id) {
            None => self.greet(id, &datagram),
            Some(peer) if peer.is_idle() => {
                peer.heard += 1;
                peer.request = Some(RequestDatagram::new(datagram));
                Ok(())
            }
            Some(_) => Err(DisconnectReason::OutOfTurn),
        };
        match result {
            Ok(()) => self.advance(id, datapath),
            Err(_) => self.disconnected(id),
        }
        self.report_readers(datapath);
        result
    }

    /// Permits up to `messages` until the next call. Before the first call there is no limit.
    pub fn grant(&mut self, messages: usize) {
        self.granted = Some(messages);
    }

    /// Number of messages that may still be served.
    #[must_use]
    pub fn granted(&self) -> usize {
        self.granted.unwrap_or(usize::MAX)
    }

    fn spend(&mut self, messages: usize) {
        self.granted = self.granted.map(|granted| granted.saturating_sub(messages));
    }

    /// Whether a client's request could continue if more messages were granted.
    #[must_use]
    pub fn has_work(&self, id: PeerId) -> bool {
        self.peers.get(&id).is_some_and(|peer| {
            let has_request = peer.request.is_some() && !self.parked.contains_key(&id);
            peer.has_room() && (peer.dump.is_some() || peer.flush.is_some() || has_request)
        })
    }

    /// Reports for each datapath whether a client takes its misses, if that may have changed. Called before
    /// the client that changed it is answered.
    pub fn report_readers(&mut self, datapath: &mut dyn Datapath) {
        let now = (self.changes, self.peer_changes);
        if std::mem::replace(&mut self.told_of, now) == now {
            return;
        }
        for id in self.state.records().keys() {
            datapath.asked(*id, self.takes_misses(*id));
        }
    }

    /// Whether a client's next request may be read.
    #[must_use]
    pub fn wants_input(&self, id: PeerId) -> bool {
        self.peers.get(&id).is_none_or(Peer::is_idle)
    }

    /// The next datagram for a client.
    #[must_use]
    pub fn output(&self, id: PeerId) -> Option<&[u8]> {
        self.peers.get(&id)?.output()
    }

    /// Notes that the datagram was sent. Output that waited for room continues.
    pub fn sent(&mut self, id: PeerId, datapath: &mut dyn Datapath) {
        if let Some(peer) = self.peers.get_mut(&id) {
            let before = peer.output_bytes();
            peer.pop();
            self.queued_bytes -= before - peer.output_bytes();
            self.advance(id, datapath);
        }
    }

    /// Whether all output of a client may wait for later output for a while: it has ENDs only, and few of them.
    #[must_use]
    pub fn is_patient(&self, id: PeerId) -> bool {
        self.peers.get(&id).is_some_and(Peer::is_patient)
    }

    /// Takes the clients that have unsolicited output since the last call.
    pub fn take_told(&mut self) -> BTreeSet<PeerId> {
        std::mem::take(&mut self.told)
    }

    /// Removes a client. Datapaths, ports and flows stay.
    pub fn disconnected(&mut self, id: PeerId) {
        if let Some(peer) = self.peers.remove(&id) {
            self.peer_changes += 1;
            self.queued_bytes -= peer.output_bytes();
            self.port_ids.remove(&peer.port_id);
            self.orphans.extend(peer.removals().map(|removal| removal.removal));
            self.settling.remove(&id);
            self.former_readers.retain(|_, reader| *reader != id);
            self.unwanted.extend(self.parked.remove(&id).map(|parked| parked.name));
            self.look_for_flow_members();
        }
    }

    /// Misses and notifications that a client lost because it did not read.
    #[must_use]
    pub fn lost(&self, id: PeerId) -> u64 {
        self.peers.get(&id).map_or(0, |peer| peer.lost)
    }

    /// Removes a port without device or guest from its datapath, and notifies members of the ports' group.
    pub fn port_lost(&mut self, name: &str, datapath: &mut dyn Datapath) {
        let Some(answer) = vports::lose(&mut self.state, datapath, name) else { return };
        self.changes += 1;
        if let Ok(bytes) = answer.message(NetlinkHeader::default(), command::DEL, 0) {
            self.notify(None, Family::Vport, &bytes);
        }
    }

    /// Removes a datapath, and notifies members of the datapaths' group.
    pub fn datapath_lost(&mut self, name: &str, datapath: &mut dyn Datapath) {
        let Some(answer) = datapaths::lose(&mut self.state, datapath, name) else { return };
        self.changes += 1;
        if let Ok(bytes) = answer.message(NetlinkHeader::default(), command::DEL, 0) {
            self.notify(None, Family::Datapath, &bytes);
        }
    }

    /// Whether a client receives the misses of a datapath.
    #[must_use]
    pub fn takes_misses(&self, id: DatapathId) -> bool {
        let ids = self.state.datapath(id).into_iter().flat_map(DatapathRecord::upcall_port_ids);
        ids.into_iter().any(|id| self.port_ids.contains_key(&id))
    }

    /// The clients that receive a datapath's misses.
    pub fn miss_takers(&self, id: DatapathId) -> impl Iterator<Item = PeerId> {
        let ids = self.state.datapath(id).into_iter().flat_map(DatapathRecord::upcall_port_ids);
        ids.into_iter().filter_map(|id| self.port_ids.get(&id).copied())
    }

    /// Counts changes of datapaths and ports.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Datapaths and ports as clients made them.
    #[must_use]
    pub fn records(&self) -> &BTreeMap<DatapathId, DatapathRecord> {
        self.state.records()
    }

    /// Restores the state from before the switch process began. Omits missing ports, and returns their names.
    pub fn restore(
        &mut self,
        records: BTreeMap<DatapathId, DatapathRecord>,
        datapath: &mut dyn Datapath,
    ) -> Vec<String> {
        let mut missing = Vec::new();
        if !records.is_empty() {
            self.port_news.restored();
        }
        for (id, mut known) in records {
            if datapath.created(id, &known.name).is_err() {
                missing.push(known.name);
                continue;
            }
            let is_there = |(_, port): &(u32, Port)| datapath.port_added(id, port).is_ok();
            let (there, gone) = std::mem::take(&mut known.ports).into_iter().partition(is_there);
            known.ports = there;
            let gone: BTreeMap<u32, Port> = gone;
            for port in gone.values() {
                let answer = Answer::Vport(known.port_message(id, port, datapath));
                let told = answer.message(NetlinkHeader::default(), command::DEL, 0);
                told.iter().for_each(|bytes| self.port_news.note(bytes));
            }
            missing.extend(gone.into_values().map(|port| port.name));
            self.state.insert(id, known);
        }
        missing
    }

    /// Continues a client's dump, flush and request while there is room for answers, and messages are granted.
    pub(crate) fn advance(&mut self, id: PeerId, datapath: &mut dyn Datapath) {
        while self.granted() > 0
            && let Some(peer) = self.peers.get_mut(&id).filter(|peer| peer.has_room())
        {
            if let Some(dump) = &mut peer.dump {
                let (datagram, is_last) = dump.next(&self.state, datapath);
                peer.dump.take_if(|_| is_last);
                self.push(id, datagram);
                self.spend(DUMP_MESSAGES);
            } else if let Some(flush) = peer.flush.take() {
                self.flush_some(id, flush, datapath);
                self.spend(FLUSH_MESSAGES);
            } else if !self.parked.contains_key(&id)
                && let Some(request) = peer.request.take()
            {
                self.serve_next(id, request, datapath);
            } else {
                break;
            }
        }
    }

    /// Serves the next message of a request datagram, or its end.
    fn serve_next(&mut self, id: PeerId, mut request: RequestDatagram, datapath: &mut dyn Datapath) {
        let Some(message) = request.first() else {
            return self.push_end(id);
        };
        let len = message::HEADER_BYTES + message.body.len();
        self.serve(id, &message, len, datapath);
        let is_parked = self.parked.contains_key(&id);
        // Retrying a parked request is frequent and cheap, so it is not counted.
        self.spend(usize::from(!is_parked));
        if !is_parked {
            request.skip(len);
        }
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.request = Some(request);
        }
    }

    fn serve(&mut self, id: PeerId, message: &NetlinkMessage<'_>, len: usize, datapath: &mut dyn Datapath) {
        if self.serve_private(id, message) {
            return;
        }
        let header = message.header;
        let is_request = header.has(nlm::REQUEST) && header.kind >= TYPE_MIN;
        let result = if is_request { self.serve_request(id, message, datapath) } else { Ok(()) };
        let is_parked = header.has(nlm::ACK) && self.parked.contains_key(&id);
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let is_owed = header.has(nlm::ACK) && peer.dump.is_none() && !is_parked;
        if let Some(flush) = &mut peer.flush {
            flush.owed = is_owed.then_some((header, len));
        } else if result.is_err() || is_owed {
            self.acknowledge(id, header, len, result);
        }
    }

    fn acknowledge(&mut self, id: PeerId, header: NetlinkHeader, len: usize, result: Result<(), Refusal>) {
        let is_extended = self.peers.get(&id).is_some_and(|peer| peer.is_extended);
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        self.push(id, message::acknowledgement(header, len, result, is_extended));
    }

    /// Continues a removal of all flows; acknowledges it at the end.
    fn flush_some(&mut self, id: PeerId, flush: Flush, datapath: &mut dyn Datapath) {
        let next = datapath.flows_flush(flush.id, flush.cursor);
        if let (Some(cursor), Some(peer)) = (next, self.peers.get_mut(&id)) {
            peer.flush = Some(Flush { cursor, ..flush });
        } else if let Some((header, len)) = flush.owed {
            self.acknowledge(id, header, len, Ok(()));
        }
    }

    fn serve_request(
        &mut self,
        id: PeerId,
        message: &NetlinkMessage<'_>,
        datapath: &mut dyn Datapath,
    ) -> Result<(), Refusal> {
        let peer = self.peers.get(&id);
        let sees_all = peer.is_some_and(|peer| peer.sees_all);
        let runs_ahead = peer.is_some_and(|peer| peer.runs_ahead);
        if peer.is_some_and(|peer| peer.protocol == protocol::NETFILTER) {
            let what = netfilter::serve(message, sees_all, datapath)?;
            return self.finish(id, message.header, what, datapath);
        }
        if message.header.kind == ctrl::FAMILY_ID {
            return self.tell_family(id, message);
        }
        let family =
            Family::of(message.header.kind).ok_or(Refusal::new(Errno::ENOENT, "there is no such family"))?;
        let request = Request::decode((id, sees_all, runs_ahead), message)?;
        let is_told = self.is_told(request.header.flags);
        let state = &mut self.state;
        let outcome = match family {
            Family::Datapath => datapaths::serve((state, &self.port_ids), datapath, &request),
            Family::Vport => vports::serve(state, datapath, &request),
            Family::Flow => flows::serve(state, datapath, &request, is_told),
            Family::Packet => packets::serve(state, datapath, &request),
            Family::Meter => meters::serve(state, datapath, &request),
            Family::CtLimit => meters::serve_ct_limits(datapath, &request),
        }?;
        self.former_readers.extend(self.state.left_port.take().map(|port| (port, id)));
        self.finish(id, request.header, outcome, datapath)
    }

    fn finish(
        &mut self,
        id: PeerId,
        request: NetlinkHeader,
        outcome: Outcome,
        datapath: &mut dyn Datapath,
    ) -> Result<(), Refusal> {
        match outcome {
            Outcome::Done => {}
            Outcome::Object { answer, command } => self.push(id, answer.message(request, command, 0)?),
            Outcome::Changed { answer, command, family } => {
                self.changes += u64::from(family != Family::Flow);
                let bytes = answer.message(request, command, 0)?;
                self.notify(Some(id), family, &bytes);
                if request.has(nlm::ECHO) {
                    self.push(id, bytes);
                }
            }
            Outcome::Removed { id: datapath_id, removal, omitted } => {
                let removal = Removal { header: request, id: datapath_id, removal, omitted };
                self.push_removal(id, removal, datapath);
            }
            Outcome::NotYet { name } => self.park(id, name),
            Outcome::Dump(what) => {
                if let Some(peer) = self.peers.get_mut(&id) {
                    peer.dump = Some(Dump { header: request, what });
                }
            }
            Outcome::Flush(datapath_id) => {
                if let Some(peer) = self.peers.get_mut(&id) {
                    peer.flush = Some(Flush { id: datapath_id, cursor: 0, owed: None });
                }
            }
        }
        Ok(())
    }

    fn tell_family(&mut self, id: PeerId, message: &NetlinkMessage<'_>) -> Result<(), Refusal> {
        let generic = message.generic()?;
        if generic.command != ctrl::GETFAMILY || message.header.has(nlm::DUMP) {
            return Err(request::unknown_command());
        }
        let wanted = FamilyMessage::decode(crate::attr::Attrs::new(generic.body))?;
        let by_name = wanted.name.as_deref().and_then(Family::named);
        let found = by_name.or(wanted.id.and_then(Family::of)).ok_or(Refusal::from(Errno::ENOENT))?;
        let header = NetlinkHeader { flags: 0, ..message.header };
        let told = found.message();
        self.push(id, message::encode_generic(header, ctrl::NEWFAMILY, 2, |writer| told.encode(writer))?);
        Ok(())
    }

    fn look_for_flow_members(&mut self) {
        let group = Family::Flow.group();
        self.has_flow_members =
            self.peers.values().any(|peer| peer.groups.iter().any(|one| Some(*one) == group));
    }

    /// Notifies every member of the family's group except the client that caused the change.
    fn notify(&mut self, cause: Option<PeerId>, family: Family, bytes: &[u8]) {
        let Some(group) = family.group() else { return };
        if family == Family::Vport {
            self.port_news.note(bytes);
        }
        let members =
            self.peers.iter().filter(|(id, peer)| Some(**id) != cause && peer.groups.contains(&group));
        let members: Vec<PeerId> = members.map(|(id, _)| *id).collect();
        for id in members {
            self.push_droppable(id, bytes.to_vec());
        }
    }

    fn push(&mut self, id: PeerId, datagram: Vec<u8>) {
        if let Some(peer) = self.peers.get_mut(&id) {
            self.queued_bytes += datagram.len();
            peer.push(datagram);
        }
    }

    /// Queues the END of a request datagram.
    fn push_end(&mut self, id: PeerId) {
        if let Some(peer) = self.peers.get_mut(&id) {
            self.queued_bytes += peer.push_end(private_messages::end());
        }
    }

    /// Whether there is room for a miss or a notification; counts it as lost otherwise.
    fn has_room(&mut self, id: PeerId, len_bytes: usize) -> bool {
        let has_room_for_all = self.queued_bytes + len_bytes <= QUEUED_BYTES_MAX;
        let Some(peer) = self.peers.get_mut(&id) else { return false };
        let has_room = has_room_for_all && peer.has_room_for_upcall(len_bytes);
        peer.lost += u64::from(!has_room);
        has_room
    }

    /// Queues a miss or a notification; without room it is lost.
    fn push_droppable(&mut self, id: PeerId, datagram: Vec<u8>) -> bool {
        let has_room = self.has_room(id, datagram.len());
        if has_room {
            self.push(id, datagram);
            self.told.insert(id);
        }
        has_room
    }

    /// Queues a miss, in a datagram with earlier ones if the client takes batches; without room it is lost.
    fn push_miss(&mut self, id: PeerId, message: &[u8]) -> bool {
        let has_room = self.has_room(id, message.len());
        if let Some(peer) = self.peers.get_mut(&id).filter(|_| has_room) {
            self.queued_bytes += peer.push_miss(message);
            self.told.insert(id);
        }
        has_room
    }
}
