//! A switch: its ports, addresses and flows, and the changes that its datapath needs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use lasthop_api::acl::AclRule;
use lasthop_api::explain::ExplainReason;
use lasthop_bridge_policy::{FloodKind, MAC_ONES};
use lasthop_flow::{Action, FlowKey, FlowStats, Match, Ufid};
use lasthop_module_api::{DropReason, Mac, PortSettings, PortVlans, Vid};

use crate::acl::PortAcl;
use crate::addresses::{AddressLimits, Addresses, FdbKey, LearnResult, Static};
use crate::bounds::{
    ABOUT_FEW, ADDRESSES_PORT_SHARE, AGEING_NS, CHANGES_PER_TURN, COUNTING_NS, FLOWS_MAX, FLOWS_PER_TURN,
    FLOWS_PORT_SHARE, IDLE_CROWDED_NS, IDLE_NS,
};
use crate::config::{StaticAddress, SwitchConfig};
use crate::consult::consult;
use crate::decide::{Admitted, Decision, View, admit, forward, meter};
use crate::denial_log::DenialLog;
use crate::flap_damping::FlapDamping;
use crate::flows::{self, Flow, Flows};
use crate::frame::{Frame, Looked};
use crate::gate::Stage;
use crate::groups::Groups;
use crate::leases::Leases;
use crate::ports::Port;

mod address_flows;
mod dhcp_learning;
mod forgetting;
#[cfg(test)]
mod tests;

/// A change for the datapath.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DatapathChange {
    /// Install this flow, unless it is forgotten by then.
    Install {
        ufid: Ufid,
    },
    Modify {
        ufid: Ufid,
        actions: Vec<Action>,
    },
    Remove {
        ufid: Ufid,
    },
    Meter {
        meter: u32,
        rate: u32,
    },
    MeterGone {
        meter: u32,
    },
}

/// Counters of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlowCounts {
    pub(crate) misses: u64,
    pub(crate) strange: u64,
    pub(crate) installed: u64,
    pub(crate) changed: u64,
    pub(crate) removed: u64,
    pub(crate) idle: u64,
    pub(crate) limit_hit: u64,
    pub(crate) evicted: u64,
    pub(crate) overrun: u64,
    pub(crate) revalidated: u64,
    pub(crate) adopted: u64,
    pub(crate) refused: u64,
}

/// The end of a round of counters: flows are checked in turns, since one turn for all would hold up packets.
#[derive(Clone, Copy, Debug)]
struct IdleCheck {
    /// The slot of the next flow to check.
    at: usize,
    idle_ns: u64,
}

/// A switch of module flow.
#[derive(Debug)]
pub(crate) struct Switch {
    /// By name, including those without a number.
    settings: BTreeMap<String, PortSettings>,
    numbers: BTreeMap<String, u32>,
    ports: BTreeMap<u32, Port>,
    statics: Vec<StaticAddress>,
    /// Rules about connections of its ports.
    acl: Vec<AclRule>,
    /// Addresses of the groups that these rules name.
    groups: Groups,
    pub(crate) addresses: Addresses,
    /// Addresses that DHCP servers gave to ports.
    pub(crate) leases: Leases,
    flows: Flows,
    flows_max: usize,
    /// Flows of one port from which on others are made by address.
    pair_flows_max: usize,
    /// Flows of a switch process that has died.
    former: Vec<Flow>,
    changes: VecDeque<DatapathChange>,
    /// Flows to revalidate.
    to_revalidate: Vec<Ufid>,
    /// Ports with many flows to revalidate whose sources could not be learned.
    ports_to_revalidate: BTreeSet<u32>,
    /// Ports with many flows to revalidate since their leases have changed.
    ports_with_other_leases: BTreeSet<u32>,
    idle_check: Option<IdleCheck>,
    flaps: FlapDamping,
    round: u64,
    round_began_ns: u64,
    /// Whether packets have matched flows since the last call of [`Self::take_use`].
    is_used: bool,
    pub(crate) counts: FlowCounts,
    pub(crate) denials: DenialLog,
}

impl Switch {
    pub(crate) fn new(config: &SwitchConfig) -> Self {
        let entries_max = config.addresses_max;
        let port_max = entries_max / ADDRESSES_PORT_SHARE;
        Self {
            settings: BTreeMap::new(),
            numbers: BTreeMap::new(),
            ports: BTreeMap::new(),
            statics: Vec::new(),
            acl: Vec::new(),
            groups: Groups::default(),
            addresses: Addresses::new(AddressLimits { entries_max, port_max, ageing_ns: AGEING_NS }),
            leases: Leases::default(),
            flows: Flows::default(),
            flows_max: FLOWS_MAX,
            pair_flows_max: config.pair_flows_max,
            former: Vec::new(),
            changes: VecDeque::new(),
            to_revalidate: Vec::new(),
            ports_to_revalidate: BTreeSet::new(),
            ports_with_other_leases: BTreeSet::new(),
            idle_check: None,
            flaps: FlapDamping::default(),
            round: 0,
            round_began_ns: 0,
            is_used: false,
            counts: FlowCounts::default(),
            denials: DenialLog::default(),
        }
    }

    fn view(&self, now_ns: u64) -> View<'_> {
        View { ports: &self.ports, addresses: &self.addresses, now_ns }
    }

    /// Adds a port, or changes its settings.
    pub(crate) fn set_port(&mut self, settings: PortSettings) {
        let (name, learner) = (settings.name.clone(), dhcp_learning::learner(&settings));
        if self.settings.insert(name.clone(), settings.clone()) == Some(settings) {
            return;
        }
        self.leases.set_learner(&name, learner);
        self.refresh_groups();
        if let Some(number) = self.numbers.get(&name).copied() {
            self.open(&name, number);
        }
    }

    /// Removes a port; returns its number.
    pub(crate) fn remove_port(&mut self, name: &str) -> Option<u32> {
        self.settings.remove(name);
        self.leases.forget_port(name);
        self.refresh_groups();
        self.lose_number(name)
    }

    /// Sets the number of a port in the datapath.
    pub(crate) fn set_number(&mut self, name: &str, number: u32) {
        if self.numbers.get(name) == Some(&number) {
            return;
        }
        let owner = self.numbers.iter().find(|(_, taken)| **taken == number).map(|(name, _)| name.clone());
        for stale in owner.iter().map(String::as_str).chain([name]) {
            self.lose_number(stale);
        }
        if self.settings.contains_key(name) {
            self.numbers.insert(name.to_owned(), number);
            self.open(name, number);
        }
    }

    /// Removes a port's number, and returns it.
    pub(crate) fn lose_number(&mut self, name: &str) -> Option<u32> {
        let number = self.numbers.remove(name)?;
        if let Some(port) = self.ports.remove(&number) {
            let metered =
                FloodKind::ALL.into_iter().filter(|kind| kind.limit(&port.settings.policy.storm) > 0);
            self.changes.extend(metered.map(|kind| DatapathChange::MeterGone { meter: meter(kind, number) }));
        }
        self.addresses.forget_port(number);
        self.refresh_statics();
        Some(number)
    }

    fn open(&mut self, name: &str, number: u32) {
        let Some(settings) = self.settings.get(name) else { return };
        let acl = PortAcl::of(settings, &self.acl, &self.groups).map(Rc::new);
        let leased = self.leases.addresses(name).into();
        let port = Port { settings: settings.clone(), acl, leased };
        let old = self.ports.get(&number);
        let is_other = |old: &Port| {
            old.own_mac() != port.own_mac() || old.settings.policy.vlans != port.settings.policy.vlans
        };
        if old.is_some_and(is_other) {
            // Learned addresses are forgotten with the own address and the VLANs, which the guest may not use any more.
            self.addresses.flush(Some(number), None);
        }
        let old = self.ports.insert(number, port.clone());
        for kind in FloodKind::ALL {
            let was = old.as_ref().map_or(0, |old| kind.limit(&old.settings.policy.storm));
            let (rate, meter) = (kind.limit(&port.settings.policy.storm), meter(kind, number));
            match rate {
                _ if rate == was => {}
                0 => self.changes.push_back(DatapathChange::MeterGone { meter }),
                _ => self.changes.push_back(DatapathChange::Meter { meter, rate }),
            }
        }
        self.refresh_statics();
    }

    /// Replaces the configured entries.
    pub(crate) fn set_statics(&mut self, entries: Vec<StaticAddress>) {
        self.statics = entries;
        self.refresh_statics();
    }

    /// Replaces the rules of all ports. Revalidates flows of ports whose rules have changed.
    pub(crate) fn set_acl(&mut self, rules: Vec<AclRule>) {
        self.acl = rules;
        self.groups = Groups::of(&self.acl, self.settings.values());
        self.renew_rules();
    }

    /// Updates the addresses of groups, and so the rules of ports that name these groups.
    fn refresh_groups(&mut self) {
        let groups = Groups::of(&self.acl, self.settings.values());
        if groups != self.groups {
            self.groups = groups;
            self.renew_rules();
        }
    }

    fn renew_rules(&mut self) {
        for port in self.ports.values_mut() {
            port.acl = PortAcl::of(&port.settings, &self.acl, &self.groups).map(Rc::new);
        }
        self.to_revalidate = self.flows.names();
    }

    fn refresh_statics(&mut self) {
        let own = self.ports.iter().filter(|(_, port)| port.own_mac() != 0);
        let own = own.map(|(number, port)| (port.own_mac(), Static { port: *number, vlan: None }));
        let entered = self.statics.iter().filter_map(|entry| {
            let port = *self.numbers.get(&entry.port)?;
            Some((entry.mac.to_bits(), Static { port, vlan: entry.vlan }))
        });
        let all: Vec<_> = own.chain(entered).collect();
        self.addresses.set_statics(all.into_iter(), &self.ports);
        self.to_revalidate = self.flows.names();
    }

    /// Ports without a number.
    pub(crate) fn unnumbered(&self) -> impl Iterator<Item = &str> {
        self.settings.keys().filter(|name| !self.numbers.contains_key(*name)).map(String::as_str)
    }

    pub(crate) fn has_port(&self, name: &str) -> bool {
        self.settings.contains_key(name)
    }

    pub(crate) fn numbers(&self) -> &BTreeMap<String, u32> {
        &self.numbers
    }

    /// The actions for a packet without a flow; a flow is installed for packets like it.
    pub(crate) fn miss(&mut self, key: &FlowKey, now_ns: u64) -> Vec<Action> {
        self.counts.misses += 1;
        let frame = Frame::of(key).filter(|frame| self.ports.contains_key(&frame.port));
        let Some(frame) = frame else {
            self.counts.strange += 1;
            return vec![Action::drop_for(DropReason::NoFlow)];
        };
        let mut looked = Looked::default();
        let admitted = admit(self.view(now_ns), &frame, &mut looked);
        if let Ok(Admitted { learn_at: Some(fdb_key), .. }) = admitted {
            self.learn(fdb_key, frame.port, now_ns);
        }
        let decision = self.decide(&frame, admitted, looked, now_ns);
        let goes_by_address = admitted.is_ok() && self.goes_by_address(&frame, &decision);
        match goes_by_address.then(|| self.decide_by_source(&frame, looked)).flatten() {
            Some(by_source) => self.install_by_address(&frame, vid_of(admitted), &by_source, now_ns),
            None => self.install(&frame, vid_of(admitted), &decision, now_ns),
        }
        if let Some((rule, port)) = decision.logged.as_ref().zip(self.ports.get(&frame.port)) {
            self.denials.note(rule, &port.settings.name, key, now_ns);
        }
        decision.actions
    }

    /// The actions that a packet would be answered with, and why. Nothing is learned, and no flow made.
    pub(crate) fn consult(&self, key: &FlowKey, now_ns: u64) -> (Option<Vec<Action>>, Vec<ExplainReason>) {
        consult(self.view(now_ns), key)
    }

    fn decide(
        &self,
        frame: &Frame,
        admitted: Result<Admitted, DropReason>,
        looked: Looked,
        now_ns: u64,
    ) -> Decision {
        let mut decision = match admitted {
            Ok(admitted) => forward(self.view(now_ns), frame, admitted.vid, looked),
            Err(reason) => Decision::drop_for(reason, looked),
        };
        decision.is_watched = !decision.is_drop() && self.is_watched(frame, &mut decision.looked);
        decision
    }

    fn install(&mut self, frame: &Frame, vid: Option<u16>, decision: &Decision, now_ns: u64) {
        let Decision { actions, looked, is_watched, .. } = decision;
        if *is_watched || !looked.can_match(frame) {
            return;
        }
        let masked = frame.masked(looked);
        let ufid = self.flows.name(&masked, looked);
        if let Some(known) = self.flows.get_mut(ufid) {
            if known.frame != masked || known.looked != *looked {
                return; // another flow has its name, so each of its packets misses
            }
            // Early misses were pending before the flow was installed. A later one shows that another client removed
            // it.
            if known.used_ns.saturating_add(2 * COUNTING_NS) <= now_ns {
                known.used_ns = now_ns;
                self.changes.push_back(DatapathChange::Install { ufid });
            }
            return;
        }
        if !self.make_room(frame.port) {
            self.counts.limit_hit += 1;
            return;
        }
        let (packets, round) = (0, self.round);
        let is_entry = Stage::of(frame.recirc_id) == Stage::Entry;
        let is_unlearned = is_entry && vid.is_some_and(|vid| self.is_unlearned((vid, frame.src), frame.port));
        let flow = Flow {
            frame: masked,
            looked: *looked,
            actions: actions.clone(),
            vid,
            used_ns: now_ns,
            packets,
            round,
            is_unlearned,
        };
        self.flows.insert_new(ufid, flow);
        self.counts.installed += 1;
        self.changes.push_back(DatapathChange::Install { ufid });
    }

    /// Makes room for one more flow of a port, if necessary by evicting one of a port with far more flows.
    fn make_room(&mut self, port: u32) -> bool {
        if self.flows.sum(port) >= self.flows_max / FLOWS_PORT_SHARE {
            return false;
        }
        if self.flows.len() < self.flows_max {
            return true;
        }
        let evicted = self.flows.evictable_for(port);
        evicted.into_iter().for_each(|ufid| self.remove(ufid));
        self.counts.evicted += u64::from(evicted.is_some());
        evicted.is_some()
    }

    /// Whether packets from an address would make it learned, if there were room.
    fn is_unlearned(&self, fdb_key: FdbKey, port: u32) -> bool {
        let has_own = self.ports.get(&port).is_some_and(|port| port.own_mac() != 0);
        !has_own
            && self.addresses.learned(fdb_key).is_none()
            && self.addresses.find_static(fdb_key, &self.ports).is_none()
    }

    /// Learns an address; flows that depend on it follow.
    fn learn(&mut self, fdb_key: FdbKey, number: u32, now_ns: u64) {
        let Some(port) = self.ports.get(&number) else { return };
        if self.addresses.learn(fdb_key, number, port, now_ns) == LearnResult::Changed {
            self.revalidate_about(fdb_key, now_ns);
        }
        self.revalidate_unlearned(now_ns);
    }

    /// Revalidates flows whose sources could not be learned, once there is room again: their packets have to be seen.
    fn revalidate_unlearned(&mut self, now_ns: u64) {
        let Some((freed, is_unblocked)) = self.addresses.take_freed() else { return };
        // The freed room may be taken already; a moving address costs little even if many flows wait.
        let has_room = |(number, port): &(&u32, &Port)| {
            (is_unblocked || freed.contains(number)) && self.addresses.has_room(**number, port)
        };
        let ports: Vec<u32> = self.ports.iter().filter(has_room).map(|(number, _)| *number).collect();
        for port in ports {
            if self.flows.has_many_unlearned(port) {
                self.ports_to_revalidate.insert(port);
            } else {
                self.flows.unlearned(port).into_iter().for_each(|ufid| self.revalidate(ufid, now_ns));
            }
        }
    }

    /// Revalidates flows that depend on an address: a few at once, many in turns, and then not again for a while.
    fn revalidate_about(&mut self, fdb_key: FdbKey, now_ns: u64) {
        if self.flaps.is_deferred(fdb_key, now_ns) {
            return;
        }
        let about = self.flows.about(fdb_key);
        if about.len() <= ABOUT_FEW {
            return about.into_iter().for_each(|ufid| self.revalidate(ufid, now_ns));
        }
        self.flaps.looked(fdb_key, now_ns);
        self.to_revalidate.extend(about);
    }

    /// Revalidates the flows of addresses that kept moving, once they are due.
    pub(crate) fn revalidate_late(&mut self, now_ns: u64) {
        let due = self.flaps.take_due(now_ns);
        due.into_iter().for_each(|fdb_key| self.revalidate_about(fdb_key, now_ns));
    }

    /// When that is due.
    pub(crate) fn late_ns(&self) -> Option<u64> {
        self.flaps.due_ns()
    }

    /// Revalidates some of the pending flows; returns whether there are more.
    pub(crate) fn revalidate_some(&mut self, now_ns: u64) -> bool {
        self.revalidate_unlearned(now_ns);
        if self.to_revalidate.is_empty() {
            let ports = std::mem::take(&mut self.ports_to_revalidate);
            let others = std::mem::take(&mut self.ports_with_other_leases);
            let unlearned = ports.into_iter().flat_map(|port| self.flows.unlearned(port));
            let others = others.into_iter().flat_map(|port| self.flows.of_port(port));
            self.to_revalidate = unlearned.chain(others).collect();
        }
        let changes = self.changes.len();
        for _ in 0..FLOWS_PER_TURN {
            let Some(ufid) = self.to_revalidate.pop_if(|_| self.changes.len() < changes + CHANGES_PER_TURN)
            else {
                break;
            };
            self.revalidate(ufid, now_ns);
        }
        self.has_to_revalidate()
    }

    /// Decides again about a flow's packets.
    fn revalidate(&mut self, ufid: Ufid, now_ns: u64) {
        let Some(flow) = self.flows.get(ufid) else { return };
        self.counts.revalidated += 1;
        let mut looked = Looked::default();
        let admitted = admit(self.view(now_ns), &flow.frame, &mut looked);
        let decision = self.decide_again(flow, admitted, looked, now_ns);
        let needs_learning = admitted.is_ok_and(|admitted| self.needs_learning(&admitted, flow.frame.port));
        let is_other = vid_of(admitted) != flow.vid || !decision.looked.is_within(&flow.looked);
        if needs_learning || is_other || decision.is_watched {
            return self.remove(ufid);
        }
        if decision.actions != flow.actions {
            self.modify(ufid, decision.actions);
        }
    }

    /// Whether the next packet has to be seen, since the address is known elsewhere, or could be learned and is not.
    fn needs_learning(&self, admitted: &Admitted, number: u32) -> bool {
        let Some(fdb_key) = admitted.learn_at else { return false };
        let has_room = || self.ports.get(&number).is_some_and(|port| self.addresses.has_room(number, port));
        self.addresses.learned(fdb_key).map_or_else(has_room, |entry| entry.port != number)
    }

    fn modify(&mut self, ufid: Ufid, actions: Vec<Action>) {
        self.counts.changed += 1;
        if let Some(flow) = self.flows.get_mut(ufid) {
            flow.actions.clone_from(&actions);
        }
        self.changes.push_back(DatapathChange::Modify { ufid, actions });
    }

    fn remove(&mut self, ufid: Ufid) {
        if self.flows.remove(ufid).is_some() {
            self.counts.removed += 1;
        }
        self.changes.push_back(DatapathChange::Remove { ufid });
    }

    /// Forgets a flow that the datapath refused or lost. Its packets will miss again.
    pub(crate) fn forget_flow(&mut self, ufid: Ufid) {
        self.counts.refused += 1;
        self.flows.remove(ufid);
    }

    /// The next change for the datapath.
    pub(crate) fn take_change(&mut self) -> Option<DatapathChange> {
        self.changes.pop_front()
    }

    /// The match and the actions of a flow.
    pub(crate) fn parts(&self, ufid: Ufid) -> Option<(Match, &[Action])> {
        let flow = self.flows.get(ufid)?;
        Some((flow.frame.to_match(&flow.looked), &flow.actions))
    }

    /// Forgets the datapath's state, since another process may serve it. Addresses stay.
    pub(crate) fn disconnected(&mut self) {
        let flows = std::mem::take(&mut self.flows);
        if flows.len() > 0 {
            self.former = flows.into_flows().collect();
        }
        self.changes.clear();
        self.to_revalidate.clear();
        self.ports_to_revalidate.clear();
        self.ports_with_other_leases.clear();
        self.idle_check = None;
        self.flaps.clear();
    }

    /// Sets the meters of all ports again, for a datapath that may have none of them.
    pub(crate) fn renew_meters(&mut self) {
        for (number, port) in &self.ports {
            let limits =
                FloodKind::ALL.map(|kind| (meter(kind, *number), kind.limit(&port.settings.policy.storm)));
            let metered = limits.into_iter().filter(|(_, rate)| *rate > 0);
            self.changes.extend(metered.map(|(meter, rate)| DatapathChange::Meter { meter, rate }));
        }
    }

    /// Takes over a flow of a former controller in the datapath.
    pub(crate) fn adopt(
        &mut self,
        ufid: Ufid,
        matches: &Match,
        actions: Vec<Action>,
        stats: FlowStats,
        now_ns: u64,
    ) {
        if !flows::is_ours(ufid) {
            return; // another client's flow
        }
        let read = matches.mask.as_ref().and_then(|mask| Frame::of_match(&matches.key, mask));
        let read = read.filter(|(frame, looked)| self.flows.is_free_for(ufid, frame, looked));
        let Some((frame, looked)) = read else { return self.remove(ufid) };
        self.counts.adopted += 1;
        // A flow without a packet is recent, or it would have been removed.
        let used_ns = match stats.used_ms {
            0 => now_ns.saturating_sub(IDLE_NS),
            ms => (ms * 1_000_000).min(now_ns),
        };
        let admitted = admit(self.view(now_ns), &frame, &mut Looked::default());
        let vid = vid_of(admitted);
        let (packets, round) = (stats.packets, self.round);
        let is_unlearned = false; // if its source cannot be learned, a miss will show it
        let flow = Flow { frame, looked, actions, vid, used_ns, packets, round, is_unlearned };
        self.flows.insert(ufid, flow);
        // Its source was there, so the last controller's addresses are in its flows.
        if let Ok(Admitted { learn_at: Some(fdb_key), .. }) = admitted {
            let known = self.addresses.learned(fdb_key);
            if known.is_none_or(|known| known.seen_ns < used_ns) && looked.src == MAC_ONES {
                self.learn(fdb_key, frame.port, used_ns);
            }
        }
        self.to_revalidate.push(ufid);
    }

    /// Installs the flows of a former switch process again once the datapath's flows are known, so that their packets
    /// cause no misses.
    pub(crate) fn reinstall(&mut self, now_ns: u64) {
        for flow in std::mem::take(&mut self.former) {
            let is_idle = flow.used_ns.saturating_add(IDLE_NS) < now_ns;
            let mut looked = Looked::default();
            let admitted = admit(self.view(now_ns), &flow.frame, &mut looked);
            let decision = self.decide_again(&flow, admitted, looked, now_ns);
            let is_same = vid_of(admitted) == flow.vid && decision.looked.is_within(&flow.looked);
            if is_same && !is_idle && self.ports.contains_key(&flow.frame.port) {
                let decision = Decision { looked: flow.looked, ..decision };
                self.install(&flow.frame, flow.vid, &decision, now_ns);
            }
        }
        self.to_revalidate = self.flows.names();
    }

    /// Begins to read all flows' counters.
    pub(crate) fn begin_round(&mut self, now_ns: u64) {
        self.round += 1;
        self.round_began_ns = now_ns;
    }

    /// Handles a flow's counters. Its packets count as seen.
    pub(crate) fn counted(&mut self, ufid: Ufid, stats: FlowStats, now_ns: u64) {
        let round = self.round;
        let Some(flow) = self.flows.get_mut(ufid) else {
            if flows::is_ours(ufid) {
                self.changes.push_back(DatapathChange::Remove { ufid });
            }
            return;
        };
        flow.round = round;
        let has_news = stats.packets > flow.packets;
        flow.packets = stats.packets;
        if !has_news {
            return;
        }
        self.is_used = true;
        flow.used_ns = flow.used_ns.max((stats.used_ms * 1_000_000).min(now_ns));
        let (frame, used_ns) = (flow.frame, flow.used_ns);
        let is_entry = Stage::of(frame.recirc_id) == Stage::Entry;
        if let Some(vid) = flow.vid.filter(|_| is_entry) {
            self.addresses.seen((vid, frame.src), frame.port, used_ns);
        }
    }

    /// Ends the round. [`Self::check_some`] follows until it is over.
    pub(crate) fn end_round(&mut self) {
        self.idle_check = Some(IdleCheck { at: 0, idle_ns: self.idle_ns() });
    }

    /// Whether the end of a round is not over.
    pub(crate) fn is_checking(&self) -> bool {
        self.idle_check.is_some()
    }

    /// Checks some flows at the end of a round: removes idle ones, and forgets those that the datapath has lost.
    pub(crate) fn check_some(&mut self, now_ns: u64) {
        let Some(IdleCheck { at, idle_ns }) = self.idle_check else { return };
        // A recently installed flow may be missing in the counters.
        let sure_ns = self.round_began_ns.saturating_sub(2 * COUNTING_NS);
        let (mut at, changes) = (at, self.changes.len());
        for _ in 0..FLOWS_PER_TURN {
            let Some((slot, ufid, flow)) = self.flows.at_or_behind(at) else {
                self.idle_check = None;
                return;
            };
            if self.changes.len() >= changes + CHANGES_PER_TURN {
                break;
            }
            at = slot + 1;
            if flow.round < self.round && flow.used_ns < sure_ns {
                self.forget_flow(ufid);
            } else if flow.used_ns.saturating_add(idle_ns) < now_ns {
                self.counts.idle += 1;
                self.remove(ufid);
            }
        }
        self.idle_check = Some(IdleCheck { at, idle_ns });
    }

    /// How long an unused flow stays.
    fn idle_ns(&self) -> u64 {
        if self.flows.len() > self.flows_max / 2 { IDLE_CROWDED_NS } else { IDLE_NS }
    }

    /// Whether packets have matched flows since the last call.
    pub(crate) fn take_use(&mut self) -> bool {
        std::mem::take(&mut self.is_used)
    }

    /// When the next flow or address is removed if it stays unused; `None` if there is none.
    pub(crate) fn forgetting_due_ns(&self) -> Option<u64> {
        let idle_ns = self.idle_ns();
        let flows = self.flows.iter().map(|(_, flow)| flow.used_ns.saturating_add(idle_ns + 1));
        flows.chain(self.addresses.ageing_due_ns()).min()
    }

    /// The name of the port with this number.
    pub(crate) fn name_of(&self, number: u32) -> Option<&str> {
        self.ports.get(&number).map(|port| port.settings.name.as_str())
    }

    /// Ports' own addresses and configured entries, each with VLAN and port name, also of ports without a number.
    pub(crate) fn statics(&self) -> impl Iterator<Item = (Mac, Option<u16>, &str)> {
        let own =
            self.settings.values().filter_map(|port| Some((port.policy.mac?, None, port.name.as_str())));
        let entered = self.statics.iter().map(|entry| (entry.mac, entry.vlan, entry.port.as_str()));
        let all = own.chain(entered).filter(|(_, _, port)| self.has_port(port));
        all.map(|(mac, vlan, port)| (mac, vlan.map(Vid::get).or_else(|| self.access_vlan(port)), port))
    }

    /// The VLAN of a port that has only one.
    fn access_vlan(&self, name: &str) -> Option<u16> {
        match self.settings.get(name)?.policy.vlans {
            PortVlans::Access(vid) => Some(vid.get()),
            _ => None,
        }
    }

    /// Whether flows have to be revalidated.
    pub(crate) fn has_to_revalidate(&self) -> bool {
        !self.to_revalidate.is_empty()
            || !self.ports_to_revalidate.is_empty()
            || !self.ports_with_other_leases.is_empty()
    }

    pub(crate) fn flow_count(&self) -> usize {
        self.flows.len()
    }
}

/// The VLAN of admitted packets.
fn vid_of(admitted: Result<Admitted, DropReason>) -> Option<u16> {
    admitted.ok().map(|admitted| admitted.vid)
}
