//! The supervisor: owns the run directory, the sockets and the inner processes.
//!
//! **Purpose.** [`run`] serves until it is told to end: it opens every path, socket and device, starts the inner processes and
//! hands them their descriptors, answers the API, and restarts a process that has died.
//!
//! **Contract.** Nothing in it waits for anything else: requests to the switch are answered when its reply comes. Without an
//! event or a deadline it sleeps; the rarest deadline is a question to an idle switch process (`liveness`).
//!
//! **Not checked.** The user that connects to a port's socket: the permissions of the socket and its directory decide.
//!
//! **Threading.** One thread, one `epoll` loop; two helper threads start processes and close descriptors.
//!
//! ```text
//!   lasthop vnic add …  ──JSON-RPC──> control.sock ┐
//!                                                  supervisor ──frames + fds──> switch process, driver, controller
//!   guest (VMM)  ──connects──> NAME.sock ──────────┘                              ▲
//!         └───────────────────────── vhost-user over the passed socket ───────────┘
//! ```
//!
//! Each part has its own state and methods, and gets those below it as arguments:
//!
//! ```text
//!   Supervisor: event loop, start and end, requests, upgrade ── Reports: all parts, to be shown
//!        │
//!   ControllerProcess   Sessions   PortCounterTable   SwitchTable   SavedDatapaths   DatapathClients
//!           └──────────────┴──────┬────────┴──────────────┴─────────────┴───────────────┘
//!                 PortTable   SwitchProcess   RecordStore   Driver   ApiClients
//! ```
#![forbid(unsafe_code)]

mod access;
mod api_clients;
mod capture;
mod change;
mod client;
mod control;
mod control_clients;
mod controller;
mod datapath_clients;
mod datapath_listener;
mod device;
mod devices;
mod doctor;
mod driver;
mod ends;
mod fdb;
mod flows;
mod front_end;
mod lent;
mod lifecycle;
mod lifetime_counters;
mod liveness;
mod opening;
mod orders;
mod pending_questions;
mod placeholder;
mod placeholders;
mod port;
mod port_table;
mod ports;
mod previous;
mod question;
mod records;
mod reports;
mod requested;
mod requests;
mod saved_session;
mod scheduler;
mod sessions;
mod showing;
mod sockets;
mod source;
mod stage;
mod status;
mod succession;
mod switch_process;
mod switch_table;
mod switches;
mod tracking;
mod upgrade;
mod warnings;

use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::Mode;

use lasthop_api::device_patterns::DevicePatterns;
use lasthop_api::fdb::StaticEntry;
use lasthop_api::port::PortSpec;
use lasthop_api::rundir::{RunDir, control_socket, datapath_socket};
use lasthop_api::sched::ViewMode;
use lasthop_api::settings::SwitchSettings;
use lasthop_api::switches::SwitchSpec;
use lasthop_api::vnic::VnicSpec;
use lasthop_children::{Reaper, SliceBoost};
use lasthop_fd_store::RecordStore;
use lasthop_runtime::clock::earlier;
use lasthop_runtime::descriptors;
use lasthop_runtime::fault::Fault;
use lasthop_runtime::notify::Manager;
use lasthop_runtime::poller::{Happening, Interest, Poller};
use lasthop_runtime::signals::Signals;

use api_clients::ApiClients;
use controller::ControllerProcess;
use datapath_clients::DatapathClients;
use driver::Driver;
use flows::SavedDatapaths;
use lifetime_counters::PortCounterTable;
use port::Port;
use port_table::PortTable;
use previous::PreviousState;
use records::ConfiguredNames;
use scheduler::Scheduler;
use sessions::Sessions;
use sockets::ListenSocket;
use source::Source;
use stage::Stage;
use switch_process::SwitchProcess;
use switch_table::SwitchTable;
use upgrade::Upgrade;

pub use lasthop_fd_store::Inherited;
pub use upgrade::upgraded_text;

/// The settings of `lasthop run`.
#[derive(Debug)]
pub struct RunSettings {
    /// The run directory.
    pub dir: PathBuf,
    /// The group whose members may use the control socket.
    pub control_group: Option<String>,
    /// Devices that a control plane may have; `None` is all or none, as switches are.
    pub datapath_devices: Option<DevicePatterns>,
    /// Whether the view of the host's scheduler is opened.
    pub scheduler_view: ViewMode,
    /// Settings of the inner processes.
    pub switch: SwitchSettings,
    /// The default one first.
    pub switches: Vec<SwitchSpec>,
    /// Ports for guests.
    pub vnics: Vec<VnicSpec>,
    /// Ports over devices and taps.
    pub ports: Vec<PortSpec>,
    /// Static entries.
    pub fdb: Vec<StaticEntry>,
}

/// Refuses a vnic that cannot be on this machine, with its socket in `dir` if it names none.
pub fn check_vnic(vnic: &VnicSpec, dir: &Path) -> Result<(), Fault> {
    sockets::check_length(&vnic.socket_in(dir))?;
    access::Access::of(vnic).map(drop)
}

/// Refuses a group that is not on this machine.
pub fn check_control_group(group: Option<&str>) -> Result<(), Fault> {
    access::Access::of_control(group).map(drop)
}

/// Runs a switch until it is asked to end, and reports its state to `manager`. `inherited` has the descriptors that this one
/// kept of the last supervisor.
pub fn run(mut settings: RunSettings, manager: &mut Manager, inherited: Inherited) -> Result<(), Fault> {
    let signals = Signals::take()?;
    // Each new file is for its owner alone until its mode is set.
    rustix::process::umask(Mode::from_raw_mode(0o077));
    descriptors::raise_limit();
    descriptors::start_closing();
    let dir = RunDir::claim(settings.dir.clone())?;
    let previous = PreviousState::read(&inherited)?;
    let control =
        previous.as_ref().and_then(|previous| previous.control(&inherited, &control_socket(dir.path())));
    let mut supervisor = Supervisor::open(dir.path(), signals, &settings, control)?;
    if let Some(previous) = previous {
        supervisor.inherit(previous, &mut settings, &inherited)?;
    }
    supervisor.store.adopt(inherited);
    supervisor.switches.all = settings.switches;
    for vnic in settings.vnics {
        supervisor.open_port(vnic)?;
    }
    for port in settings.ports {
        supervisor.open_device_port(port)?;
    }
    supervisor.switches.static_entries = settings.fdb;
    supervisor.start_switch()?;
    supervisor.serve(manager)
}

/// The parts, and the state that concerns all of them.
struct Supervisor {
    dir: PathBuf,
    poller: Poller,
    reaper: Reaper,
    signals: Signals,
    settings: SwitchSettings,
    switch: SwitchProcess,
    driver: Driver,
    controller: ControllerProcess,
    switches: SwitchTable,
    ports: PortTable,
    sessions: Sessions,
    counters: PortCounterTable,
    /// The switch process is being replaced by that of another program.
    upgrade: Option<Upgrade>,
    /// While guests wait for a switch process.
    slice_boost: Option<SliceBoost>,
    clients: ApiClients,
    datapath_clients: DatapathClients,
    datapaths: SavedDatapaths,
    control_group: Option<String>,
    datapath_devices: Option<DevicePatterns>,
    scheduler: Scheduler,
    stage: Stage,
    /// The store for the next supervisor.
    store: RecordStore,
    /// Switches and ports that file and flags named.
    configured: ConfiguredNames,
}

impl Supervisor {
    /// With the control socket of the last supervisor, if there is one.
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
        let access = access::Access::of_control(control_group.as_deref())?;
        let clients = ApiClients::open(&control_socket(dir), access, control, &poller)?;
        let datapath_clients = DatapathClients::open(&datapath_socket(dir), access)?;
        Ok(Self {
            dir: dir.to_path_buf(),
            poller,
            signals,
            switch: SwitchProcess::new(&settings, &reaper),
            driver: Driver::new(&settings, &reaper),
            controller: ControllerProcess::new(&settings, &reaper),
            reaper,
            settings,
            switches: SwitchTable::new(run.switches.clone()),
            ports: PortTable::new(dir),
            sessions: Sessions::default(),
            counters: PortCounterTable::default(),
            upgrade: None,
            slice_boost: None,
            clients,
            datapath_clients,
            datapaths: SavedDatapaths::default(),
            control_group,
            datapath_devices: run.datapath_devices.clone(),
            scheduler: Scheduler::new(run.scheduler_view),
            stage: Stage::Starting,
            store: RecordStore::of_environment(),
            configured: run.configured(),
        })
    }

    fn serve(&mut self, manager: &mut Manager) -> Result<(), Fault> {
        loop {
            for happening in self.poller.wait(earlier(self.due(), manager.due()))? {
                self.handle(happening);
            }
            self.on_time(Instant::now());
            self.ports.track_uplinks(&mut self.switch);
            self.ports.tend_placeholders();
            let is_open = self.takes_datapath_clients();
            self.datapath_clients.watch(is_open, &self.poller);
            self.settle_controller();
            self.settle_scheduler(Instant::now());
            self.proceed_with_clients();
            self.watch_channels();
            self.deposit(Instant::now());
            self.tell(manager);
            if let Stage::Over(result) = &self.stage {
                let result = result.clone();
                self.end_all();
                return result;
            }
        }
    }

    fn handle(&mut self, happening: Happening) {
        match Source::of(happening.source) {
            Some(Source::Signals) if self.signals.came() => self.begin_end(),
            Some(Source::Switch) => self.hear(),
            Some(Source::Control) => self.clients.accept(&self.poller),
            Some(Source::Listener(number)) => self.advance_port(number),
            Some(Source::Client(number)) => self.hear_client(number, happening.is_over),
            Some(Source::Driver) => self.hear_driver(),
            Some(Source::Successor) => self.hear_successor(),
            Some(Source::Links) => self.hear_links(),
            // Clients that were heard together with the end of the switch process wait for the next one.
            Some(Source::DatapathListener) if self.takes_datapath_clients() => {
                self.datapath_clients.accept(&mut self.switch, &self.poller);
            }
            Some(Source::ControllerProcess) => self.hear_controller(),
            Some(Source::LentConnections(number)) => self.datapath_clients.forget(number, &self.poller),
            Some(Source::Ends) => self.look_for_ends(Instant::now()),
            Some(Source::Signals | Source::DatapathListener) | None => {}
        }
    }

    /// Whether there is a switch process to have clients of the datapath socket, and none is about to take its place.
    fn takes_datapath_clients(&self) -> bool {
        self.switch.process.is_up() && self.upgrade.is_none()
    }

    /// Looks at a switch process that owes a sign of life, if it is time.
    fn look_for_life(&mut self, now: Instant) {
        let is_busy = !matches!(self.stage, Stage::Serving) || self.upgrade.is_some();
        if self.switch.look_for_life(is_busy, now, &self.poller) {
            self.answer_without_switch();
        }
    }

    /// The earliest deadline of all.
    fn due(&self) -> Option<Instant> {
        let ports = self.ports.all.values().map(Port::due).fold(None, earlier);
        let others = [
            self.ends_due(),
            self.switch.due(),
            self.clients.due(),
            self.stage.due(),
            self.devices_due(),
            self.upgrade_due(),
            self.scheduler.due(),
        ];
        let slice_boost = self.slice_boost.as_ref().map(SliceBoost::until);
        let others = others.into_iter().chain([
            self.controller.due(),
            self.store.due(),
            slice_boost,
            self.datapath_clients.due(),
        ]);
        let others = others.chain(self.channels_due());
        others.fold(ports, earlier)
    }

    /// Does the work that is due.
    fn on_time(&mut self, now: Instant) {
        let is_due = |due: Option<Instant>| due.is_some_and(|due| due <= now);
        let ports: Vec<u32> =
            self.ports.all.iter().filter(|(_, port)| is_due(port.due())).map(|(n, _)| *n).collect();
        ports.into_iter().for_each(|number| self.advance_port(number));
        if is_due(self.ends_due()) {
            self.look_for_ends(now);
        }
        self.upgrade_on_time(now);
        self.slice_boost.take_if(|slice_boost| slice_boost.until() <= now);
        self.clients.expire(now, &self.poller);
        self.look_for_life(now);
        for (asker, fault) in self.switch.give_up_waiting(now) {
            self.clients.answer(asker, Err(fault));
        }
        if is_due(self.controller.due()) {
            self.controller_on_time(now);
        }
        if is_due(self.devices_due()) {
            self.devices_on_time(now);
        }
        if is_due(self.switch.process.due()) {
            self.restart_switch();
        }
        if is_due(self.stage.due()) {
            self.end_on_time(now);
        }
    }
}
