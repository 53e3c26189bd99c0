//! Family `ovs_packet`: upcalls, and requests to execute actions for a packet.

use super::Server;
use super::families::Family;
use super::request::{Outcome, Request, unknown_command};
use super::state::State;
use crate::bounds::UPCALL_BYTES_READY;
use crate::datapath::{Datapath, DatapathId, Execute, PeerId};
use crate::family::PacketMessage;
use crate::message::{self, NetlinkHeader};
use crate::refusal::Refusal;
use crate::uapi::packet;

pub(super) fn serve(
    state: &State,
    datapath: &mut dyn Datapath,
    request: &Request<'_>,
) -> Result<Outcome, Refusal> {
    if request.command != packet::EXECUTE {
        return Err(unknown_command());
    }
    state.expect(request.id)?;
    let execute = read(request).inspect_err(|_| {
        if let Some(hash) = PacketMessage::hash_in(request.attrs.clone()) {
            datapath.not_executed(request.id, hash);
        }
    })?;
    datapath.execute(request.id, execute)?;
    Ok(Outcome::Done)
}

fn read(request: &Request<'_>) -> Result<Execute, Refusal> {
    let mut wanted = PacketMessage { datapath: request.id.0, ..PacketMessage::default() };
    wanted.read(request.attrs.clone())?;
    let actions = wanted.actions.ok_or(Refusal::invalid("there are no actions for the packet"))?;
    Ok(Execute {
        packet: wanted.packet,
        metadata: wanted.key,
        actions,
        is_probe: wanted.is_probe,
        mru_bytes: wanted.mru_bytes,
        hash: wanted.hash,
    })
}

/// Why a packet goes to the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpcallKind {
    /// No flow matches it.
    Miss,
    /// A userspace action; it goes to this port id, unless misses go by worker.
    Action {
        /// The action's port id.
        port_id: u32,
    },
}

/// A packet for the control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatapathUpcall {
    /// The reason.
    pub kind: UpcallKind,
    /// Its input port.
    pub port: u32,
    /// The worker that received it: packets of one flow come from one worker, and so go to one reader.
    pub worker: usize,
    /// The packet message.
    pub message: PacketMessage,
}

/// A client that receives upcalls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader {
    /// The client.
    pub client: PeerId,
    /// Whether enough bytes wait for it that further upcalls should wait in the ports' queues.
    pub is_busy: bool,
    /// Number of datagrams that its socket has taken.
    pub taken: u64,
    /// Number of request datagrams received from it.
    pub heard: u64,
}

/// The outcome of an upcall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upcalled {
    /// It waits for its client to read it.
    Queued,
    /// The same, in a datagram that may get more: [`Server::take_told`] names its client.
    Batched,
    /// It has no reader, or there is no room. It counts in the datapath's `lost`.
    Lost,
}

impl Server {
    /// Queues an upcall. Never waits: without room it is lost.
    pub fn upcall(&mut self, upcall: DatapathUpcall) -> Upcalled {
        let id = DatapathId(upcall.message.datapath);
        let target = self.target(id, &upcall);
        if let Some(peer) = target.filter(|peer| self.queue_upcall(*peer, &upcall)) {
            let takes_batches = self.peers.get(&peer).is_some_and(|peer| peer.takes_batches);
            return if takes_batches { Upcalled::Batched } else { Upcalled::Queued };
        }
        if let Some(known) = self.state.datapath_mut(id) {
            known.lost += 1;
        }
        Upcalled::Lost
    }

    /// The client that receives an upcall.
    #[must_use]
    pub fn reader_of(&self, upcall: &DatapathUpcall) -> Option<Reader> {
        self.reader(self.target(DatapathId(upcall.message.datapath), upcall)?)
    }

    /// The state of a client's queue; `None` if the client is gone.
    #[must_use]
    pub fn reader(&self, client: PeerId) -> Option<Reader> {
        let peer = self.peers.get(&client)?;
        let is_busy = peer.output_bytes() > UPCALL_BYTES_READY;
        Some(Reader { client, is_busy, taken: peer.taken, heard: peer.heard })
    }

    fn target(&self, id: DatapathId, upcall: &DatapathUpcall) -> Option<PeerId> {
        let known = self.state.datapath(id)?;
        let port_id = match upcall.kind {
            UpcallKind::Action { port_id } if !known.is_per_cpu() => Some(port_id),
            _ => known.upcall_port_id(upcall.port, upcall.worker, upcall.message.hash.unwrap_or(0)),
        };
        if let Some(reader) = port_id.and_then(|port_id| self.port_ids.get(&port_id)) {
            return Some(*reader);
        }
        // Workers do not hand packets over any more, but did recently.
        let former = self.former_readers.get(&(id, upcall.port)).copied();
        former.filter(|_| upcall.kind == UpcallKind::Miss && !self.takes_misses(id))
    }

    fn queue_upcall(&mut self, id: PeerId, upcall: &DatapathUpcall) -> bool {
        let command = match upcall.kind {
            UpcallKind::Miss => packet::MISS,
            UpcallKind::Action { .. } => packet::ACTION,
        };
        // Checked before the packet is copied: a flood of lost misses must cost little.
        if !self.has_room(id, upcall.message.packet.len()) {
            return false;
        }
        let header = NetlinkHeader { kind: Family::Packet.id(), ..NetlinkHeader::default() };
        let (version, message) = ((command, Family::Packet.version()), &upcall.message);
        let mut bytes = std::mem::take(&mut self.upcall_bytes);
        bytes.clear();
        let encoded = message::append_datapath(&mut bytes, header, version, message.datapath, |writer| {
            message.encode(writer);
        });
        // A packet of more than 65531 bytes does not fit an attribute.
        let is_queued = encoded.is_ok() && self.push_miss(id, &bytes);
        self.upcall_bytes = bytes;
        is_queued
    }
}
