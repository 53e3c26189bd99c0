//! A vnic's chain of links, with a file for each subject: judges each link by its facts.

mod driver;
mod drops;
pub(super) mod learning;
mod memory;
mod outside;
mod rings;
pub(super) mod starved;
mod vlans;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use lasthop_module_api::{PortVlans, Vid, VlanSet};

use lasthop_api::port::PortCommon;

use lasthop_ovs::{BridgePort, Bridges};

use super::finding::{Finding, Link, State, Verdict};
use super::processes::{self, Process, Sharing};
use lasthop_api::facts::{Facts, VnicFacts};

/// The facts about a vnic: of two times, and of its machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case<'a> {
    pub(super) before: &'a VnicFacts,
    pub(super) now: &'a VnicFacts,
    pub(super) facts: &'a Facts,
    pub(super) processes: &'a [Process],
    pub(super) sockets: &'a Sockets<'a>,
    /// Bridges of the Open vSwitch that uses this switch as its datapath.
    pub(super) bridges: Option<&'a Bridges>,
}

/// Sockets of this machine's front ends, from their command lines.
#[derive(Debug)]
pub(super) struct Sockets<'a> {
    all: Vec<(&'a Process, PathBuf)>,
    /// Sockets that belong to no vnic and that no process serves; another switch's guest is not counted.
    strays: Vec<(&'a Process, PathBuf)>,
}

impl<'a> Sockets<'a> {
    pub(super) fn of(processes: &'a [Process], facts: &Facts) -> Self {
        let served_at = processes::served_at(processes);
        let known = facts.vnics.iter().map(VnicFacts::socket);
        let known = known.chain(served_at.iter().map(PathBuf::as_path));
        let known: HashSet<&Path> = known.collect();
        let of_process =
            |process: &'a Process| process.sockets().into_iter().map(move |path| (process, path));
        let all = processes.iter().flat_map(of_process).filter(|(process, path)| process.sees(path));
        let all: Vec<_> = all.collect();
        let strays = all.iter().filter(|(_, path)| !known.contains(path.as_path())).cloned().collect();
        Self { all, strays }
    }
}

/// Facts about another port that decide whether it is reachable.
struct Neighbour<'a> {
    is_isolated: bool,
    vlan: Option<Vid>,
    trunk: Option<&'a VlanSet>,
    native: Option<Vid>,
}

impl<'a> From<&'a PortCommon> for Neighbour<'a> {
    fn from(port: &'a PortCommon) -> Self {
        let (vlan, trunk, native) = match &port.policy.vlans {
            PortVlans::Any => (None, None, None),
            PortVlans::Access(vid) => (Some(*vid), None, None),
            PortVlans::Trunk { carried, native } => (None, carried.as_ref(), *native),
        };
        Self { is_isolated: port.policy.is_isolated, vlan, trunk, native }
    }
}

impl<'a> From<&'a BridgePort> for Neighbour<'a> {
    fn from(port: &'a BridgePort) -> Self {
        let BridgePort { access, native, trunks, .. } = port;
        Self { is_isolated: false, vlan: *access, trunk: trunks.as_ref(), native: *native }
    }
}

impl Neighbour<'_> {
    /// Without VLAN settings it accepts frames unchanged.
    fn passes_tags(&self) -> bool {
        self.vlan.is_none() && self.trunk.is_none() && self.native.is_none()
    }
}

impl<'a> Case<'a> {
    /// The other vhost-user ports of its switch.
    fn vnics(&self) -> impl Iterator<Item = &'a PortCommon> {
        let own = self.now.common();
        let vnics = self.facts.vnics.iter().map(VnicFacts::common);
        vnics.filter(move |other| other.switch == own.switch && other.name != own.name)
    }

    /// The other ports of its switch.
    fn neighbours(&self) -> impl Iterator<Item = Neighbour<'a>> {
        let own = self.now.common();
        let ports = self.facts.ports.iter().map(|port| &port.settings.common);
        let ports = ports.filter(move |port| port.switch == own.switch);
        self.vnics().chain(ports).map(Neighbour::from)
    }

    /// The process at the other end of the socket.
    fn peer(&self) -> Option<&'a Process> {
        let pid = self.now.connection.peer_pid?;
        self.processes.iter().find(|process| process.pid == pid)
    }

    /// Whether the peer's command line says that its guest's memory is private.
    fn has_private_memory(&self) -> bool {
        self.peer().is_some_and(|peer| matches!(peer.sharing(), Sharing::Private(_)))
    }

    /// The last refusal with these words, if the refused thing is still missing.
    fn refusal(&self, words: &[&str]) -> Option<&'a str> {
        let refusal = self.now.port.guest.as_ref()?.last_refusal.as_deref()?;
        words.iter().any(|word| refusal.contains(word)).then_some(refusal)
    }
}

/// Findings that do not depend on the guest.
pub(super) fn of_switch(case: &Case<'_>) -> Vec<Finding> {
    let name = Some(case.now.name());
    let socket = outside::socket(case).about(name, Link::Socket);
    let lost = drops::unaccounted(case).or_else(|| drops::starved_now(case));
    let lost = lost.map(|verdict| verdict.about(name, Link::Drops));
    [socket].into_iter().filter(|socket| socket.state < State::Unknown).chain(lost).collect()
}

/// All links of a vnic, in order.
pub(super) fn chain(case: &Case<'_>) -> Vec<Finding> {
    let mut is_whole = true;
    let judged = Link::CHAIN.map(|link| {
        let verdict = match (link, is_whole) {
            (Link::Socket, _) => outside::socket(case),
            (Link::Peer, true) => outside::peer(case),
            (Link::Negotiation, true) => driver::negotiation(case),
            (Link::Memory, true) => memory::memory(case),
            (Link::Rings, true) => rings::rings(case),
            (Link::Cable, true) => driver::link(case),
            (Link::Learning, true) => learning::learning(case),
            (Link::Drops, _) => drops::drops(case, is_whole),
            _ => Verdict::not_reached(),
        };
        is_whole &= verdict.state != State::NotOk;
        verdict.about(Some(case.now.name()), link)
    });
    judged.into()
}
