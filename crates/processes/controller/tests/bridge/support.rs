//! A switch in one thread: flow module, control interface and controller, and the outgoing packets.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;

use lasthop_controller::{Controller, LINKS, SwitchConfig};
use lasthop_dpif::datapath::{
    Datapath, DatapathFlow, DatapathId, Execute, FlowInstall, FlowName, FlowView, Meter, MeterFeatures, Port,
    PortView, RemovalId,
};
use lasthop_dpif::family::{DatapathStats, MegaflowStats, PacketMessage};
use lasthop_dpif::server::{DatapathUpcall, PeerId, Server, UpcallKind};
use lasthop_dpif::{Errno, Refusal};
use lasthop_flow::{Action, FlowStats};
use lasthop_flowtable::{self as flowtable, Execution, FlowModule, InstallError, MeterRate, describe};
use lasthop_module_api::{Batch, DropReason, Hashes, Header, Module, PortId, Verdicts};
use lasthop_modules::{Bridge, BridgeSettings};
use lasthop_wire::{Metadata, Offload};
use proptest::prelude::*;

pub(crate) const SECOND_NS: u64 = 1_000_000_000;
pub(crate) const SWITCH: &str = "default";

thread_local! {
    static PAIR_FLOWS_MAX: Cell<usize> = Cell::new(SwitchConfig::named(SWITCH).pair_flows_max);
}

/// The settings of this test's switch.
pub(crate) fn config() -> SwitchConfig {
    SwitchConfig { pair_flows_max: PAIR_FLOWS_MAX.get(), ..SwitchConfig::named(SWITCH) }
}

/// Has this test's switches make flows by address from this number of a port's flows on.
pub(crate) fn set_pair_flows_max(flows: usize) {
    PAIR_FLOWS_MAX.set(flows);
}

/// Flows by address always, soon, or never.
pub(crate) fn pair_flows_max() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0), Just(2), Just(usize::MAX)]
}

/// The flow module behind the control interface, as in the switch process.
pub(crate) struct Tables {
    pub(crate) module: FlowModule,
    /// Existing ports by name.
    pub(crate) ports: BTreeMap<String, PortId>,
    members: BTreeMap<u32, PortId>,
    executions: VecDeque<Execute>,
}

fn refusal(error: InstallError) -> Refusal {
    let errno = match error {
        InstallError::Exists => Errno::EEXIST,
        InstallError::Unknown => Errno::ENOENT,
        InstallError::NoRoom(_) => Errno::ENOSPC,
        InstallError::Refused(_) => Errno::EINVAL,
    };
    Refusal::new(errno, "the flow table says no")
}

fn name(name: &FlowName) -> flowtable::FlowSelector<'_> {
    match name {
        FlowName::Ufid(ufid) => flowtable::FlowSelector::Ufid(*ufid),
        FlowName::Key(key) => flowtable::FlowSelector::Key(key),
    }
}

fn flow(found: &flowtable::FlowSpec, stats: FlowStats) -> DatapathFlow {
    DatapathFlow { ufid: found.ufid, matches: found.matching.clone(), actions: found.actions.clone(), stats }
}

impl Tables {
    fn new() -> Self {
        let module = FlowModule::in_waiting(1, Box::new(Bridge::new(&BridgeSettings::with_entries(64))));
        let (ports, members, executions) = (BTreeMap::new(), BTreeMap::new(), VecDeque::new());
        Self { module, ports, members, executions }
    }

    pub(crate) fn flows(&self) -> Vec<DatapathFlow> {
        let (mut all, mut cursor) = (Vec::new(), Some(0));
        while let Some(from) = cursor {
            let (some, next) = self.module.table().dump(from, 4096);
            all.extend(some.iter().map(|(_, found, stats)| flow(found, *stats)));
            cursor = next;
        }
        all
    }
}

impl Datapath for Tables {
    fn created(&mut self, _: DatapathId, _: &str) -> Result<(), Refusal> {
        Ok(())
    }

    fn destroyed(&mut self, _: DatapathId) {}

    fn stats(&self, _: DatapathId) -> (DatapathStats, MegaflowStats) {
        Default::default()
    }

    fn port_added(&mut self, _: DatapathId, port: &Port) -> Result<(), Refusal> {
        if port.number == 0 {
            return Ok(());
        }
        let no_port = Refusal::new(Errno::ENODEV, "there is no such port");
        let id = *self.ports.get(&port.name).ok_or(no_port)?;
        self.module.set_number(id, u16::try_from(port.number).ok());
        self.members.insert(port.number, id);
        Ok(())
    }

    fn port_changed(&mut self, _: DatapathId, _: &Port) -> Result<(), Refusal> {
        Ok(())
    }

    fn port_removed(&mut self, _: DatapathId, number: u32) {
        if let Some(port) = self.members.remove(&number) {
            self.module.set_number(port, None);
        }
    }

    fn port_view(&self, _: DatapathId, _: u32) -> PortView {
        PortView::default()
    }

    fn flow_install(&mut self, _: DatapathId, install: FlowInstall) -> Result<(), Refusal> {
        let FlowInstall { ufid, matches, actions, is_probe, .. } = install;
        let installed = flowtable::FlowSpec { ufid, matching: matches, actions, is_probe };
        self.module.table().install(installed).map_err(refusal)
    }

    fn flow_change(
        &mut self,
        _: DatapathId,
        flow: &FlowName,
        actions: Option<Vec<Action>>,
        _: bool,
    ) -> Result<(), Refusal> {
        self.module.table().replace(name(flow), actions.unwrap_or_default()).map(drop).map_err(refusal)
    }

    fn flow(&self, _: DatapathId, wanted: &FlowName) -> Option<DatapathFlow> {
        self.module.table().get(name(wanted)).ok().map(|(found, stats)| flow(&found, stats))
    }

    fn flow_remove(&mut self, _: DatapathId, flow: &FlowName, _: bool) -> Result<Option<RemovalId>, Refusal> {
        self.module.table().remove(name(flow)).map(|_| None).map_err(refusal)
    }

    fn flow_removed(&mut self, _: RemovalId) -> Option<DatapathFlow> {
        None
    }

    fn flows_flush(&mut self, _: DatapathId, cursor: u64) -> Option<u64> {
        self.module.table().flush(cursor as usize, usize::MAX).map(|next| next as u64)
    }

    fn flows_visit(
        &self,
        _: DatapathId,
        cursor: u64,
        visit: &mut dyn FnMut(FlowView<'_>) -> ControlFlow<()>,
    ) -> Option<u64> {
        let mut cursor = Some(cursor as usize);
        while let Some(from) = cursor {
            let (some, next) = self.module.table().dump(from, 4096);
            let stopped = some.iter().find(|(_, found, stats)| visit(flow(found, *stats).view()).is_break());
            if let Some((slot, ..)) = stopped {
                return Some(*slot as u64);
            }
            cursor = next;
        }
        None
    }

    fn execute(&mut self, _: DatapathId, execute: Execute) -> Result<(), Refusal> {
        self.executions.push_back(execute);
        Ok(())
    }

    fn meter_features(&self, _: DatapathId) -> MeterFeatures {
        MeterFeatures { meters_max: 4096, bands_max: 1 }
    }

    fn meter_set(&mut self, _: DatapathId, meter: u32, what: Meter) -> Result<Option<Meter>, Refusal> {
        let band = what.bands.first().copied().unwrap_or_default();
        let rate = MeterRate { rate: band.rate, burst: band.burst, is_kbps: what.is_kbps };
        self.module.table().set_meter(meter, rate).map(|()| None).map_err(refusal)
    }

    fn meter(&self, _: DatapathId, _: u32) -> Option<Meter> {
        None
    }

    fn meter_remove(&mut self, _: DatapathId, meter: u32) -> Option<Meter> {
        let none = MeterRate { rate: 0, burst: 0, is_kbps: false };
        self.module.table().set_meter(meter, none).ok().map(|()| Meter::default())
    }
}

/// Copies of a frame by port, in the order of ports.
pub(crate) type Copies = Vec<(u16, Vec<u8>)>;

/// A module's decision about a frame.
pub(crate) struct Decided {
    pub(crate) copies: Copies,
    pub(crate) asked: Vec<(Metadata, u32, Vec<u8>)>,
    pub(crate) drops: Vec<DropReason>,
}

/// Has a module decide about a frame.
pub(crate) fn decide(module: &dyn Module, port: u16, frame: &[u8], now_ns: u64) -> Decided {
    let header = Header::new(&frame[..frame.len().min(128)], frame.len() as u32, Offload::default());
    let mut verdicts = Verdicts::default();
    let batch = Batch { port: PortId(port), headers: &[header], hashes: &Hashes::NONE };
    module.decide(&batch, now_ns, &mut verdicts);
    let outputs = verdicts.outputs().to_vec();
    let whole = |index: u16| {
        let image = usize::from(index).checked_sub(32).map_or(&header, |made| &verdicts.images()[made]);
        [image.bytes(), &frame[image.covers_bytes() as usize..]].concat()
    };
    let mut copies: Copies = outputs.iter().map(|output| (output.port.0, whole(output.image))).collect();
    copies.sort();
    let asked = verdicts.upcalls().iter().map(|upcall| (upcall.metadata, upcall.ticket, whole(upcall.image)));
    let drops = verdicts.drops().iter().map(|(_, reason)| *reason).collect();
    Decided { copies, asked: asked.collect(), drops }
}

/// The whole switch.
pub(crate) struct Rig {
    pub(crate) server: Server,
    pub(crate) tables: Tables,
    pub(crate) controller: Controller,
    /// Clients of the server, by link.
    peers: [PeerId; LINKS],
    pub(crate) now_ns: u64,
    /// Number of misses.
    pub(crate) misses: u64,
    /// Why flows dropped the last frame.
    pub(crate) drops: Vec<DropReason>,
    /// For each executed packet, why it was dropped, if it was.
    pub(crate) executed: Vec<Option<DropReason>>,
    /// Packets that were asked about and not answered yet; and the answer to the only one, as it was predicted.
    open: usize,
    predicted: Option<Vec<Action>>,
}

impl Rig {
    pub(crate) fn new(controller: Controller) -> Self {
        let (server, tables) = (Server::new(), Tables::new());
        let (peers, now_ns) = ([PeerId(1), PeerId(2)], 1_000 * SECOND_NS);
        let (drops, executed, predicted) = (Vec::new(), Vec::new(), None);
        Self { server, tables, controller, peers, now_ns, misses: 0, drops, executed, open: 0, predicted }
    }

    /// The controller dies, and another one starts.
    pub(crate) fn replace_controller(&mut self, controller: Controller) {
        for peer in &mut self.peers {
            self.server.disconnected(*peer);
            peer.0 += 2;
        }
        self.controller = controller;
    }

    /// The switch process dies, and another one starts with the same port numbers.
    pub(crate) fn replace_tables(&mut self) {
        let records = self.server.records().clone();
        let ports = std::mem::take(&mut self.tables.ports);
        (self.server, self.tables) = (Server::new(), Tables::new());
        self.tables.ports = ports;
        assert!(self.server.restore(records, &mut self.tables).is_empty());
    }

    /// Passes messages until none is left.
    pub(crate) fn settle(&mut self) -> Copies {
        let mut copies = Vec::new();
        loop {
            let mut is_quiet = !self.controller.turn(self.now_ns);
            for link in 0..LINKS {
                is_quiet &= !self.exchange(link);
            }
            self.update_asked();
            while let Some(execute) = self.tables.executions.pop_front() {
                copies.extend(self.execute(execute));
                is_quiet = false;
            }
            if is_quiet {
                copies.sort();
                return copies;
            }
        }
    }

    /// Executes the controller's next datagram with a change; returns false if there is none.
    pub(crate) fn serve_one(&mut self) -> bool {
        let (peer, datagram) = (self.peers[0], self.controller.output(0).map(<[u8]>::to_vec));
        let Some(datagram) = datagram else { return false };
        self.controller.sent(0);
        self.server.received(peer, datagram, &mut self.tables).expect("a good client");
        while let Some(answer) = self.server.output(peer).map(<[u8]>::to_vec) {
            self.server.sent(peer, &mut self.tables);
            self.controller.received(0, &answer, self.now_ns);
        }
        true
    }

    /// Whether the controller's last changes had a packet among them.
    pub(crate) fn has_execution(&self) -> bool {
        !self.tables.executions.is_empty()
    }

    /// Answers pending list requests.
    pub(crate) fn list(&mut self) {
        while self.exchange(1) {}
    }

    /// Number of ports whose misses go to a controller.
    pub(crate) fn heard_ports(&self) -> usize {
        let miss = |port| DatapathUpcall {
            kind: UpcallKind::Miss,
            port,
            worker: 0,
            message: PacketMessage { datapath: 1, ..PacketMessage::default() },
        };
        let ports = self.server.records().values().flat_map(|known| known.ports.keys());
        ports.filter(|port| self.server.reader_of(&miss(**port)).is_some()).count()
    }

    fn update_asked(&mut self) {
        let is_asked = self.server.records().keys().any(|id| self.server.takes_misses(*id));
        self.tables.module.set_asked(is_asked);
    }

    /// Passes datagrams both ways; returns whether there were any.
    fn exchange(&mut self, link: usize) -> bool {
        let (peer, mut is_busy) = (self.peers[link], false);
        while self.server.wants_input(peer)
            && let Some(datagram) = self.controller.output(link).map(<[u8]>::to_vec)
        {
            self.controller.sent(link);
            self.server.received(peer, datagram, &mut self.tables).expect("a good client");
            is_busy = true;
        }
        while let Some(datagram) = self.server.output(peer).map(<[u8]>::to_vec) {
            self.server.sent(peer, &mut self.tables);
            self.controller.received(link, &datagram, self.now_ns);
            is_busy = true;
        }
        is_busy
    }

    fn execute(&mut self, execute: Execute) -> Copies {
        self.open = self.open.saturating_sub(1);
        // Meanwhile the switch may be served no more.
        let switch = self.server.records().values().next().map(|record| record.name.clone());
        let is_served =
            switch.is_some_and(|switch| self.controller.addresses(&switch, self.now_ns).is_some());
        if let Some(predicted) = self.predicted.take().filter(|_| is_served) {
            assert_eq!(predicted, execute.actions, "as the controller said before it was asked");
        }
        let in_port = execute.metadata.in_port.expect("it came from somewhere") as u16;
        let metadata = Metadata { in_port, ..Metadata::default() };
        let table = self.tables.module.table();
        let execution = Execution::new(table, metadata, &execute.actions, 0).expect("it can be done");
        self.tables.module.execute_next(execution).expect("there is room");
        let Decided { copies, asked, drops } = decide(&self.tables.module, 0, &execute.packet, self.now_ns);
        self.raise(asked);
        self.executed.push(drops.first().copied());
        self.tables.module.settle((execute.hash.expect("as it was told") >> 32) as u32);
        copies
    }

    /// The outgoing copies of a frame, by a flow or the controller.
    pub(crate) fn send(&mut self, port: u16, frame: &[u8]) -> Copies {
        let mut copies = self.ask(port, frame);
        copies.extend(self.settle());
        copies.sort();
        copies
    }

    /// Like [`Self::send`], without the controller's part.
    pub(crate) fn ask(&mut self, port: u16, frame: &[u8]) -> Copies {
        let Decided { copies, asked, drops } = decide(&self.tables.module, port, frame, self.now_ns);
        self.drops = drops;
        self.raise(asked);
        copies
    }

    /// The upcalls of the last frame, before they reach the control interface.
    pub(crate) fn raised_by(&mut self, port: u16, frame: &[u8]) -> Vec<DatapathUpcall> {
        let asked = decide(&self.tables.module, port, frame, self.now_ns).asked;
        self.upcalls(asked)
    }

    /// Passes packets without a flow to the controller.
    fn raise(&mut self, asked: Vec<(Metadata, u32, Vec<u8>)>) {
        for upcall in self.upcalls(asked) {
            self.open += 1;
            let switch = self.server.records().values().next().map(|record| record.name.clone());
            let told =
                switch.and_then(|switch| self.controller.consult(&switch, &upcall.message.key, self.now_ns));
            let actions = told.and_then(|(actions, reasons)| actions.filter(|_| !reasons.is_empty()));
            self.predicted = actions.filter(|_| self.open == 1 && self.controller.is_settled());
            self.server.upcall(upcall);
        }
    }

    fn upcalls(&mut self, asked: Vec<(Metadata, u32, Vec<u8>)>) -> Vec<DatapathUpcall> {
        let mut upcalls = Vec::new();
        for (metadata, ticket, packet) in asked {
            self.misses += 1;
            let key = describe(&packet, &metadata);
            let hash = Some(u64::from(ticket) << 32);
            let message = PacketMessage { datapath: 1, packet, key, hash, ..PacketMessage::default() };
            let port = u32::from(metadata.in_port);
            upcalls.push(DatapathUpcall { kind: UpcallKind::Miss, port, worker: 0, message });
        }
        upcalls
    }

    /// The controller gets its upcalls; its replies are not delivered.
    pub(crate) fn hear(&mut self) {
        while let Some(datagram) = self.server.output(self.peers[0]).map(<[u8]>::to_vec) {
            self.server.sent(self.peers[0], &mut self.tables);
            self.controller.received(0, &datagram, self.now_ns);
        }
        self.controller.turn(self.now_ns);
    }

    pub(crate) fn flow_count(&self) -> usize {
        self.tables.flows().len()
    }
}

pub(crate) fn mac(number: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, number]
}

pub(crate) fn frame(destination: [u8; 6], source: [u8; 6], rest: &[u8]) -> Vec<u8> {
    [&destination[..], &source[..], rest].concat()
}
