//! The answer to "sched.table": the data movement table of the switch process.

use lasthop_sched::{Activity, LastTouch, ThreadState, VcpuRule};
use serde::{Deserialize, Serialize};

use crate::sched::ThreadReport;

/// The table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedTable {
    /// Whether the policy movement decides; otherwise rows have the present states of vCPUs alone.
    pub is_used: bool,
    /// A row for each open receive queue of each guest in the view; 1024 at most.
    pub rows: Vec<TableRow>,
}

/// A receive queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableRow {
    /// The vnic or port.
    pub vnic: String,
    /// From 0.
    pub queue: u16,
    /// The thread of the vCPU that reads the queue, if it is known.
    pub tid: Option<u32>,
    /// Why this thread: ordered, only, same-number or last-ran.
    pub rule: String,
    /// running, waiting, sleeping or unknown.
    pub activity: String,
    /// switch or scheduler.
    pub last_touch: Option<String>,
    /// The CPU near which packets should be.
    pub cpu: Option<u16>,
    /// The CPUs on which a sleeping vCPU would find its packets in the last-level cache; empty if that is no choice.
    pub hint: Vec<usize>,
}

/// The word for a thread's activity; "unknown" without one.
pub const fn activity_word(activity: Option<Activity>) -> &'static str {
    match activity {
        Some(Activity::Running) => "running",
        Some(Activity::Runnable) => "waiting",
        Some(Activity::Blocked) => "sleeping",
        None => "unknown",
    }
}

/// The word for the last touch of a row.
pub const fn touch_word(touch: LastTouch) -> &'static str {
    match touch {
        LastTouch::Switch => "switch",
        LastTouch::Scheduler => "scheduler",
    }
}

/// The word for the rule by which a queue has its vCPU.
pub const fn rule_word(rule: VcpuRule) -> &'static str {
    match rule {
        VcpuRule::Ordered => "ordered",
        VcpuRule::Only => "only",
        VcpuRule::SameNumber => "same-number",
        VcpuRule::LastRan => "last-ran",
    }
}

impl ThreadReport {
    /// A thread in this state, if the view has it.
    pub fn new(tid: u32, state: Option<ThreadState>) -> Self {
        let activity = activity_word(state.map(|state| state.activity)).to_owned();
        Self { tid, activity, cpu: state.map(|state| state.cpu) }
    }
}
