//! The controller's exchange with the switch: makes datapaths and ports, takes over a former controller's flows, then
//! answers misses.
//!
//! ```text
//!   each switch:     make or find its datapath ─> its ports ─> its flows ─> subscribe to its ports' misses
//!                            ^                                                      │ every second: counters of flows
//!                            └── refused: again after a pause                         │ every 5 s: the ports again
//!   link 0  misses; changes of flows; packets to send
//!   link 1  lists: ports, flows, counters. A list of 200,000 flows does not delay packets.
//! ```

use std::collections::BTreeMap;

use lasthop_api::acl::AclRule;
use lasthop_api::explain::ExplainReason;
use lasthop_api::leases::PortLeases;
use lasthop_dpif::family::{DatapathMessage, FlowMessage, PacketMessage, VportKind, VportMessage};
use lasthop_dpif::talk::{self, DpifReply, DpifRequest};
use lasthop_flow::{Action, FlowKey, Match};
use lasthop_module_api::{DropReason, Mac, NO_VID, PortSettings, Vid};

use crate::LINKS;
use crate::bounds::{
    AGAIN_NS, BEHIND_MAX, CHANGES_OPEN_MAX, COUNTING_NS, GIVEN_BACK_MAX, PORT_PACKETS_MIN, PORTS_NS,
    WAITING_MAX,
};
use crate::config::{Address, MovedAddress, StaticAddress, SwitchConfig};
use crate::link::{Answer, DatapathLink};
use crate::open_packets::OpenPackets;
use crate::requests::{Purpose, Sent, SharedName, ask_for};
use crate::served_switch::{ServedSwitch, Stage};
use crate::stats::ControllerStats;

const MAIN: usize = 0;
const LISTS: usize = 1;

/// `OVS_DP_F_UNALIGNED | OVS_DP_F_VPORT_PIDS`: each port has a port id for its misses.
const FEATURES: u32 = 0b11;
const EEXIST: i32 = 17;
const ENODEV: i32 = 19;
/// The control plane of all switches of module flow.
#[derive(Debug)]
pub struct Controller {
    switches: BTreeMap<SharedName, ServedSwitch>,
    names: BTreeMap<i32, SharedName>,
    /// Number of epochs so far, of all switches.
    epochs: u64,
    links: [DatapathLink<Sent>; LINKS],
    open_packets: OpenPackets,
    /// Packets of unknown datapaths.
    strays: u64,
    /// The memory of the last answers, to be used again.
    answers: Vec<Answer<Sent>>,
    /// Lines for the log.
    log_lines: Vec<String>,
    /// Set once it wants no more misses: the number of pending requests that say so.
    leaving: Option<usize>,
}

impl Controller {
    /// A controller without switches, for new connections. Their port ids depend on `nonce`, which must differ each
    /// time: a datapath may still have a former controller's port ids, and must not send misses to this controller
    /// before it subscribes.
    #[must_use]
    pub fn new(nonce: u32) -> Self {
        let links = links(nonce);
        let (switches, names, open_packets, answers, log_lines) = Default::default();
        Self { switches, names, epochs: 0, links, open_packets, strays: 0, answers, log_lines, leaving: None }
    }

    /// Uses new connections, perhaps to another process: requests everything again. Addresses stay.
    pub fn reconnected(&mut self, nonce: u32) {
        self.links = links(nonce);
        self.open_packets = OpenPackets::default();
        self.names.clear();
        for served in self.switches.values_mut() {
            self.epochs += 1;
            served.disconnected(self.epochs);
        }
    }

    /// Stops subscribing to misses, since another controller is about to start. Pending ones are still answered.
    pub fn leave(&mut self) {
        let ports = self.switches.values().flat_map(|served| {
            served.subscribed.values().map(|number| VportMessage {
                datapath: served.datapath,
                number: Some(*number),
                upcall_port_ids: Some(vec![0]),
                ..VportMessage::default()
            })
        });
        let ports: Vec<VportMessage> = ports.collect();
        self.leaving = Some(ports.len());
        for port in ports {
            self.links[MAIN].ask(&DpifRequest::PortSet(port), Sent::for_all(Purpose::Leave));
        }
    }

    /// Whether all ports' misses go elsewhere, or to no client.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.leaving == Some(0)
    }

    /// The next datagram for connection `link`.
    #[must_use]
    pub fn output(&self, link: usize) -> Option<&[u8]> {
        self.links.get(link)?.output()
    }

    /// Notes that it was sent.
    pub fn sent(&mut self, link: usize) {
        if let Some(link) = self.links.get_mut(link) {
            link.sent();
        }
    }

    /// Lines for the log since the last call.
    pub fn take_log_lines(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log_lines)
    }

    /// Serves a switch. One that is already served continues.
    pub fn set_switch(&mut self, config: &SwitchConfig) {
        self.epochs += 1;
        self.switches
            .entry(config.name.as_str().into())
            .or_insert_with(|| ServedSwitch::new(config, self.epochs));
    }

    /// Stops serving a switch. Its datapath is removed with the switch.
    pub fn remove_switch(&mut self, name: &str) {
        if let Some(served) = self.switches.remove(name) {
            self.forget_name(name, served.datapath);
        }
    }

    /// Notes that a switch does not have this datapath any more; another switch may have it.
    fn forget_name(&mut self, name: &str, datapath: i32) {
        if self.names.get(&datapath).is_some_and(|known| **known == *name) {
            self.names.remove(&datapath);
        }
    }

    /// Serves a port, or changes its settings.
    pub fn set_port(&mut self, switch: &str, settings: PortSettings) {
        let Some(served) = self.switches.get_mut(switch) else { return };
        let name = settings.name.clone();
        let is_new = !served.switch.has_port(&name);
        served.switch.set_port(settings);
        if is_new && served.stage == Stage::Serving {
            served.again_due_ns = Some(0);
        }
    }

    /// Stops serving a port, and removes it from its datapath.
    pub fn remove_port(&mut self, switch: &str, name: &str) {
        let Some(served) = self.switches.get_mut(switch) else { return };
        let number = served.switch.remove_port(name);
        served.subscribed.remove(name);
        let gone = VportMessage { datapath: served.datapath, number, ..VportMessage::default() };
        if number.is_some() && served.stage == Stage::Serving {
            self.links[MAIN].ask(&DpifRequest::PortDel(gone), Sent::for_all(Purpose::PortGone));
        }
    }

    /// Replaces a switch's configured addresses.
    pub fn set_statics(&mut self, switch: &str, entries: Vec<StaticAddress>) {
        if let Some(served) = self.switches.get_mut(switch) {
            served.switch.set_statics(entries);
        }
    }

    /// Replaces the rules about connections of a switch's ports.
    pub fn set_acl(&mut self, switch: &str, rules: Vec<AclRule>) {
        if let Some(served) = self.switches.get_mut(switch) {
            served.switch.set_acl(rules);
        }
    }

    /// Takes over the addresses that DHCP servers gave to a port of a switch, as a former controller reported them.
    pub fn restore_leases(&mut self, switch: &str, leases: PortLeases, now_ns: u64) {
        if let Some(served) = self.switches.get_mut(switch) {
            served.switch.restore_leases(leases, now_ns);
        }
    }

    /// Changes of the addresses that DHCP servers gave to ports, with their switches, since the last call.
    pub fn take_leases(&mut self, now_ns: u64) -> Vec<(String, PortLeases)> {
        let all = self.switches.iter_mut().flat_map(|(name, served)| {
            let changed = served.switch.leases.take_changed(now_ns).into_iter();
            changed.map(|leases| (name.to_string(), leases))
        });
        all.collect()
    }

    /// Handles a datagram from connection `link`.
    pub fn received(&mut self, link: usize, datagram: &[u8], now_ns: u64) {
        let mut answers = std::mem::take(&mut self.answers);
        // One after the other: a miss takes the memory of the last one again.
        for reply in talk::read(datagram) {
            if let Some(link) = self.links.get_mut(link) {
                link.received(reply, &mut answers);
            }
            answers.drain(..).for_each(|answer| self.on_answer(answer, now_ns));
        }
        self.answers = answers;
    }

    /// Whether a request was for the present epoch of its switch.
    fn is_current(&self, Sent { purpose, epoch }: &Sent) -> bool {
        purpose
            .switch()
            .is_none_or(|name| self.switches.get(name).is_some_and(|served| served.epoch == *epoch))
    }

    fn on_answer(&mut self, answer: Answer<Sent>, now_ns: u64) {
        match answer {
            // Most answers: nothing is to be done, whatever the switch is now.
            Answer::Done(Sent { purpose: Purpose::Flow(..) | Purpose::Meter(_), .. }, None) => {}
            Answer::Message(Some(sent), _) | Answer::Done(sent, _) if !self.is_current(&sent) => {}
            Answer::Message(sent, told) => self.on_message(sent.map(|sent| sent.purpose), told, now_ns),
            Answer::Done(sent, refusal) => self.on_done(sent.purpose, refusal, now_ns),
        }
    }

    fn on_message(&mut self, purpose: Option<Purpose>, told: DpifReply, now_ns: u64) {
        match (purpose, told) {
            (_, DpifReply::Miss(packet)) => self.miss(packet, now_ns),
            (_, DpifReply::BadMiss(datapath)) => {
                let served = self.names.get(&datapath).and_then(|name| self.switches.get_mut(name));
                served.into_iter().for_each(|served| served.switch.counts.strange += 1);
            }
            (Some(Purpose::Make(switch) | Purpose::Find(switch)), DpifReply::Datapath(_, made)) => {
                self.on_datapath(&switch, made.datapath);
            }
            (Some(Purpose::Ports(switch)), DpifReply::Port(_, port)) => self.on_port_listed(&switch, *port),
            (Some(Purpose::Port(switch, _)), DpifReply::Port(_, port)) => self.on_port_number(&switch, *port),
            (Some(Purpose::Adopt(switch)), DpifReply::Flow(_, flow)) => self.adopt(&switch, *flow, now_ns),
            (Some(Purpose::Count(switch)), DpifReply::Counters(_, ufid, stats)) => {
                if let Some(served) = self.switches.get_mut(&switch) {
                    served.switch.counted(ufid, stats, now_ns);
                }
            }
            (None, DpifReply::Port(_, port)) => self.on_changed(port.datapath, now_ns + AGAIN_NS),
            // The switch is being handed to another controller: do not recreate its datapath.
            (None, DpifReply::Datapath(_, gone)) => self.on_changed(gone.datapath, now_ns + COUNTING_NS),
            _ => {}
        }
    }

    /// Lists the ports again, since another client has changed a port or the datapath.
    fn on_changed(&mut self, datapath: i32, at_ns: u64) {
        let served = self.names.get(&datapath).and_then(|name| self.switches.get_mut(name));
        served.into_iter().for_each(|served| served.ports.want(at_ns));
    }

    /// Handles the end of a request.
    fn on_done(&mut self, purpose: Purpose, refusal: Option<(i32, Option<String>)>, now_ns: u64) {
        match (purpose, refusal) {
            (Purpose::Execute(port), _) => self.open_packets.leave(port),
            (Purpose::Leave, _) => self.leaving = self.leaving.map(|open| open.saturating_sub(1)),
            (Purpose::Make(switch), Some((EEXIST, _))) => {
                let name = Some(switch.to_string());
                let wanted = DatapathMessage { name, ..DatapathMessage::default() };
                self.ask(MAIN, &DpifRequest::Datapath(wanted), Purpose::Find(switch));
            }
            // The switch is being removed, as an order will say, or gets another controller.
            (Purpose::Make(switch) | Purpose::Find(switch), Some((ENODEV, _))) => self.wait(&switch, now_ns),
            (Purpose::Make(switch) | Purpose::Find(switch), Some(refusal)) => {
                self.fail(&switch, format!("cannot have the datapath of switch {switch}"), refusal, now_ns);
            }
            (Purpose::Ports(switch), refusal) => self.on_all_ports_listed(&switch, refusal.is_none(), now_ns),
            (Purpose::Adopt(switch), Some(_)) => self.start_over(&switch),
            (Purpose::Adopt(switch), None) => self.on_all_flows_adopted(&switch, now_ns),
            (Purpose::Count(switch), _) => {
                if let Some(served) = self.switches.get_mut(&switch) {
                    served.counted(now_ns);
                }
            }
            (Purpose::Port(switch, _), Some((EEXIST, _))) => {
                if let Some(served) = self.switches.get_mut(&switch) {
                    served.ports.want(now_ns + AGAIN_NS);
                }
            }
            (Purpose::Port(switch, port), Some(refusal)) => {
                if let Some(served) = self.switches.get_mut(&switch).filter(|_| refusal.0 == ENODEV) {
                    // Or the datapath is gone.
                    served.ports.want(now_ns + AGAIN_NS);
                }
                self.fail(&switch, format!("cannot have port {port} in switch {switch}"), refusal, now_ns);
            }
            (Purpose::Flow(switch, ufid), Some(_)) => {
                if let Some(served) = self.switches.get_mut(&switch) {
                    served.switch.forget_flow(ufid);
                }
            }
            (Purpose::Meter(switch), Some(refusal)) => {
                self.fail(&switch, format!("cannot limit floods in switch {switch}"), refusal, now_ns);
            }
            (Purpose::Subscribe(switch), Some(_)) => {
                if let Some(served) = self.switches.get_mut(&switch) {
                    served.subscribed.clear();
                    served.ports.want(now_ns + AGAIN_NS);
                }
            }
            _ => {}
        }
    }

    /// Has the next attempt begin after a pause.
    fn wait(&mut self, switch: &str, now_ns: u64) {
        if let Some(served) = self.switches.get_mut(switch) {
            served.again_due_ns.get_or_insert(now_ns + AGAIN_NS);
        }
    }

    /// Logs a failure once, and tries again.
    fn fail(&mut self, switch: &str, what: String, (errno, why): (i32, Option<String>), now_ns: u64) {
        if !self.switches.contains_key(switch) {
            return;
        }
        self.wait(switch, now_ns);
        let why = why.unwrap_or_else(|| format!("error {errno}"));
        let sentence = format!("{what}: {why}; trying again");
        if !self.log_lines.contains(&sentence) {
            self.log_lines.push(sentence);
        }
    }

    fn ask(&mut self, link: usize, ask: &DpifRequest, purpose: Purpose) {
        let served = purpose.switch().and_then(|name| self.switches.get(name));
        let epoch = served.map_or(0, |served| served.epoch);
        self.links[link].ask(ask, Sent { purpose, epoch });
    }

    /// Does all work that is due, and sends the requests. Returns whether more work is due at once.
    pub fn turn(&mut self, now_ns: u64) -> bool {
        if !self.is_linked() {
            return false;
        }
        let names: Vec<SharedName> = self.switches.keys().cloned().collect();
        let mut has_more = false;
        for name in &names {
            // If the switch is behind, its next reply causes another turn.
            let is_behind = self.links[MAIN].open_count() >= CHANGES_OPEN_MAX;
            if let Some(served) = self.switches.get_mut(name) {
                served.switch.revalidate_late(now_ns);
                served.switch.expire_leases(now_ns);
            }
            if let Some(served) = self.switches.get_mut(name).filter(|_| !is_behind) {
                has_more |= served.switch.has_to_revalidate() && served.switch.revalidate_some(now_ns);
                has_more |= served.check_some(now_ns);
            }
            self.apply_changes(name);
            self.step(name, now_ns);
        }
        self.links.iter_mut().for_each(DatapathLink::flush);
        has_more
    }

    /// Whether all packets that came are answered, and all requests are sent.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.open_packets.is_empty() && self.links.iter().all(|link| link.output().is_none())
    }

    /// A mark for [`Self::has_settled`], if all flows agree with rules, ports and addresses except for pending
    /// requests; call it after a [`Self::turn`] that returned false.
    #[must_use]
    pub fn settling(&self) -> Option<u64> {
        let serves =
            |served: &ServedSwitch| served.stage == Stage::Serving && !served.switch.has_to_revalidate();
        self.switches.values().all(serves).then(|| self.links[MAIN].asked_until_now())
    }

    /// Whether the switch process has replied to all requests that were pending at `mark`.
    #[must_use]
    pub fn has_settled(&self, mark: u64) -> bool {
        self.links[MAIN].has_ended(mark)
    }

    /// When [`Controller::turn`] has work even without a datagram: not before the switch process has answered on both links.
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        self.switches.values().filter_map(ServedSwitch::due_ns).min().filter(|_| self.is_linked())
    }

    /// Whether the switch process has answered on both links.
    fn is_linked(&self) -> bool {
        self.links.iter().all(|link| link.port_id().is_some())
    }

    fn step(&mut self, name: &str, now_ns: u64) {
        let Some(served) = self.switches.get_mut(name) else { return };
        let is_due = |due: &mut u64| *due <= now_ns;
        let datapath = served.datapath;
        // A new port may get the number of a removed one, so no flow may use that any more.
        if !served.switch.has_to_revalidate() && served.again_due_ns.take_if(is_due).is_some() {
            match served.stage {
                Stage::Absent => self.make(name),
                Stage::Adopting => {}
                Stage::Serving => self.ask_for_ports(name),
            }
        }
        let Some(served) = self.switches.get_mut(name) else { return };
        if served.ports.begin(now_ns) {
            served.listed.clear();
            self.links[LISTS].ask(&DpifRequest::Ports(datapath), served.sent(Purpose::Ports(name.into())));
        }
        if served.counters.begin(now_ns) {
            served.switch.begin_round(now_ns);
            let sent = served.sent(Purpose::Count(name.into()));
            self.links[LISTS].ask(&DpifRequest::Flows { datapath, is_brief: true }, sent);
        }
    }

    fn make(&mut self, name: &str) {
        let wanted = DatapathMessage {
            name: Some(name.to_owned()),
            upcall_port_id: Some(0),
            user_features: Some(FEATURES),
            ..DatapathMessage::default()
        };
        self.ask(MAIN, &DpifRequest::DatapathNew(wanted), Purpose::Make(name.into()));
    }

    /// Notes the datapath of a switch, new or existing.
    fn on_datapath(&mut self, name: &str, datapath: i32) {
        let Some(served) = self.switches.get_mut(name) else { return };
        served.datapath = datapath;
        served.stage = Stage::Adopting;
        served.ports.want(0);
        served.again_due_ns = None;
        self.names.insert(datapath, name.into());
        let wanted =
            DatapathMessage { datapath, user_features: Some(FEATURES), ..DatapathMessage::default() };
        self.links[MAIN].ask(&DpifRequest::DatapathSet(wanted), Sent::for_all(Purpose::Features));
    }

    fn on_port_listed(&mut self, switch: &str, port: VportMessage) {
        if let (Some(served), Some(name), Some(number)) =
            (self.switches.get_mut(switch), port.name, port.number.filter(|number| *number != 0))
        {
            served.listed.insert(name, number);
        }
    }

    /// Handles the end of the list of a datapath's ports.
    fn on_all_ports_listed(&mut self, name: &str, is_whole: bool, now_ns: u64) {
        let Some(served) = self.switches.get_mut(name) else { return };
        served.ports.end();
        if served.is_busy {
            served.ports.want(now_ns + PORTS_NS);
        }
        if !is_whole {
            return self.start_over(name);
        }
        let listed = std::mem::take(&mut served.listed);
        let known = served.switch.numbers().clone();
        for (port, number) in known.iter().filter(|(port, number)| listed.get(*port) != Some(number)) {
            served.switch.lose_number(port);
            served.subscribed.retain(|_, taken| taken != number);
        }
        for (port, number) in listed.iter().filter(|(port, number)| known.get(*port) != Some(number)) {
            served.switch.set_number(port, *number);
        }
        match served.stage {
            Stage::Absent => {}
            Stage::Adopting => {
                let datapath = served.datapath;
                let sent = served.sent(Purpose::Adopt(name.into()));
                self.links[LISTS].ask(&DpifRequest::Flows { datapath, is_brief: false }, sent);
            }
            Stage::Serving => served.again_due_ns = Some(now_ns),
        }
    }

    /// Starts over, since the datapath is gone.
    fn start_over(&mut self, name: &str) {
        self.epochs += 1;
        if let Some(served) = self.switches.get_mut(name) {
            let datapath = served.datapath;
            served.disconnected(self.epochs);
            self.forget_name(name, datapath);
        }
    }

    fn adopt(&mut self, switch: &str, flow: FlowMessage, now_ns: u64) {
        let Some(served) = self.switches.get_mut(switch) else { return };
        if let (Some(ufid), Some(key)) = (flow.ufid, flow.key) {
            let (matches, actions) = (Match { key, mask: flow.mask }, flow.actions.unwrap_or_default());
            served.switch.adopt(ufid, &matches, actions, flow.stats.unwrap_or_default(), now_ns);
        }
    }

    /// Handles the end of the list of a datapath's flows.
    fn on_all_flows_adopted(&mut self, name: &str, now_ns: u64) {
        let Some(served) = self.switches.get_mut(name) else { return };
        served.stage = Stage::Serving;
        if let Some(due_ns) = served.switch.forgetting_due_ns() {
            served.counters.want(due_ns.min(now_ns + COUNTING_NS));
        }
        served.switch.renew_meters();
        served.switch.reinstall(now_ns);
        // It subscribes to misses once all flows are right.
        served.again_due_ns = Some(now_ns);
        self.apply_changes(&name.into());
    }

    /// Requests missing port numbers, and subscribes to the misses of ports with a number.
    fn ask_for_ports(&mut self, name: &str) {
        let Some(served) = self.switches.get_mut(name).filter(|_| self.leaving.is_none()) else { return };
        let datapath = served.datapath;
        let missing: Vec<String> = served.switch.unnumbered().map(str::to_owned).collect();
        // First all ports with a number: once the misses of the first port come here, those of all others must, too.
        self.subscribe(name);
        missing.iter().for_each(|port| self.ask_for_port(name, datapath, port));
    }

    fn ask_for_port(&mut self, switch: &str, datapath: i32, port: &str) {
        let wanted = VportMessage {
            datapath,
            name: Some(port.to_owned()),
            kind: Some(VportKind::Netdev),
            upcall_port_ids: self.links[MAIN].port_id().map(|id| vec![id]),
            ..VportMessage::default()
        };
        let purpose = Purpose::Port(switch.into(), port.to_owned());
        self.ask(MAIN, &DpifRequest::PortNew(wanted), purpose);
    }

    /// Notes a port's number; its misses come here.
    fn on_port_number(&mut self, switch: &str, port: VportMessage) {
        let Some(served) = self.switches.get_mut(switch) else { return };
        if let (Some(name), Some(number)) = (port.name, port.number) {
            served.switch.set_number(&name, number);
            if served.switch.has_port(&name) {
                served.subscribed.insert(name, number);
            }
        }
    }

    /// Subscribes to the misses of all ports. A single request does it, so that there is no time at which some come and
    /// others are lost. One request for each port follows, in case another client still has its misses.
    fn subscribe(&mut self, name: &str) {
        let Some(served) = self.switches.get_mut(name).filter(|_| self.leaving.is_none()) else { return };
        let (datapath, epoch, port_id) = (served.datapath, served.epoch, self.links[MAIN].port_id());
        let is_fresh = |(port, number): &(&String, &u32)| served.subscribed.get(*port) != Some(number);
        let fresh = served.switch.numbers().iter().filter(is_fresh);
        let fresh: Vec<(String, u32)> = fresh.map(|(port, number)| (port.clone(), *number)).collect();
        if fresh.len() > 1 {
            let wanted = DatapathMessage { datapath, upcall_port_id: port_id, ..DatapathMessage::default() };
            self.links[MAIN].ask(&DpifRequest::DatapathSet(wanted), Sent::for_all(Purpose::Features));
        }
        for (port, number) in fresh {
            let wanted = VportMessage {
                datapath,
                number: Some(number),
                upcall_port_ids: port_id.map(|id| vec![id]),
                ..VportMessage::default()
            };
            served.subscribed.insert(port, number);
            let sent = Sent { purpose: Purpose::Subscribe(name.into()), epoch };
            self.links[MAIN].ask(&DpifRequest::PortSet(wanted), sent);
        }
    }

    /// Answers a packet: flows first, so that later packets match one.
    fn miss(&mut self, packet: Box<PacketMessage>, now_ns: u64) {
        let name = self.names.get(&packet.datapath).cloned();
        let Some((name, served)) = name.and_then(|name| Some((name.clone(), self.switches.get_mut(&name)?)))
        else {
            self.strays += 1;
            return self.give_back(packet);
        };
        let own = self.open_packets.of((packet.datapath, packet.key.in_port));
        let waiting_max = if own < PORT_PACKETS_MIN { BEHIND_MAX } else { WAITING_MAX };
        if self.links[MAIN].open_count() >= waiting_max {
            served.switch.counts.overrun += 1;
            return self.give_back(packet);
        }
        served.is_used(now_ns);
        let actions = served.switch.miss(&packet.key, now_ns);
        served.switch.overhear(&packet.key, &packet.packet, &actions, now_ns);
        self.log_lines.extend(served.switch.denials.take());
        self.apply_changes(&name);
        // Dropped packets are answered, too: the switch holds later packets of the flow until then.
        self.execute(packet, actions);
    }

    /// Has the switch drop a packet that gets no answer, unless the switch is too far behind even for that.
    fn give_back(&mut self, packet: Box<PacketMessage>) {
        if self.links[MAIN].open_count() < GIVEN_BACK_MAX {
            self.execute(packet, vec![Action::drop_for(DropReason::NoFlow)]);
        }
    }

    fn execute(&mut self, mut packet: Box<PacketMessage>, actions: Vec<Action>) {
        let port = (packet.datapath, packet.key.in_port);
        packet.key = FlowKey { in_port: packet.key.in_port, ct: packet.key.ct, ..FlowKey::default() };
        (packet.actions, packet.user_data) = (Some(actions), None);
        if self.links[MAIN].ask(&DpifRequest::Execute(packet), Sent::for_all(Purpose::Execute(port))) {
            self.open_packets.enter(port);
        }
    }

    fn apply_changes(&mut self, name: &SharedName) {
        let Some(served) = self.switches.get_mut(name) else { return };
        if served.stage != Stage::Serving {
            return;
        }
        while let Some(change) = served.switch.take_change() {
            let (epoch, about) = (served.epoch, (served.datapath, &served.switch));
            ask_for(&mut self.links[MAIN], (name, epoch), about, change);
        }
    }

    /// Counters of all switches.
    #[must_use]
    pub fn stats(&self) -> ControllerStats {
        let strays =
            ControllerStats { misses: self.strays, strange: self.strays, ..ControllerStats::default() };
        self.switches.values().map(ServedSwitch::stats).fold(strays, ControllerStats::and)
    }

    /// Counters of a switch.
    #[must_use]
    pub fn stats_of(&self, switch: &str) -> Option<ControllerStats> {
        self.switches.get(switch).map(ServedSwitch::stats)
    }

    /// Whether all ports of all switches are served.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let is_settled = |served: &ServedSwitch| {
            served.stage == Stage::Serving
                && served.switch.unnumbered().next().is_none()
                && served.switch.numbers().keys().all(|port| served.subscribed.contains_key(port))
        };
        self.switches.values().all(is_settled)
    }

    /// The answer about a packet of a switch, by its key, that has not come; none if the switch is not served. Nothing is learned.
    #[must_use]
    pub fn consult(
        &self,
        switch: &str,
        key: &FlowKey,
        now_ns: u64,
    ) -> Option<(Option<Vec<Action>>, Vec<ExplainReason>)> {
        Some(self.switches.get(switch)?.switch.consult(key, now_ns))
    }

    /// The forwarding table of a switch, ordered by address and VLAN; none if it is not served.
    #[must_use]
    pub fn addresses(&self, switch: &str, now_ns: u64) -> Option<Vec<Address>> {
        let switch = &self.switches.get(switch)?.switch;
        let name = |number| switch.name_of(number).unwrap_or_default().to_owned();
        let learned = switch.addresses.all_learned(now_ns).map(|((vid, address), entry)| Address {
            mac: Mac::from_bits(address),
            vlan: Some(vid).filter(|vid| *vid != NO_VID),
            port: name(entry.port),
            age_ns: now_ns.saturating_sub(entry.seen_ns),
            is_static: false,
        });
        let statics = switch.statics().map(|(mac, vlan, port)| Address {
            mac,
            vlan,
            port: port.to_owned(),
            age_ns: 0,
            is_static: true,
        });
        let mut all: Vec<Address> = learned.chain(statics).collect();
        all.sort_by(|one, other| (one.mac, one.vlan, &one.port).cmp(&(other.mac, other.vlan, &other.port)));
        Some(all)
    }

    /// Addresses of a switch that moved recently, those with most moves first.
    #[must_use]
    pub fn moves(&self, switch: &str, now_ns: u64) -> Vec<MovedAddress> {
        let Some(served) = self.switches.get(switch) else { return Vec::new() };
        let name = |number| served.switch.name_of(number).unwrap_or_default().to_owned();
        let moves = served.switch.addresses.moves().iter().map(|entry| MovedAddress {
            mac: Mac::from_bits(entry.fdb_key.1),
            from: name(entry.from),
            to: name(entry.to),
            count: entry.count,
            age_ns: now_ns.saturating_sub(entry.last_ns),
        });
        let mut moves: Vec<MovedAddress> = moves.collect();
        moves.sort_by_key(|entry| std::cmp::Reverse(entry.count));
        moves
    }

    /// Forgets learned addresses of a switch, of one port or all, of one VLAN or all; returns their number.
    pub fn flush(&mut self, switch: &str, port: Option<&str>, vlan: Option<Vid>, now_ns: u64) -> usize {
        let served = self.switches.get_mut(switch);
        served.map_or(0, |served| served.switch.flush(port, vlan, now_ns))
    }
}

/// Port ids are not 0, and differ from each other.
fn links(nonce: u32) -> [DatapathLink<Sent>; LINKS] {
    std::array::from_fn(|at| DatapathLink::new((nonce & !0xf | 0x10).wrapping_add(at as u32)))
}
