//! The conversation: datapaths and ports are made, flows of a controller before are taken over, then packets are answered.
//!
//! ```text
//!   of each switch:  make or find its datapath ─> its ports ─> its flows ─> ports send their misses here
//!                            ^                                                      │ every second: counters of flows
//!                            └── refused: once more after a pause                   │ every 5 s: the ports once more
//!   link 0  misses; flows that come, change and go; packets sent on
//!   link 1  lists: ports, flows, counters. A list of 200,000 flows holds up no packet.
//! ```

use std::collections::BTreeMap;

use lasthop_control::family::{
    Band, DatapathMessage, FlowMessage, MeterMessage, PacketMessage, VportKind, VportMessage,
};
use lasthop_control::talk::{Ask, Told};
use lasthop_flow::{Action, FlowKey, Match};
use lasthop_verdict::{DropReason, Mac, NO_VID, PortSettings, Vid};

use crate::bounds::{AGAIN_NS, COUNTING_NS, GIVEN_BACK_MAX, PORTS_NS, WAITING_MAX};
use crate::config::{Address, Moved, StaticEntry, SwitchConfig};
use crate::errand::{Errand, Sent};
use crate::link::{Heard, Link};
use crate::served::{Served, Stage};
use crate::stats::Stats;
use crate::switch::Change;

/// Connections to the switch.
pub const LINKS: usize = 2;
const MAIN: usize = 0;
const LISTS: usize = 1;

/// `OVS_DP_F_UNALIGNED | OVS_DP_F_VPORT_PIDS`: each port says where its misses go.
const FEATURES: u32 = 0b11;
const EEXIST: i32 = 17;
const ENODEV: i32 = 19;
/// `OVS_METER_BAND_TYPE_DROP`.
const BAND_DROP: u32 = 1;

/// The control plane of all switches of module flow.
#[derive(Debug)]
pub struct Controller {
    switches: BTreeMap<String, Served>,
    names: BTreeMap<i32, String>,
    /// Lives of switches so far.
    lives: u64,
    links: [Link<Sent>; LINKS],
    /// Packets of datapaths that are not served.
    strays: u64,
    /// Sentences for the log.
    words: Vec<String>,
}

impl Controller {
    /// Without switches, for connections that were just made. Their port ids are made of `nonce`, which is to be another one each
    /// time: a datapath may remember that its misses went to a controller before, and is not to take this one for it before it
    /// says so.
    #[must_use]
    pub fn new(nonce: u32) -> Self {
        let links = links(nonce);
        let (switches, names, words) = Default::default();
        Self { switches, names, lives: 0, links, strays: 0, words }
    }

    /// There are other connections, maybe to another process: everything is asked for again. Addresses stay.
    pub fn reconnected(&mut self, nonce: u32) {
        self.links = links(nonce);
        self.names.clear();
        for served in self.switches.values_mut() {
            self.lives += 1;
            served.disconnected(self.lives);
        }
    }

    /// The next datagram for connection `link`.
    #[must_use]
    pub fn output(&self, link: usize) -> Option<&[u8]> {
        self.links.get(link)?.output()
    }

    /// It was sent.
    pub fn sent(&mut self, link: usize) {
        if let Some(link) = self.links.get_mut(link) {
            link.sent();
        }
    }

    /// Sentences for the log since this was last called.
    pub fn take_words(&mut self) -> Vec<String> {
        std::mem::take(&mut self.words)
    }

    /// Serves a switch. One that is served already goes on.
    pub fn set_switch(&mut self, config: &SwitchConfig) {
        self.lives += 1;
        self.switches.entry(config.name.clone()).or_insert_with(|| Served::new(config, self.lives));
    }

    /// Serves a switch no more. Its datapath is left as it is: it goes with the switch.
    pub fn remove_switch(&mut self, name: &str) {
        if let Some(served) = self.switches.remove(name) {
            self.forget_name(name, served.datapath);
        }
    }

    /// A switch has this datapath no more, which may be another one's by now.
    fn forget_name(&mut self, name: &str, datapath: i32) {
        if self.names.get(&datapath).is_some_and(|known| known == name) {
            self.names.remove(&datapath);
        }
    }

    /// Serves a port, or by other settings.
    pub fn set_port(&mut self, switch: &str, settings: PortSettings) {
        let Some(served) = self.switches.get_mut(switch) else { return };
        let name = settings.name.clone();
        let is_new = !served.switch.has_port(&name);
        served.switch.set_port(settings);
        if is_new && served.stage == Stage::Serving {
            served.again_due_ns = Some(0);
        }
    }

    /// Serves a port no more, and takes it out of its datapath.
    pub fn remove_port(&mut self, switch: &str, name: &str) {
        let Some(served) = self.switches.get_mut(switch) else { return };
        let number = served.switch.remove_port(name);
        served.subscribed.remove(name);
        let gone = VportMessage { datapath: served.datapath, number, ..VportMessage::default() };
        if number.is_some() && served.stage == Stage::Serving {
            self.links[MAIN].ask(&Ask::PortDel(gone), Sent::for_all(Errand::PortGone));
        }
    }

    /// Takes these as all entries that the user made for a switch.
    pub fn set_statics(&mut self, switch: &str, entries: Vec<StaticEntry>) {
        if let Some(served) = self.switches.get_mut(switch) {
            served.switch.set_statics(entries);
        }
    }

    /// A datagram came from connection `link`.
    pub fn received(&mut self, link: usize, datagram: &[u8], now_ns: u64) {
        let mut heard = Vec::new();
        if let Some(link) = self.links.get_mut(link) {
            link.received(datagram, &mut heard);
        }
        heard.into_iter().for_each(|heard| self.hear(heard, now_ns));
    }

    /// Whether what was asked is asked of a switch as it is.
    fn is_current(&self, Sent { errand, life }: &Sent) -> bool {
        errand.switch().is_none_or(|name| self.switches.get(name).is_some_and(|served| served.life == *life))
    }

    fn hear(&mut self, heard: Heard<Sent>, now_ns: u64) {
        match heard {
            Heard::Told(Some(sent), _) | Heard::Done(sent, _) if !self.is_current(&sent) => {}
            Heard::Told(sent, told) => self.told(sent.map(|sent| sent.errand), told, now_ns),
            Heard::Done(sent, refusal) => self.done(sent.errand, refusal, now_ns),
        }
    }

    fn told(&mut self, errand: Option<Errand>, told: Told, now_ns: u64) {
        match (errand, told) {
            (_, Told::Miss(packet)) => self.miss(*packet, now_ns),
            (_, Told::BadMiss(datapath)) => {
                let served = self.names.get(&datapath).and_then(|name| self.switches.get_mut(name));
                served.into_iter().for_each(|served| served.switch.counts.strange += 1);
            }
            (Some(Errand::Make(switch) | Errand::Find(switch)), Told::Datapath(_, made)) => {
                self.found(&switch, made.datapath);
            }
            (Some(Errand::Ports(switch)), Told::Port(_, port)) => self.listed(&switch, port),
            (Some(Errand::Port(switch, _)), Told::Port(_, port)) => self.numbered(&switch, port),
            (Some(Errand::Adopt(switch)), Told::Flow(_, flow)) => self.adopt(&switch, *flow, now_ns),
            (Some(Errand::Count(switch)), Told::Flow(_, flow)) => {
                let flow = flow.ufid.map(|ufid| (ufid, flow.stats.unwrap_or_default()));
                if let Some((served, (ufid, stats))) = self.switches.get_mut(&switch).zip(flow) {
                    served.switch.counted(ufid, stats, now_ns);
                }
            }
            (None, Told::Port(_, port)) => self.changed(port.datapath, now_ns + AGAIN_NS),
            // Whose switch is to be another's is served no more in a moment, and must not get a datapath again.
            (None, Told::Datapath(_, gone)) => self.changed(gone.datapath, now_ns + COUNTING_NS),
            _ => {}
        }
    }

    /// Somebody else has changed a port, or the datapath: that is looked at.
    fn changed(&mut self, datapath: i32, at_ns: u64) {
        let served = self.names.get(&datapath).and_then(|name| self.switches.get_mut(name));
        served.into_iter().for_each(|served| served.ports.want(at_ns));
    }

    /// A request is through.
    fn done(&mut self, errand: Errand, refusal: Option<(i32, Option<String>)>, now_ns: u64) {
        match (errand, refusal) {
            (Errand::Make(switch), Some((EEXIST, _))) => {
                let wanted = DatapathMessage { name: Some(switch.clone()), ..DatapathMessage::default() };
                self.ask(MAIN, &Ask::Datapath(wanted), Errand::Find(switch));
            }
            // The switch is being taken away, which is heard of in a moment, or is to be another's.
            (Errand::Make(switch) | Errand::Find(switch), Some((ENODEV, _))) => self.wait(&switch, now_ns),
            (Errand::Make(switch) | Errand::Find(switch), Some(refusal)) => {
                self.fail(&switch, format!("cannot have the datapath of switch {switch}"), refusal, now_ns);
            }
            (Errand::Ports(switch), refusal) => self.ports_listed(&switch, refusal.is_none(), now_ns),
            (Errand::Adopt(switch), Some(_)) => self.start_over(&switch),
            (Errand::Adopt(switch), None) => self.adopted(&switch, now_ns),
            (Errand::Count(switch), _) => {
                if let Some(served) = self.switches.get_mut(&switch) {
                    served.counted(now_ns);
                }
            }
            (Errand::Port(switch, _), Some((EEXIST, _))) => {
                if let Some(served) = self.switches.get_mut(&switch) {
                    served.ports.want(now_ns + AGAIN_NS);
                }
            }
            (Errand::Port(switch, port), Some(refusal)) => {
                if let Some(served) = self.switches.get_mut(&switch).filter(|_| refusal.0 == ENODEV) {
                    // Or there is no such datapath.
                    served.ports.want(now_ns + AGAIN_NS);
                }
                self.fail(&switch, format!("cannot have port {port} in switch {switch}"), refusal, now_ns);
            }
            (Errand::Flow(switch, ufid), Some(_)) => {
                if let Some(served) = self.switches.get_mut(&switch) {
                    served.switch.forget_flow(ufid);
                }
            }
            (Errand::Meter(switch), Some(refusal)) => {
                self.fail(&switch, format!("cannot limit floods in switch {switch}"), refusal, now_ns);
            }
            (Errand::Subscribe(switch), Some(_)) => {
                if let Some(served) = self.switches.get_mut(&switch) {
                    served.subscribed.clear();
                    served.ports.want(now_ns + AGAIN_NS);
                }
            }
            _ => {}
        }
    }

    /// Tries again after a pause.
    fn wait(&mut self, switch: &str, now_ns: u64) {
        if let Some(served) = self.switches.get_mut(switch) {
            served.again_due_ns.get_or_insert(now_ns + AGAIN_NS);
        }
    }

    /// Says so once, and tries again.
    fn fail(&mut self, switch: &str, what: String, (errno, why): (i32, Option<String>), now_ns: u64) {
        if !self.switches.contains_key(switch) {
            return;
        }
        self.wait(switch, now_ns);
        let why = why.unwrap_or_else(|| format!("error {errno}"));
        let sentence = format!("{what}: {why}; trying again");
        if !self.words.contains(&sentence) {
            self.words.push(sentence);
        }
    }

    fn ask(&mut self, link: usize, ask: &Ask, errand: Errand) {
        let served = errand.switch().and_then(|name| self.switches.get(name));
        let life = served.map_or(0, |served| served.life);
        self.links[link].ask(ask, Sent { errand, life });
    }

    /// Does what is due, and sends what was asked for; whether there is more to be done at once.
    pub fn turn(&mut self, now_ns: u64) -> bool {
        if self.links[MAIN].port_id().is_none() || self.links[LISTS].port_id().is_none() {
            return false;
        }
        let names: Vec<String> = self.switches.keys().cloned().collect();
        let mut has_more = false;
        for name in &names {
            if let Some(served) = self.switches.get_mut(name) {
                served.switch.revalidate_late(now_ns);
                has_more |= served.switch.has_doubts() && served.switch.revalidate_some(now_ns);
            }
            self.apply_changes(name);
            self.step(name, now_ns);
        }
        self.links.iter_mut().for_each(Link::flush);
        has_more
    }

    /// When [`Controller::turn`] has something to do without that anybody says anything.
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        self.switches.values().filter_map(Served::due_ns).min()
    }

    fn step(&mut self, name: &str, now_ns: u64) {
        let Some(served) = self.switches.get_mut(name) else { return };
        let is_due = |due: &mut u64| *due <= now_ns;
        let datapath = served.datapath;
        // A new port may get the number of one that is gone: no flow may speak of that any more.
        if !served.switch.has_doubts() && served.again_due_ns.take_if(is_due).is_some() {
            match served.stage {
                Stage::Absent => self.make(name),
                Stage::Adopting => {}
                Stage::Serving => self.ask_for_ports(name),
            }
        }
        let Some(served) = self.switches.get_mut(name) else { return };
        if served.ports.begin(now_ns) {
            served.listed.clear();
            self.links[LISTS].ask(&Ask::Ports(datapath), served.sent(Errand::Ports(name.to_owned())));
        }
        if served.counters.begin(now_ns) {
            served.switch.begin_round(now_ns);
            let sent = served.sent(Errand::Count(name.to_owned()));
            self.links[LISTS].ask(&Ask::Flows { datapath, is_brief: true }, sent);
        }
    }

    fn make(&mut self, name: &str) {
        let wanted = DatapathMessage {
            name: Some(name.to_owned()),
            upcall_port_id: Some(0),
            user_features: Some(FEATURES),
            ..DatapathMessage::default()
        };
        self.ask(MAIN, &Ask::DatapathNew(wanted), Errand::Make(name.to_owned()));
    }

    /// There is a datapath, new or old.
    fn found(&mut self, name: &str, datapath: i32) {
        let Some(served) = self.switches.get_mut(name) else { return };
        served.datapath = datapath;
        served.stage = Stage::Adopting;
        served.ports.want(0);
        served.again_due_ns = None;
        self.names.insert(datapath, name.to_owned());
        let wanted =
            DatapathMessage { datapath, user_features: Some(FEATURES), ..DatapathMessage::default() };
        self.links[MAIN].ask(&Ask::DatapathSet(wanted), Sent::for_all(Errand::Features));
    }

    fn listed(&mut self, switch: &str, port: VportMessage) {
        if let (Some(served), Some(name), Some(number)) =
            (self.switches.get_mut(switch), port.name, port.number.filter(|number| *number != 0))
        {
            served.listed.insert(name, number);
        }
    }

    /// All ports of a datapath were told.
    fn ports_listed(&mut self, name: &str, is_whole: bool, now_ns: u64) {
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
                let sent = served.sent(Errand::Adopt(name.to_owned()));
                self.links[LISTS].ask(&Ask::Flows { datapath, is_brief: false }, sent);
            }
            Stage::Serving => served.again_due_ns = Some(now_ns),
        }
    }

    /// The datapath is not there any more.
    fn start_over(&mut self, name: &str) {
        self.lives += 1;
        if let Some(served) = self.switches.get_mut(name) {
            let datapath = served.datapath;
            served.disconnected(self.lives);
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

    /// All flows of a datapath were told.
    fn adopted(&mut self, name: &str, now_ns: u64) {
        let Some(served) = self.switches.get_mut(name) else { return };
        served.stage = Stage::Serving;
        if let Some(due_ns) = served.switch.forgetting_due_ns() {
            served.counters.want(due_ns.min(now_ns + COUNTING_NS));
        }
        served.switch.renew_meters();
        served.switch.make_again(now_ns);
        // When all of them are right packets are asked about.
        served.again_due_ns = Some(now_ns);
        self.apply_changes(name);
    }

    /// Asks for the numbers that are missing, and for the misses of ports that have one.
    fn ask_for_ports(&mut self, name: &str) {
        let Some(served) = self.switches.get_mut(name) else { return };
        let datapath = served.datapath;
        let missing: Vec<String> = served.switch.unnumbered().map(str::to_owned).collect();
        // First those that have a number: with the first port whose misses come here, those of all others have to.
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
        let errand = Errand::Port(switch.to_owned(), port.to_owned());
        self.ask(MAIN, &Ask::PortNew(wanted), errand);
    }

    /// A port has a number, and its misses come here.
    fn numbered(&mut self, switch: &str, port: VportMessage) {
        let Some(served) = self.switches.get_mut(switch) else { return };
        if let (Some(name), Some(number)) = (port.name, port.number) {
            served.switch.set_number(&name, number);
            if served.switch.has_port(&name) {
                served.subscribed.insert(name, number);
            }
        }
    }

    /// Has the misses of all ports come here. In one request, so that there is no moment in which some do and others go nowhere; then
    /// of each, should somebody else still have them.
    fn subscribe(&mut self, name: &str) {
        let Some(served) = self.switches.get_mut(name) else { return };
        let (datapath, life, port_id) = (served.datapath, served.life, self.links[MAIN].port_id());
        let is_fresh = |(port, number): &(&String, &u32)| served.subscribed.get(*port) != Some(number);
        let fresh = served.switch.numbers().iter().filter(is_fresh);
        let fresh: Vec<(String, u32)> = fresh.map(|(port, number)| (port.clone(), *number)).collect();
        if fresh.len() > 1 {
            let wanted = DatapathMessage { datapath, upcall_port_id: port_id, ..DatapathMessage::default() };
            self.links[MAIN].ask(&Ask::DatapathSet(wanted), Sent::for_all(Errand::Features));
        }
        for (port, number) in fresh {
            let wanted = VportMessage {
                datapath,
                number: Some(number),
                upcall_port_ids: port_id.map(|id| vec![id]),
                ..VportMessage::default()
            };
            served.subscribed.insert(port, number);
            let sent = Sent { errand: Errand::Subscribe(name.to_owned()), life };
            self.links[MAIN].ask(&Ask::PortSet(wanted), sent);
        }
    }

    /// Answers for a packet: flows first, so that what comes behind it meets one.
    fn miss(&mut self, packet: PacketMessage, now_ns: u64) {
        let name = self.names.get(&packet.datapath).cloned();
        let Some((name, served)) = name.and_then(|name| Some((name.clone(), self.switches.get_mut(&name)?)))
        else {
            self.strays += 1;
            return self.give_back(packet);
        };
        if self.links[MAIN].open_count() >= WAITING_MAX {
            served.switch.counts.overrun += 1;
            return self.give_back(packet);
        }
        served.is_used(now_ns);
        let actions = served.switch.miss(&packet.key, now_ns);
        self.apply_changes(&name);
        // A packet that goes nowhere is sent there, too: the switch keeps those behind it waiting until it is told.
        self.execute(packet, actions);
    }

    /// Has a packet that is not answered for dropped, if the switch is not too far behind for that, too.
    fn give_back(&mut self, packet: PacketMessage) {
        if self.links[MAIN].open_count() < GIVEN_BACK_MAX {
            self.execute(packet, vec![Action::drop_for(DropReason::NoFlow)]);
        }
    }

    fn execute(&mut self, packet: PacketMessage, actions: Vec<Action>) {
        let metadata = FlowKey { in_port: packet.key.in_port, ..FlowKey::default() };
        let execute = PacketMessage { key: metadata, actions: Some(actions), user_data: None, ..packet };
        self.links[MAIN].ask(&Ask::Execute(execute), Sent::for_all(Errand::Execute));
    }

    fn apply_changes(&mut self, name: &str) {
        let Some(served) = self.switches.get_mut(name) else { return };
        if served.stage != Stage::Serving {
            return;
        }
        let (datapath, life) = (served.datapath, served.life);
        while let Some(change) = served.switch.take_change() {
            let (ask, errand) = request(name, datapath, change);
            self.links[MAIN].ask(&ask, Sent { errand, life });
        }
    }

    /// What happened so far, in all switches.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let strays = Stats { misses: self.strays, strange: self.strays, ..Stats::default() };
        self.switches.values().map(Served::stats).fold(strays, Stats::and)
    }

    /// What happened so far in a switch.
    #[must_use]
    pub fn stats_of(&self, switch: &str) -> Option<Stats> {
        self.switches.get(switch).map(Served::stats)
    }

    /// Whether all ports of all switches that were told of are served.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let is_settled = |served: &Served| {
            served.stage == Stage::Serving
                && served.switch.unnumbered().next().is_none()
                && served.switch.numbers().keys().all(|port| served.subscribed.contains_key(port))
        };
        self.switches.values().all(is_settled)
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

    /// Addresses of a switch that changed ports lately, the most restless first.
    #[must_use]
    pub fn moves(&self, switch: &str, now_ns: u64) -> Vec<Moved> {
        let Some(served) = self.switches.get(switch) else { return Vec::new() };
        let name = |number| served.switch.name_of(number).unwrap_or_default().to_owned();
        let moves = served.switch.addresses.moves().iter().map(|entry| Moved {
            mac: Mac::from_bits(entry.place.1),
            from: name(entry.from),
            to: name(entry.to),
            count: entry.count,
            age_ns: now_ns.saturating_sub(entry.last_ns),
        });
        let mut moves: Vec<Moved> = moves.collect();
        moves.sort_by_key(|entry| std::cmp::Reverse(entry.count));
        moves
    }

    /// Forgets learned addresses of a switch, of one port or all, of one VLAN or all; how many.
    pub fn flush(&mut self, switch: &str, port: Option<&str>, vlan: Option<Vid>, now_ns: u64) -> usize {
        let served = self.switches.get_mut(switch);
        served.map_or(0, |served| served.switch.flush(port, vlan, now_ns))
    }
}

/// Port ids are not 0, and those of one time differ.
fn links(nonce: u32) -> [Link<Sent>; LINKS] {
    std::array::from_fn(|at| Link::new((nonce & !0xf | 0x10).wrapping_add(at as u32)))
}

/// The request that brings a change about.
fn request(switch: &str, datapath: i32, change: Change) -> (Ask, Errand) {
    let flow = |ufid| FlowMessage { datapath, ufid: Some(ufid), ..FlowMessage::default() };
    let meter = |id| MeterMessage { datapath, id: Some(id), ..MeterMessage::default() };
    let name = switch.to_owned();
    match change {
        Change::Install { ufid, matches, actions } => {
            let Match { key, mask } = *matches;
            let wanted = FlowMessage { key: Some(key), mask, actions: Some(actions), ..flow(ufid) };
            (Ask::FlowNew(wanted), Errand::Flow(name, ufid))
        }
        Change::Modify { ufid, actions } => {
            (Ask::FlowSet(FlowMessage { actions: Some(actions), ..flow(ufid) }), Errand::Flow(name, ufid))
        }
        Change::Remove { ufid } => (Ask::FlowDel(flow(ufid)), Errand::FlowGone),
        Change::Meter { meter: id, rate } => {
            let band = Band { kind: BAND_DROP, rate, burst: 0, stats: None };
            (Ask::MeterSet(MeterMessage { bands: Some(vec![band]), ..meter(id) }), Errand::Meter(name))
        }
        Change::MeterGone { meter: id } => (Ask::MeterDel(meter(id)), Errand::FlowGone),
    }
}
