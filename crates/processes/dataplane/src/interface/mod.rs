//! The control interface: clients make datapaths, add ports, install flows, and receive upcalls.
//!
//! ```text
//!   client ── SEQPACKET, handed over by the supervisor ──> Connections ── Server ──> Adapter ──> switches, flow tables, engine
//!     ^                                                        ^
//!     └── upcalls <── Connections::upcall <─────────────────────┴── Upcalls <── workers
//! ```
//!
//! A datapath is a switch of module flow: the one of its name, or one that is made for it. All of this runs on the main
//! thread, a part in each turn.

mod adapter;
mod busy_time;
mod connection_memory;
mod connections;
mod controller_silence;
mod flows;
mod fragments;
mod kept;
mod meters;
mod own_devices;
mod packets;
mod places;
mod survival;
mod unanswered_upcalls;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lasthop_dpif::datapath::{Datapath as _, DatapathId};
use lasthop_dpif::server::{DatapathUpcall, PeerId, Reader, Server, Upcalled};
use lasthop_dpif::socket::{Access, Closed, Connections};
use lasthop_engine::{UpcallLimits, UpcallLine, Upcalls};
use lasthop_flowtable::FlowModule;
use lasthop_foreign::ForeignFd;
use lasthop_module_api::{PortId, SwitchId, UpcallReason};
use log::warn;
use serde_json::Value;

use lasthop_api::orders::{Report, STATE_VERSION};
use lasthop_api::settings::{HugePages, SwitchSettings};
use lasthop_runtime::clock::earlier;
use lasthop_runtime::fault::{Fault, Kind};
use lasthop_runtime::poller::{Interest, Poller};

use super::datapath::Datapath;
use super::explain::DatapathNames;
use super::flow_memory::FlowMemory;
use super::port_requests::PortRequests;
use adapter::Adapter;
use connection_memory::ConnectionMemories;
use connections::{Adoptions, CtSettings, Sweeps};
use controller_silence::ControllerSilence;
use fragments::Fragments;
use kept::{Beside, KeptDatapath, KeptDatapaths};
use own_devices::OwnDevices;
use places::Places;
use survival::Returning;
use unanswered_upcalls::{AskingPort, Traffic, UpcallClass};
use waiting::Waiting;

/// Upcalls that are delivered in a row; then guests and clients have their turn.
const UPCALLS_PER_TURN: usize = 256;
/// Upcalls of sparse lines that are delivered in a row while those of busy ones wait and may go.
const SPARSE_IN_A_ROW: usize = 8;
/// Flows of another process that are installed before guests continue: the most recently used ones, within one or two
/// milliseconds. The others follow, the same number in each turn, before clients are served.
const FLOWS_PER_TURN: usize = 512;
/// Fragments that are taken in a row while there is no upcall.
const FRAGMENTS_PER_PACKET: usize = 1024;
/// How often the switch checks whether workers are done with removed flows.
const SETTLE_PAUSE: Duration = Duration::from_millis(1);

/// The poller's numbers for clients and for upcalls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    pub(super) clients: u64,
    pub(super) packets: u64,
}

/// An upcall that was taken from the queue.
struct TakenUpcall {
    upcall: DatapathUpcall,
    module: Arc<FlowModule>,
    /// The packet's port.
    port: PortId,
    ticket: u32,
    /// The line of the queue that waits behind it.
    line: UpcallLine,
    traffic: Traffic,
    /// Whether it has waited for its client.
    has_waited: bool,
}

fn asking_port(upcall: &DatapathUpcall) -> AskingPort {
    (upcall.message.datapath, upcall.port)
}

pub(super) struct Interface {
    connections: Connections,
    places: Places,
    port_requests: PortRequests,
    /// Set once there is a client.
    upcalls: Option<Upcalls>,
    /// Bounds on one port's pending upcalls.
    limits: UpcallLimits,
    /// For the memory of connections.
    huge_pages: HugePages,
    numbers: Numbers,
    frame: Vec<u8>,
    /// The time, as of the last upcall.
    now: Instant,
    /// Whether upcalls may be left in the queue without a further event.
    is_behind: bool,
    /// Whether clients had their turn.
    is_served: bool,
    /// Upcalls for clients that have enough to read.
    waiting: Waiting<TakenUpcall>,
    silence: ControllerSilence,
    returning: Returning,
    /// Whether clients wait for removed flows.
    is_settling: bool,
    /// Counts of changes to datapaths and settings at the last report to the supervisor.
    told: (u64, u64),
    /// External clients, with the numbers under which the supervisor passed their connections.
    outsiders: BTreeMap<PeerId, u64>,
    own_devices: OwnDevices,
    adoptions: Adoptions,
    sweeps: Sweeps,
    fragments: Fragments,
}

impl Interface {
    pub(super) fn new(poller: &Poller, numbers: Numbers, settings: &SwitchSettings) -> Result<Self, Fault> {
        let connections = Connections::new(Server::new(), Access::Asked)
            .map_err(|error| Fault::internal("begin the control interface", error))?;
        poller.add(connections.fd(), numbers.clients, Interest::READ)?;
        Ok(Self {
            connections,
            places: Places::default(),
            port_requests: PortRequests::default(),
            upcalls: None,
            limits: settings.upcalls.unwrap_or_default().limits(),
            huge_pages: settings.huge_pages,
            numbers,
            frame: Vec::new(),
            now: Instant::now(),
            is_behind: false,
            is_served: false,
            waiting: Waiting::default(),
            silence: ControllerSilence::default(),
            returning: Returning::default(),
            is_settling: false,
            told: (0, 0),
            outsiders: BTreeMap::new(),
            own_devices: OwnDevices::default(),
            adoptions: Adoptions::new(),
            sweeps: Sweeps::default(),
            fragments: Fragments::default(),
        })
    }

    /// Adds a client that the supervisor accepted under this number, or the embedded controller.
    pub(super) fn add(
        &mut self,
        poller: &Poller,
        (socket, number): (ForeignFd, u64),
        is_own: bool,
        inside: &Datapath,
    ) {
        self.listen(poller, inside);
        match self.connections.add(socket) {
            Ok(client) if is_own => {
                self.silence.watch(client);
                self.places.controllers.insert(client);
                self.places.to_answer.forget();
            }
            Ok(client) => drop(self.outsiders.insert(client, number)),
            Err(why) => warn!(limited = true; "refused a control connection: {why}"),
        }
    }

    /// Serves clients; all flows are restored before.
    pub(super) fn serve(&mut self, inside: &mut Datapath) {
        if self.returning.is_empty() {
            self.serve_some(inside);
            self.send_out(inside);
        }
    }

    /// Has a worker send the packets that clients sent in this turn: one message for all.
    fn send_out(&mut self, inside: &Datapath) {
        if !self.places.outgoing.is_empty() {
            inside.engine().inject(self.places.outgoing.take());
        }
    }

    fn serve_some(&mut self, inside: &mut Datapath) {
        self.is_served = true;
        let mut adapter = Adapter::new(inside, &mut self.places, &mut self.port_requests);
        match self.connections.turn(&mut adapter) {
            Ok(closed) => closed.iter().for_each(|(client, why)| {
                self.silence.forget(*client);
                self.places.controllers.remove(client);
                self.outsiders.remove(client);
                complain(why);
            }),
            Err(error) => warn!(limited = true; "cannot wait for control clients: {error}"),
        }
    }

    /// Delivers upcalls to the clients, to each as fast as it reads; the others wait in their lines.
    pub(super) fn ask(&mut self, inside: &mut Datapath) {
        self.ask_some(inside);
        self.connections.send_batches(&mut Adapter::new(inside, &mut self.places, &mut self.port_requests));
        self.send_out(inside);
    }

    fn ask_some(&mut self, inside: &mut Datapath) {
        let Some(upcalls) = &mut self.upcalls else { return };
        upcalls.hear();
        if upcalls.is_full() {
            self.waiting.give_up_slowest();
        }
        let now = Instant::now();
        self.now = now;
        self.places.to_answer.pass(now);
        let (server, places) = (self.connections.server(), &self.places);
        self.waiting.look(|audience| reader_in(server, places, audience, now), now);
        if self.places.controllers.iter().any(|client| self.waiting.is_given_up(*client)) {
            self.places.to_answer.forget();
        }
        self.is_behind = false;
        let mut sparse_in_a_row = 0;
        for _ in 0..UPCALLS_PER_TURN {
            let Some(taken) = self.next(sparse_in_a_row >= SPARSE_IN_A_ROW, inside) else { return };
            match taken.traffic {
                Traffic::Sparse => sparse_in_a_row += 1,
                Traffic::Busy if taken.has_waited => sparse_in_a_row = 0,
                // It waits behind others first.
                Traffic::Busy => {}
            }
            self.hand_over(taken, inside);
            self.now = Instant::now();
        }
        self.is_behind = true;
    }

    /// The next upcall: of a sparse line, or of a busy one if there is none, or if it is that one's turn.
    fn next(&mut self, is_turn_of_busy: bool, inside: &mut Datapath) -> Option<TakenUpcall> {
        let first = if is_turn_of_busy { self.take_waiting(Traffic::Busy) } else { None };
        first
            .or_else(|| self.take_waiting(Traffic::Sparse))
            .or_else(|| self.pop(inside))
            .or_else(|| self.take_waiting(Traffic::Busy))
    }

    fn take_waiting(&mut self, traffic: Traffic) -> Option<TakenUpcall> {
        let (server, places, now) = (self.connections.server(), &self.places, self.now);
        let taken = self.waiting.take(traffic, |audience| reader_in(server, places, audience, now))?;
        Some(TakenUpcall { has_waited: true, ..taken })
    }

    /// The client that an upcall is for.
    fn reader_of(&self, taken: &TakenUpcall) -> Option<Reader> {
        let reader = self.connections.server().reader_of(&taken.upcall)?;
        Some(self.places.reader(reader, taken.traffic, self.now))
    }

    /// Delivers an upcall, unless its client has enough to read: then it waits, and its line with it. One of a busy line
    /// waits in any case, until there is none of a sparse one.
    fn hand_over(&mut self, taken: TakenUpcall, inside: &mut Datapath) {
        let mut reader = self.reader_of(&taken);
        if reader.is_some_and(|reader| reader.is_busy) {
            // It may have room for the batch so far.
            self.connections.send_batches(&mut Adapter::new(
                inside,
                &mut self.places,
                &mut self.port_requests,
            ));
            reader = self.reader_of(&taken);
        }
        let (traffic, has_waited) = (taken.traffic, taken.has_waited);
        let is_early = traffic == Traffic::Busy && !has_waited;
        let slow = reader.filter(|reader| is_early || self.waiting.is_waited_for(*reader, traffic));
        if let Some(upcalls) = &mut self.upcalls {
            upcalls.set_paused(taken.line, slow.is_some());
        }
        if let Some(reader) = slow {
            return self.waiting.add(taken, (reader, traffic), has_waited);
        }
        let (hash, port) = (taken.upcall.message.hash, asking_port(&taken.upcall));
        let mut adapter = Adapter::new(inside, &mut self.places, &mut self.port_requests);
        if self.connections.upcall(taken.upcall, &mut adapter) == Upcalled::Lost {
            taken.module.settle(taken.ticket);
            inside.engine().upcalls_lost(taken.port, 1);
        } else if reader.is_some_and(|reader| self.places.controllers.contains(&reader.client)) {
            self.places.to_answer.asked(hash, (port, traffic), self.now);
        }
        reader.into_iter().for_each(|reader| self.silence.asked(reader));
    }

    /// The next upcall of an existing datapath out of the lines. Upcalls of other datapaths, and of forgotten actions, are
    /// dropped for a named reason.
    fn pop(&mut self, inside: &mut Datapath) -> Option<TakenUpcall> {
        let upcalls = self.upcalls.as_mut()?;
        let mut fragments_left = FRAGMENTS_PER_PACKET;
        while let Some(record) = upcalls.pop(&mut self.frame) {
            if let UpcallReason::Suspended { flow, .. } = record.reason {
                let frame = std::mem::take(&mut self.frame);
                let mut adapter = Adapter::new(inside, &mut self.places, &mut self.port_requests);
                self.fragments.take(&mut adapter, (&record, flow), frame);
                fragments_left -= 1;
                if fragments_left == 0 {
                    self.is_behind = true;
                    return None;
                }
                continue;
            }
            if let Some((upcall, module)) = self.places.upcall(&record, &mut self.frame) {
                let (port, ticket, line) = (record.port, record.ticket, record.line());
                let traffic = self.places.to_answer.traffic(asking_port(&upcall), record.is_sparse);
                return Some(TakenUpcall { upcall, module, port, ticket, line, traffic, has_waited: false });
            }
            // Its ticket is not valid: its flow table is gone, or no packet waits for this one.
            inside.engine().upcalls_lost(record.port, 1);
        }
        None
    }

    /// Ends a turn: does the work that waits for workers.
    pub(super) fn finish(&mut self, inside: &mut Datapath) {
        self.places.forget_stats();
        self.adoptions.turn(&self.places);
        self.sweeps.turn(&self.places, Instant::now());
        self.fragments.expire(inside);
        self.own_devices.ask(&mut self.port_requests, Instant::now());
        self.returning.bring_back(&mut self.places, FLOWS_PER_TURN);
        let is_due = self.connections.due().is_some_and(|due| due <= Instant::now());
        if !std::mem::take(&mut self.is_served) && (is_due || self.connections.has_more()) {
            self.serve(inside);
            self.is_served = false;
        }
        if self.is_behind || !self.waiting.is_empty() {
            self.ask(inside);
        }
        if self.is_settling || self.connections.server().is_settling() {
            self.is_settling =
                self.connections.settle(&mut Adapter::new(inside, &mut self.places, &mut self.port_requests));
        }
        self.send_out(inside);
    }

    /// Enables upcalls once there is a client to receive them.
    fn listen(&mut self, poller: &Poller, inside: &Datapath) {
        if self.upcalls.is_some() {
            return;
        }
        let made = inside.engine().upcalls(self.limits).map_err(|error| Fault::refused(error.to_string()));
        let watched = made.and_then(|upcalls| {
            poller.add(&upcalls, self.numbers.packets, Interest::READ)?;
            Ok(upcalls)
        });
        match watched {
            Ok(upcalls) => {
                (self.upcalls, self.places.can_ask) = (Some(upcalls), true);
            }
            Err(fault) => warn!(limited = true; "the control plane gets no upcalls: {fault}"),
        }
    }

    /// When there is work even without an event.
    pub(super) fn due(&self) -> Option<Instant> {
        let is_busy = self.is_behind || self.connections.has_more() || !self.returning.is_empty();
        if is_busy || Adoptions::is_due(&self.places) {
            return Some(Instant::now());
        }
        let settling = self.is_settling.then(|| Instant::now() + SETTLE_PAUSE);
        let rest = self.places.to_answer.due().filter(|_| !self.waiting.is_empty());
        let waiting = earlier(earlier(self.waiting.due(), rest), self.connections.due());
        let own = earlier(self.own_devices.due(), earlier(self.silence.due(), self.fragments.due()));
        earlier(settling, earlier(self.sweeps.due(&self.places), earlier(waiting, own)))
    }

    /// Numbers of the connections of external clients that receive misses.
    pub(super) fn callers(&self, inside: &Datapath) -> Vec<u64> {
        let server = self.connections.server();
        let outside = server.records().iter().filter(|(_, record)| !inside.has_own_controller(&record.name));
        let clients: BTreeSet<PeerId> = outside.flat_map(|(id, _)| server.miss_takers(*id)).collect();
        clients.iter().filter_map(|client| self.outsiders.get(client)).copied().collect()
    }

    /// Counters of the datapath of this name.
    pub(super) fn counters(&self, name: &str) -> Option<(String, u64)> {
        let record = self.connections.server().records().values().find(|record| record.name == name)?;
        Some(("refused_late".to_owned(), record.refused_late))
    }

    /// The datapath that a switch is.
    pub(super) fn names_at(&self, switch: SwitchId) -> DatapathNames {
        let Some((id, place)) = self.places.all().find(|(_, place)| place.switch == switch) else {
            return DatapathNames::default();
        };
        let ports = place.members.iter().map(|(number, member)| (*number, member.name.clone())).collect();
        let name = self.connections.server().records().get(&id).map(|record| record.name.clone());
        DatapathNames { ports, name }
    }

    /// A port goes away, and out of its datapath.
    pub(super) fn port_lost(&mut self, name: &str, inside: &mut Datapath) {
        self.connections
            .port_lost(name, &mut Adapter::new(inside, &mut self.places, &mut self.port_requests));
        self.port_requests.left(name);
        self.places.forget_ports();
    }

    /// Removes the datapath of a switch that lost its flow table.
    pub(super) fn datapath_lost(&mut self, name: &str, inside: &mut Datapath) {
        let mut adapter = Adapter::new(inside, &mut self.places, &mut self.port_requests);
        self.connections.datapath_lost(name, &mut adapter);
    }

    /// Notes that a requested port exists.
    pub(super) fn port_arrived(&mut self, name: &str, inside: &mut Datapath) {
        self.port_requests.arrived(name);
        if self.own_devices.arrived(name) {
            let datapaths = self.connections.server().records();
            let id = datapaths.iter().find(|(_, record)| record.name == name).map(|(id, _)| *id);
            let mut adapter = Adapter::new(inside, &mut self.places, &mut self.port_requests);
            adapter.take_own_device(id, name);
        }
    }

    /// Notes that a requested port cannot be had.
    pub(super) fn port_denied(&mut self, name: &str, errno: i32) {
        self.port_requests.denied(name, errno);
        self.own_devices.denied(name, Instant::now());
    }

    /// Reports for the supervisor.
    pub(super) fn take_reports(&mut self) -> Vec<Report> {
        let mut reports = self.port_requests.take_reports();
        let server = self.connections.server();
        let is_silent = self.silence.is_silent(|client| server.reader(client), Instant::now());
        reports.extend(is_silent.then_some(Report::Unanswered));
        reports.extend(self.news().map(Report::Datapaths));
        reports
    }

    /// Datapaths, ports, meters and settings for the next process, if they have changed.
    fn news(&mut self) -> Option<Value> {
        let server = self.connections.server();
        let now = (server.changes(), self.places.setting_changes);
        if std::mem::replace(&mut self.told, now) == now {
            return None;
        }
        let beside = |id| {
            let place = self.places.get(id)?;
            Some(Beside { meters: &place.meters, is_of_switch: place.made.is_none() })
        };
        let connections = self.places.ct_settings.kept();
        let kept = kept::all(STATE_VERSION, server.records().iter(), beside);
        serde_json::to_value(KeptDatapaths { connections, ..kept }).ok()
    }

    /// Makes the datapaths again that the last process reported, with the flows that it left in `file`; all ports
    /// exist. Without that memory everything else is made, and an error is returned: later changes of flows are not
    /// recorded, so no old flow may be restored later.
    pub(super) fn restore(
        &mut self,
        told: Value,
        file: Option<ForeignFd>,
        inside: &mut Datapath,
    ) -> Result<(), Fault> {
        let unknown = |why: &dyn std::fmt::Display| {
            Fault::new(Kind::Internal, format!("datapaths of another version are not known: {why}"))
        };
        let nothing = || KeptDatapaths { version: STATE_VERSION, ..KeptDatapaths::default() };
        let kept: Option<KeptDatapaths> = serde_json::from_value(told).map_err(|error| unknown(&error))?;
        let mut kept = kept.unwrap_or_else(nothing);
        if kept.version != STATE_VERSION {
            return Err(unknown(&kept.version));
        }
        // A switch may have been removed while there was no switch process.
        kept.datapaths.retain(|_, kept| !kept.is_of_switch || inside.has_switch(kept.name()));
        let records = kept.datapaths.iter().map(|(id, kept)| (DatapathId(*id), kept.record())).collect();
        self.places.ct_settings = CtSettings::of(std::mem::take(&mut kept.connections));
        self.places.connection_memory =
            file.as_ref().map(|file| ConnectionMemories::of(file, self.huge_pages)).unwrap_or_default();
        self.places.connection_memory.forget_unless(|id, is_embedded| {
            let is_kept = |kept: &KeptDatapath| match is_embedded {
                true => inside.has_own_controller(kept.name()),
                false => !kept.is_of_switch,
            };
            kept.datapaths.get(&id.0).is_some_and(is_kept)
        });
        let mut adapter = Adapter::new(inside, &mut self.places, &mut self.port_requests);
        for name in self.connections.server_mut().restore(records, &mut adapter) {
            warn!("{name} is not in its datapath any more: it was deleted while the switch process began");
        }
        for (id, kept) in &kept.datapaths {
            for (meter, kept) in &kept.meters {
                let _ = adapter.meter_set(DatapathId(*id), *meter, kept.meter());
            }
        }
        adapter.release_orphans();
        let names = kept.datapaths.values().map(KeptDatapath::name);
        let missing = names.filter(|name| adapter.lacks_own_device(name)).map(str::to_owned);
        self.own_devices = OwnDevices::new(missing, Instant::now());
        let no_memory = || Fault::new(Kind::Limit, "the memory of flows cannot be mapped");
        let (memory, found) = file.and_then(FlowMemory::of).ok_or_else(no_memory)?;
        self.places.flow_memory = Some(memory);
        self.returning = Returning::of(found);
        self.returning.bring_back(&mut self.places, FLOWS_PER_TURN);
        Ok(())
    }
}

/// The state of a client as a reader of upcalls.
fn reader_in(
    server: &Server,
    places: &Places,
    (client, traffic): UpcallClass,
    now: Instant,
) -> Option<Reader> {
    server.reader(client).map(|reader| places.reader(reader, traffic, now))
}

/// Logs why a client was disconnected, unless it hung up.
fn complain(why: &Closed) {
    if !matches!(why, Closed::HungUp) {
        warn!(limited = true; "closed a control connection: {why}");
    }
}

#[cfg(test)]
mod tests {
    use lasthop_dpif::server::DatapathRecord;

    use lasthop_api::settings::Settings;

    use super::*;

    #[test]
    fn the_datapath_of_a_switch_that_is_gone_is_not_made_again() {
        let settings = SwitchSettings::new(Settings::default()).expect("settings");
        let mut inside = Datapath::prepare(&settings).expect("an engine");
        let poller = Poller::new().expect("a poller");
        let numbers = Numbers { clients: u64::MAX, packets: u64::MAX - 1 };
        let mut interface = Interface::new(&poller, numbers, &settings).expect("an interface");
        let names = [(1, "gone"), (2, "ovs-system"), (3, "default")];
        let records = names.map(|(id, name)| (DatapathId(id), DatapathRecord::named(name)));
        let meters = BTreeMap::new();
        let beside = |id| Some(Beside { meters: &meters, is_of_switch: id != DatapathId(2) });
        let kept = kept::all(STATE_VERSION, records.iter().map(|(id, record)| (id, record)), beside);
        let restored = interface.restore(serde_json::to_value(kept).expect("JSON"), None, &mut inside);
        assert!(restored.is_err_and(|fault| fault.message.contains("memory of flows")), "it has none");
        let restored: Vec<i32> = interface.connections.server().records().keys().map(|id| id.0).collect();
        assert_eq!(restored, [2, 3]);
        assert!(!inside.has_switch("gone") && inside.has_switch("ovs-system"));
    }
}
