//! The controller process: its switches and ports, its connections to the switch process, and questions to it.
//!
//! ```text
//!   supervisor ── channel: switches, ports ──> the controller process <── two SEQPACKET pairs ──> the switch process
//!       └──────── one end of each pair to each of them, again whenever one of them is another process
//! ```

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use lasthop_api::acl::AclRule;
use lasthop_api::controller_orders::{ControlledSwitch, ControllerOrder, ControllerReport, LINKS};
use lasthop_api::leases::PortLeases;
use log::{error, info, warn};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use lasthop_api::orders::{Order, SwitchPort};
use lasthop_api::pair_flows::PairFlows;
use lasthop_api::port::Name;
use lasthop_api::report::{AddressParts, FdbReport};
use lasthop_api::settings::SwitchSettings;
use lasthop_api::switches::{SwitchName, SwitchSpec};
use lasthop_children::{ChildProgram, ChildRole, Reaper, RestartingChild};

use super::port::Port;
use super::port_table::PortTable;
use super::question::{ControllerAnswer, OrderPurpose, PendingQuestions, Question};
use super::source::Source;
use super::switch_process::SwitchProcess;
use super::switch_table::SwitchTable;
use lasthop_listeners::Caller;
use lasthop_runtime::poller::Poller;

/// How long a reply of the controller process is awaited. A stopped process must not prevent addresses from being
/// shown; one that waits for a CPU should still be included.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a controller process may be silent that does not answer upcalls or questions: then it hangs, and is
/// replaced. A process that has waited for a CPU for this long would not be ready sooner after a restart.
const HANG_PATIENCE: Duration = Duration::from_secs(8);

/// Pause before the controller process gets new connections after it lost some, since the cause may persist.
const RECONNECTION_PAUSE: Duration = Duration::from_secs(1);

/// Time after an upgrade of the switch process until the controller process is replaced, so that packets of new flows
/// do not wait for both.
const RENEWAL_PAUSE: Duration = Duration::from_secs(1);
/// How long a process that was told to end may take: longer than its answers to the last packets take.
const FINISH_PATIENCE: Duration = Duration::from_secs(1);

/// The controller process, and the clients that wait for it.
#[derive(Debug)]
pub(super) struct ControllerProcess {
    pub(super) process: RestartingChild<ControllerOrder, ControllerReport>,
    pair_flows: PairFlows,
    /// The configuration that it was last told.
    told: Option<Vec<ControlledSwitch>>,
    /// Start numbers of the connected processes.
    connected: Option<(u64, u64)>,
    /// Number of connections that the present controller process got.
    connections: u64,
    /// When it gets new ones, after it lost some.
    reconnection: Option<Instant>,
    pending: PendingQuestions,
    /// Addresses of a partial answer.
    parts: AddressParts,
    /// Reported addresses that DHCP servers gave to ports.
    pub(super) leases: Vec<(SwitchName, PortLeases)>,
    /// When it is replaced by a process of another program, and that program.
    renewal: Option<(Instant, ChildProgram)>,
    /// The program by which it is being replaced.
    is_replaced_by: Option<ChildProgram>,
    /// When the process is killed, if it was told to end.
    finish_until: Option<Instant>,
    /// The round that it has to answer, and the deadline.
    suspicion: Option<(u64, Instant)>,
}

impl ControllerProcess {
    pub(super) fn new(settings: &SwitchSettings, reaper: &Reaper) -> Self {
        Self {
            process: RestartingChild::new(ChildRole::controller(settings), reaper),
            pair_flows: settings.pair_flows,
            told: None,
            connected: None,
            connections: 0,
            reconnection: None,
            pending: PendingQuestions::new(PATIENCE),
            parts: AddressParts::default(),
            leases: Vec::new(),
            renewal: None,
            is_replaced_by: None,
            finish_until: None,
            suspicion: None,
        }
    }

    /// Adds a part of this round's addresses, if a client waits for it; a process that sends them is alive. Ends a
    /// process that reports more than it can have.
    fn take_part(&mut self, round: u64, part: FdbReport) {
        self.suspicion = None;
        if self.pending.is_open(round)
            && let Err(why) = self.parts.add(round, part)
        {
            self.process.give_up_on(why);
        }
    }

    /// Notes an answer for this round.
    fn lives_at(&mut self, round: u64) {
        self.suspicion.take_if(|(awaited, _)| *awaited <= round);
    }

    /// Forgets the process, and its open questions.
    fn forget_process(&mut self) {
        (self.connected, self.connections, self.reconnection) = (None, 0, None);
        self.suspicion = None;
        self.parts = AddressParts::default();
    }

    /// Notes the loss of connections, while both processes live, or before the end of the switch process is noticed.
    fn lost(&mut self, connection: u64) {
        if connection == self.connections && self.connected.is_some() {
            self.reconnection = Some(Instant::now() + RECONNECTION_PAUSE);
        }
    }

    /// When a client's wait ends, or the process has to be started.
    pub(super) fn due(&self) -> Option<Instant> {
        let suspicion = self.suspicion.map(|(_, until)| until);
        let renewal = self.renewal.as_ref().map(|(at, _)| *at);
        let dues = [
            self.pending.due(),
            suspicion,
            renewal,
            self.finish_until,
            self.reconnection,
            self.process.due(),
        ];
        dues.into_iter().flatten().min()
    }

    /// Starts the process if it is needed, and updates its configuration and its connections to the switch process.
    pub(super) fn settle(
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
            let (mut order, told) = (wanted.clone(), self.told.as_deref().unwrap_or_default());
            let leases = || ports.all.values().filter_map(Port::leases);
            order.iter_mut().for_each(|switch| switch.add_leases(told, leases()));
            self.process.send(&ControllerOrder::Switches(order), Vec::new());
            self.told = Some(wanted);
        }
    }

    /// Handles a message of the process; returns the answer to a question with its round, if it is one.
    fn take_report(&mut self, report: ControllerReport) -> Option<(u64, ControllerAnswer)> {
        match report {
            ControllerReport::Flushed { round, flushed } => {
                return Some((round, ControllerAnswer { flushed, ..ControllerAnswer::default() }));
            }
            ControllerReport::Answer { round, fdb, moves, switches } => {
                self.take_part(round, fdb);
                let fdb = self.parts.take(round);
                let nothing = ControllerAnswer::default();
                let told = ControllerAnswer { fdb, inside: switches, moves, has_answered: true, ..nothing };
                return Some((round, told));
            }
            ControllerReport::Settled { round } => {
                return Some((round, ControllerAnswer { has_settled: true, ..ControllerAnswer::default() }));
            }
            ControllerReport::Consulted { round, consultations } => {
                return Some((round, ControllerAnswer { consultations, ..ControllerAnswer::default() }));
            }
            ControllerReport::Alive { round } => self.lives_at(round),
            ControllerReport::Addresses { round, fdb } => self.take_part(round, fdb),
            ControllerReport::Leases { switch, leases } => self.leases.push((switch, leases)),
            ControllerReport::Disconnected { connection } => self.lost(connection),
            ControllerReport::Said(words) => info!(limited = true; "controller: {words}"),
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
        // The ports of a switch process that is being restarted are also its successor's.
        let told = self.told.iter().flatten().flat_map(|switch| &switch.ports);
        let told: BTreeSet<&Name> = told.map(|port| &port.common.name).collect();
        let controlled = |spec: &SwitchSpec| {
            let is_known = |port: &Port| port.is_known() || told.contains(&port.spec.common.name);
            let is_there = |port: &Port| is_known(port) && !port.is_requested();
            let own =
                ports.all.values().filter(|port| port.spec.common.switch == spec.name && is_there(port));
            let ports: Vec<_> = own.map(|port| port.as_told(&port.spec)).collect();
            let is_own = |vnic: &Name| ports.iter().any(|port| port.common.name == *vnic);
            let fdb = switches.static_entries.iter().filter(|entry| is_own(&entry.port)).cloned().collect();
            let addresses_max = spec.table().unwrap_or(0);
            let protects = |rule: &AclRule, port: &SwitchPort| {
                rule.protects(port.common.name.as_str(), &port.common.policy.groups)
            };
            let is_about_own = |rule: &&AclRule| ports.iter().any(|port| protects(rule, port));
            let acl = switches.acl.iter().filter(is_about_own).cloned().collect();
            let (name, pair_flows, leases) = (spec.name.clone(), self.pair_flows, Vec::new());
            ControlledSwitch { name, addresses_max, pair_flows, ports, fdb, acl, leases }
        };
        // A port that the switch process does not have yet has no datapath to request.
        let is_there = |spec: &&SwitchSpec| is_controlled(spec) && !switch.is_being_added(&spec.name);
        switches.all.iter().filter(is_there).map(controlled).collect()
    }

    /// Gives each process one end of a new pair of connections, unless these two are connected.
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
                warn!("cannot connect the controller process to the switch process: {error}")
            }
        }
    }

    /// Requests a sign of life, since the process may hang.
    pub(super) fn suspect(&mut self) {
        if self.process.is_up() && self.suspicion.is_none() {
            let round = self.pending.next_round();
            self.process.send(&ControllerOrder::Live { round }, Vec::new());
            self.suspicion = Some((round, Instant::now() + HANG_PATIENCE));
        }
    }

    /// Schedules the replacement of the controller process after an upgrade of the switch process to `program`: it
    /// waits until flows are restored, from which the next one learns.
    pub(super) fn renew(&mut self, program: ChildProgram) {
        if self.process.is_up() {
            self.renewal = Some((Instant::now() + RENEWAL_PAUSE, program));
        } else {
            // A process that starts next uses it at once.
            self.renewal = None;
            self.process.use_program(program);
        }
    }

    /// Asks a question for a client, which waits; returns the question if there is no process, or the process has no
    /// part in the answer.
    pub(super) fn ask(&mut self, question: Question, caller: &Caller) -> Result<(), Question> {
        if !self.process.is_up() {
            return Err(question);
        }
        let Some(order) = question.controller_order(self.pending.next_round()) else { return Err(question) };
        self.process.send(&order, Vec::new());
        self.pending.wait(question, caller);
        Ok(())
    }

    /// Takes the questions that are answered up to this round, or have waited too long.
    pub(super) fn take_ready(&mut self, round: u64, now: Instant) -> Vec<(Question, Caller)> {
        self.pending.take_ready(round, now)
    }

    /// Replaces the process if it is due. It ends by itself, since a kill would lose packets that it is processing,
    /// unless that takes too long.
    fn renew_on_time(&mut self, now: Instant, poller: &Poller) {
        if self.finish_until.take_if(|until| *until <= now).is_some() {
            self.process.silence(poller);
        }
        let Some((_, program)) = self.renewal.take_if(|(at, _)| *at <= now) else { return };
        match self.process.is_up() {
            true => {
                self.is_replaced_by = Some(program);
                self.process.send(&ControllerOrder::Finish, Vec::new());
                self.finish_until = Some(now + FINISH_PATIENCE);
            }
            false => self.process.use_program(program),
        }
    }

    /// Reads the process's messages. Returns the answered rounds in order, with the answers.
    pub(super) fn hear(&mut self, poller: &Poller) -> Vec<(u64, ControllerAnswer)> {
        let mut answers = Vec::new();
        for (report, _) in self.process.hear(poller) {
            if let Some((round, answer)) = self.take_report(report) {
                self.lives_at(round);
                answers.push((round, answer));
            }
        }
        answers
    }

    /// Handles the end of the process; known flows stay. No other one is started if this is the `is_last`.
    pub(super) fn gone(&mut self, is_last: bool) {
        let pid = self.process.pid().unwrap_or_default();
        let how = self.process.reap();
        self.forget_process();
        self.finish_until = None;
        if let Some(program) = self.is_replaced_by.take() {
            info!("the controller process {pid} {how}, to be replaced by that of {program}");
            self.process.use_program(program);
            return;
        }
        if self.process.is_hasty() {
            // Otherwise an upgrade's program without a controller process would be started for ever.
            self.process.use_own_program();
        }
        if !is_last {
            let pause_ms = self.process.plan().as_millis();
            error!("the controller process {pid} {how}; starting it again in {pause_ms} ms");
        }
    }

    /// Does the work that is due, except for clients that have waited too long, and a process that hangs.
    pub(super) fn on_time(&mut self, now: Instant, switch: &SwitchProcess, poller: &Poller) {
        self.renew_on_time(now, poller);
        if self.reconnection.take_if(|at| *at <= now).is_some() {
            self.connected = None;
            if switch.process.is_up() {
                warn!(
                    "the controller process lost its connections to the switch process and is given others"
                );
            }
        }
        if self.process.due().is_some_and(|due| due <= now) {
            self.start(poller);
        }
    }

    /// Ends a process that has given no sign of life in time.
    pub(super) fn end_if_hung(&mut self, now: Instant, poller: &Poller) {
        if self.suspicion.take_if(|(_, until)| *until <= now).is_some() {
            let (pid, seconds) = (self.process.pid().unwrap_or_default(), HANG_PATIENCE.as_secs());
            error!("the controller process {pid} hangs: it has not answered for {seconds} s; ending it");
            self.process.silence(poller);
        }
    }
}

/// Whether the embedded controller decides for a switch.
pub(super) fn is_controlled(switch: &SwitchSpec) -> bool {
    switch.has_embedded_controller()
}
