//! The controller process: its configuration of switches and ports, its connections to the switch process, and questions to it.
//!
//! ```text
//!   supervisor ── channel: switches, ports ──> the controller process <── two SEQPACKET pairs ──> the switch process
//!       └──────── one end of each pair to each of them, again whenever one of them is another process
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use lasthop_api::controller_orders::LINKS;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use serde_json::Value;

use lasthop_api::controller_orders::{ControlledSwitch, ControllerOrder, ControllerReport};
use lasthop_api::facts::ControllerFacts;
use lasthop_api::fdb::Flush;
use lasthop_api::modules::FLOW;
use lasthop_api::orders::Order;
use lasthop_api::report::{FdbLine, FdbReport};
use lasthop_api::settings::SwitchSettings;
use lasthop_api::switches::{ControllerKind, SwitchName, SwitchSpec};
use lasthop_api::vnic::Name;
use lasthop_children::{ChildRole, Reaper, RestartingChild};
use lasthop_runtime::fault::Fault;
use lasthop_runtime::log::{say, say_of_others};

use super::Supervisor;
use super::pending_questions::PendingQuestions;
use super::port::Port;
use super::question::{Asker, ControllerAnswer, OrderPurpose, Question};
use super::source::Source;
use super::stage::Stage;
use super::upgrade::Upgrade;

/// How long the controller process is waited for: one that is stopped must not keep addresses from being shown, and one that waits for
/// a CPU is not to be left out.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a controller process may say nothing that does nothing about packets, or has not told addresses: then it hangs, and another
/// one takes its place. One that waits for a CPU for so long would be no sooner back if it was started anew.
const HANG_PATIENCE: Duration = Duration::from_secs(8);

/// Pause before the controller process gets lost connections again, since the cause may return.
const RECONNECTION_PAUSE: Duration = Duration::from_secs(1);

/// How long after an upgrade of the switch process the controller process is replaced: packets of new flows do not wait for both.
const RENEWAL_PAUSE: Duration = Duration::from_secs(1);

/// The controller process, and the clients that wait for it.
#[derive(Debug)]
pub(super) struct ControllerProcess {
    pub(super) process: RestartingChild<ControllerOrder, ControllerReport>,
    /// The configuration that it was told last.
    told: Option<Vec<ControlledSwitch>>,
    /// Which processes are connected: how often each was started until then.
    connected: Option<(u64, u64)>,
    /// Connections that the present controller process was given.
    connections: u64,
    /// When it is given others, since it lost the last ones.
    reconnection: Option<Instant>,
    pending: PendingQuestions<ControllerQuestion>,
    /// Addresses of an answer that comes in parts, and the answer's round.
    parts: (u64, Vec<FdbLine>),
    /// When it is to be replaced by one of another program, and that.
    renewal: Option<(Instant, PathBuf)>,
    /// The process is ended to be replaced by one of this program.
    is_replaced_by: Option<PathBuf>,
    /// The round that it has to answer, and until when.
    suspicion: Option<(u64, Instant)>,
}

/// The question for the switch process that follows.
#[derive(Debug)]
pub(super) enum ControllerQuestion {
    Doctor { name: Option<String> },
    Fdb { switch: Option<String> },
    Switches,
    Flush(Flush),
}

impl ControllerProcess {
    pub(super) fn new(settings: &SwitchSettings, reaper: &Reaper) -> Self {
        Self {
            process: RestartingChild::new(ChildRole::controller(settings), reaper),
            told: None,
            connected: None,
            connections: 0,
            reconnection: None,
            pending: PendingQuestions::new(PATIENCE),
            parts: (0, Vec::new()),
            renewal: None,
            is_replaced_by: None,
            suspicion: None,
        }
    }

    /// Addresses of this round's answer, behind those that came before; a process that sends them is alive.
    fn take_part(&mut self, round: u64, addresses: Vec<FdbLine>) {
        if self.parts.0 != round {
            self.parts = (round, Vec::new());
        }
        self.parts.1.extend(addresses);
        self.suspicion = None;
    }

    /// It has answered up to this round.
    fn lives_at(&mut self, round: u64) {
        self.suspicion.take_if(|(awaited, _)| *awaited <= round);
    }

    /// The process is gone, and its open questions get no answer.
    fn forget_process(&mut self) {
        (self.connected, self.connections, self.reconnection) = (None, 0, None);
        self.suspicion = None;
        self.parts = (0, Vec::new());
    }

    /// These connections are over, while both processes live, or the switch process is about to be found dead.
    fn lost(&mut self, connection: u64) {
        if connection == self.connections && self.connected.is_some() {
            self.reconnection = Some(Instant::now() + RECONNECTION_PAUSE);
        }
    }

    /// The time at which a client has waited for long enough, or the process is to be started.
    pub(super) fn due(&self) -> Option<Instant> {
        let suspicion = self.suspicion.map(|(_, until)| until);
        let renewal = self.renewal.as_ref().map(|(at, _)| *at);
        let dues = [self.pending.due(), suspicion, renewal, self.reconnection, self.process.due()];
        dues.into_iter().flatten().min()
    }
}

/// Whether the embedded controller decides for a switch.
pub(super) fn is_controlled(switch: &SwitchSpec) -> bool {
    switch.module.as_str() == FLOW && switch.controller == ControllerKind::Embedded
}

impl Supervisor {
    /// Starts the controller process if one is needed, and brings its configuration and its connections to the switch process up to date.
    pub(super) fn settle_controller(&mut self) {
        let is_handed_over = self.upgrade.as_ref().is_some_and(Upgrade::is_handed_over);
        if !matches!(self.stage, Stage::Starting | Stage::Serving) || is_handed_over {
            return;
        }
        if !self.switches.iter().any(is_controlled) && self.controller.told.is_none() {
            return;
        }
        if !self.controller.process.is_up() && self.controller.process.due().is_none() {
            self.start_controller();
        }
        self.connect_controller();
        let wanted = self.controlled();
        if self.controller.process.is_up() && self.controller.told.as_ref() != Some(&wanted) {
            self.controller.process.send(&ControllerOrder::Switches(wanted.clone()), Vec::new());
            self.controller.told = Some(wanted);
        }
    }

    fn start_controller(&mut self) {
        self.controller.process.start_or_plan(&self.poller, Source::ControllerProcess.into());
        self.controller.told = None;
    }

    /// All switches that it decides for, with the ports that the switch process has.
    fn controlled(&self) -> Vec<ControlledSwitch> {
        // Ports that a switch process had that is being started again are to be its successor's.
        let told = self.controller.told.iter().flatten().flat_map(|switch| &switch.ports);
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
        // One that the switch process does not have yet has no datapath that could be asked for.
        let is_there = |switch: &&SwitchSpec| is_controlled(switch) && !self.is_being_added(&switch.name);
        self.switches.iter().filter(is_there).map(controlled).collect()
    }

    /// Gives both processes an end of a fresh pair of connections, unless these two have them.
    fn connect_controller(&mut self) {
        let both = (self.process.starts(), self.controller.process.starts());
        if self.controller.connected == Some(both)
            || !self.process.is_up()
            || !self.controller.process.is_up()
        {
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
                    self.order_with(
                        Order::ConnectController,
                        vec![connection.into()],
                        OrderPurpose::Restored,
                        None,
                    );
                }
                let ours = ours.into_iter().map(Into::into).collect();
                self.controller.process.send(&ControllerOrder::Connect, ours);
                self.controller.connected = Some(both);
                self.controller.connections += 1;
                self.controller.reconnection = None;
            }
            Err(error) => {
                say!(Warning: "cannot connect the controller process to the switch process: {error}")
            }
        }
    }

    /// Takes the controller process's messages.
    pub(super) fn hear_controller(&mut self) {
        let reports = self.controller.process.hear(&self.poller);
        reports.into_iter().for_each(|(report, _)| self.on_controller_report(report));
    }

    fn on_controller_report(&mut self, report: ControllerReport) {
        match report {
            ControllerReport::Flushed { round, flushed } => {
                self.controller_answered(round, ControllerAnswer { flushed, ..ControllerAnswer::default() });
            }
            ControllerReport::Alive { round } => self.controller.lives_at(round),
            ControllerReport::Addresses { round, fdb } => self.controller.take_part(round, fdb.entries),
            ControllerReport::Told { round, fdb, moves, switches } => {
                self.controller.take_part(round, fdb.entries);
                let fdb = std::mem::take(&mut self.controller.parts.1);
                let told = ControllerAnswer { fdb, inside: switches, moves, has_answered: true, flushed: 0 };
                self.controller_answered(round, told);
            }
            ControllerReport::Disconnected { connection } => self.controller.lost(connection),
            ControllerReport::Said(words) => say_of_others!("controller: {words}"),
            ControllerReport::Sandbox(layers) => self.controller.process.note_sandbox(layers),
            ControllerReport::Forbidden(call) => self.controller.process.note_last_words(call.to_string()),
            ControllerReport::Failed { why } => self.controller.process.note_last_words(why),
        }
    }

    /// The controller process is no more; known flows go on.
    pub(super) fn controller_gone(&mut self) {
        let pid = self.controller.process.pid().unwrap_or_default();
        let how = self.controller.process.bury();
        self.controller.forget_process();
        if let Some(program) = self.controller.is_replaced_by.take() {
            say!("the controller process {pid} {how}, to be replaced by that of {}", program.display());
            self.controller.process.use_program(program);
            self.answer_controller_clients(u64::MAX, Instant::now(), ControllerAnswer::default());
            return self.settle_controller();
        }
        if self.controller.process.is_hasty() {
            // Else the program of an upgrade that is none for it would be started for ever.
            self.controller.process.use_own_program();
        }
        if !self.stage.is_last() {
            let pause_ms = self.controller.process.plan().as_millis();
            say!(Error: "the controller process {pid} {how}; starting it again in {pause_ms} ms");
        }
        // Nothing will come any more.
        self.answer_controller_clients(u64::MAX, Instant::now(), ControllerAnswer::default());
    }

    /// Continues with a question when the controller has answered, or does not in time.
    pub(super) fn ask_controller(
        &mut self,
        wanted: ControllerQuestion,
        asker: &Asker,
    ) -> Result<Option<Value>, Fault> {
        if !self.controller.process.is_up() {
            return self.go_on(wanted, Rc::default(), asker);
        }
        let round = self.controller.pending.next_round();
        let order = match &wanted {
            ControllerQuestion::Flush(flush) => ControllerOrder::Flush { round, flush: flush.clone() },
            ControllerQuestion::Fdb { .. }
            | ControllerQuestion::Switches
            | ControllerQuestion::Doctor { .. } => ControllerOrder::Tell { round },
        };
        self.controller.process.send(&order, Vec::new());
        self.controller.pending.wait(wanted, asker);
        Ok(None)
    }

    fn go_on(
        &mut self,
        wanted: ControllerQuestion,
        controller: Rc<ControllerAnswer>,
        asker: &Asker,
    ) -> Result<Option<Value>, Fault> {
        match wanted {
            ControllerQuestion::Fdb { switch } => self.ask(Question::Fdb { switch, controller }, asker),
            ControllerQuestion::Switches => self.ask(Question::Switches { controller }, asker),
            ControllerQuestion::Doctor { name } => self.ask(Question::Doctor { name, controller }, asker),
            ControllerQuestion::Flush(flush) => self.change_fdb(
                Order::FdbFlush(flush),
                OrderPurpose::Question(Question::Flush { controller }),
                asker,
            ),
        }
    }

    /// The controller has answered: rounds end in order, so this is for the clients left of this one only.
    fn controller_answered(&mut self, round: u64, told: ControllerAnswer) {
        let now = Instant::now();
        self.controller.lives_at(round);
        // A client that has waited for too long is told the rest without it.
        self.answer_controller_clients(0, now, ControllerAnswer::default());
        self.answer_controller_clients(round, now, told);
    }

    /// Serves the clients whose question of up to this round is answered, or that have waited for long enough; whether there
    /// was one.
    fn answer_controller_clients(&mut self, round: u64, now: Instant, told: ControllerAnswer) -> bool {
        let told = Rc::new(told);
        let ready = self.controller.pending.take_ready(round, now);
        let is_any = !ready.is_empty();
        for (wanted, asker) in ready {
            if let Some(answer) = self.go_on(wanted, Rc::clone(&told), &asker).transpose() {
                self.answer(asker, answer);
            }
        }
        is_any
    }

    /// It may hang: it is asked for a sign of life.
    pub(super) fn suspect_controller(&mut self) {
        if self.controller.process.is_up() && self.controller.suspicion.is_none() {
            let round = self.controller.pending.next_round();
            self.controller.process.send(&ControllerOrder::Live { round }, Vec::new());
            self.controller.suspicion = Some((round, Instant::now() + HANG_PATIENCE));
        }
    }

    /// The switch process is that of `program` now: the controller process is to be, too, once flows are there again that the
    /// next one learns from.
    pub(super) fn renew_controller(&mut self, program: PathBuf) {
        if self.controller.process.is_up() {
            self.controller.renewal = Some((Instant::now() + RENEWAL_PAUSE, program));
        } else {
            // The one that is started next is of it at once.
            self.controller.renewal = None;
            self.controller.process.use_program(program);
        }
    }

    fn renew_controller_on_time(&mut self, now: Instant) {
        let Some((_, program)) = self.controller.renewal.take_if(|(at, _)| *at <= now) else { return };
        match self.controller.process.is_up() {
            true => {
                self.controller.is_replaced_by = Some(program);
                self.controller.process.silence(&self.poller);
            }
            false => self.controller.process.use_program(program),
        }
    }

    /// Does the work that is due.
    pub(super) fn controller_on_time(&mut self, now: Instant) {
        self.renew_controller_on_time(now);
        if self.controller.reconnection.take_if(|at| *at <= now).is_some() {
            self.controller.connected = None;
            if self.process.is_up() {
                say!(Warning: "the controller process lost its connections to the switch process and is given others");
            }
        }
        if self.controller.process.due().is_some_and(|due| due <= now) {
            self.start_controller();
        }
        if self.answer_controller_clients(0, now, ControllerAnswer::default()) {
            self.suspect_controller();
        }
        if self.controller.suspicion.take_if(|(_, until)| *until <= now).is_some() {
            let (pid, seconds) = (self.controller.process.pid().unwrap_or_default(), HANG_PATIENCE.as_secs());
            say!(Error: "the controller process {pid} hangs: it has not answered for {seconds} s; ending it");
            self.controller.process.silence(&self.poller);
        }
    }

    /// Forwarding tables as the switch process has them, with those of the controller in place of its switches' own: they
    /// learn only while there is none.
    pub(super) fn with_controlled(
        &self,
        controller: &ControllerAnswer,
        wanted: Option<&str>,
        fdb: FdbReport,
    ) -> FdbReport {
        let known: BTreeSet<&SwitchName> = controller.inside.iter().map(|inside| &inside.name).collect();
        let others = fdb.entries.into_iter().filter(|line| !known.contains(&line.switch));
        let own = controller.fdb.iter();
        let own = own.filter(|line| wanted.is_none_or(|wanted| line.switch.as_str() == wanted)).cloned();
        let mut entries: Vec<FdbLine> = others.chain(own).collect();
        let place = |line: &SwitchName| self.switches.iter().position(|switch| switch.name == *line);
        // Those of one switch are in order.
        entries.sort_by_key(|line| place(&line.switch));
        FdbReport { entries }
    }

    /// The facts of the controller process for `lasthop doctor`, after it was asked: none, if no switch needs one.
    pub(super) fn controller_facts(&self, told: &ControllerAnswer) -> Option<ControllerFacts> {
        let process = &self.controller.process;
        let is_needed = self.switches.iter().any(is_controlled);
        is_needed.then(|| ControllerFacts {
            pid: process.pid(),
            up_ms: process.up().map(|up| up.as_millis() as u64),
            restarts: process.restarts(),
            last_end: process.last_end(),
            has_answered: told.has_answered,
            counters: told.inside.iter().fold(BTreeMap::new(), |mut sums, switch| {
                switch
                    .counters
                    .iter()
                    .for_each(|(name, count)| *sums.entry(name.clone()).or_default() += count);
                sums
            }),
        })
    }
}
