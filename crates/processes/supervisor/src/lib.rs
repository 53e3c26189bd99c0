//! The supervisor: owns the run directory, the sockets and the inner processes.
//!
//! **Purpose.** [`run`] serves until it is told to end: it opens every path, socket and device, starts the inner
//! processes and passes descriptors to them, answers the API, and restarts a process that has died.
//!
//! **Contract.** It never blocks: a request that needs the switch is answered when the switch's reply comes. Without an
//! event or a deadline it sleeps; the least frequent deadline is a question to an idle switch process
//! (`children/liveness.rs`).
//!
//! **Not checked.** The user that connects to a port's socket: the permissions of the socket and its directory decide
//! that.
//!
//! **Threading.** One thread, one `epoll` loop; two helper threads start processes and close descriptors.
//!
//! ```text
//!   lasthop port add …  ──JSON-RPC──> control.sock ┐
//!                                                  supervisor ──frames + fds──> switch process, driver, controller
//!   guest (VMM)  ──connects──> NAME.sock ──────────┘                              ▲
//!         └───────────────────────── vhost-user over the passed socket ───────────┘
//! ```
//!
//! Each part has its own state and methods, and gets those below it as arguments:
//!
//! ```text
//!   Supervisor: event loop, start and end, steps of several parts ── Reports: read-only views of all parts
//!        │
//!   Upgrades   ControllerProcess   Scheduler
//!        │           │                 │
//!   Ports: PortTable, Sessions, PortCounterTable, Driver     SwitchTable   SavedDatapaths   DatapathClients   ApiClients
//!        └───────────┴──────┬──────────┴────────────────────────┴──────────────┘
//!   Outputs: Poller, SwitchProcess, RecordStore
//! ```
#![forbid(unsafe_code)]

mod acl;
mod capture;
mod change;
mod controller;
mod datapath_clients;
mod deposit;
mod devices;
mod doctor;
mod driver;
mod driver_reports;
mod fdb;
mod flows;
mod handover;
mod lifecycle;
mod orders;
mod placeholders;
mod port;
mod port_table;
mod ports;
mod previous;
mod question;
mod questions;
mod records;
mod reports;
mod requested;
mod requests;
mod scheduler;
mod sessions;
mod showing;
mod source;
mod stage;
mod standby;
mod successor;
mod switch_process;
mod switch_table;
mod switches;
mod tracking;
mod tunnel_ports;
mod upgrade;
mod warnings;

use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::Mode;

use lasthop_api::acl::AclRule;
use lasthop_api::device_patterns::DevicePatterns;
use lasthop_api::fdb::StaticEntry;
use lasthop_api::placement::{PlacementBatches, PlacementMode};
use lasthop_api::port::PortSpec;
use lasthop_api::rundir::{RunDir, control_socket, datapath_socket};
use lasthop_api::sched::{SharesMode, ViewMode};
use lasthop_api::settings::{StandbyMode, SwitchSettings, TunnelGro};
use lasthop_api::switches::SwitchSpec;
use lasthop_children::Reaper;
use lasthop_fd_store::RecordStore;
use lasthop_listeners::{ApiClients, ApiSources, ListenSocket};
use lasthop_placement::{PacketProcesses, ThreadPlacement};
use lasthop_runtime::clock::earlier;
use lasthop_runtime::descriptors;
use lasthop_runtime::fault::Fault;
use lasthop_runtime::hangs::HangWatch;
use lasthop_runtime::notify::Manager;
use lasthop_runtime::poller::{Interest, PollEvent, Poller};
use lasthop_runtime::signals::Signals;
use lasthop_shares::Shares;

use controller::ControllerProcess;
use datapath_clients::DatapathClients;
use driver::Driver;
use flows::SavedDatapaths;
use port::Port;
use ports::Ports;
use previous::PreviousState;
use records::ConfiguredNames;
use scheduler::Scheduler;
use source::Source;
use stage::Stage;
use standby::Standby;
use switch_process::SwitchProcess;
use switch_table::SwitchTable;
use upgrade::Upgrades;

pub use lasthop_fd_store::Inherited;
pub use upgrade::upgraded_text;

/// The outputs of the parts: watched descriptors, orders to the switch process, and records for the next supervisor.
/// Used by all other parts, and knows none of them.
struct Outputs {
    poller: Poller,
    switch_process: SwitchProcess,
    /// The store for the next supervisor.
    store: RecordStore,
}

/// The settings of `lasthop run`.
#[derive(Debug)]
pub struct RunSettings {
    /// The run directory.
    pub dir: PathBuf,
    /// The group whose members may use the control socket.
    pub control_group: Option<String>,
    /// Devices that controllers may use as ports; without patterns, all or none, depending on the switches.
    pub datapath_devices: Option<DevicePatterns>,
    /// Whether the view of the host's scheduler is opened.
    pub scheduler_view: ViewMode,
    /// Which threads are brought into one last-level cache.
    pub placement: PlacementMode,
    /// From how many batches on.
    pub placement_batches: PlacementBatches,
    /// How threads share the CPUs.
    pub shares: SharesMode,
    /// Whether a second switch process waits for the end of the first.
    pub standby: StandbyMode,
    /// Whether packets out of tunnels are joined.
    pub tunnel_gro: TunnelGro,
    /// Settings of the inner processes.
    pub switch: SwitchSettings,
    /// The switches; the default one first.
    pub switches: Vec<SwitchSpec>,
    /// Ports of every backend.
    pub ports: Vec<PortSpec>,
    /// Static addresses.
    pub fdb: Vec<StaticEntry>,
    /// Rules about connections.
    pub acl: Vec<AclRule>,
}

/// Refuses a vhost-user port that is impossible on this machine; its socket is in `dir` if it has no path.
pub fn check_port(port: &PortSpec, dir: &Path) -> Result<(), Fault> {
    let Some(backend) = port.vhost_user() else { return Ok(()) };
    let path = port.socket_in(dir);
    lasthop_listeners::check_length(&path)?;
    if [control_socket(dir), datapath_socket(dir)].contains(&path) {
        let path = path.display();
        return Err(Fault::socket(format!("the socket \"{path}\" is the switch's own; use another path")));
    }
    lasthop_listeners::SocketAccess::of(backend).map(drop)
}

/// Refuses a group that does not exist on this machine.
pub fn check_control_group(group: Option<&str>) -> Result<(), Fault> {
    lasthop_listeners::SocketAccess::of_control(group).map(drop)
}

/// Runs a switch until it is told to end, and reports its state to `manager`. `inherited` has the descriptors that the
/// manager kept from the last supervisor.
pub fn run(mut settings: RunSettings, manager: &mut Manager, inherited: Inherited) -> Result<(), Fault> {
    let signals = Signals::take()?;
    // New files are accessible to their owner only until their mode is set.
    rustix::process::umask(Mode::from_raw_mode(0o077));
    descriptors::prepare_table();
    descriptors::start_closing();
    let dir = RunDir::claim(settings.dir.clone())?;
    let previous = PreviousState::read(&inherited)?;
    let control =
        previous.as_ref().and_then(|previous| previous.control(&inherited, &control_socket(dir.path())));
    let mut supervisor = Supervisor::open(dir.path(), signals, &settings, control)?;
    if let Some(previous) = previous {
        supervisor.inherit(previous, &mut settings, &inherited)?;
    }
    supervisor.out.store.adopt(inherited);
    supervisor.switches.all = settings.switches;
    supervisor.switches.acl = settings.acl;
    for port in settings.ports {
        supervisor.ports.open(port, &supervisor.switches, &mut supervisor.out)?;
    }
    supervisor.switches.static_entries = settings.fdb;
    supervisor.start_switch()?;
    supervisor.serve(manager)
}

/// The control socket and its clients, for the poller.
const API_SOURCES: ApiSources =
    ApiSources { socket: Source::CONTROL, client: |client| Source::Client(client).into() };

/// All parts, and the state that concerns all of them.
struct Supervisor {
    dir: PathBuf,
    out: Outputs,
    reaper: Reaper,
    signals: Signals,
    settings: SwitchSettings,
    controller: ControllerProcess,
    switches: SwitchTable,
    ports: Ports,
    upgrades: Upgrades,
    standby: Standby,
    clients: ApiClients,
    datapath_clients: DatapathClients,
    datapaths: SavedDatapaths,
    control_group: Option<String>,
    datapath_devices: Option<DevicePatterns>,
    scheduler: Scheduler,
    placement: ThreadPlacement,
    shares: Shares,
    stage: Stage,
    /// Switches and ports of file and flags.
    configured: ConfiguredNames,
}

impl Supervisor {
    /// Opens the sockets; uses the last supervisor's control socket, if there is one.
    fn open(
        dir: &Path,
        signals: Signals,
        run: &RunSettings,
        control: Option<ListenSocket>,
    ) -> Result<Self, Fault> {
        let (settings, control_group) = (run.switch.clone(), run.control_group.clone());
        let (poller, reaper) = (Poller::new()?, Reaper::new()?);
        poller.add(&reaper, Source::Ends.into(), Interest::READ)?;
        poller.add(&signals, Source::Signals.into(), Interest::READ)?;
        let access = lasthop_listeners::SocketAccess::of_control(control_group.as_deref())?;
        let clients = ApiClients::open(&control_socket(dir), access, control, API_SOURCES, &poller)?;
        let datapath_clients = DatapathClients::open(&datapath_socket(dir), access)?;
        let switch_process = SwitchProcess::new(&settings, &reaper);
        Ok(Self {
            dir: dir.to_path_buf(),
            ports: Ports::new(dir, Driver::new(&settings, &reaper), run.tunnel_gro),
            out: Outputs { poller, switch_process, store: RecordStore::of_environment() },
            signals,
            controller: ControllerProcess::new(&settings, &reaper),
            reaper,
            settings,
            switches: SwitchTable::new(run.switches.clone()),
            upgrades: Upgrades::default(),
            standby: Standby::new(run.standby),
            clients,
            datapath_clients,
            datapaths: SavedDatapaths::default(),
            control_group,
            datapath_devices: run.datapath_devices.clone(),
            scheduler: Scheduler::new(run.scheduler_view),
            placement: ThreadPlacement::new(dir, run.placement, run.placement_batches),
            shares: Shares::new(dir, run.shares, run.switch.workers.0),
            stage: Stage::Starting,
            configured: run.configured(),
        })
    }

    fn serve(&mut self, manager: &mut Manager) -> Result<(), Fault> {
        let turns = HangWatch::start("the supervisor").watch(None);
        loop {
            let events = self.out.poller.wait(earlier(self.due(), manager.due()))?;
            let is_quiet = events.is_empty();
            for event in events {
                let _turn = turns.begin(Source::of(event.source).map_or("nothing", Source::work));
                self.handle(event);
            }
            let _turn = match is_quiet {
                true => turns.begin_quietly("what is due"),
                false => turns.begin("what is due"),
            };
            self.on_time(Instant::now());
            self.ports.table.track_uplinks(&mut self.out.switch_process);
            self.ports.table.tend_placeholders();
            let is_open = self.takes_datapath_clients();
            self.datapath_clients.watch(is_open, &self.out.poller);
            self.settle_controller();
            let serves = matches!(self.stage, Stage::Serving) && !self.upgrades.is_under_way();
            let driver = self.ports.driver.process.pid();
            self.scheduler.settle(
                &self.ports.table,
                driver,
                serves,
                &mut self.out.switch_process,
                self.placement.cpu_places(),
                Instant::now(),
            );
            let states = (serves && self.out.switch_process.process.is_up(), !is_quiet);
            self.standby.settle(states, &mut self.ports, &self.switches, &mut self.out, Instant::now());
            let switch = self.out.switch_process.process.pid();
            self.shares.settle(&[switch, driver], &[self.controller.process.pid(), self.standby.pid()]);
            let ports = || self.ports.placed(self.settings.workers.0, driver);
            self.placement.tend(PacketProcesses { switch, driver }, ports, Instant::now());
            self.proceed_with_clients();
            self.watch_channels();
            self.deposit(Instant::now());
            if manager.is_there() {
                manager.tell(self.stage.phase(), self.reports().status_text(&self.stage), Instant::now());
            }
            if let Stage::Over(result) = &self.stage {
                let result = result.clone();
                self.end_all();
                return result;
            }
        }
    }

    fn handle(&mut self, event: PollEvent) {
        match Source::of(event.source) {
            Some(Source::Signals) if self.signals.came() => self.begin_end(),
            Some(Source::Switch) => self.hear(),
            Some(Source::Control) => self.clients.accept(&self.out.poller),
            Some(Source::Listener(number)) => self.ports.advance_port(number, &mut self.out),
            Some(Source::Client(number)) => self.hear_client(number, event.is_over),
            Some(Source::Driver) => self.hear_driver(),
            Some(Source::Successor) => {
                let refused = self.upgrades.hear(&mut self.ports, &self.switches, &mut self.out);
                self.clients.answer_any(refused);
            }
            Some(Source::Standby) => self.standby.hear(&mut self.ports, &self.switches, Instant::now()),
            Some(Source::Links) => self.ports.hear_links(&self.switches, &mut self.out),
            // Clients that come with the end of the switch process wait for the next one.
            Some(Source::DatapathListener) if self.takes_datapath_clients() => {
                self.datapath_clients.accept(&mut self.out.switch_process, &self.out.poller);
            }
            Some(Source::ControllerProcess) => self.hear_controller(),
            Some(Source::LentConnections(number)) => self.datapath_clients.forget(number, &self.out.poller),
            Some(Source::Ends) => self.look_for_ends(Instant::now()),
            Some(Source::Signals | Source::DatapathListener) | None => {}
        }
    }

    /// Whether there is a switch process for clients of the datapath socket that is not about to be replaced.
    fn takes_datapath_clients(&self) -> bool {
        self.out.switch_process.process.is_up() && !self.upgrades.is_under_way()
    }

    /// The earliest deadline of all parts.
    fn due(&self) -> Option<Instant> {
        let ports = self.ports.table.all.values().map(Port::due).fold(None, earlier);
        let others = [
            self.ends_due(),
            self.out.switch_process.due(),
            self.ports.driver.life_due(),
            self.clients.due(),
            self.stage.due(),
            self.ports.devices_due(),
            self.upgrades.due(),
            self.standby.due(),
            self.scheduler.due(),
        ];
        let others = others.into_iter().chain([
            self.controller.due(),
            self.out.store.due(),
            self.datapath_clients.due(),
            self.placement.due(),
            self.ports.sessions.due(),
        ]);
        // Channels with waiting messages have deadlines, too.
        let others = others.chain([
            self.out.switch_process.process.channel_due(),
            self.ports.driver.process.channel_due(),
            self.controller.process.channel_due(),
            self.upgrades.channel_due(),
        ]);
        others.fold(ports, earlier)
    }

    /// Does the work that is due.
    fn on_time(&mut self, now: Instant) {
        let is_due = |due: Option<Instant>| due.is_some_and(|due| due <= now);
        let ports: Vec<u32> =
            self.ports.table.all.iter().filter(|(_, port)| is_due(port.due())).map(|(n, _)| *n).collect();
        ports.into_iter().for_each(|number| self.ports.advance_port(number, &mut self.out));
        if is_due(self.ends_due()) {
            self.look_for_ends(now);
        }
        let given_up = self.upgrades.on_time(now, &mut self.ports, &mut self.out);
        self.clients.answer_any(given_up);
        self.out.switch_process.boost_on_time(now);
        self.clients.expire(now, &self.out.poller);
        // A process that starts or ends may take longer to give a sign of life.
        let is_busy = !matches!(self.stage, Stage::Serving) || self.upgrades.is_under_way();
        if self.out.switch_process.look_for_life(is_busy, now, &self.out.poller) {
            self.answer_without_switch();
        }
        // The driver process may wait for the switch process.
        let is_busy = is_busy || !self.out.switch_process.answers();
        self.ports.driver.look_for_life(is_busy, now, &self.out.poller);
        for (caller, fault) in self.out.switch_process.give_up_waiting(now) {
            self.clients.answer(caller, Err(fault));
        }
        if is_due(self.controller.due()) {
            self.controller_on_time(now);
        }
        if is_due(self.ports.devices_due()) {
            self.answer_driver_clients(0, now);
            self.ports.devices_on_time(now, &mut self.out);
        }
        if is_due(self.out.switch_process.process.due())
            && let Err(fault) = self.start_switch()
        {
            self.out.switch_process.process.retry(&fault);
        }
        self.hand_over_waiting(now);
        if is_due(self.stage.due()) {
            self.end_on_time(now);
        }
    }
}
