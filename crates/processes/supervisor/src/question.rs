//! A client's pending request: the client, the question that another process has to answer first, and the purpose of an
//! order. A process that does not answer delays a client for a short time only ([`PendingQuestions`]).

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use lasthop_api::controller_orders::ControllerOrder;
use lasthop_api::explain::{Consultation, ConsultedKey, EXPLAIN_ROUNDS_MAX, ExplainSpec, Explained};
use lasthop_api::facts::MoveFacts;
use lasthop_api::fdb::{Flush, StaticEntry};
use lasthop_api::orders::Order;
use lasthop_api::port::PortSpec;
use lasthop_api::port::change::Change;
use lasthop_api::report::{FdbLine, PortFilter, SwitchInside};
use lasthop_api::sched::QueueMove;
use lasthop_api::sched_part::SchedPart;
use lasthop_api::switches::{SwitchName, SwitchSpec};
use lasthop_listeners::Caller;
use lasthop_runtime::fault::{Fault, Kind};
use serde::Serialize;
use serde_json::Value;

/// The purpose of an order that waits for its reply.
#[derive(Debug)]
pub(super) enum OrderPurpose {
    /// Add a port. A new one is removed if the switch refuses it.
    Added {
        port: u32,
        is_new: bool,
    },
    /// Add a switch. A new one is removed if the switch process refuses it.
    SwitchAdded {
        name: SwitchName,
        is_new: bool,
    },
    /// Change a switch.
    SwitchSet {
        spec: SwitchSpec,
    },
    /// Remove a switch. It is restored if the switch process refuses.
    SwitchRemoved {
        spec: SwitchSpec,
    },
    /// Change a port's settings.
    Changed(Box<Changing>),
    Removed,
    /// Change a port's link, which follows the uplinks'.
    Tracked,
    /// Add a static address behind the port with this number, or remove one.
    FdbAdded {
        port: u32,
        entry: StaticEntry,
    },
    FdbDeleted(StaticEntry),
    /// Ask whether the process of this start knows the order with the scheduler's view.
    SchedulerAsked(u64),
    SchedulerTold,
    QueueMoved,
    /// Restore the state of an earlier switch process.
    Restored,
    /// Restore datapaths and the memory of flows.
    DatapathsRestored,
    /// Come to rest: fetch no more packets, and finish all.
    Rested,
    /// Continue the session with this number behind the port with that number.
    TakenOver {
        port: u32,
        attachment: u64,
    },
    /// Continue these sessions, each behind the port whose number comes first.
    WentOn(Vec<(u32, u64)>),
    /// The last order of a start.
    Started,
    /// Release all guests.
    Ended,
    /// A client's question, with the controller process's part of the answer.
    Question(Question, Rc<ControllerAnswer>),
    /// Pass a client's connection on.
    Streamed,
}

impl OrderPurpose {
    /// Whether the order of a client changes something.
    pub(super) fn is_change(&self) -> bool {
        match self {
            Self::Question(question, _) => matches!(question, Question::Flush(_)),
            Self::Streamed => false,
            _ => true,
        }
    }
}

/// A change that the switch has been told.
#[derive(Debug)]
pub(super) struct Changing {
    pub(super) port: u32,
    pub(super) to: PortSpec,
    pub(super) changes: Vec<Change>,
}

/// A client's question. Some need counters of the driver process first, then an answer of the controller process; all
/// need the switch process last.
#[derive(Debug)]
pub(super) enum Question {
    Stats {
        name: Option<String>,
    },
    Fdb {
        switch: Option<String>,
    },
    Flush(Flush),
    Switches,
    Scheduler,
    Sched(SchedPart),
    /// Whether the switch process knows the order; then it gets it.
    MoveQueue(QueueMove),
    /// Ports: the one of this name, or those that the filter selects.
    Ports {
        name: Option<String>,
        filter: PortFilter,
    },
    Doctor {
        name: Option<String>,
    },
    /// Changed rules: this is the reply once flows follow them.
    Rules(Value),
    Explain(Box<ExplainQuestion>),
}

/// A question about a packet, and how far the embedded controller was asked about it.
#[derive(Debug)]
pub(super) struct ExplainQuestion {
    pub(super) spec: ExplainSpec,
    /// The switch, and the passes that the controller has not been asked about yet.
    pub(super) open: Option<(SwitchName, Vec<ConsultedKey>)>,
    /// Its answers about the first passes.
    pub(super) consultations: Vec<Consultation>,
    pub(super) rounds_left: usize,
}

impl ExplainQuestion {
    pub(super) fn new(spec: ExplainSpec) -> Self {
        Self { spec, open: None, consultations: Vec::new(), rounds_left: EXPLAIN_ROUNDS_MAX }
    }

    /// The same after an answer of the switch process that has passes which the controller was not asked about; none if there are none, or
    /// it was asked often enough.
    pub(super) fn continued(&self, explained: &Explained) -> Option<Self> {
        let known = self.consultations.len();
        let keys = explained.passes.get(known..).filter(|keys| !keys.is_empty())?.to_vec();
        let switch = explained.report.switch.as_deref()?.parse().ok()?;
        Some(Self {
            spec: self.spec.clone(),
            open: Some((switch, keys)),
            consultations: self.consultations.clone(),
            rounds_left: self.rounds_left.checked_sub(1)?,
        })
    }

    /// The controller's answers about the passes that it was asked about.
    pub(super) fn consulted(&mut self, told: &[Consultation]) {
        let asked = self.open.take().map_or(0, |(_, keys)| keys.len());
        self.consultations.extend(told.iter().take(asked).cloned());
    }
}

impl Question {
    /// The order that asks the controller process for its part; `None` if it has none.
    pub(super) fn controller_order(&self, round: u64) -> Option<ControllerOrder> {
        match self {
            Self::Flush(flush) => Some(ControllerOrder::Flush { round, flush: flush.clone() }),
            Self::Fdb { .. } | Self::Switches | Self::Doctor { .. } => Some(ControllerOrder::Tell { round }),
            Self::Rules(_) => Some(ControllerOrder::Settle { round }),
            Self::Explain(question) => {
                let (switch, keys) = question.open.clone()?;
                Some(ControllerOrder::Consult { round, switch, keys })
            }
            Self::Stats { .. } | Self::Scheduler | Self::Sched(_) => None,
            Self::Ports { .. } | Self::MoveQueue(_) => None,
        }
    }

    /// The order to the switch process.
    pub(super) fn switch_order(&self) -> Order {
        match self {
            Self::Fdb { switch } => Order::Fdb { switch: switch.clone(), in_parts: true },
            Self::Flush(flush) => Order::FdbFlush(flush.clone()),
            Self::Doctor { name } => Order::Inspect { name: name.clone() },
            Self::Switches => Order::Switches,
            Self::Sched(part) => part.order(),
            Self::MoveQueue(_) => Order::Know,
            Self::Explain(question) => {
                let ExplainQuestion { spec, consultations, .. } = &**question;
                Order::Explain { spec: spec.clone(), consultations: consultations.clone() }
            }
            Self::Stats { .. } | Self::Scheduler | Self::Ports { .. } | Self::Rules(_) => Order::Stats,
        }
    }
}

/// The controller process's answer to a question; empty if it did not answer.
#[derive(Debug, Default)]
pub(super) struct ControllerAnswer {
    pub(super) fdb: Vec<FdbLine>,
    pub(super) inside: Vec<SwitchInside>,
    pub(super) moves: Vec<MoveFacts>,
    /// Whether it answered.
    pub(super) has_answered: bool,
    pub(super) flushed: usize,
    /// Whether flows follow the rules.
    pub(super) has_settled: bool,
    pub(super) consultations: Vec<Consultation>,
}

impl ControllerAnswer {
    /// The switches' events, including those that the controller reports itself.
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

/// The reply while there is no switch process.
pub(super) fn switch_process_down() -> Fault {
    Fault::new(
        Kind::SwitchDown,
        "the switch process is being started again; try again in a moment, or see its log",
    )
}

/// The answer to another question than was asked.
pub(super) fn strange_answer() -> Fault {
    Fault::new(Kind::Internal, "the switch process answered something else than was asked")
}

/// An answer as a client gets it.
pub(super) fn to_json(value: &impl Serialize) -> Result<Value, Fault> {
    serde_json::to_value(value).map_err(|error| Fault::internal("write the answer", error))
}

/// The requests and their clients, in the order of arrival.
#[derive(Debug)]
pub(super) struct PendingQuestions {
    patience: Duration,
    /// Numbers the questions to the process.
    round: u64,
    queue: VecDeque<PendingQuestion>,
}

#[derive(Debug)]
struct PendingQuestion {
    round: u64,
    question: Question,
    caller: Caller,
    until: Instant,
}

impl PendingQuestions {
    /// An empty queue, in which each client waits for at most `patience`.
    pub(super) fn new(patience: Duration) -> Self {
        Self { patience, round: 0, queue: VecDeque::new() }
    }

    /// The number of the next question.
    pub(super) fn next_round(&mut self) -> u64 {
        self.round += 1;
        self.round
    }

    /// Adds a client that waits for the answer to the last question.
    pub(super) fn wait(&mut self, question: Question, caller: &Caller) {
        let until = Instant::now() + self.patience;
        self.queue.push_back(PendingQuestion { round: self.round, question, caller: caller.clone(), until });
    }

    /// Whether a client waits for the answer to this question.
    pub(super) fn is_open(&self, round: u64) -> bool {
        self.queue.iter().any(|asked| asked.round == round)
    }

    /// When the first client's wait ends.
    pub(super) fn due(&self) -> Option<Instant> {
        self.queue.front().map(|asked| asked.until)
    }

    /// Takes the clients whose question, of up to `round`, is answered, or that have waited too long.
    pub(super) fn take_ready(&mut self, round: u64, now: Instant) -> Vec<(Question, Caller)> {
        let is_ready = |asked: &PendingQuestion| asked.round <= round || asked.until <= now;
        let (ready, waiting): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.queue).into_iter().partition(is_ready);
        self.queue = waiting;
        ready.into_iter().map(|asked| (asked.question, asked.caller)).collect()
    }
}
