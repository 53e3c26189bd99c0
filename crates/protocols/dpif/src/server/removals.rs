//! Removed flows, which are reported once their last packets are counted.

use std::time::Instant;

use super::answer::Answer;
use super::families::Family;
use super::peer::Removal;
use super::{PeerId, Server, flows};
use crate::datapath::Datapath;
use crate::uapi::{command, nlm};

impl Server {
    /// Whether clients wait for removed flows, or for ports' devices. Then call [`Server::settle`] when workers have
    /// finished their visits, and when a device exists.
    #[must_use]
    pub fn is_settling(&self) -> bool {
        let has_flows = !self.settling.is_empty() || !self.orphans.is_empty();
        has_flows || !self.parked.is_empty() || !self.unwanted.is_empty()
    }

    /// Answers removals of flows whose last packets are counted, in order. Continues requests for ports whose devices
    /// exist.
    pub fn settle(&mut self, now: Instant, datapath: &mut dyn Datapath) {
        self.try_parked(now, datapath);
        self.orphans.retain(|removal| datapath.flow_removed(*removal).is_none());
        for id in std::mem::take(&mut self.settling) {
            self.settle_peer(id, datapath);
            self.told.insert(id);
            self.advance(id, datapath);
        }
    }

    /// Whether any client, including the requester, is notified of a flow's change.
    pub(super) fn is_told(&self, flags: u16) -> bool {
        flags & nlm::ECHO != 0 || self.has_flow_members
    }

    pub(super) fn push_removal(&mut self, id: PeerId, removal: Removal, datapath: &mut dyn Datapath) {
        if let Some(peer) = self.peers.get_mut(&id) {
            let before = peer.output_bytes();
            peer.push_removal(removal);
            self.queued_bytes = self.queued_bytes + peer.output_bytes() - before;
            self.settle_peer(id, datapath);
        }
    }

    fn settle_peer(&mut self, id: PeerId, datapath: &mut dyn Datapath) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let (before, mut notices) = (peer.output_bytes(), Vec::new());
        let is_left = peer.settle(|removal| {
            let flow = datapath.flow_removed(removal.removal)?;
            let answer = Answer::Flow(flows::message(removal.id, flow.view(), removal.omitted));
            let bytes = answer.message(removal.header, command::DEL, 0).ok();
            notices.extend(bytes.clone());
            Some(bytes.filter(|_| removal.header.has(nlm::ECHO)))
        });
        self.queued_bytes = self.queued_bytes + peer.output_bytes() - before;
        if is_left {
            self.settling.insert(id);
        }
        for bytes in notices {
            self.notify(Some(id), Family::Flow, &bytes);
        }
    }
}
