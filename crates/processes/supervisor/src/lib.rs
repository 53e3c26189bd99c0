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
#![deny(unsafe_code)] // files called sys.rs alone may have some

mod access;

mod capture;
mod change;
mod client;
mod control;
mod control_clients;
mod controller;
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
mod limits;
mod liveness;
mod opening;
mod orders;
mod pending_questions;
mod placeholder;
mod placeholders;
mod port;
mod ports;
mod previous;
mod question;
mod records;
mod requested;
mod requests;
mod saved_session;
mod scheduler;
mod showing;
mod sockets;
mod source;
mod stage;
mod status;
mod store;
mod succession;
mod switches;
mod tracking;
mod upgrade;
mod warnings;

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::Mode;
use serde_json::Value;

use lasthop_api::device_patterns::DevicePatterns;
use lasthop_api::fdb::StaticEntry;
use lasthop_api::orders::{Report, Request};
use lasthop_api::port::PortSpec;
use lasthop_api::rundir::{RunDir, control_socket, datapath_socket};
use lasthop_api::sched::ViewMode;
use lasthop_api::settings::SwitchSettings;
use lasthop_api::switches::SwitchSpec;
use lasthop_api::vnic::VnicSpec;
use lasthop_children::{ChildRole, Reaper, RestartingChild, SliceBoost};
use lasthop_netdev::links::Links;
use lasthop_runtime::clock::earlier;
use lasthop_runtime::descriptors;
use lasthop_runtime::fault::Fault;
use lasthop_runtime::notify::Manager;
use lasthop_runtime::poller::{Happening, Interest, Poller};
use lasthop_runtime::signals::Signals;

use control::Control;
use control_clients::ControlClients;
use controller::ControllerProcess;
use datapath_listener::DatapathListener;
use driver::Driver;
use flows::KeptFlows;
use lent::LentConnections;
use lifetime_counters::LifetimeCounters;
use liveness::Liveness;
use orders::Waiting;
use port::Port;
use previous::PreviousState;
use records::ConfiguredNames;
use saved_session::SavedSession;
use scheduler::Scheduler;
use sockets::ListenSocket;
use source::Source;
use stage::Stage;
use store::Store;
use upgrade::Upgrade;

pub use store::Inherited;
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
    supervisor.switches = settings.switches;
    for vnic in settings.vnics {
        supervisor.open_port(vnic)?;
    }
    for port in settings.ports {
        supervisor.open_device_port(port)?;
    }
    supervisor.static_entries = settings.fdb;
    supervisor.start_switch()?;
    supervisor.serve(manager)
}

/// Everything that there is one of.
struct Supervisor {
    dir: PathBuf,
    poller: Poller,
    reaper: Reaper,
    signals: Signals,
    settings: SwitchSettings,
    process: RestartingChild<Request, Report>,
    driver: Driver,
    controller: ControllerProcess,
    /// None until there is a device port.
    links: Option<Links>,
    /// The default one first.
    switches: Vec<SwitchSpec>,
    ports: BTreeMap<u32, Port>,
    next_port: u32,
    /// By port: the saved session that the next switch process continues.
    saved_sessions: BTreeMap<u32, SavedSession>,
    /// By port: the counters of earlier switch processes.
    counters: BTreeMap<u32, LifetimeCounters>,
    /// Of ports that the last supervisor had and no client has asked for since, by name.
    left_counters: BTreeMap<String, LifetimeCounters>,
    /// The switch process is being replaced by that of another program.
    upgrade: Option<Upgrade>,
    /// While guests wait for a switch process.
    slice_boost: Option<SliceBoost>,
    /// Entries of users in the forwarding table.
    static_entries: Vec<StaticEntry>,
    next_attachment: u64,
    control: Option<Control>,
    datapath_listener: Option<DatapathListener>,
    control_clients: ControlClients,
    /// Connections of clients that are the switch process's.
    lent: LentConnections,
    /// The last report of a switch process about datapaths.
    datapaths: Option<Value>,
    /// The memory in which switch processes leave flows.
    flows: Option<KeptFlows>,
    control_group: Option<String>,
    datapath_devices: Option<DevicePatterns>,
    /// Clients that just got an answer.
    answered: VecDeque<u32>,
    waiting: BTreeMap<u64, Waiting>,
    next_request: u64,
    liveness: Liveness,
    scheduler: Scheduler,
    /// A change decides which ports' links depend on uplinks.
    tracking_is_late: bool,
    stage: Stage,
    /// The store for the next supervisor.
    store: Store,
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
        let control = Control::open(&control_socket(dir), access, control)?;
        poller.add(&control, Source::Control.into(), Interest::READ)?;
        let datapath_listener = DatapathListener::open(&datapath_socket(dir), access)?;
        Ok(Self {
            dir: dir.to_path_buf(),
            poller,
            signals,
            process: RestartingChild::new(ChildRole::switch(&settings), &reaper),
            driver: Driver::new(&settings, &reaper),
            controller: ControllerProcess::new(&settings, &reaper),
            reaper,
            settings,
            links: None,
            switches: run.switches.clone(),
            ports: BTreeMap::new(),
            next_port: 0,
            saved_sessions: BTreeMap::new(),
            counters: BTreeMap::new(),
            left_counters: BTreeMap::new(),
            upgrade: None,
            slice_boost: None,
            static_entries: Vec::new(),
            next_attachment: 0,
            control: Some(control),
            datapath_listener: Some(datapath_listener),
            control_clients: ControlClients::default(),
            lent: LentConnections::default(),
            datapaths: None,
            flows: None,
            control_group,
            datapath_devices: run.datapath_devices.clone(),
            answered: VecDeque::new(),
            waiting: BTreeMap::new(),
            next_request: 0,
            liveness: Liveness::default(),
            scheduler: Scheduler::new(run.scheduler_view),
            tracking_is_late: false,
            stage: Stage::Starting,
            store: Store::of_environment(),
            configured: run.configured(),
        })
    }

    fn serve(&mut self, manager: &mut Manager) -> Result<(), Fault> {
        loop {
            for happening in self.poller.wait(earlier(self.due(), manager.due()))? {
                self.handle(happening);
            }
            self.on_time(Instant::now());
            self.track_uplinks();
            self.tend_placeholders();
            self.watch_datapath_listener();
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
            Some(Source::Control) => {
                if let Some(control) = &mut self.control {
                    control.accept(&self.poller);
                }
            }
            Some(Source::Listener(number)) => self.advance_port(number),
            Some(Source::Client(number)) => self.hear_client(number, happening.is_over),
            Some(Source::Driver) => self.hear_driver(),
            Some(Source::Successor) => self.hear_successor(),
            Some(Source::Links) => self.hear_links(),
            Some(Source::DatapathListener) => self.let_in(),
            Some(Source::ControllerProcess) => self.hear_controller(),
            Some(Source::LentConnections(number)) => self.lent.forget(number, &self.poller),
            Some(Source::Ends) => self.look_for_ends(Instant::now()),
            Some(Source::Signals) | None => {}
        }
    }

    /// The earliest deadline of all.
    fn due(&self) -> Option<Instant> {
        let ports = self.ports.values().map(Port::due).fold(None, earlier);
        let waiting = self.waiting.values().map(Waiting::due).fold(None, earlier);
        let control = self.control.as_ref().and_then(Control::due);
        let others = [
            self.ends_due(),
            waiting,
            control,
            self.process.due(),
            self.stage.due(),
            self.devices_due(),
            self.upgrade_due(),
            self.liveness.due(),
            self.scheduler.due(),
        ];
        let slice_boost = self.slice_boost.as_ref().map(SliceBoost::until);
        let datapath_listener = self.datapath_listener.as_ref().and_then(DatapathListener::due);
        let others = others.into_iter().chain([
            self.controller.due(),
            self.store.due(),
            slice_boost,
            datapath_listener,
        ]);
        let others = others.chain(self.channels_due());
        others.fold(ports, earlier)
    }

    /// Does the work that is due.
    fn on_time(&mut self, now: Instant) {
        let is_due = |due: Option<Instant>| due.is_some_and(|due| due <= now);
        let ports: Vec<u32> =
            self.ports.iter().filter(|(_, port)| is_due(port.due())).map(|(n, _)| *n).collect();
        ports.into_iter().for_each(|number| self.advance_port(number));
        if is_due(self.ends_due()) {
            self.look_for_ends(now);
        }
        self.upgrade_on_time(now);
        self.slice_boost.take_if(|slice_boost| slice_boost.until() <= now);
        if let Some(control) = &mut self.control {
            control.expire(now, &self.poller);
        }
        self.look_for_life(now);
        self.give_up_waiting(now);
        if is_due(self.controller.due()) {
            self.controller_on_time(now);
        }
        if is_due(self.devices_due()) {
            self.devices_on_time(now);
        }
        if is_due(self.process.due()) {
            self.restart_switch();
        }
        if is_due(self.stage.due()) {
            self.end_on_time(now);
        }
    }
}
