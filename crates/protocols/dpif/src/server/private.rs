//! Serves requests that replace system calls.

use std::collections::BTreeSet;

use super::families::Family;
use super::peer::Peer;
use super::{DisconnectReason, PeerId, Server};
use crate::bounds::PEERS_MAX;
use crate::message::{Messages, NetlinkMessage};
use crate::private::{
    BATCH, HELLO, Hello, JOIN, LEAVE, LISTEN, REJOIN, RUNS_AHEAD, SEE_ALL, decode_number, number,
};
use crate::refusal::Errno;

/// First assigned port id: it is beyond those of processes, which use their own number for a socket.
const PORT_ID_FIRST: u32 = 0x4000_0000;

impl Server {
    /// Handles the first datagram of a connection.
    pub(super) fn greet(&mut self, id: PeerId, datagram: &[u8]) -> Result<(), DisconnectReason> {
        let message = Messages::new(datagram).next().ok_or(DisconnectReason::NoHello)?;
        let hello = Hello::decode(&message).ok_or(DisconnectReason::NoHello)?;
        if self.peers.len() >= PEERS_MAX {
            return Err(DisconnectReason::TooMany);
        }
        let port_id = self.port_id_for(hello.port_id);
        self.port_ids.insert(port_id, id);
        self.peer_changes += 1;
        self.peers.insert(id, Peer::new(port_id, hello.protocol));
        self.push(id, number(HELLO, message.header.seq, port_id));
        Ok(())
    }

    /// The requested port id if it is free, else any. 0 and all ones have other meanings.
    fn port_id_for(&mut self, wanted: u32) -> u32 {
        let is_free = |id: u32| !matches!(id, 0 | u32::MAX) && !self.port_ids.contains_key(&id);
        if is_free(wanted) {
            return wanted;
        }
        // A handler that is about to come back asks for its own: misses would go to the client that has it.
        let kept: BTreeSet<u32> =
            self.state.datapaths_after(-1).flat_map(|(_, known)| known.upcall_port_ids()).collect();
        loop {
            self.last_port_id = self.last_port_id.wrapping_add(1).max(PORT_ID_FIRST);
            if is_free(self.last_port_id) && !kept.contains(&self.last_port_id) {
                return self.last_port_id;
            }
        }
    }

    /// Serves a message if it is private; returns whether it was.
    pub(super) fn serve_private(&mut self, id: PeerId, message: &NetlinkMessage<'_>) -> bool {
        let kind = message.header.kind;
        if !matches!(kind, JOIN | LEAVE | LISTEN | SEE_ALL | REJOIN | BATCH | RUNS_AHEAD) {
            return false;
        }
        let Some(peer) = self.peers.get_mut(&id) else { return false };
        let argument = decode_number(message, kind);
        let errno = argument.map_or(Errno::EINVAL.0, |argument| change(peer, kind, argument));
        self.look_for_flow_members();
        let is_return = kind == REJOIN && errno == 0;
        let news = is_return.then(|| self.news_of(argument));
        let errno = if news == Some(None) { Errno::ENOBUFS.0 } else { errno };
        self.push(id, number(kind, message.header.seq, errno.unsigned_abs()));
        for notification in news.flatten().unwrap_or_default() {
            self.push(id, notification);
        }
        true
    }

    /// Notifications of a group since this process began; `None` if they are not known.
    fn news_of(&self, group: Option<u32>) -> Option<Vec<Vec<u8>>> {
        let is_of_ports = group == Family::Vport.group();
        is_of_ports.then(|| self.port_news.since_start().map(<[_]>::to_vec)).flatten()
    }
}

/// Changes a client's settings; returns an error number, or 0.
fn change(peer: &mut Peer, kind: u16, argument: u32) -> i32 {
    match kind {
        JOIN | REJOIN if peer.groups.contains(&argument) => 0,
        JOIN | REJOIN => peer.groups.try_push(argument).map_or(Errno::ENOSPC.0, |()| 0),
        LEAVE => {
            peer.groups.retain(|group| *group != argument);
            0
        }
        SEE_ALL => {
            peer.sees_all = argument != 0;
            0
        }
        BATCH => {
            peer.takes_batches = argument != 0;
            0
        }
        RUNS_AHEAD => {
            peer.runs_ahead = argument != 0;
            0
        }
        _ => {
            peer.is_extended = argument != 0;
            0
        }
    }
}
