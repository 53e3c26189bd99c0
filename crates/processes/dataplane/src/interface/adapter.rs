//! Carries out requests of the control interface on switches, flow tables and the engine.

use std::ops::ControlFlow;
use std::time::Instant;

use log::{info, warn};

use lasthop_conntrack::{CtRecord, CtTuple};
use lasthop_dpif::datapath::{
    Datapath as Interface, DatapathFlow, DatapathId, Execute, FlowInstall, FlowName, FlowView, Meter,
    MeterFeatures, Port, PortView, Readiness, RemovalId, WantedPort,
};
use lasthop_dpif::family::{DatapathStats, MegaflowStats, VportKind, VportStats, ZoneLimit};
use lasthop_dpif::{ConnectionSelector, Errno, Refusal, TimeoutPolicy};
use lasthop_engine::{EngineError, PortStats, SavedCounters};
use lasthop_fabric::PortCounters;
use lasthop_flow::Action;
use lasthop_module_api::{DropReason, PortId};

use lasthop_runtime::clock;
use lasthop_runtime::fault::Fault;

use super::super::datapath::{Datapath, NamedPort};
use super::super::port_requests::{PortRequests, tunnel};
use super::flows::FlowPackets;
use super::places::{Member, Place, Places};
use super::{flows, meters};

/// Access to the switch, for one request.
pub(super) struct Adapter<'a> {
    pub(super) inside: &'a mut Datapath,
    pub(super) places: &'a mut Places,
    pub(super) port_requests: &'a mut PortRequests,
}

impl<'a> Adapter<'a> {
    pub(super) fn new(
        inside: &'a mut Datapath,
        places: &'a mut Places,
        port_requests: &'a mut PortRequests,
    ) -> Self {
        Self { inside, places, port_requests }
    }

    pub(super) fn place(&self, id: DatapathId) -> Result<&Place, Refusal> {
        self.places.get(id).ok_or(Errno::ENODEV.into())
    }

    pub(super) fn place_mut(&mut self, id: DatapathId) -> Result<&mut Place, Refusal> {
        self.places.get_mut(id).ok_or(Errno::ENODEV.into())
    }

    /// Moves the port of this name, which must be in no datapath, to the switch of datapath `id`.
    fn fetch(&mut self, id: DatapathId, name: &str) -> Result<PortId, Refusal> {
        let switch = self.place(id)?.switch;
        let port = self.inside.port_named(name);
        let port = port.ok_or(Refusal::new(Errno::ENODEV, "there is no port or device of that name"))?;
        if self.places.has(port.number) {
            return Err(Refusal::new(Errno::EBUSY, "the port is in another datapath"));
        }
        if !self.inside.is_for_datapaths(&port) {
            warn!(limited = true, port:% = name; "port {name} cannot be in a datapath: its switch has no flow table; give that module flow");
            return Err(Refusal::new(Errno::EBUSY, "the port's switch has no flow table (module flow)"));
        }
        self.inside.move_port(name, switch).map_err(|error| refused(&error))?;
        Ok(port.number)
    }

    /// Releases a port's number.
    fn release(&mut self, place_of: DatapathId, number: u32) {
        let Some(place) = self.places.get_mut(place_of) else { return };
        let Some(Member { name, port }) = place.members.remove(&number) else { return };
        let Some(port) = port else { return };
        place.module.set_number(port, None);
        if let Err(error) = self.inside.send_home(&name) {
            warn!(limited = true, port:% = name; "port {name} is not back in its switch: {error}");
        }
        if self.inside.port_named(&name).is_some_and(|port| port.is_requested()) {
            self.port_requests.release(&name, true);
        }
    }

    /// Releases requested ports that are in no datapath.
    pub(super) fn release_orphans(&mut self) {
        let orphans = self.inside.requested().filter(|(_, port)| !self.places.has(*port));
        let orphans: Vec<String> = orphans.map(|(name, _)| name.to_owned()).collect();
        orphans.iter().for_each(|name| self.port_requests.release(name, true));
    }

    fn view(&self, member: &Member) -> PortView {
        let counted = |port: PortId| {
            let past = self.inside.past(port);
            let counters = self.places.stats_of(self.inside.engine(), port, |stats| stats.counters);
            vport_stats(counters.unwrap_or_default(), past)
        };
        let stats = member.port.map(counted);
        let device = self.inside.port_named(&member.name).and_then(|port| port.device);
        PortView {
            stats: stats.unwrap_or_default(),
            ifindex: device.map(|device| device.index),
            netns_id: device.and_then(|device| device.namespace),
        }
    }

    /// Checks a port that the switch's own controller requests: it exists, or existed recently. Nothing is made or
    /// opened for a controller that does not know yet that a switch or port was removed.
    fn check_configured(&self, wanted: &WantedPort<'_>) -> Result<Readiness, Refusal> {
        let is_there = match wanted.name == wanted.datapath {
            true => self.inside.has_own_controller(wanted.datapath),
            false => self.inside.port_named(wanted.name).is_some_and(|port| !port.is_requested()),
        };
        let gone = Refusal::new(Errno::ENODEV, "there is no such switch or port for its own controller");
        is_there.then_some(Readiness::Ready).ok_or(gone)
    }

    /// Logs a refused flow and the reason.
    fn note_refusal(&mut self, id: DatapathId, packets: FlowPackets, refusal: Refusal) {
        let member = packets.in_port.and_then(|number| self.places.get(id)?.members.get(&number));
        let port = member.map_or_else(|| "a port".to_owned(), |member| member.name.clone());
        self.places.refused_flows.note(&port, packets, refusal, Instant::now());
    }

    fn has_own_device(&self, name: &str) -> bool {
        let port = self.inside.port_named(name);
        port.is_some_and(|port| port.is_requested()) && !self.port_requests.is_leaving(name)
    }

    /// Whether a datapath belongs to an external controller and the device of its own port is missing.
    pub(super) fn lacks_own_device(&self, datapath: &str) -> bool {
        self.inside.is_for_outside(datapath) && self.inside.port_named(datapath).is_none()
    }

    /// Takes the returned device of a datapath's own port; releases it if the datapath is gone.
    pub(super) fn take_own_device(&mut self, id: Option<DatapathId>, name: &str) {
        let (kind, upcall_port_ids) = (VportKind::Internal, Vec::new());
        let port = Port { number: 0, name: name.to_owned(), kind, options: None, upcall_port_ids };
        if id.is_none_or(|id| self.port_added(id, &port).is_err()) {
            self.port_requests.release(name, true);
        }
    }

    /// Number of packets of its ports whose upcalls were lost.
    fn lost(&self, place: &Place) -> u64 {
        let of_port = |member: &Member| {
            let no_flow = |stats: &PortStats| stats.counters.rx_drops.of(DropReason::NoFlow);
            member.port.and_then(|port| self.places.stats_of(self.inside.engine(), port, no_flow))
        };
        place.members.values().filter_map(of_port).sum()
    }
}

fn refused(error: &EngineError) -> Refusal {
    match error {
        EngineError::NoAnswer(_) => Refusal::new(Errno::EBUSY, "a worker of the switch does not answer"),
        _ => Refusal::new(Errno::EBUSY, "the datapath's switch cannot have the port"),
    }
}

/// The refusal for a switch that cannot be made.
fn no_switch(fault: &Fault) -> Refusal {
    warn!(limited = true; "a datapath was refused: {fault}");
    Refusal::new(Errno::EBUSY, "a switch of that name has no flow table, or there is no room for one more")
}

/// Counters as the switch counts them: received from and sent to the port, by all processes that had it.
fn vport_stats(mut counters: PortCounters, past: Option<&SavedCounters>) -> VportStats {
    past.iter().for_each(|past| counters.merge(&past.counters));
    let (rx_unknown, tx_unknown) = past.map(SavedCounters::unknown_drops).unwrap_or_default();
    VportStats {
        rx_packets: counters.rx_packets,
        tx_packets: counters.tx_packets,
        rx_bytes: counters.rx_bytes,
        tx_bytes: counters.tx_bytes,
        rx_dropped: counters.rx_drops.total() + rx_unknown,
        tx_dropped: counters.tx_drops.total() + tx_unknown,
        ..VportStats::default()
    }
}

impl Interface for Adapter<'_> {
    fn created(&mut self, id: DatapathId, name: &str) -> Result<(), Refusal> {
        let (switch, module, is_made) = self.inside.flow_switch(name).map_err(|fault| no_switch(&fault))?;
        let made = is_made.then(|| name.to_owned());
        let (members, meters, executed, records, record_bytes) = Default::default();
        let origin = self.places.fresh_origin();
        module.set_origin(origin);
        let is_reserved = self.is_reserved(name);
        self.places.connection_memory.lend(id, is_reserved, module.table());
        if !is_reserved {
            self.places.ct_settings.apply(module.table());
        }
        let place = Place {
            switch,
            module,
            made,
            is_reserved,
            members,
            meters,
            origin,
            executed,
            records,
            record_bytes,
        };
        self.places.insert(id, place);
        Ok(())
    }

    fn is_reserved(&self, name: &str) -> bool {
        self.inside.has_own_controller(name)
    }

    fn asked(&mut self, id: DatapathId, is_asked: bool) {
        if let Some(place) = self.places.get(id) {
            place.module.set_asked(is_asked && self.places.can_ask);
        }
    }

    fn destroyed(&mut self, id: DatapathId) {
        let numbers: Vec<u32> =
            self.places.get(id).into_iter().flat_map(|place| place.members.keys().copied()).collect();
        numbers.into_iter().for_each(|number| self.release(id, number));
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            cursor = self.places.flush(id, at);
        }
        let Some(place) = self.places.remove(id) else { return };
        self.places.connection_memory.take_back(id);
        place.module.set_asked(false);
        meters::clear(&place);
        if let Some(name) = place.made
            && let Err(fault) = self.inside.remove_switch(&name)
        {
            warn!(limited = true; "the switch of datapath {name} stays: {fault}");
        }
    }

    fn stats(&self, id: DatapathId) -> (DatapathStats, MegaflowStats) {
        let Some(place) = self.places.get(id) else { return Default::default() };
        let (looked, (flows, masks)) = (place.module.look_ups(), place.module.table().len());
        let own = DatapathStats {
            hit: looked.all.saturating_sub(looked.missed),
            missed: looked.missed,
            lost: self.lost(place),
            flows: flows as u64,
        };
        let megaflows =
            MegaflowStats { mask_hits: looked.masks, masks: masks as u32, cache_hits: looked.cached };
        (own, megaflows)
    }

    fn port_wanted(&mut self, wanted: WantedPort<'_>) -> Result<Readiness, Refusal> {
        if self.places.controllers.contains(&wanted.client) {
            return self.check_configured(&wanted);
        }
        if self.inside.port_named(wanted.name).is_some() && !self.port_requests.is_leaving(wanted.name) {
            return Ok(Readiness::Ready);
        }
        let is_own = wanted.name == wanted.datapath;
        // OVS looks for the device of a datapath's own port.
        if is_own && !self.inside.is_for_outside(wanted.datapath) {
            return Ok(Readiness::Ready);
        }
        match self.port_requests.want(wanted) {
            // The port works without it; the supervisor has logged the reason.
            Err(_) if is_own => Ok(Readiness::Ready),
            result => result,
        }
    }

    fn port_unwanted(&mut self, name: &str) {
        let port = self.inside.port_named(name);
        // A port that no controller requested exists anyway.
        if port.as_ref().is_none_or(NamedPort::is_requested) {
            self.port_requests.release(name, port.is_some());
        }
    }

    fn port_added(&mut self, id: DatapathId, port: &Port) -> Result<(), Refusal> {
        let Port { number, name, kind, .. } = port;
        let port = match (*number, kind) {
            (0, VportKind::Internal) if !self.has_own_device(name) => None,
            (_, VportKind::Netdev | VportKind::Internal) => Some(self.fetch(id, name)?),
            (_, kind) if tunnel(*kind, None).is_some() => Some(self.fetch(id, name)?),
            _ => {
                info!(limited = true, port:% = name; "port {name} is refused: of tunnels, only Geneve, VXLAN, GRE, ERSPAN and bareudp are supported (docs/user/open-vswitch.md)");
                return Err(Refusal::new(Errno::EOPNOTSUPP, "ports of that type are not there"));
            }
        };
        let place = self.place_mut(id)?;
        place.members.insert(*number, Member { name: name.clone(), port });
        if let (Some(port), Ok(number)) = (port, u16::try_from(*number)) {
            place.module.set_number(port, Some(number));
            if tunnel(*kind, None).is_some() {
                place.module.set_tunnel_end(port);
            }
        }
        Ok(())
    }

    fn port_changed(&mut self, _: DatapathId, _: &Port) -> Result<(), Refusal> {
        Err(Refusal::invalid("a port of that type has no options"))
    }

    fn port_removed(&mut self, id: DatapathId, number: u32) {
        self.release(id, number);
    }

    fn port_view(&self, id: DatapathId, number: u32) -> PortView {
        let member = self.places.get(id).and_then(|place| place.members.get(&number));
        member.map(|member| self.view(member)).unwrap_or_default()
    }

    fn flow_install(&mut self, id: DatapathId, flow: FlowInstall) -> Result<(), Refusal> {
        let (from, is_probe) = (FlowPackets::of(&flow.matches), flow.is_probe);
        let installed = self.places.install(id, flow);
        // A probe tests for the features of the datapath, and expects a refusal.
        if let Err(refusal) = installed.as_ref()
            && !is_probe
        {
            self.note_refusal(id, from, *refusal);
        }
        installed
    }

    fn flow_change(
        &mut self,
        id: DatapathId,
        name: &FlowName,
        actions: Option<Vec<Action>>,
        is_clear: bool,
    ) -> Result<(), Refusal> {
        let changed = self.places.change(id, name, actions, is_clear);
        changed.inspect_err(|refusal| self.note_refusal(id, FlowPackets::default(), *refusal))
    }

    fn flow(&self, id: DatapathId, name: &FlowName) -> Option<DatapathFlow> {
        flows::get(self.places.get(id)?, name)
    }

    fn flow_remove(
        &mut self,
        id: DatapathId,
        name: &FlowName,
        wants_last: bool,
    ) -> Result<Option<RemovalId>, Refusal> {
        let (module, removed) = self.places.take_out(id, name)?;
        Ok(wants_last.then(|| self.places.remember(module, removed)))
    }

    fn flow_removed(&mut self, removal: RemovalId) -> Option<DatapathFlow> {
        self.places.last_of(removal)
    }

    fn flows_flush(&mut self, id: DatapathId, cursor: u64) -> Option<u64> {
        self.places.flush(id, cursor)
    }

    fn flows_visit(
        &self,
        id: DatapathId,
        cursor: u64,
        visit: &mut dyn FnMut(FlowView<'_>) -> ControlFlow<()>,
    ) -> Option<u64> {
        self.places.visit(id, cursor, visit)
    }

    fn execute(&mut self, id: DatapathId, execute: Execute) -> Result<(), Refusal> {
        self.send(id, execute)
    }

    fn not_executed(&mut self, id: DatapathId, hash: u64) {
        self.give_up(id, hash);
    }

    fn meter_features(&self, _: DatapathId) -> MeterFeatures {
        meters::FEATURES
    }

    fn meter_set(&mut self, id: DatapathId, meter: u32, what: Meter) -> Result<Option<Meter>, Refusal> {
        self.places.setting_changes += 1;
        meters::set(self.place_mut(id)?, meter, what)
    }

    fn meter(&self, id: DatapathId, meter: u32) -> Option<Meter> {
        meters::get(self.places.get(id)?, meter)
    }

    fn meter_remove(&mut self, id: DatapathId, meter: u32) -> Option<Meter> {
        self.places.setting_changes += 1;
        meters::remove(self.places.get_mut(id)?, meter)
    }

    fn ct_limits_set(&mut self, limits: &[ZoneLimit]) -> Result<(), Refusal> {
        self.places.setting_changes += 1;
        self.places.set_ct_limits(limits)
    }

    fn ct_limits_remove(&mut self, zones: &[ZoneLimit]) -> Result<(), Refusal> {
        self.places.setting_changes += 1;
        self.places.remove_ct_limits(zones)
    }

    fn ct_limits(&self, zones: Option<&[ZoneLimit]>) -> Result<Vec<ZoneLimit>, Refusal> {
        self.places.ct_limits(zones)
    }

    fn connections_visit(
        &self,
        cursor: u64,
        which: (Option<u16>, bool),
        visit: &mut dyn FnMut(&CtRecord) -> ControlFlow<()>,
    ) -> Option<u64> {
        self.places.visit_connections(cursor, which, clock::now_ms(), visit)
    }

    fn connection(&self, tuple: &CtTuple) -> Option<CtRecord> {
        self.places.connection(tuple, clock::now_ms())
    }

    fn connections_delete(&mut self, which: ConnectionSelector, is_all: bool) -> Result<(), Refusal> {
        self.places.delete_connections(which, is_all, clock::now_ms())
    }

    fn timeout_policy_set(&mut self, policy: TimeoutPolicy) -> Result<(), Refusal> {
        self.places.setting_changes += 1;
        self.places.set_timeout_policy(policy)
    }

    fn timeout_policies(&self) -> Vec<TimeoutPolicy> {
        self.places.ct_settings.policies()
    }

    fn timeout_policy_remove(&mut self, name: &str) -> bool {
        self.places.setting_changes += 1;
        self.places.remove_timeout_policy(name)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lasthop_dpif::server::PeerId;
    use lasthop_flow::Match;
    use lasthop_flowtable::{FlowModule, describe};
    use lasthop_module_api::{Batch, Hashes, Header, Module as _, PortSettings, Verdicts};
    use lasthop_wire::{Metadata, Offload};

    use lasthop_api::settings::{Settings, SwitchSettings};

    use super::*;

    /// The switch process's state, with a flow switch `late`.
    fn inside() -> Datapath {
        let settings = SwitchSettings::new(Settings::default()).expect("settings");
        let mut inside = Datapath::prepare(&settings).expect("an engine");
        inside.add_switch(&"late,module=flow".parse().expect("a switch")).expect("room");
        inside
    }

    fn frame() -> Vec<u8> {
        [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1], &[0x88, 0xb5], &[0; 46]].concat()
    }

    /// The ticket of a frame from port 1 that causes an upcall; `None` for any other.
    fn decide(module: &FlowModule) -> Option<u32> {
        let frame = frame();
        let header = Header::new(&frame, frame.len() as u32, Offload::default());
        let mut verdicts = Verdicts::default();
        let batch = Batch { port: PortId(1), headers: &[header], hashes: &Hashes::NONE };
        module.decide(&batch, 1, &mut verdicts);
        verdicts.upcalls().first().map(|upcall| upcall.ticket)
    }

    #[test]
    fn nothing_waits_for_a_packet_that_comes_back_and_cannot_be_read() {
        let mut inside = inside();
        let (mut places, mut port_requests) = (Places::default(), PortRequests::default());
        places.can_ask = true;
        let mut adapter = Adapter::new(&mut inside, &mut places, &mut port_requests);
        let id = DatapathId(1);
        adapter.created(id, "late").expect("its switch is there");
        let module = Arc::clone(&adapter.place(id).expect("it is").module);
        module.port_added(PortId(1), &PortSettings::default()).expect("room");
        module.set_number(PortId(1), Some(1));
        adapter.asked(id, true);
        let tickets = [decide(&module), decide(&module)].map(|ticket| ticket.expect("it goes up"));
        let key = describe(&frame(), &Metadata { in_port: 1, ..Metadata::default() });
        let flow = lasthop_flowtable::FlowSpec {
            ufid: None,
            matching: Match { key, mask: None },
            actions: vec![Action::drop_for(DropReason::NoFlow)],
            is_probe: false,
        };
        module.table().install(flow).expect("room");
        let behind = decide(&module).expect("it goes up behind the others");
        for ticket in tickets.into_iter().chain([behind]) {
            adapter.not_executed(id, u64::from(ticket) << 32 | 5);
        }
        assert_eq!(decide(&module), None, "it meets the flow");
    }

    #[test]
    fn nothing_is_made_for_the_own_controller() {
        let mut inside = inside();
        let (mut places, mut port_requests) = (Places::default(), PortRequests::default());
        let (own, other) = (PeerId(1), PeerId(2));
        places.controllers.insert(own);
        let mut adapter = Adapter::new(&mut inside, &mut places, &mut port_requests);
        let mut wanted = |client, datapath, name| {
            let kind = if name == datapath { VportKind::Internal } else { VportKind::Netdev };
            let ready = adapter.port_wanted(WantedPort { client, datapath, name, kind, options: None });
            ready.map_err(|refusal| refusal.errno)
        };
        assert_eq!(wanted(own, "late", "late"), Ok(Readiness::Ready));
        assert_eq!(wanted(own, "gone", "gone"), Err(Errno::ENODEV), "nor another switch");
        assert_eq!(wanted(own, "late", "eth0"), Err(Errno::ENODEV), "nor a device");
        assert_eq!(wanted(other, "ovs-system", "ovs-system"), Ok(Readiness::NotYet));
        assert_eq!(port_requests.take_reports().len(), 1, "the supervisor is asked for others only");
    }
}
