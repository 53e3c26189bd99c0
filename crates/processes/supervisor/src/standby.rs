//! The stand-by: a switch process that has all switches, ports and sessions already, and continues with the guests as
//! soon as the present one dies.
//!
//! ```text
//!   the switch serves, and nothing has changed for a second ─> started ─> told ─> prepared ─> ready
//!     a session changed ───────────────────────────────────> prepared again                    │
//!     a port, a switch, or the guest of a session is another one ─> ended, and started anew    │
//!     the switch died ──────────────────────────────────────────────> it is the switch process ┘
//! ```
//!
//! It prepares as the new process of an upgrade does (`successor.rs`), and idles then. It has copies of guests'
//! descriptors and their memory mapped, so it ends at once when a guest leaves: otherwise it would hold that memory.

use std::time::{Duration, Instant};

use log::{info, warn};

use lasthop_api::orders::{Answer, Report, STATE_VERSION, SwitchProgram};
use lasthop_api::settings::StandbyMode;
use lasthop_fd_store::SessionVersion;
use lasthop_runtime::clock::{Pause, earlier};
use lasthop_runtime::fault::Fault;
use lasthop_runtime::poller::Interest;

use super::Outputs;
use super::ports::Ports;
use super::source::Source;
use super::successor::{Successor, SuccessorSetup, send_know};
use super::switch_table::SwitchTable;

/// From a change until the stand-by is told: changes often come together.
const SETTLING: Duration = Duration::from_secs(1);
/// How long it may be silent while it prepares.
const PATIENCE: Duration = Duration::from_secs(15);
/// Longest pause before the next one, which follows one that failed. Guests that come and go cause a start at each
/// doubled pause only.
const PAUSE_MAX: Duration = Duration::from_secs(32);

/// The stand-by process, if it is wanted and there is one.
#[derive(Debug)]
pub(super) struct Standby {
    mode: StandbyMode,
    process: Option<Candidate>,
    /// When to start one, or to look whether it knows everything.
    due: Option<Instant>,
    /// The pause before the next one.
    pause: Pause,
    /// The ports that the process refused which continues with the guests now, until it has them.
    refused: Option<Vec<(u32, Fault)>>,
}

/// A process before it continues with guests.
#[derive(Debug)]
struct Candidate {
    process: Successor,
    /// `None` until it has reported its version.
    setup: Option<SuccessorSetup>,
    /// Its deadline while it owes an answer.
    answer_due: Option<Instant>,
    /// When it had all switches, ports and sessions for the first time. Later orders are executed in their order.
    ready_since: Option<Instant>,
}

/// A stand-by that knows all switches, ports and sessions.
pub(super) struct ReadyStandby {
    pub(super) process: Successor,
    pub(super) setup: SuccessorSetup,
}

impl Standby {
    pub(super) fn new(mode: StandbyMode) -> Self {
        Self { mode, process: None, due: None, pause: Pause::new(SETTLING, PAUSE_MAX), refused: None }
    }

    /// The mode, unless it is the default.
    pub(super) fn setting(&self) -> Option<StandbyMode> {
        Some(self.mode).filter(|mode| *mode != StandbyMode::default())
    }

    /// The process id, if there is one.
    pub(super) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(|candidate| candidate.process.pid())
    }

    /// The process before it continues with guests.
    pub(super) fn process(&mut self) -> Option<&mut Successor> {
        self.process.as_mut().map(|candidate| &mut candidate.process)
    }

    /// When to call [`Self::settle`], or when its channel or its end has work without an event.
    pub(super) fn due(&self) -> Option<Instant> {
        let of_process = |candidate: &Candidate| {
            let process = &candidate.process;
            [candidate.answer_due, process.channel.due(), process.end_due()].into_iter().fold(None, earlier)
        };
        earlier(self.due, self.process.as_ref().and_then(of_process))
    }

    /// Keeps a stand-by while the switch `serves`. `is_active`: something may have changed.
    pub(super) fn settle(
        &mut self,
        (serves, is_active): (bool, bool),
        ports: &mut Ports,
        switches: &SwitchTable,
        out: &mut Outputs,
        now: Instant,
    ) {
        if !self.mode.is_on() || !serves {
            return self.end(ports);
        }
        if self.process.as_ref().is_some_and(|candidate| candidate.holds_left_guests(ports)) {
            self.begin_anew(ports, now);
        }
        if self.answer_due().is_some_and(|due| due <= now) {
            self.fail(ports, "it did not answer in time", now);
        }
        if is_active || self.process.is_none() {
            self.due.get_or_insert(now + SETTLING);
        }
        if self.due.take_if(|due| *due <= now).is_some() {
            self.follow(ports, switches, out, now);
        }
    }

    fn answer_due(&self) -> Option<Instant> {
        self.process.as_ref().and_then(|candidate| candidate.answer_due)
    }

    /// Starts a process, or tells it of changes.
    fn follow(&mut self, ports: &mut Ports, switches: &SwitchTable, out: &mut Outputs, now: Instant) {
        match &mut self.process {
            None => self.start(out, now),
            // Looked at again once it has answered.
            Some(candidate) if candidate.answer_due.is_some() => self.due = Some(now + SETTLING),
            Some(candidate) => match candidate.follow(ports, switches, now) {
                true => {}
                false => self.begin_anew(ports, now),
            },
        }
    }

    fn start(&mut self, out: &mut Outputs, now: Instant) {
        let started = out.switch_process.process.stand_by_own().and_then(|mut process| {
            out.poller.add(&process.channel, Source::Standby.into(), Interest::READ)?;
            send_know(&mut process);
            Ok(process)
        });
        match started {
            Ok(process) => {
                let answer_due = Some(now + PATIENCE);
                self.process = Some(Candidate { process, setup: None, answer_due, ready_since: None });
            }
            Err(fault) => {
                warn!("there is no stand-by switch process: {fault}");
                self.due = Some(now + PAUSE_MAX);
            }
        }
    }

    /// Handles messages of the process.
    pub(super) fn hear(&mut self, ports: &mut Ports, switches: &SwitchTable, now: Instant) {
        let Some(candidate) = &mut self.process else { return };
        let (reports, is_over) = candidate.process.hear();
        let heard =
            reports.into_iter().try_for_each(|(report, _)| candidate.take(report, ports, switches, now));
        let failed = match (heard, is_over) {
            (Err(why), _) => Some(why),
            (Ok(()), Ok(false)) => None,
            (Ok(()), _) => Some("it ended".to_owned()),
        };
        if let Some(why) = failed {
            self.fail(ports, &why, now);
        }
    }

    /// Handles its end, if it is over.
    pub(super) fn look_for_end(&mut self, ports: &mut Ports, now: Instant) {
        if self.process.as_mut().is_some_and(|candidate| candidate.process.is_over(now)) {
            warn!("the stand-by switch process ended");
            self.begin_anew(ports, now);
        }
    }

    /// Ends the process, and starts another one after a pause.
    fn begin_anew(&mut self, ports: &mut Ports, now: Instant) {
        let ready_since = self.process.as_ref().and_then(|candidate| candidate.ready_since);
        if ready_since.is_some_and(|since| now.saturating_duration_since(since) >= PAUSE_MAX) {
            self.pause.reset();
        }
        self.end(ports);
        self.due = Some(now + self.pause.take());
    }

    /// Ends a process that cannot stand by.
    fn fail(&mut self, ports: &mut Ports, why: &str, now: Instant) {
        warn!("the stand-by switch process is ended: {why}");
        self.end(ports);
        self.due = Some(now + PAUSE_MAX);
    }

    /// Ends the process: it is not needed, or knows too little.
    pub(super) fn end(&mut self, ports: &mut Ports) {
        self.due = None;
        if self.process.take().is_some() {
            ports.counters.forget_next_memories();
        }
    }

    /// Takes the process to continue with the guests of one that died; without a usable one it ends the other.
    pub(super) fn take(&mut self, ports: &mut Ports, switches: &SwitchTable) -> Option<ReadyStandby> {
        self.refused = None;
        let is_usable = |candidate: &mut Candidate| {
            candidate.ready_since.is_some()
                && candidate.setup.as_ref().is_some_and(|known| known.is_current(&ports.table, switches))
        };
        match self.process.take_if(is_usable) {
            Some(Candidate { process, setup: Some(setup), .. }) => {
                self.due = None;
                Some(ReadyStandby { process, setup })
            }
            _ => {
                self.end(ports);
                None
            }
        }
    }

    /// Notes that the process continues with the guests, and the ports that it refused before.
    pub(super) fn note_continued(&mut self, refused: Vec<(u32, Fault)>) {
        self.refused = Some(refused);
    }

    /// Takes the ports that the process refused which has all guests now.
    pub(super) fn take_refused(&mut self) -> Option<Vec<(u32, Fault)>> {
        self.refused.take()
    }
}

impl Candidate {
    /// Whether it has a session whose guest has left, or is another one by now.
    fn holds_left_guests(&self, ports: &Ports) -> bool {
        let known = self.setup.iter().flat_map(|setup| &setup.known);
        let is_there = |(number, version): (&u32, &SessionVersion)| {
            ports.sessions.saved.get(number).is_some_and(|saved| saved.attachment() == version.attachment)
        };
        !known.into_iter().all(is_there)
    }

    /// Tells a ready process of changed sessions. False if it has other ports or switches than there are.
    fn follow(&mut self, ports: &Ports, switches: &SwitchTable, now: Instant) -> bool {
        let Some(setup) = &mut self.setup else { return true };
        if !setup.is_current(&ports.table, switches) {
            return false;
        }
        if setup.follow(&mut self.process, &ports.sessions, &ports.table) {
            self.answer_due = Some(now + PATIENCE);
        }
        true
    }

    /// Handles a message. An error: it can be no switch process.
    fn take(
        &mut self,
        report: Report,
        ports: &mut Ports,
        switches: &SwitchTable,
        now: Instant,
    ) -> Result<(), String> {
        match report {
            Report::Reply { result: Ok(Answer::Knows(program)), .. } => {
                let version = program.version;
                if version != STATE_VERSION {
                    return Err(format!(
                        "the program was replaced by one of state version {version}; upgrade to it"
                    ));
                }
                self.knows(&program, ports, switches, now);
                Ok(())
            }
            Report::Reply { id, result: Err(fault) } => match &mut self.setup {
                Some(setup) => setup.note_refusal(id, fault, &ports.table),
                None => Err(fault),
            }
            .map_err(|fault| fault.message),
            Report::Failed { why } => Err(why),
            Report::Sandbox(layers) => {
                self.process.sandbox = Some(layers);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// It has read all that it was sent before: it gets the rest, or is ready.
    fn knows(&mut self, program: &SwitchProgram, ports: &mut Ports, switches: &SwitchTable, now: Instant) {
        let is_told = match &mut self.setup {
            None => {
                self.setup = Some(SuccessorSetup::make(&mut self.process, program.clone(), ports, switches));
                true
            }
            Some(setup) => setup.follow(&mut self.process, &ports.sessions, &ports.table),
        };
        self.answer_due = is_told.then(|| now + PATIENCE);
        if !is_told && self.ready_since.is_none() {
            self.ready_since = Some(now);
            info!("a stand-by switch process is ready, as process {}", self.process.pid());
        }
    }
}
