//! The switch process's use of the engine: ports by name, counters and tables as reports.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use lasthop_engine::{
    Capture, Engine, EngineError, EngineSettings, FormerCounters, HelperSettings, PORT_COUNTERS_BYTES,
    PolicyCounters, PortConfig, PortDevice, PortStats, RingInspection, RingStats, RunningProfile,
    SavedCounters, Watch, WorkerStats,
};
use lasthop_fabric::Drops as DropCounters;
use lasthop_fabric::bounds::TAP_BYTES;
use lasthop_flowtable::{Executions, FlowModule};
use lasthop_guestmem::Mapping;
use lasthop_module_api::{FdbEntry, FdbMove, PortId, SwitchId};

use lasthop_api::capture::{CaptureEvent, CaptureSpec};
use lasthop_api::facts::MoveFacts;
use lasthop_api::fdb::{Flush, StaticEntry};
use lasthop_api::orders::{HostDevice, SwitchPort};
use lasthop_api::port::describe_features;
use lasthop_api::report::{
    DropCounts, FdbLine, FdbReport, PortReport, RingReport, StatsReport, SwitchInside, WorkerReport,
};
use lasthop_api::sched::{PolicyCounts, QueueMove};
use lasthop_api::settings::{ReceiveSteering, SwitchSettings};
use lasthop_api::switches::{SwitchName, SwitchSpec};
use lasthop_runtime::fault::{Fault, Kind};

use super::queue_moves::Obstacle;
use super::switches::NamedSwitches;

/// The engine and the names of its ports.
pub(super) struct Datapath {
    engine: Engine,
    /// Whether the workers have started.
    is_begun: bool,
    switches: NamedSwitches,
    ports: BTreeMap<String, NamedPort>,
    /// Counters from processes that have died.
    pasts: BTreeMap<PortId, FormerCounters>,
}

/// A port, by name.
#[derive(Clone, Debug)]
pub(super) struct NamedPort {
    pub(super) number: PortId,
    /// The switch that it belongs to; `None` if a controller requested it.
    home: Option<SwitchName>,
    /// The switch that it is in: another one, if a datapath has it.
    pub(super) at: SwitchId,
    /// The host's device of the port.
    pub(super) device: Option<HostDevice>,
}

impl NamedPort {
    /// Whether a controller requested it.
    pub(super) fn is_requested(&self) -> bool {
        self.home.is_none()
    }
}

impl Datapath {
    /// Prepares the engine without running workers, so that the first tasks for all of them wait for none.
    pub(super) fn prepare(settings: &SwitchSettings) -> Result<Self, Fault> {
        let mut switches = NamedSwitches::new(&settings.default_switch(), settings.workers.0)?;
        let cpus = settings.cpus.clone().unwrap_or_default().0;
        let offload = settings.offload.unwrap_or_default();
        let helpers = HelperSettings {
            cpus: settings.helper_cpus.clone().unwrap_or_default().0,
            offload: offload.offload(),
            place: offload.place(),
            signals_each_frame: offload.signals_each_frame(),
        };
        let settings = EngineSettings {
            cpus,
            workers: settings.workers.0,
            hysteresis_us: settings.hysteresis.0,
            polls_on_any_cpu: settings.busy_poll_cpus.is_any(),
            steers_flows: settings.receive_steering == ReceiveSteering::Auto,
            helpers,
            ..EngineSettings::default()
        };
        let engine = Engine::prepare(switches.module(), &settings).map_err(refused)?;
        switches.set_clock_origin(engine.clock_origin_ns());
        Ok(Self { engine, is_begun: false, switches, ports: BTreeMap::new(), pasts: BTreeMap::new() })
    }

    /// Starts the workers if they have not started; they sleep until there is a port with a guest.
    pub(super) fn begin(&mut self) -> Result<(), Fault> {
        self.engine.begin().map_err(refused)?;
        self.is_begun = true;
        Ok(())
    }

    /// Whether packets pass.
    pub(super) fn is_begun(&self) -> bool {
        self.is_begun
    }

    pub(super) fn add_switch(&mut self, spec: &SwitchSpec) -> Result<(), Fault> {
        self.switches.add(spec)?;
        let told = self.engine.set_module(&self.switches.module());
        if told.is_err() {
            self.switches.remove(spec.name.as_str())?;
        }
        told.map_err(refused)
    }

    /// Changes a switch, which keeps its ports.
    pub(super) fn set_switch(&mut self, spec: &SwitchSpec) -> Result<(), Fault> {
        let number = self.switches.find(spec.name.as_str())?;
        let ports = self.engine.ports_of(number);
        if self.switches.replace(spec, &ports)? {
            self.engine.set_module(&self.switches.module()).map_err(refused)?;
        }
        Ok(())
    }

    pub(super) fn remove_switch(&mut self, name: &str) -> Result<(), Fault> {
        self.switches.remove(name)?;
        // A worker that does not answer in time releases the old module when it does.
        let _ = self.engine.set_module(&self.switches.module());
        Ok(())
    }

    pub(super) fn switches(&self) -> Vec<SwitchInside> {
        let addresses: Vec<PortId> = self.engine.fdb().iter().map(|entry| entry.port).collect();
        self.switches.describe(&addresses)
    }

    /// Adds a port. Its counters survive this process in `memory`.
    pub(super) fn add(&mut self, port: &SwitchPort, memory: Option<OwnedFd>) -> Result<(), Fault> {
        let home = (!port.is_requested).then(|| port.common.switch.clone());
        let at = self.home(home.as_ref())?;
        let number = self.engine.add_port(port_config(port, at)).map_err(refused)?;
        if let Some(memory) = memory.as_ref().and_then(counters_in).map(Arc::new) {
            let _ = self.engine.keep_counters(number, &memory);
            self.pasts.insert(number, FormerCounters::of_memory(&memory));
        }
        self.ports.insert(port.common.name.to_string(), NamedPort { number, home, at, device: port.device });
        Ok(())
    }

    /// The port of this name.
    pub(super) fn named(&self, name: &str) -> Result<&NamedPort, Fault> {
        let gone = || Fault::new(Kind::NoSuchVnic, format!("there is no port \"{name}\""));
        self.ports.get(name).ok_or_else(gone)
    }

    /// The flow table of a switch, if it has one.
    pub(super) fn flow_table(&self, switch: SwitchId) -> Option<&Arc<FlowModule>> {
        self.switches.flow_table(switch)
    }

    /// The name of a switch; none if ports only wait there.
    pub(super) fn switch_name(&self, switch: SwitchId) -> Option<String> {
        self.switches.name_of(switch).map(ToString::to_string)
    }

    /// The name of a switch's module.
    pub(super) fn module_name(&self, switch: SwitchId) -> String {
        self.switches.module_name(switch).to_owned()
    }

    /// The switch of this name; without a name, that of ports which are in none.
    fn home(&mut self, name: Option<&SwitchName>) -> Result<SwitchId, Fault> {
        if let Some(name) = name {
            return self.switches.find(name.as_str());
        }
        let (number, is_new) = self.switches.nowhere()?;
        if is_new {
            self.engine.set_module(&self.switches.module()).map_err(refused)?;
        }
        Ok(number)
    }

    /// Sets the host's device of a port.
    pub(super) fn set_host_device(&mut self, name: &str, device: Option<HostDevice>) {
        if let Some(port) = self.ports.get_mut(name) {
            port.device = device;
        }
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(super) fn executions(&self) -> Arc<Executions> {
        self.switches.executions()
    }

    pub(super) fn port_named(&self, name: &str) -> Option<NamedPort> {
        self.ports.get(name).cloned()
    }

    /// Ports that a controller requested.
    pub(super) fn requested(&self) -> impl Iterator<Item = (&str, PortId)> {
        let requested = self.ports.iter().filter(|(_, port)| port.is_requested());
        requested.map(|(name, port)| (name.as_str(), port.number))
    }

    /// Whether a datapath may have a port: its switch has a flow table, or a controller requested the port.
    pub(super) fn is_for_datapaths(&self, port: &NamedPort) -> bool {
        port.is_requested() || self.switches.flow_table(port.at).is_some()
    }

    /// Whether there is a switch of this name.
    pub(super) fn has_switch(&self, name: &str) -> bool {
        self.switches.find(name).is_ok()
    }

    /// Whether an external controller may use a datapath of this name.
    pub(super) fn is_for_outside(&self, name: &str) -> bool {
        self.switches.is_for_outside(name)
    }

    /// Whether a datapath of this name belongs to the controller process.
    pub(super) fn has_own_controller(&self, name: &str) -> bool {
        self.switches.has_own_controller(name)
    }

    /// Whether `spec` gives a switch another controller.
    pub(super) fn has_other_controller(&self, spec: &SwitchSpec) -> bool {
        self.switches.has_other_controller(spec)
    }

    /// The switch of this name with its flow table, and whether this call made it.
    pub(super) fn flow_switch(&mut self, name: &str) -> Result<(SwitchId, Arc<FlowModule>, bool), Fault> {
        let is_made = self.switches.find(name).is_err();
        if is_made {
            self.add_switch(&SwitchSpec::of_datapath(name)?)?;
        }
        let number = self.switches.find(name)?;
        let module = self.switches.flow_table(number).map(Arc::clone);
        let module = module.ok_or_else(|| Fault::refused(format!("switch \"{name}\" has no flow table")))?;
        Ok((number, module, is_made))
    }

    /// Moves a port to another switch, unless it is there already.
    pub(super) fn move_port(&mut self, name: &str, switch: SwitchId) -> Result<(), EngineError> {
        let Some(port) = self.ports.get_mut(name).filter(|port| port.at != switch) else { return Ok(()) };
        self.engine.move_port(port.number, switch)?;
        port.at = switch;
        Ok(())
    }

    /// Moves a queue pair of a port to another worker.
    pub(super) fn move_queue(&self, wanted: &QueueMove) -> Result<(), Obstacle> {
        let port = self.find(&wanted.port).map_err(Obstacle::NoPort)?;
        self.engine.move_pair(port, wanted.queue, wanted.worker).map_err(Obstacle::Engine)
    }

    /// Moves a port back to the switch that it belongs to.
    pub(super) fn send_home(&mut self, name: &str) -> Result<(), Fault> {
        let Some(port) = self.ports.get(name) else { return Ok(()) };
        let home = port.home.clone();
        let home = self.home(home.as_ref())?;
        self.move_port(name, home).map_err(refused)
    }

    /// Makes sessions wait with changes of ports until `wake`.
    pub(super) fn quiesce(&self) -> Result<(), Fault> {
        self.engine.pause_sessions().map_err(refused)
    }

    /// Stops fetching packets from guests, and waits up to `patience` for fetched ones.
    pub(super) fn rest(&self, patience: Duration) -> Result<(), Fault> {
        self.engine.quiesce(patience).map_err(refused)
    }

    /// Continues after `rest`.
    pub(super) fn wake(&self) -> Result<(), Fault> {
        self.engine.resume().map_err(refused)
    }

    /// Changes a port while packets pass.
    pub(super) fn change(&mut self, port: &SwitchPort) -> Result<(), Fault> {
        let name = port.common.name.as_str();
        let number = self.find(name)?;
        let at = self.ports.get(name).map_or(SwitchId::DEFAULT, |port| port.at);
        self.engine.change_port(number, port_config(port, at)).map_err(refused)
    }

    /// Removes a port, whose session has ended.
    pub(super) fn remove(&mut self, name: &str) -> Result<(), Fault> {
        let port = self.find(name)?;
        self.ports.remove(name);
        self.pasts.remove(&port);
        self.engine.remove_port(port).map_err(refused)
    }

    /// The device for the session with the port's guest.
    pub(super) fn device(&self, name: &str) -> Result<PortDevice, Fault> {
        self.engine.device(self.find(name)?).map_err(refused)
    }

    /// Counters of a port from processes that have died; `None` if they counted nothing.
    pub(super) fn past(&self, port: PortId) -> Option<&SavedCounters> {
        self.pasts.get(&port)?.known()
    }

    /// Counters of this process; the supervisor adds earlier ones.
    pub(super) fn stats(&self) -> Result<StatsReport, Fault> {
        let stats = self.engine.stats().map_err(refused)?;
        let ports = stats.ports.into_iter().map(port_report).collect();
        Ok(StatsReport {
            ports,
            workers: stats.workers.into_iter().map(worker_report).collect(),
            ..StatsReport::default()
        })
    }

    /// The forwarding tables of one switch, or of all.
    pub(super) fn fdb(&self, switch: Option<&str>) -> FdbReport {
        let ports = self.ports.iter();
        let at_home = ports.filter_map(|(name, port)| Some((port.number, (name, port.home.as_ref()?))));
        let is_wanted = |home: &SwitchName| switch.is_none_or(|switch| home.as_str() == switch);
        let names: BTreeMap<PortId, (&String, &SwitchName)> =
            at_home.filter(|(_, (_, home))| is_wanted(home)).collect();
        // Entries of other switches have no name here, and neither have entries of a port that was removed since.
        let named =
            |entry: FdbEntry| names.get(&entry.port).map(|(name, switch)| fdb_line(&entry, name, switch));
        FdbReport::whole(self.engine.fdb().into_iter().filter_map(named).collect())
    }

    /// The running rings of each named port.
    pub(super) fn rings(&self, names: &[&str]) -> Result<Vec<Vec<RingInspection>>, Fault> {
        let ports: Vec<PortId> = names.iter().map(|name| self.find(name)).collect::<Result<_, _>>()?;
        self.engine.inspect(&ports).map_err(refused)
    }

    pub(super) fn moves(&self) -> Vec<MoveFacts> {
        let told = |moved: FdbMove| MoveFacts {
            mac: moved.mac.to_string(),
            from: self.name_of(moved.from),
            to: self.name_of(moved.to),
            count: moved.count,
            age_ms: moved.age_ns / 1_000_000,
        };
        self.engine.moves().into_iter().map(told).collect()
    }

    /// The port's name. The port of an older report may be removed.
    pub(super) fn name_of(&self, port: PortId) -> String {
        let named = self.ports.iter().find(|(_, known)| known.number == port);
        named.map_or_else(|| format!("port {port}"), |(name, _)| name.clone())
    }

    pub(super) fn fdb_add(&self, entry: &StaticEntry) -> Result<(), Fault> {
        self.engine.fdb_add(entry.mac, entry.vlan, self.find(entry.port.as_str())?).map_err(refused)
    }

    pub(super) fn fdb_del(&self, entry: &StaticEntry) -> Result<(), Fault> {
        self.engine.fdb_del(entry.mac, entry.vlan, self.find(entry.port.as_str())?).map_err(refused)
    }

    /// Forgets learned addresses; returns their number.
    pub(super) fn fdb_flush(&self, flush: &Flush) -> Result<usize, Fault> {
        let port = flush.port.as_ref().map(|port| self.find(port.as_str())).transpose()?;
        self.engine.fdb_flush(port, flush.vlan).map_err(refused)
    }

    /// Starts a capture, and returns the names of its interfaces.
    pub(super) fn capture(&self, spec: &CaptureSpec) -> Result<(Capture, Vec<String>), Fault> {
        let names: BTreeSet<&str> = match spec.names.is_empty() {
            true => self.ports.keys().map(String::as_str).collect(),
            false => spec.names.iter().map(String::as_str).collect(),
        };
        let watch = Watch {
            ports: names.iter().map(|name| self.find(name)).collect::<Result<_, _>>()?,
            inbound: spec.wants(CaptureEvent::In),
            outbound: spec.wants(CaptureEvent::Out),
            drops: spec.wants(CaptureEvent::Drop),
            snap_len_bytes: spec.snap_len_bytes(),
            buffer_bytes: TAP_BYTES,
        };
        let capture = self.engine.capture(&watch).map_err(|error| match error {
            EngineError::TooManyCaptures => Fault::new(Kind::Limit, error.to_string()),
            error => refused(error),
        })?;
        Ok((capture, names.into_iter().map(str::to_owned).collect()))
    }

    /// Starts a profile, and returns the names of all ports.
    pub(super) fn profile(&self, every: u32) -> Result<(RunningProfile, BTreeMap<PortId, String>), Fault> {
        let profile = self.engine.profile(every).map_err(|error| match error {
            EngineError::ProfileRuns => Fault::new(Kind::Limit, error.to_string()),
            error => refused(error),
        })?;
        Ok((profile, self.ports.iter().map(|(name, port)| (port.number, name.clone())).collect()))
    }

    fn find(&self, name: &str) -> Result<PortId, Fault> {
        self.named(name).map(|port| port.number)
    }
}

fn port_config(SwitchPort { common, leads, is_tunnel, .. }: &SwitchPort, switch: SwitchId) -> PortConfig {
    PortConfig {
        switch,
        name: common.name.to_string(),
        mtu: common.mtu,
        memory_bytes_max: common.memory_max.unwrap_or_default().bytes(),
        queue_pairs: common.queues,
        features_mask: common.features_off.mask_without(),
        link_up: common.link.is_up(),
        policy: common.policy.clone(),
        kind: leads.kind(),
        is_tunnel: *is_tunnel,
    }
}

/// Maps the memory of a port's counters; it fits if the supervisor has the same version. Without it only the counters
/// start at 0 in the next process.
fn counters_in(memory: &OwnedFd) -> Option<Mapping> {
    let bytes = u64::try_from(rustix::fs::fstat(memory).ok()?.st_size).ok()?;
    Mapping::of_file(memory.as_fd(), 0, bytes.min(PORT_COUNTERS_BYTES as u64)).ok()
}

fn refused(error: impl std::fmt::Display) -> Fault {
    Fault::refused(error.to_string())
}

fn fdb_line(entry: &FdbEntry, name: &str, switch: &SwitchName) -> FdbLine {
    FdbLine {
        switch: switch.clone(),
        mac: entry.mac.to_string(),
        vlan: entry.vlan,
        port: name.to_owned(),
        age_ms: entry.age_ns / 1_000_000,
        is_static: entry.is_static,
    }
}

fn drops(counters: &DropCounters) -> DropCounts {
    counters.nonzero().map(|(reason, count)| (reason.name().to_owned(), count)).collect()
}

fn port_report(port: PortStats) -> PortReport {
    let counters = &port.counters;
    PortReport {
        name: port.name,
        state: port.state.to_string(),
        since_ms: None,
        rx_packets: counters.rx_packets,
        rx_bytes: counters.rx_bytes,
        rx_gso_packets: counters.rx_gso_packets,
        tx_packets: counters.tx_packets,
        tx_bytes: counters.tx_bytes,
        tx_gso_packets: counters.tx_gso_packets,
        injected: counters.injected,
        copies_added: counters.copies_added,
        segments_added: counters.segments_added,
        forwarded: counters.forwarded,
        upcalls: counters.upcalls,
        flooded_to_none: counters.flooded_to_none,
        waiting: counters.waiting,
        detached: counters.detached,
        rx_drops: drops(&counters.rx_drops),
        tx_drops: drops(&counters.tx_drops),
        tx_csum_completed: counters.tx_csum_completed,
        signals: counters.signals,
        conserved: counters.is_conserved(),
        features: describe_features(port.features),
        rings: port.rings.into_iter().map(ring_report).collect(),
        guest_mtu: port.guest_mtu,
    }
}

fn ring_report(ring: RingStats) -> RingReport {
    let RingStats { index, entries, enabled, worker, error } = ring;
    RingReport { index, entries, enabled, worker: Some(worker), error }
}

fn worker_report(worker: WorkerStats) -> WorkerReport {
    WorkerReport {
        index: worker.index,
        thread: worker.thread,
        age_ms: worker.age_ms,
        cpu_ns: None,
        sleeps: worker.sleeps,
        polls: worker.polls,
        crowded: worker.crowded,
        scarce: worker.scarce,
        is_scarce: worker.is_scarce,
        visits: worker.visits,
        batches: worker.batches,
        contended: worker.handoffs.contended,
        left: worker.handoffs.left,
        leased: worker.handoffs.leased,
        shared: worker.handoffs.shared,
        helper_cpu: worker.helper_cpu,
        returned: worker.handoffs.returned,
        steered: worker.handoffs.steered,
        wakes: worker.wakes,
        policies: policy_counts(&worker.policies),
    }
}

fn policy_counts(counters: &PolicyCounters) -> PolicyCounts {
    PolicyCounts {
        look_polls: counters.look_polls,
        look_yields: counters.look_yields,
        look_sleeps: counters.look_sleeps,
        look_spared_us: counters.look_spared_us,
        look_unseen: counters.look_unseen,
        offers_spared: counters.offers_spared,
        offers: counters.offers,
        offers_taken: counters.offers_taken,
        signals_delayed: counters.signals_delayed,
        signals_joined: counters.signals_joined,
        signals_drained: counters.signals_drained,
        transmits_timed: counters.transmits_timed,
        kicks_spared: counters.kicks_spared,
        timed_in_vain: counters.timed_in_vain,
        sleep_events: counters.sleep_events,
        second_signals: counters.second_signals,
        second_signals_answered: counters.second_signals_answered,
        second_signals_spared: counters.second_signals_spared,
        offloads_shared: counters.offloads_shared,
        offloads_alone: counters.offloads_alone,
        helps_given_up: counters.helps_given_up,
        landed_same: counters.landed_same,
        landed_near: counters.landed_near,
        landed_far: counters.landed_far,
        offloads_moved: counters.offloads_moved,
        separations_held: counters.separations_held,
        separations: counters.separations,
        separations_early: counters.separations_early,
        separations_late: counters.separations_late,
    }
}
