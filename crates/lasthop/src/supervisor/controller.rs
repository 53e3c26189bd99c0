//! The controller process: what it is told of switches and ports, its connections to the switch process, and questions to it.
//!
//! ```text
//!   supervisor ── channel: switches, ports ──> the controller process <── two SEQPACKET pairs ──> the switch process
//!       └──────── one end of each pair to each of them, again whenever one of them is another process
//! ```

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use lasthop_controller::LINKS;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use serde_json::Value;

use crate::config::FLOW;
use crate::controller::{ControlledSwitch, ControllerOrder, ControllerReport};
use crate::fault::Fault;
use crate::fdb::Flush;
use crate::log::say;
use crate::orders::Order;
use crate::report::{FdbLine, FdbReport, SwitchInside};
use crate::sandbox;
use crate::settings::SwitchSettings;
use crate::switches::{ControllerKind, SwitchName, SwitchSpec};
use crate::vnic::Name;

use super::Supervisor;
use super::child::{Lives, Role};
use super::lifecycle::Stage;
use super::orders::{Asker, What};
use super::port::Port;
use super::requests::Question;
use super::source::Source;

/// How long the controller process is waited for: one that is stopped must not keep addresses from being shown.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long a controller process may say nothing that does nothing about packets, or has not told addresses: then it hangs, and another
/// one takes its place.
const HANG_PATIENCE: Duration = Duration::from_secs(3);

/// The controller process, and who waits for it.
#[derive(Debug)]
pub(super) struct Plane {
    pub(super) lives: Lives<ControllerOrder, ControllerReport>,
    /// What it was told last.
    told: Option<Vec<ControlledSwitch>>,
    /// Which processes are connected: how often each was started until then.
    connected: Option<(u64, u64)>,
    round: u64,
    asking: VecDeque<Asking>,
    /// The round that it has to answer, and until when.
    suspicion: Option<(u64, Instant)>,
}

/// What the controller process said when it was asked; nothing, if it did not answer.
#[derive(Clone, Debug, Default)]
pub(super) struct PlaneTold {
    fdb: Vec<FdbLine>,
    inside: Vec<SwitchInside>,
    pub(super) flushed: usize,
}

/// Somebody who wants to know something that the controller has to be asked first.
#[derive(Debug)]
struct Asking {
    round: u64,
    wanted: PlaneQuestion,
    asker: Asker,
    until: Instant,
}

/// What is asked of the switch process afterwards.
#[derive(Debug)]
pub(super) enum PlaneQuestion {
    Fdb { switch: Option<String> },
    Switches,
    Flush(Flush),
}

impl Plane {
    pub(super) fn new(settings: &SwitchSettings) -> Self {
        Self {
            lives: Lives::new(Role::controller(settings)),
            told: None,
            connected: None,
            round: 0,
            asking: VecDeque::new(),
            suspicion: None,
        }
    }

    fn send(&mut self, order: &ControllerOrder, fds: Vec<OwnedFd>) {
        if let Some(process) = self.lives.current() {
            // A channel that fails is one whose other end is gone, and that is seen by reading from it.
            let _ = process.channel.send(order, fds);
        }
    }

    /// When somebody has waited for long enough, or the process is to be started.
    pub(super) fn due(&self) -> Option<Instant> {
        let asking = self.asking.front().map(|asking| asking.until);
        let suspicion = self.suspicion.map(|(_, until)| until);
        [asking, suspicion, self.lives.due()].into_iter().flatten().min()
    }
}

/// Whether the embedded controller decides for a switch.
pub(super) fn is_controlled(switch: &SwitchSpec) -> bool {
    switch.module.as_str() == FLOW && switch.controller == ControllerKind::Embedded
}

impl Supervisor {
    /// Sees to it that there is a controller process if one is needed, that it knows what it has to, and the switch process it.
    pub(super) fn settle_plane(&mut self) {
        if !matches!(self.stage, Stage::Starting | Stage::Serving) || self.upgrade.is_some() {
            return;
        }
        if !self.switches.iter().any(is_controlled) && self.plane.told.is_none() {
            return;
        }
        if !self.plane.lives.is_up() && self.plane.lives.due().is_none() {
            self.start_controller();
        }
        self.connect_plane();
        let wanted = self.controlled();
        if self.plane.lives.is_up() && self.plane.told.as_ref() != Some(&wanted) {
            self.plane.send(&ControllerOrder::Switches(wanted.clone()), Vec::new());
            self.plane.told = Some(wanted);
        }
    }

    fn start_controller(&mut self) {
        match self.plane.lives.start(&self.poller, Source::Plane.into()) {
            Ok(process) => {
                let pid = process.pid();
                let again = if self.plane.lives.restarts() > 0 { " again" } else { "" };
                say!("the controller process is running{again}, as process {pid}");
            }
            Err(fault) => {
                self.plane.lives.bury();
                let pause_ms = self.plane.lives.plan().as_millis();
                say!("{fault}; trying again in {pause_ms} ms");
            }
        }
        self.plane.told = None;
    }

    /// All switches that it decides for, with the ports that the switch process has.
    fn controlled(&self) -> Vec<ControlledSwitch> {
        // Ports that a switch process had that is being started again are to be its successor's.
        let told = self.plane.told.iter().flatten().flat_map(|switch| &switch.ports);
        let told: BTreeSet<&Name> = told.map(|port| &port.vnic.name).collect();
        let controlled = |switch: &SwitchSpec| {
            let is_known = |port: &Port| port.is_known() || told.contains(&port.spec.name);
            let is_there = |port: &Port| is_known(port) && !port.is_requested();
            let own = self.ports.values().filter(|port| port.spec.switch == switch.name && is_there(port));
            let ports: Vec<_> = own.map(|port| port.as_told(&port.spec)).collect();
            let is_own = |vnic: &Name| ports.iter().any(|port| port.vnic.name == *vnic);
            let fdb = self.static_entries.iter().filter(|entry| is_own(&entry.vnic)).cloned().collect();
            let addresses_max = switch.table().unwrap_or(0);
            ControlledSwitch { name: switch.name.clone(), addresses_max, ports, fdb }
        };
        self.switches.iter().filter(|switch| is_controlled(switch)).map(controlled).collect()
    }

    /// Gives both processes an end of a fresh pair of connections, unless these two have them.
    fn connect_plane(&mut self) {
        let both = (self.lives.starts(), self.plane.lives.starts());
        if self.plane.connected == Some(both) || !self.lives.is_up() || !self.plane.lives.is_up() {
            return;
        }
        let pair = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        };
        let pairs: Result<Vec<_>, _> = (0..LINKS).map(|_| pair()).collect();
        match pairs {
            Ok(pairs) => {
                let (ours, theirs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
                for connection in theirs {
                    self.order_with(Order::ConnectController, vec![connection], What::Restored, None);
                }
                self.plane.send(&ControllerOrder::Connect, ours);
                self.plane.connected = Some(both);
            }
            Err(error) => say!("cannot connect the controller process to the switch process: {error}"),
        }
    }

    /// Takes what the controller process has to say.
    pub(super) fn hear_plane(&mut self) {
        let Some(process) = self.plane.lives.current() else { return };
        let (reports, is_over) = process.hear();
        reports.into_iter().for_each(|(report, _)| self.on_controller_report(report));
        match is_over {
            Ok(false) => {}
            Ok(true) => self.controller_gone(),
            Err(error) => {
                say!("the controller process said something odd: {error}");
                self.controller_gone();
            }
        }
    }

    fn on_controller_report(&mut self, report: ControllerReport) {
        match report {
            ControllerReport::Flushed { round, flushed } => {
                self.plane_told(round, &PlaneTold { flushed, ..PlaneTold::default() });
            }
            ControllerReport::Told { round, fdb, switches } => {
                self.plane_told(round, &PlaneTold { fdb: fdb.entries, inside: switches, flushed: 0 });
            }
            ControllerReport::Said(words) => say!("controller: {words}"),
            ControllerReport::Sandbox(layers) => {
                // Those that are started again have the same.
                if self.plane.lives.restarts() == 0 {
                    say!("sandbox of the controller process: {}", sandbox::summary(&layers));
                }
                if let Some(process) = self.plane.lives.current() {
                    process.sandbox = Some(layers);
                }
            }
            ControllerReport::Forbidden(call) => {
                if let Some(process) = self.plane.lives.current() {
                    process.last_words = Some(call.to_string());
                }
            }
            ControllerReport::Failed { why } => {
                if let Some(process) = self.plane.lives.current() {
                    process.last_words = Some(why);
                }
            }
        }
    }

    /// The controller process is no more; known flows go on.
    fn controller_gone(&mut self) {
        let pid = self.plane.lives.pid().unwrap_or_default();
        let how = self.plane.lives.bury();
        self.plane.connected = None;
        self.plane.suspicion = None;
        if !matches!(self.stage, Stage::Ending { .. } | Stage::Over(_)) {
            let pause_ms = self.plane.lives.plan().as_millis();
            say!("the controller process {pid} {how}; starting it again in {pause_ms} ms");
        }
        // Nothing will come any more.
        self.answer_plane(|_| true, &PlaneTold::default());
    }

    /// Goes on with a question when the controller has told what it knows, or does not in time.
    pub(super) fn ask_plane(&mut self, wanted: PlaneQuestion, asker: &Asker) -> Result<Option<Value>, Fault> {
        if !self.plane.lives.is_up() {
            return self.go_on(wanted, PlaneTold::default(), asker);
        }
        self.plane.round += 1;
        let round = self.plane.round;
        let order = match &wanted {
            PlaneQuestion::Flush(flush) => ControllerOrder::Flush { round, flush: flush.clone() },
            PlaneQuestion::Fdb { .. } | PlaneQuestion::Switches => ControllerOrder::Tell { round },
        };
        self.plane.send(&order, Vec::new());
        let until = Instant::now() + PATIENCE;
        self.plane.asking.push_back(Asking { round, wanted, asker: asker.clone(), until });
        Ok(None)
    }

    fn go_on(
        &mut self,
        wanted: PlaneQuestion,
        plane: PlaneTold,
        asker: &Asker,
    ) -> Result<Option<Value>, Fault> {
        match wanted {
            PlaneQuestion::Fdb { switch } => self.ask(Question::Fdb { switch, plane }, asker),
            PlaneQuestion::Switches => self.ask(Question::Switches { plane }, asker),
            PlaneQuestion::Flush(flush) => {
                self.change_fdb(Order::FdbFlush(flush), What::Question(Question::Flush { plane }), asker)
            }
        }
    }

    /// The controller has answered: whoever asked in this round has this answer, and nobody else.
    fn plane_told(&mut self, round: u64, told: &PlaneTold) {
        self.plane.suspicion.take_if(|(awaited, _)| *awaited <= round);
        self.answer_plane(|asking| asking.round == round, told);
    }

    /// Goes on with some questions.
    fn answer_plane(&mut self, is_ready: impl Fn(&Asking) -> bool, told: &PlaneTold) {
        let (ready, waiting): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.plane.asking).into_iter().partition(is_ready);
        self.plane.asking = waiting;
        for Asking { wanted, asker, .. } in ready {
            if let Some(answer) = self.go_on(wanted, told.clone(), &asker).transpose() {
                self.answer(asker, answer);
            }
        }
    }

    /// It may hang: it is asked for a sign of life.
    pub(super) fn suspect_plane(&mut self) {
        if self.plane.lives.is_up() && self.plane.suspicion.is_none() {
            self.plane.round += 1;
            let round = self.plane.round;
            self.plane.send(&ControllerOrder::Tell { round }, Vec::new());
            self.plane.suspicion = Some((round, Instant::now() + HANG_PATIENCE));
        }
    }

    /// What is due.
    pub(super) fn plane_on_time(&mut self, now: Instant) {
        if self.plane.lives.due().is_some_and(|due| due <= now) {
            self.start_controller();
        }
        if self.plane.asking.iter().any(|asking| asking.until <= now) {
            self.answer_plane(|asking| asking.until <= now, &PlaneTold::default());
            self.suspect_plane();
        }
        if self.plane.suspicion.take_if(|(_, until)| *until <= now).is_some() {
            let (pid, seconds) = (self.plane.lives.pid().unwrap_or_default(), HANG_PATIENCE.as_secs());
            say!("the controller process {pid} hangs: it has not answered for {seconds} s; ending it");
            self.controller_gone();
        }
    }

    /// Forwarding tables as the switch process has them, with those of the controller in place of what its switches know: they
    /// learn only while there is none.
    pub(super) fn with_controlled(
        &self,
        plane: &PlaneTold,
        wanted: Option<&str>,
        fdb: FdbReport,
    ) -> FdbReport {
        let known: BTreeSet<&SwitchName> = plane.inside.iter().map(|inside| &inside.name).collect();
        let others = fdb.entries.into_iter().filter(|line| !known.contains(&line.switch));
        let own = plane.fdb.iter();
        let own = own.filter(|line| wanted.is_none_or(|wanted| line.switch.as_str() == wanted)).cloned();
        let mut entries: Vec<FdbLine> = others.chain(own).collect();
        let place = |line: &SwitchName| self.switches.iter().position(|switch| switch.name == *line);
        // Those of one switch are in order.
        entries.sort_by_key(|line| place(&line.switch));
        FdbReport { entries }
    }
}

impl PlaneTold {
    /// What happened to switches, with what the controller says of its own.
    pub(super) fn with_controlled(&self, mut inside: Vec<SwitchInside>) -> Vec<SwitchInside> {
        for own in &self.inside {
            if let Some(switch) = inside.iter_mut().find(|switch| switch.name == own.name) {
                switch.addresses = own.addresses;
                switch.counters.extend(own.counters.clone());
            }
        }
        inside
    }
}
