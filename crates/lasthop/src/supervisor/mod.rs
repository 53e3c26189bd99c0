//! The supervisor: owns the run directory, the sockets and the switch process.
//!
//! One thread, one `epoll` loop, and nothing in it waits for anything else: requests to the switch are answered when
//! its reply comes. Without an event or a deadline it sleeps; the rarest deadline is a question to an idle switch process (`pulse`).

mod access;
mod account;
mod asking;
mod capture;
mod change;
mod child;
mod client;
mod control;
mod control_clients;
mod controller;
mod device;
mod devices;
mod doctor;
mod driver;
mod ends;
mod estate;
mod fdb;
mod flows;
mod hurry;
mod interface;
mod legacy;
mod lent;
mod lifecycle;
mod limits;
mod opening;
mod orders;
mod orphans;
mod placeholder;
mod port;
mod ports;
mod pulse;
mod reaper;
mod records;
mod relay;
mod requested;
mod requests;
mod showing;
#[cfg(test)]
mod sleeper;
mod sockets;
mod source;
mod spawner;
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

use crate::clock::earlier;
use crate::descriptors;
use crate::device_patterns::DevicePatterns;
use crate::fault::Fault;
use crate::fdb::StaticEntry;
use crate::links::Links;
use crate::notify::Manager;
use crate::orders::{Report, Request};
use crate::poller::{Happening, Interest, Poller};
use crate::port::PortSpec;
use crate::rundir::{RunDir, control_socket, datapath_socket};
use crate::settings::SwitchSettings;
use crate::signals::Signals;
use crate::switches::SwitchSpec;
use crate::vnic::VnicSpec;

use account::Account;
use child::{Lives, Role};
use control::Control;
use control_clients::ControlClients;
use controller::Plane;
use driver::Driver;
use estate::Estate;
use flows::KeptFlows;
use hurry::Hurry;
use interface::Entrance;
use legacy::Legacy;
use lent::Lent;
use lifecycle::Stage;
use orders::Waiting;
use port::Port;
use pulse::Pulse;
use reaper::Reaper;
use records::Told;
use sockets::ListenSocket;
use source::Source;
use store::Store;
use upgrade::Upgrade;

pub(crate) use store::Inherited;
pub(crate) use upgrade::upgraded_text;

/// The settings of `lasthop run`.
#[derive(Debug)]
pub(crate) struct RunSettings {
    pub(crate) dir: PathBuf,
    /// Whose members may use the control socket.
    pub(crate) control_group: Option<String>,
    /// Devices that a control plane may have; `None` is all or none, as switches are.
    pub(crate) datapath_devices: Option<DevicePatterns>,
    pub(crate) switch: SwitchSettings,
    /// The default one first.
    pub(crate) switches: Vec<SwitchSpec>,
    pub(crate) vnics: Vec<VnicSpec>,
    pub(crate) ports: Vec<PortSpec>,
    pub(crate) fdb: Vec<StaticEntry>,
}

/// Refuses a vnic that cannot be on this machine, with its socket in `dir` if it names none.
pub(crate) fn check_vnic(vnic: &VnicSpec, dir: &Path) -> Result<(), Fault> {
    sockets::check_length(&vnic.socket_in(dir))?;
    access::Access::of(vnic).map(drop)
}

/// Refuses a group that is not on this machine.
pub(crate) fn check_control_group(group: Option<&str>) -> Result<(), Fault> {
    access::Access::of_control(group).map(drop)
}

/// Runs a switch until it is asked to end, and tells `manager` how it is. `inherited` is what that one kept of the last one.
pub(crate) fn run(
    mut settings: RunSettings,
    manager: &mut Manager,
    inherited: Inherited,
) -> Result<(), Fault> {
    let signals = Signals::take()?;
    // Whatever is made is for its owner alone until its mode is set.
    rustix::process::umask(Mode::from_raw_mode(0o077));
    descriptors::raise_limit();
    descriptors::start_closing();
    let dir = RunDir::claim(settings.dir.clone())?;
    let legacy = Legacy::read(&inherited)?;
    let control = legacy.as_ref().and_then(|legacy| legacy.control(&inherited, &control_socket(dir.path())));
    let mut supervisor = Supervisor::open(dir.path(), signals, &settings, control)?;
    if let Some(legacy) = legacy {
        supervisor.inherit(legacy, &mut settings, &inherited)?;
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
    lives: Lives<Request, Report>,
    driver: Driver,
    plane: Plane,
    /// None until there is a device port.
    links: Option<Links>,
    /// The default one first.
    switches: Vec<SwitchSpec>,
    ports: BTreeMap<u32, Port>,
    next_port: u32,
    /// By port: what the next switch process needs to go on with its guest.
    estates: BTreeMap<u32, Estate>,
    /// By port: what was counted before the present switch process.
    accounts: BTreeMap<u32, Account>,
    /// Of ports that the last supervisor had and nobody has asked for since, by name.
    left_accounts: BTreeMap<String, Account>,
    /// The switch process is being replaced by that of another program.
    upgrade: Option<Upgrade>,
    /// While guests wait for a switch process.
    hurry: Option<Hurry>,
    /// Entries of users in the forwarding table.
    static_entries: Vec<StaticEntry>,
    next_attachment: u64,
    control: Option<Control>,
    entrance: Option<Entrance>,
    control_clients: ControlClients,
    /// Connections of clients that are the switch process's.
    lent: Lent,
    /// The last report of a switch process about datapaths.
    datapaths: Option<Value>,
    /// The memory in which switch processes leave flows.
    flows: Option<KeptFlows>,
    control_group: Option<String>,
    datapath_devices: Option<DevicePatterns>,
    /// Clients whose request was just answered.
    answered: VecDeque<u32>,
    waiting: BTreeMap<u64, Waiting>,
    next_request: u64,
    pulse: Pulse,
    /// Something has changed that decides whose link depends on uplinks.
    tracking_is_late: bool,
    stage: Stage,
    /// The store for the next supervisor.
    store: Store,
    /// Switches and ports that file and flags named.
    told: Told,
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
        let entrance = Entrance::open(&datapath_socket(dir), access)?;
        Ok(Self {
            dir: dir.to_path_buf(),
            poller,
            signals,
            lives: Lives::new(Role::switch(&settings), &reaper),
            driver: Driver::new(&settings, &reaper),
            plane: Plane::new(&settings, &reaper),
            reaper,
            settings,
            links: None,
            switches: run.switches.clone(),
            ports: BTreeMap::new(),
            next_port: 0,
            estates: BTreeMap::new(),
            accounts: BTreeMap::new(),
            left_accounts: BTreeMap::new(),
            upgrade: None,
            hurry: None,
            static_entries: Vec::new(),
            next_attachment: 0,
            control: Some(control),
            entrance: Some(entrance),
            control_clients: ControlClients::default(),
            lent: Lent::default(),
            datapaths: None,
            flows: None,
            control_group,
            datapath_devices: run.datapath_devices.clone(),
            answered: VecDeque::new(),
            waiting: BTreeMap::new(),
            next_request: 0,
            pulse: Pulse::default(),
            tracking_is_late: false,
            stage: Stage::Starting,
            store: Store::of_environment(),
            told: run.told(),
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
            self.watch_entrance();
            self.settle_plane();
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
            Some(Source::Heir) => self.hear_heir(),
            Some(Source::Links) => self.hear_links(),
            Some(Source::Interface) => self.let_in(),
            Some(Source::Plane) => self.hear_plane(),
            Some(Source::Lent(number)) => self.lent.forget(number, &self.poller),
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
            self.lives.due(),
            self.stage.due(),
            self.devices_due(),
            self.upgrade_due(),
            self.pulse.due(),
        ];
        let hurry = self.hurry.as_ref().map(Hurry::until);
        let entrance = self.entrance.as_ref().and_then(Entrance::due);
        let others = others.into_iter().chain([self.plane.due(), self.store.due(), hurry, entrance]);
        let others = others.chain(self.channels_due());
        others.fold(ports, earlier)
    }

    /// Does what is due.
    fn on_time(&mut self, now: Instant) {
        let is_due = |due: Option<Instant>| due.is_some_and(|due| due <= now);
        let ports: Vec<u32> =
            self.ports.iter().filter(|(_, port)| is_due(port.due())).map(|(n, _)| *n).collect();
        ports.into_iter().for_each(|number| self.advance_port(number));
        if is_due(self.ends_due()) {
            self.look_for_ends(now);
        }
        self.upgrade_on_time(now);
        self.hurry.take_if(|hurry| hurry.until() <= now);
        if let Some(control) = &mut self.control {
            control.expire(now, &self.poller);
        }
        self.look_for_life(now);
        self.give_up_waiting(now);
        if is_due(self.plane.due()) {
            self.plane_on_time(now);
        }
        if is_due(self.devices_due()) {
            self.devices_on_time(now);
        }
        if is_due(self.lives.due()) {
            self.restart_switch();
        }
        if is_due(self.stage.due()) {
            self.end_on_time(now);
        }
    }
}
