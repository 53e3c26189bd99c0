//! `upgrade`: another program's switch process takes over from the running one, as from a dead one, but in order.
//!
//! ```text
//!   new program started ── has this state version? ──no──> refused, nothing changed
//!                                  │ yes
//!   new one gets all switches and ports ── takes them? ──no──> refused, nothing changed
//!   prepares for all sessions: descriptors, memory                   (again for those that change meanwhile)
//!                                  │ yes
//!   old switch rests: fetches no more packets, finishes its work ──no──> it continues, refused
//!                                  │ yes
//!   new one continues with all guests ── their waiting time is known ──> reply
//!   old one killed
//! ```

use std::path::PathBuf;
use std::time::{Duration, Instant};

use log::warn;
use serde::Deserialize;
use serde_json::{Value, json};

use lasthop_api::orders::{Answer, Order, Report, STATE_VERSION, SwitchProgram};
use lasthop_api::switches::{ControllerKind, SwitchSpec};
use lasthop_children::{ChildProgram, RunningChild, own_path};
use lasthop_listeners::Caller;
use lasthop_runtime::fault::{Fault, Kind};
use lasthop_runtime::poller::Interest;

use super::Outputs;
use super::ports::Ports;
use super::question::{OrderPurpose, switch_process_down};
use super::source::Source;
use super::successor::{self, Successor, SuccessorSetup, send_know};
use super::switch_table::SwitchTable;

/// How long the new program may be silent while the old one serves guests, and the old one until it has come to rest.
/// No guest waits, and on a machine without idle CPUs a program needs seconds to start.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long all that may take before the old one is told to rest, regardless of the new program's messages.
const PREPARING_MAX: Duration = Duration::from_secs(60);
/// How long the new switch may be silent while guests wait for it. Starting another one takes longer than letting it
/// continue, unless it hangs.
const TAKE_OVER_PATIENCE: Duration = Duration::from_secs(10);
/// The fault of a new program whose switches and ports are out of date.
const CHANGED: &str = "its ports or switches changed meanwhile; try again";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UpgradeParams {
    binary: Option<PathBuf>,
}

/// The client that requested an upgrade, and its reply.
pub(super) type UpgradeAnswer = (Caller, Result<Value, Fault>);

/// The upgrade in progress, if there is one.
#[derive(Debug, Default)]
pub(super) struct Upgrades {
    current: Option<Upgrade>,
}

#[derive(Debug)]
struct Upgrade {
    program: ChildProgram,
    caller: Caller,
    step: Step,
}

/// The step of an upgrade.
#[derive(Debug)]
enum Step {
    /// The new process reports its version; then it gets switches and ports, and confirms.
    Preparing {
        successor: Successor,
        deadline: Deadline,
        /// The switches at its start: its options include those of the default one.
        born: Vec<SwitchSpec>,
        /// The default switch's controller, if one was chosen: another of its options.
        controller: Option<ControllerKind>,
        setup: Option<SuccessorSetup>,
    },
    /// The old one comes to rest.
    Resting { successor: Successor, since: Instant, setup: SuccessorSetup },
    /// The new one takes over. The old one, which is at rest, ends meanwhile: guests need not wait for that.
    TakingOver {
        since: Instant,
        /// Time of its last message, or when it got the guests.
        heard: Instant,
        refused: Vec<(u32, Fault)>,
    },
}

/// When a new program has to have sent something.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    asked: Instant,
    heard: Instant,
}

impl Deadline {
    fn until(&self) -> Instant {
        (self.heard + PATIENCE).min(self.asked + PREPARING_MAX)
    }
}

/// The old switch process is at rest: the new one can continue with its guests.
pub(super) struct ReadySuccessor {
    pub(super) successor: Successor,
    pub(super) program: ChildProgram,
    pub(super) setup: SuccessorSetup,
    pub(super) waiting: WaitingGuests,
}

/// When guests began to wait, and the client that waits for the end of the upgrade.
pub(super) struct WaitingGuests {
    caller: Caller,
    since: Instant,
}

/// The consequence of the old switch process's reply to the order to rest.
pub(super) enum RestOutcome {
    Ready(Box<ReadySuccessor>),
    /// The upgrade ends without effect.
    Refused(Option<UpgradeAnswer>),
}

/// A completed upgrade: the new process has all guests.
pub(super) struct FinishedUpgrade {
    pub(super) program: ChildProgram,
    pub(super) caller: Caller,
    /// How long guests waited, in microseconds.
    pub(super) pause_us: u64,
    /// Ports that it refused.
    pub(super) refused: Vec<(u32, Fault)>,
}

impl Upgrades {
    /// Begins an upgrade. The reply comes when it is done or refused.
    pub(super) fn begin(
        &mut self,
        params: UpgradeParams,
        caller: &Caller,
        switches: &SwitchTable,
        controller: Option<ControllerKind>,
        out: &mut Outputs,
    ) -> Result<(), Fault> {
        if self.is_under_way() {
            return Err(Fault::refused("an upgrade is under way already; wait for its end"));
        }
        if !out.switch_process.process.is_up() {
            return Err(switch_process_down());
        }
        let program = ChildProgram::open(&params.binary.map_or_else(own_path, Ok)?)?;
        let mut successor = out.switch_process.process.stand_by(&program)?;
        out.poller.add(&successor.channel, Source::Successor.into(), Interest::READ)?;
        send_know(&mut successor);
        let now = Instant::now();
        let (deadline, born) = (Deadline { asked: now, heard: now }, switches.all.clone());
        let step = Step::Preparing { successor, deadline, born, controller, setup: None };
        self.current = Some(Upgrade { program, caller: caller.clone(), step });
        Ok(())
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.current.is_some()
    }

    /// Whether the old switch has been told to rest.
    pub(super) fn is_handed_over(&self) -> bool {
        matches!(self.step(), Some(Step::Resting { .. } | Step::TakingOver { .. }))
    }

    fn step(&self) -> Option<&Step> {
        self.current.as_ref().map(|upgrade| &upgrade.step)
    }

    /// The new process, until it takes over.
    pub(super) fn successor(&mut self) -> Option<&mut Successor> {
        match &mut self.current.as_mut()?.step {
            Step::Preparing { successor, .. } | Step::Resting { successor, .. } => Some(successor),
            Step::TakingOver { .. } => None,
        }
    }

    /// When its channel has work without an event.
    pub(super) fn channel_due(&self) -> Option<Instant> {
        match self.step()? {
            Step::Preparing { successor, .. } | Step::Resting { successor, .. } => successor.channel.due(),
            Step::TakingOver { .. } => None,
        }
    }

    /// When to check whether the new process has ended.
    pub(super) fn end_due(&self) -> Option<Instant> {
        match self.step()? {
            Step::Preparing { successor, .. } | Step::Resting { successor, .. } => successor.end_due(),
            Step::TakingOver { .. } => None,
        }
    }

    /// When a step has taken too long.
    pub(super) fn due(&self) -> Option<Instant> {
        Some(match self.step()? {
            Step::Preparing { deadline, .. } => deadline.until(),
            Step::Resting { since, .. } => *since + PATIENCE,
            Step::TakingOver { heard, .. } => *heard + TAKE_OVER_PATIENCE,
        })
    }

    /// Notes a message of the switch process: if guests wait for it, it is making progress.
    pub(super) fn note_progress(&mut self) {
        if let Some(Upgrade { step: Step::TakingOver { heard, .. }, .. }) = &mut self.current {
            *heard = Instant::now();
        }
    }

    /// Gives up a step that has taken too long.
    pub(super) fn on_time(
        &mut self,
        now: Instant,
        ports: &mut Ports,
        out: &mut Outputs,
    ) -> Option<UpgradeAnswer> {
        self.due().filter(|due| *due <= now)?;
        let is_current = matches!(self.step(), Some(Step::TakingOver { .. }));
        let answer = self.refuse("there was no answer in time", ports, out);
        if is_current {
            // It has the guests and is not needed any more: after its end the next one gets these, and all ports.
            out.switch_process.process.current().into_iter().for_each(RunningChild::kill);
        }
        answer
    }

    /// Handles messages of the new process before it takes over.
    pub(super) fn hear(
        &mut self,
        ports: &mut Ports,
        switches: &SwitchTable,
        out: &mut Outputs,
    ) -> Option<UpgradeAnswer> {
        let (reports, is_over) = self.successor()?.hear();
        if let Some(Upgrade { step: Step::Preparing { deadline, .. }, .. }) = &mut self.current
            && !reports.is_empty()
        {
            deadline.heard = Instant::now();
        }
        for (report, _) in reports {
            let refusal = match report {
                Report::Reply { result: Ok(Answer::Knows(program)), .. } => {
                    self.knows(&program, ports, switches, out)
                }
                Report::Reply { id, result: Err(fault) } => self.refuses(id, fault, ports),
                Report::Failed { why } => Err(why),
                Report::Sandbox(layers) => {
                    // It reports this only once.
                    self.successor().into_iter().for_each(|process| process.sandbox = Some(layers.clone()));
                    Ok(())
                }
                _ => Ok(()),
            };
            if let Err(why) = refusal {
                return self.refuse(&why, ports, out);
            }
        }
        if matches!(is_over, Ok(false)) { None } else { self.is_over(ports, out) }
    }

    /// Handles the end of the new process before it took over.
    pub(super) fn is_over(&mut self, ports: &mut Ports, out: &mut Outputs) -> Option<UpgradeAnswer> {
        self.successor()?;
        let later_option = match self.step() {
            Some(Step::Preparing { setup: None, controller, .. }) => {
                controller.filter(|controller| !controller.is_default())
            }
            _ => None,
        };
        let why = match later_option {
            // Programs older than this option end at once.
            Some(controller) => format!(
                "it ended without an answer: it is no lasthop, or an older one, which does not know that the switch default may have \
                 controller={controller}; upgrade to a later one, or restart the switch with that one, and guests connect again"
            ),
            None => "it ended without an answer; is it a lasthop of this version or a later one?".to_owned(),
        };
        self.refuse(&why, ports, out)
    }

    /// Handles the new process's version: it gets everything, or the old one is told to rest.
    fn knows(
        &mut self,
        program: &SwitchProgram,
        ports: &mut Ports,
        switches: &SwitchTable,
        out: &mut Outputs,
    ) -> Result<(), String> {
        let Some(Upgrade { step: Step::Preparing { successor, born, setup, .. }, .. }) = &mut self.current
        else {
            // Nothing more was asked.
            return Ok(());
        };
        let version = program.version;
        if version != STATE_VERSION {
            return Err(format!("it has state version {version}, and this switch has {STATE_VERSION}"));
        }
        if let Some(why) = successor::lacks_for(program, ports) {
            return Err(why);
        }
        let Some(setup) = setup else {
            let is_other = *born != switches.all;
            // From here on: a waiting thread uses short slices from its next turn on.
            out.switch_process.boost_slices(Some(successor.pid()));
            *setup = Some(SuccessorSetup::make(successor, program.clone(), ports, switches));
            return if is_other { Err(CHANGED.to_owned()) } else { Ok(()) };
        };
        if setup.prepare_again(successor, &ports.sessions, &ports.table) {
            return Ok(());
        }
        out.switch_process.boost_slices(Some(successor.pid()));
        // While the old one comes to rest.
        successor::prepare_last(program, successor);
        let current = self.current.take();
        self.current = current.map(|upgrade| Upgrade { step: upgrade.step.rest(), ..upgrade });
        out.switch_process.order(Order::Rest, OrderPurpose::Rested, None);
        Ok(())
    }

    /// Handles a refusal of an order by the new process.
    fn refuses(&mut self, order: u64, fault: Fault, ports: &Ports) -> Result<(), String> {
        let refused = match &mut self.current {
            Some(Upgrade { step: Step::Preparing { setup: Some(setup), .. }, .. }) => {
                setup.note_refusal(order, fault, &ports.table)
            }
            _ => Err(fault),
        };
        refused.map_err(|fault| fault.message)
    }

    /// Handles the old switch's reply to the order to rest.
    pub(super) fn rested(
        &mut self,
        result: Result<Answer, Fault>,
        ports: &mut Ports,
        switches: &SwitchTable,
        out: &mut Outputs,
    ) -> RestOutcome {
        if let Err(fault) = result {
            return RestOutcome::Refused(self.refuse(&fault.message, ports, out));
        }
        let Some(Step::Resting { setup, .. }) = self.step() else {
            // The upgrade was given up meanwhile.
            out.switch_process.order(Order::Wake, OrderPurpose::Restored, None);
            return RestOutcome::Refused(None);
        };
        if !setup.is_current(&ports.table, switches) {
            return RestOutcome::Refused(self.refuse(CHANGED, ports, out));
        }
        // A guest may have negotiated meanwhile.
        if let Some(why) = successor::lacks_for(&setup.program, ports) {
            return RestOutcome::Refused(self.refuse(&why, ports, out));
        }
        match self.current.take() {
            Some(Upgrade { program, caller, step: Step::Resting { successor, since, setup } }) => {
                let waiting = WaitingGuests { caller, since };
                RestOutcome::Ready(Box::new(ReadySuccessor { successor, program, setup, waiting }))
            }
            other => {
                self.current = other;
                RestOutcome::Refused(None)
            }
        }
    }

    /// Notes that the new process, which is the switch process now, was told to continue with all guests.
    pub(super) fn take_over(
        &mut self,
        WaitingGuests { caller, since }: WaitingGuests,
        program: ChildProgram,
        refused: Vec<(u32, Fault)>,
    ) {
        let step = Step::TakingOver { since, heard: Instant::now(), refused };
        self.current = Some(Upgrade { program, caller, step });
    }

    /// Handles the end of the takeover. `None` if there was no upgrade, or one that began while a process started.
    pub(super) fn finish(&mut self) -> Option<FinishedUpgrade> {
        let taken = self.current.take_if(|upgrade| matches!(upgrade.step, Step::TakingOver { .. }))?;
        let Upgrade { program, caller, step: Step::TakingOver { since, refused, .. } } = taken else {
            return None;
        };
        Some(FinishedUpgrade { program, caller, pause_us: since.elapsed().as_micros() as u64, refused })
    }

    /// Gives the upgrade up; the old switch continues if it is there.
    pub(super) fn refuse(
        &mut self,
        why: &str,
        ports: &mut Ports,
        out: &mut Outputs,
    ) -> Option<UpgradeAnswer> {
        let Upgrade { program, caller, step } = self.current.take()?;
        // First, since the old process's threads must still exist.
        out.switch_process.end_boost();
        ports.counters.forget_next_memories();
        match step {
            Step::Preparing { .. } => {}
            Step::Resting { .. } => {
                // A late reply must not count for the next upgrade.
                out.switch_process.forget_rest();
                out.switch_process.order(Order::Wake, OrderPurpose::Restored, None);
            }
            Step::TakingOver { .. } => out.switch_process.process.use_own_program(),
        }
        let why = format!("the switch process was not replaced by that of {program}: {why}");
        warn!("{why}");
        Some((caller, Err(Fault::new(Kind::Refused, why))))
    }

    /// Handles the death of the switch while it was being replaced.
    pub(super) fn fail(&mut self, ports: &mut Ports, out: &mut Outputs) -> Option<UpgradeAnswer> {
        let why = match self.step()? {
            Step::TakingOver { .. } => "the new one died; one of the old program continues",
            _ => "the old one died in the meantime, and was started again",
        };
        self.refuse(why, ports, out)
    }
}

impl Step {
    /// The next step of a process that has everything.
    fn rest(self) -> Self {
        match self {
            Self::Preparing { successor, setup: Some(setup), .. } => {
                Self::Resting { successor, since: Instant::now(), setup }
            }
            other => other,
        }
    }
}

impl FinishedUpgrade {
    /// The reply to the client, with the new process's id.
    pub(super) fn answer(&self, pid: Option<u32>) -> Value {
        json!({"program": self.program.path(), "switch_pid": pid, "pause_us": self.pause_us})
    }
}

/// The reply as the command line shows it.
pub fn upgraded_text(answer: &Value) -> String {
    let pause_us = answer["pause_us"].as_u64().unwrap_or_default();
    let program = answer["program"].as_str().unwrap_or_default();
    format!(
        "the switch process is that of {program} now; guests waited for {:.1} ms",
        pause_us as f64 / 1000.0
    )
}
