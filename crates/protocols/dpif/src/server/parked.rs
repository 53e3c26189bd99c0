//! Requests for ports whose devices are being made: repeated until the device exists, is refused, or times out.

use std::time::{Duration, Instant};

use super::peer::Peer;
use super::{PeerId, Server};
use crate::bounds::PARKED_MS_MAX;
use crate::datapath::Datapath;
use crate::message;
use crate::refusal::{Errno, Refusal};

/// A client's request: the first message in the rest of its datagram.
#[derive(Debug)]
pub(super) struct Parked {
    /// The port's name.
    pub(super) name: String,
    /// Time of the first retry.
    since: Option<Instant>,
}

impl Server {
    /// Parks a client's request until the device of a port exists.
    pub(super) fn park(&mut self, id: PeerId, name: String) {
        self.parked.insert(id, Parked { name, since: None });
    }

    /// Retries requests that wait for a device.
    pub(super) fn try_parked(&mut self, now: Instant, datapath: &mut dyn Datapath) {
        for (id, mut parked) in std::mem::take(&mut self.parked) {
            let since = *parked.since.get_or_insert(now);
            if now.saturating_duration_since(since) > Duration::from_millis(PARKED_MS_MAX) {
                self.refuse_next(id);
                self.unwanted.push(parked.name);
                self.advance(id, datapath);
            } else if self.granted() == 0 || !self.peers.get(&id).is_some_and(Peer::has_room) {
                // A retry does not count before the client reads, or before its turn.
                parked.since = Some(since);
                self.parked.insert(id, parked);
            } else {
                self.advance(id, datapath);
                // The same request again, or the next one of its datagram, which waits from here on.
                self.parked.entry(id).and_modify(|again| again.take_place_of(&parked));
                if self.parked.get(&id).is_none_or(|again| again.name != parked.name) {
                    // It may have been refused for another reason: then the device is not needed.
                    self.unwanted.push(parked.name);
                }
            }
            self.told.insert(id);
        }
        self.forget_unwanted(datapath);
    }

    /// Refuses the next message in a client's datagram without parsing it.
    fn refuse_next(&mut self, id: PeerId) {
        let Some(mut request) = self.peers.get_mut(&id).and_then(|peer| peer.request.take()) else { return };
        let Some(message) = request.first() else { return };
        let len = message::HEADER_BYTES + message.body.len();
        let late =
            Refusal::new(Errno::ETIMEDOUT, "the port's device was not there in time; see the switch's log");
        self.acknowledge(id, message.header, len, Err(late));
        request.skip(len);
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.request = Some(request);
        }
    }

    /// Reports ports whose devices no client waits for any more.
    fn forget_unwanted(&mut self, datapath: &mut dyn Datapath) {
        for name in std::mem::take(&mut self.unwanted) {
            let is_wanted = self.parked.values().any(|parked| parked.name == name);
            if !is_wanted && self.state.port_named(&name).is_none() {
                datapath.port_unwanted(&name);
            }
        }
    }
}

impl Parked {
    fn take_place_of(&mut self, before: &Self) {
        self.since = before.since.filter(|_| self.name == before.name);
    }
}
