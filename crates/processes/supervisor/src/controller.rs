//! The controller process: its configuration of switches and ports, its connections to the switch process, and questions to it.
//!
//! ```text
//!   supervisor ── channel: switches, ports ──> the controller process <── two SEQPACKET pairs ──> the switch process
//!       └──────── one end of each pair to each of them, again whenever one of them is another process
//! ```

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use lasthop_api::controller_orders::LINKS;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use serde_json::Value;

use lasthop_api::controller_orders::{ControlledSwitch, ControllerOrder, ControllerReport};
use lasthop_api::fdb::Flush;
use lasthop_api::modules::FLOW;
use lasthop_api::orders::Order;
use lasthop_api::report::FdbLine;
use lasthop_api::settings::SwitchSettings;
use lasthop_api::switches::{ControllerKind, SwitchSpec};
use lasthop_api::vnic::Name;
use lasthop_children::{ChildRole, Reaper, RestartingChild};
use lasthop_runtime::fault::Fault;
use lasthop_runtime::log::{say, say_of_others};

use super::Supervisor;
use super::pending_questions::PendingQuestions;
use super::port::Port;
use super::port_table::PortTable;
use super::question::{Asker, ControllerAnswer, OrderPurpose, Question};
use super::source::Source;
use super::stage::Stage;
use super::switch_process::SwitchProcess;
use super::switch_table::SwitchTable;
use super::upgrade::Upgrade;
use lasthop_runtime::poller::Poller;

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

    /// Starts the process if it is needed, and brings its configuration and its connections to the switch process up to date.
    fn settle(
        &mut self,
        switches: &SwitchTable,
        ports: &PortTable,
        switch: &mut SwitchProcess,
        poller: &Poller,
    ) {
        if !switches.all.iter().any(is_controlled) && self.told.is_none() {
            return;
        }
        if !self.process.is_up() && self.process.due().is_none() {
            self.start(poller);
        }
        self.connect(switch);
        let wanted = self.controlled(switches, ports, switch);
        if self.process.is_up() && self.told.as_ref() != Some(&wanted) {
            self.process.send(&ControllerOrder::Switches(wanted.clone()), Vec::new());
            self.told = Some(wanted);
        }
    }

    /// Takes a message of the process: the answer to a question, with its round, if it is one.
    fn take_report(&mut self, report: ControllerReport) -> Option<(u64, ControllerAnswer)> {
        match report {
            ControllerReport::Flushed { round, flushed } => {
                return Some((round, ControllerAnswer { flushed, ..ControllerAnswer::default() }));
            }
            ControllerReport::Told { round, fdb, moves, switches } => {
                self.take_part(round, fdb.entries);
                let fdb = std::mem::take(&mut self.parts.1);
                let told = ControllerAnswer { fdb, inside: switches, moves, has_answered: true, flushed: 0 };
                return Some((round, told));
            }
            ControllerReport::Alive { round } => self.lives_at(round),
            ControllerReport::Addresses { round, fdb } => self.take_part(round, fdb.entries),
            ControllerReport::Disconnected { connection } => self.lost(connection),
            ControllerReport::Said(words) => say_of_others!("controller: {words}"),
            ControllerReport::Sandbox(layers) => self.process.note_sandbox(layers),
            ControllerReport::Forbidden(call) => self.process.note_last_words(call.to_string()),
            ControllerReport::Failed { why } => self.process.note_last_words(why),
        }
        None
    }

    fn start(&mut self, poller: &Poller) {
        self.process.start_or_plan(poller, Source::ControllerProcess.into());
        self.told = None;
    }

    /// All switches that it decides for, with the ports that the switch process has.
    fn controlled(
        &self,
        switches: &SwitchTable,
        ports: &PortTable,
        switch: &SwitchProcess,
    ) -> Vec<ControlledSwitch> {
        // Ports that a switch process had that is being started again are to be its successor's.
        let told = self.told.iter().flatten().flat_map(|switch| &switch.ports);
        let told: BTreeSet<&Name> = told.map(|port| &port.vnic.name).collect();
        let controlled = |spec: &SwitchSpec| {
            let is_known = |port: &Port| port.is_known() || told.contains(&port.spec.name);
            let is_there = |port: &Port| is_known(port) && !port.is_requested();
            let own = ports.all.values().filter(|port| port.spec.switch == spec.name && is_there(port));
            let ports: Vec<_> = own.map(|port| port.as_told(&port.spec)).collect();
            let is_own = |vnic: &Name| ports.iter().any(|port| port.vnic.name == *vnic);
            let fdb = switches.static_entries.iter().filter(|entry| is_own(&entry.vnic)).cloned().collect();
            let addresses_max = spec.table().unwrap_or(0);
            ControlledSwitch { name: spec.name.clone(), addresses_max, ports, fdb }
        };
        // One that the switch process does not have yet has no datapath that could be asked for.
        let is_there = |spec: &&SwitchSpec| is_controlled(spec) && !switch.is_being_added(&spec.name);
        switches.all.iter().filter(is_there).map(controlled).collect()
    }

    /// Gives both processes an end of a fresh pair of connections, unless these two have them.
    fn connect(&mut self, switch: &mut SwitchProcess) {
        let both = (switch.process.starts(), self.process.starts());
        if self.connected == Some(both) || !switch.process.is_up() || !self.process.is_up() {
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
                    switch.order_with(
                        Order::ConnectController,
                        vec![connection.into()],
                        OrderPurpose::Restored,
                        None,
                    );
                }
                let ours = ours.into_iter().map(Into::into).collect();
                self.process.send(&ControllerOrder::Connect, ours);
                self.connected = Some(both);
                self.connections += 1;
                self.reconnection = None;
            }
            Err(error) => {
                say!(Warning: "cannot connect the controller process to the switch process: {error}")
            }
        }
    }

    /// It may hang: it is asked for a sign of life.
    pub(super) fn suspect(&mut self) {
        if self.process.is_up() && self.suspicion.is_none() {
            let round = self.pending.next_round();
            self.process.send(&ControllerOrder::Live { round }, Vec::new());
            self.suspicion = Some((round, Instant::now() + HANG_PATIENCE));
        }
    }

    /// The switch process is that of `program` now: the controller process is to be, too, once flows are there again that the
    /// next one learns from.
    pub(super) fn renew(&mut self, program: PathBuf) {
        if self.process.is_up() {
            self.renewal = Some((Instant::now() + RENEWAL_PAUSE, program));
        } else {
            // The one that is started next is of it at once.
            self.renewal = None;
            self.process.use_program(program);
        }
    }

    fn renew_on_time(&mut self, now: Instant, poller: &Poller) {
        let Some((_, program)) = self.renewal.take_if(|(at, _)| *at <= now) else { return };
        match self.process.is_up() {
            true => {
                self.is_replaced_by = Some(program);
                self.process.silence(poller);
            }
            false => self.process.use_program(program),
        }
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
        self.controller.settle(&self.switches, &self.ports, &mut self.switch, &self.poller);
    }

    /// Takes the controller process's messages.
    pub(super) fn hear_controller(&mut self) {
        let reports = self.controller.process.hear(&self.poller);
        for (report, _) in reports {
            if let Some((round, told)) = self.controller.take_report(report) {
                self.controller_answered(round, told);
            }
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
                self.clients.answer(asker, answer);
            }
        }
        is_any
    }

    /// Does the work that is due.
    pub(super) fn controller_on_time(&mut self, now: Instant) {
        self.controller.renew_on_time(now, &self.poller);
        if self.controller.reconnection.take_if(|at| *at <= now).is_some() {
            self.controller.connected = None;
            if self.switch.process.is_up() {
                say!(Warning: "the controller process lost its connections to the switch process and is given others");
            }
        }
        if self.controller.process.due().is_some_and(|due| due <= now) {
            self.controller.start(&self.poller);
        }
        if self.answer_controller_clients(0, now, ControllerAnswer::default()) {
            self.controller.suspect();
        }
        if self.controller.suspicion.take_if(|(_, until)| *until <= now).is_some() {
            let (pid, seconds) = (self.controller.process.pid().unwrap_or_default(), HANG_PATIENCE.as_secs());
            say!(Error: "the controller process {pid} hangs: it has not answered for {seconds} s; ending it");
            self.controller.process.silence(&self.poller);
        }
    }
}
