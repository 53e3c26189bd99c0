//! The view of the host's scheduler: its setting, its policies, and the report of `lasthop sched show`.

use std::collections::BTreeMap;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use lasthop_runtime::fault::Fault;
use lasthop_sched::{Mode, Modes, Policy};

use crate::names::either;
use crate::placement::{CachesReport, PlacementMode, PlacementReport};

/// Whether the supervisor opens the view of the scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum ViewMode {
    /// While a guest is attached, where the kernel permits it.
    Auto,
    /// Never: see docs/results/scheduler-view.md for the reason.
    #[default]
    Off,
}

impl FromStr for ViewMode {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        either("scheduler-view", text, [("auto", Self::Auto), ("off", Self::Off)])
    }
}

/// How Lasthop's threads share the CPUs with each other and with the rest of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum SharesMode {
    /// As the host has it: each thread for itself.
    #[default]
    None,
    /// All processes in one cgroup.
    Group,
    /// In addition, each thread that moves packets has a share of its own, and idle ones lend theirs.
    Steal,
}

impl SharesMode {
    /// The name of the setting, as for a policy.
    pub const NAME: &str = "shares";

    /// The word that users write.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Group => "group",
            Self::Steal => "steal",
        }
    }
}

impl FromStr for SharesMode {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        [Self::None, Self::Group, Self::Steal].into_iter().find(|mode| mode.as_str() == text).ok_or_else(
            || Fault::params(format!("shares must be \"none\", \"group\" or \"steal\", not \"{text}\"")),
        )
    }
}

/// Lasthop's cgroup, and the shares in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharesReport {
    /// none, group or steal.
    pub mode: SharesMode,
    /// The directory of the cgroup, if there is one.
    pub group: Option<String>,
    /// Why the mode is not in effect, with the remedy.
    pub why: Option<String>,
    /// With steal: the threads that have shares of their own.
    pub threads: Vec<ShareReport>,
    /// Weights that were set since the start, beside first ones.
    pub weights_changed: u64,
    /// Periods in which at least one thread got a part of what others lent.
    pub periods_lent: u64,
}

/// A thread with a share of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareReport {
    pub name: String,
    pub tid: u32,
    /// Its weight while nothing is lent.
    pub credit: u32,
    /// The present one.
    pub weight: u32,
    /// idle, some or io.
    pub load: String,
}

/// The policies.
pub const POLICIES: [Policy; 8] = Policy::ALL;

/// The mode of each policy by name, in orders and reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PolicyModes(pub BTreeMap<String, String>);

impl PolicyModes {
    pub fn new(modes: &Modes) -> Self {
        let word = |policy: Policy| (policy.name().to_owned(), mode_word(modes.get(policy)).to_owned());
        Self(POLICIES.map(word).into())
    }

    /// The modes. Unknown words of other versions have no effect.
    pub fn modes(&self) -> Modes {
        let mut modes = Modes::default();
        for (name, mode) in &self.0 {
            if let (Some(policy), Some(mode)) = (policy_named(name), mode_of(mode)) {
                modes.set(policy, mode);
            }
        }
        modes
    }
}

fn policy_named(name: &str) -> Option<Policy> {
    POLICIES.into_iter().find(|policy| policy.name() == name)
}

fn mode_of(word: &str) -> Option<Mode> {
    [Mode::On, Mode::Off, Mode::Auto].into_iter().find(|mode| mode_word(*mode) == word)
}

const fn mode_word(mode: Mode) -> &'static str {
    match mode {
        Mode::On => "on",
        Mode::Off => "off",
        Mode::Auto => "auto",
    }
}

/// A change of one policy, as `look=off`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyChange {
    pub policy: String,
    pub mode: String,
}

/// A change in effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResolvedChange {
    /// Of a policy that uses the view.
    Policy(Policy, Mode),
    /// Of the shares.
    Shares(SharesMode),
    /// Of the placement of threads.
    Placement(PlacementMode),
}

impl PolicyChange {
    /// # Errors
    /// One sentence that names the policies or the modes.
    pub fn resolve(&self) -> Result<ResolvedChange, Fault> {
        if self.policy == SharesMode::NAME {
            return self.mode.parse().map(ResolvedChange::Shares);
        }
        if self.policy == PlacementMode::NAME {
            return self.mode.parse().map(ResolvedChange::Placement);
        }
        let Some(policy) = policy_named(&self.policy) else {
            let names = POLICIES.map(Policy::name).join(", ");
            let names = format!("{names}, {}, {}", SharesMode::NAME, PlacementMode::NAME);
            return Err(Fault::params(format!(
                "there is no policy \"{}\"; the policies are: {names}",
                self.policy
            )));
        };
        let mode = mode_of(&self.mode).ok_or_else(|| {
            Fault::params(format!("the mode of a policy is on, off or auto, not \"{}\"", self.mode))
        })?;
        Ok(ResolvedChange::Policy(policy, mode))
    }
}

impl FromStr for PolicyChange {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let Some((policy, mode)) = text.split_once('=') else {
            return Err(Fault::params(format!("\"{text}\" is no change of a policy, as look=off is")));
        };
        let change = Self { policy: policy.to_owned(), mode: mode.to_owned() };
        change.resolve().map(|_| change)
    }
}

/// A move of a queue pair of a vnic or port to another worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueMove {
    #[serde(alias = "vnic")]
    pub port: String,
    /// From 0.
    #[serde(default)]
    pub queue: u16,
    /// From 0.
    pub worker: usize,
}

/// A queue pair, as `vm1` for its first one or `vm1:2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuePlace {
    pub port: String,
    pub queue: u16,
}

impl FromStr for QueuePlace {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let (port, queue) = text.split_once(':').unwrap_or((text, "0"));
        let queue = queue.parse().ok().filter(|_| !port.is_empty());
        let wrong =
            || Fault::params(format!("\"{text}\" is no queue; write VNIC, or VNIC:QUEUE as in vm1:2"));
        Ok(Self { port: port.to_owned(), queue: queue.ok_or_else(wrong)? })
    }
}

/// The home of a running queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueHome {
    pub port: String,
    pub queue: u16,
    pub worker: usize,
}

/// A guest in the view, for the switch process: slot and generation of each of its threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenGuest {
    pub port: String,
    pub slots: Vec<(u16, u16)>,
    /// Whether a vCPU that sleeps may look as if it ran: it halt-polls (KVM). Earlier supervisors do not tell.
    #[serde(default = "SeenGuest::may_by_default")]
    pub may_halt_poll: bool,
    /// The thread of each slot. Earlier supervisors do not tell.
    #[serde(default)]
    pub tids: Vec<u32>,
    /// Whether the user named the threads one by one, in the order of the guest's queues.
    #[serde(default)]
    pub is_ordered: bool,
}

impl SeenGuest {
    fn may_by_default() -> bool {
        true
    }
}

/// Counters of a worker's decisions by the view, since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)] // another version has other ones
pub struct PolicyCounts {
    /// Kept polling, since the guest that owes an answer runs on another CPU.
    pub look_polls: u64,
    /// Yielded the CPU to a guest that waits for it.
    pub look_yields: u64,
    /// Armed rings before the end of the learned time.
    pub look_sleeps: u64,
    /// Time that was not spent polling, compared with the learned time, in us.
    pub look_spared_us: u64,
    /// Used the learned time, since the guest's state is unknown.
    pub look_unseen: u64,
    /// Kept the CPU, where it would have been offered without a view.
    pub offers_spared: u64,
    /// Offered the CPU.
    pub offers: u64,
    /// Offers after which another thread took the CPU.
    pub offers_taken: u64,
    /// Second signals to guests that slept.
    pub second_signals: u64,
    /// Number of these after which packets came within 0.4 ms.
    pub second_signals_answered: u64,
    /// Signals that were delayed, since the guest runs.
    pub signals_delayed: u64,
    /// Signals that were omitted, since one was delayed already.
    pub signals_joined: u64,
    /// Delayed signals that were not sent, since the guest had taken the packets.
    pub signals_drained: u64,
    /// Quiet transmit rings that got a timer instead of kicks.
    pub transmits_timed: u64,
    /// Visits by such timers that found packets; each spared a kick.
    pub kicks_spared: u64,
    /// Visits by such timers that found none.
    pub timed_in_vain: u64,
    /// Wake-ups of the worker by guests' threads that went to sleep.
    pub sleep_events: u64,
    /// Second signals that were not sent since the guest was awake, although they were due without a view.
    pub second_signals_spared: u64,
    /// Visits with large frames that were shared with a helper.
    pub offloads_shared: u64,
    /// Visits with large frames for which no helper's CPU was idle.
    pub offloads_alone: u64,
    /// Orders that a helper gave up, since another thread wanted its CPU.
    pub helps_given_up: u64,
    /// vCPUs that slept when packets were written for them, and ran next on the CPU that wrote.
    pub landed_same: u64,
    /// The same, on another CPU of its last-level cache.
    pub landed_near: u64,
    /// The same, elsewhere.
    pub landed_far: u64,
    /// Visits with large frames for which the data movement table named another CPU than that of the guest's first thread.
    pub offloads_moved: u64,
    /// Windows of 4 ms after which no worker left a thread with much to do, since no CPU was idle.
    pub separations_held: u64,
    /// Workers that left it.
    pub separations: u64,
    /// Those of them that left earlier than without a view, since several CPUs were idle.
    pub separations_early: u64,
    /// Those of them that left although no CPU was idle, since the thread had been saturated for long.
    pub separations_late: u64,
}

impl PolicyCounts {
    /// Whether nothing was decided by a view.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// The answer to "sched.show".
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SchedReport {
    /// The configured mode.
    pub setting: ViewMode,
    /// Whether the programs of the view run.
    pub is_open: bool,
    /// Why they do not.
    pub why: Option<String>,
    /// Whether the mode asks for a view, and the supervisor may not load its programs.
    #[serde(default)]
    pub lacks_rights: bool,
    pub policies: Vec<PolicyReport>,
    pub guests: Vec<GuestReport>,
    pub workers: Vec<WorkerPolicies>,
    /// The running queue pairs, by port and number.
    #[serde(default)]
    pub queues: Vec<QueueHome>,
    /// Earlier supervisors do not tell.
    #[serde(default)]
    pub shares: SharesReport,
    /// Earlier supervisors do not tell this and the next one.
    #[serde(default)]
    pub placement: PlacementReport,
    #[serde(default)]
    pub caches: CachesReport,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PolicyReport {
    pub name: String,
    /// on, off or auto.
    pub mode: String,
    /// Whether it decides at present.
    pub is_used: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct GuestReport {
    pub vnic: String,
    /// The front end's process.
    pub pid: Option<i32>,
    /// vmm, dpdk, user-mode or chosen.
    pub kind: Option<String>,
    /// Why its threads are unknown.
    pub why: Option<String>,
    /// names, tracing, choice (of the user) or kvm: why they are believed to be its threads. Earlier supervisors do not tell.
    #[serde(default)]
    pub found_by: Option<String>,
    /// Number of its vCPUs, if its threads were found by kvm and the supervisor may see that.
    #[serde(default)]
    pub vcpus: Option<usize>,
    pub threads: Vec<ThreadReport>,
}

impl GuestReport {
    /// Number of vCPUs whose threads were not found so far.
    #[must_use]
    pub fn missing(&self) -> usize {
        self.vcpus.unwrap_or(0).saturating_sub(self.threads.len())
    }

    /// How its threads were found, in a few words.
    #[must_use]
    pub fn evidence(&self) -> Option<String> {
        let words = match self.found_by.as_deref()? {
            "choice" => "vcpus",
            "kvm" => "KVM",
            word => word,
        };
        Some(match (self.missing(), self.vcpus) {
            (0, _) | (_, None) => words.to_owned(),
            (_, Some(vcpus)) => format!("{words}, {} of {vcpus} vCPUs", self.threads.len()),
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadReport {
    pub tid: u32,
    /// running, waiting, sleeping or unknown.
    pub activity: String,
    /// The CPU that it uses, waits for, or used last.
    pub cpu: Option<u16>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerPolicies {
    pub index: usize,
    /// Its CPU, if it is a helper.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub helper_cpu: Option<usize>,
    /// Large frames that it copied in turns with a helper, or as one.
    #[serde(default)]
    pub shared: u64,
    #[serde(flatten)]
    pub counts: PolicyCounts,
}

/// The answer to "sched.trace".
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedTrace {
    /// The last decisions of all workers, oldest first.
    pub decisions: Vec<DecisionLine>,
}

/// A worker's decision, with its repetitions without another one in between.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionLine {
    pub worker: usize,
    /// Time since the first decision.
    pub ago_us: u64,
    /// Time from the first to the last repetition.
    pub for_us: u64,
    pub times: u64,
    pub policy: String,
    /// The decision in a word.
    pub decision: String,
    /// The vnic or port of the guest in question.
    pub vnic: Option<String>,
    /// The guest's threads at the first decision, if they were known.
    pub guest: Option<GuestThreadCounts>,
    /// How soon a helper gave its CPU back; each time has a line of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_return: Option<CpuReturnLine>,
    /// All else that the first decision used. Earlier switch processes do not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<DecisionInputsLine>,
    /// Sums over all repetitions, of look and notify. Earlier switch processes do not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repetitions: Option<RepetitionsLine>,
}

/// The inputs of a decision beside the guest's threads. Ages are in ns, at the decision. Each policy has its own ones;
/// an age that is left out is that of something that has not happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)] // another version has other ones
pub struct DecisionInputsLine {
    /// look: time without packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_ns: Option<u64>,
    /// look: the polling time that was learned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learned_ns: Option<u64>,
    /// look: the longest polling time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_ns: Option<u64>,
    /// look: packets or buffers are posted that were not handled yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_posted: Option<bool>,
    /// yield: threads that wait for the CPU; left out if the view does not show it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<u32>,
    /// look, yield: age of the last offer of the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offered_ago_ns: Option<u64>,
    /// look, yield: whether another thread took it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offer_taken: Option<bool>,
    /// second-signal, notify: age of the ring's last signal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signalled_ago_ns: Option<u64>,
    /// notify: age of the first packet of which the guest was not notified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_ago_ns: Option<u64>,
    /// notify: the guest has taken the packets of the last signal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub has_progressed: Option<bool>,
    /// notify: the ring has no buffers left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_full: Option<bool>,
    /// transmit-timer: age of the ring's last visit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub visited_ago_ns: Option<u64>,
    /// transmit-timer: age of the ring's last packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worked_ago_ns: Option<u64>,
    /// gathering: load of the thread that serves several workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_percent: Option<u64>,
    /// gathering: for how long the thread has been saturated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saturated_ns: Option<u64>,
    /// gathering: the least number of idle CPUs that it saw in the last 4 ms; more than two count as two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_cpus: Option<u16>,
}

/// Sums over the repetitions of a decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)] // another version has other ones
pub struct RepetitionsLine {
    /// look: pauses between packets in which it was decided. notify: signals that were not joined to a delayed one.
    pub starts: u64,
    /// look: time without packets at the last decision.
    pub idle_last_ns: u64,
    /// look: the longest such time.
    pub idle_max_ns: u64,
    /// look: sum over the pauses of the time without packets at the last decision in each.
    pub idle_sum_ns: u64,
}

/// How soon a helper gave its CPU back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuReturnLine {
    /// Frames that it took between its last look that showed no waiting thread and the one that showed one.
    pub frames: u32,
    /// Time between these looks, or since it had the order.
    pub unseen_ns: u64,
    /// Time from the second look until it went to sleep.
    pub leaving_ns: u64,
}

/// Numbers of a guest's threads by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestThreadCounts {
    /// On another CPU than the worker's.
    pub running: u16,
    /// Waiting for the worker's CPU.
    pub waiting_here: u16,
    /// Waiting for another CPU.
    pub waiting_elsewhere: u16,
    pub sleeping: u16,
    /// Not in the view.
    #[serde(default)]
    pub unseen: u16,
    /// Time since the last of the sleeping threads went to sleep, in ns, where the decision used it (transmit-timer).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slept_ns: Option<u64>,
    /// A vCPU that sleeps may look as if it ran. Earlier switch processes do not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub may_halt_poll: Option<bool>,
}

impl SchedReport {
    /// Each policy, and whether it decides.
    pub fn policies(modes: &Modes, is_open: bool) -> Vec<PolicyReport> {
        let report = |policy: Policy| PolicyReport {
            name: policy.name().to_owned(),
            mode: mode_word(modes.get(policy)).to_owned(),
            is_used: is_open && modes.is_used(policy),
        };
        POLICIES.map(report).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_go_through_an_order_and_words_of_others_change_nothing() {
        let mut modes = Modes::default();
        modes.set(Policy::Look, Mode::Off);
        modes.set(Policy::Yield, Mode::On);
        let mut told = PolicyModes::new(&modes);
        told.0.insert("telepathy".to_owned(), "on".to_owned());
        assert_eq!(told.modes(), modes);
        told.0.insert("look".to_owned(), "perhaps".to_owned());
        assert_eq!(told.modes().get(Policy::Look), Mode::Auto);
    }

    #[test]
    fn queues_are_named_by_port_and_number() {
        let place = |port: &str, queue| QueuePlace { port: port.to_owned(), queue };
        assert_eq!("vm1".parse(), Ok(place("vm1", 0)));
        assert_eq!("vm1:12".parse(), Ok(place("vm1", 12)));
        for text in [":1", "vm1:", "vm1:x", "vm1:-1", "vm1:1:2", "vm1:65536"] {
            let fault = text.parse::<QueuePlace>().expect_err(text);
            assert!(fault.message.contains("vm1:2"), "{fault}");
        }
    }

    #[test]
    fn changes_name_a_policy_and_a_mode() {
        let change: PolicyChange = "look=off".parse().expect("a change");
        assert_eq!(change.resolve(), Ok(ResolvedChange::Policy(Policy::Look, Mode::Off)));
        let change: PolicyChange = "shares=steal".parse().expect("a change");
        assert_eq!(change.resolve(), Ok(ResolvedChange::Shares(SharesMode::Steal)));
        for (text, remedy) in [
            ("look", "look=off"),
            ("telepathy=on", "look, yield"),
            ("telepathy=on", "gathering, shares"),
            ("yield=1", "on, off or auto"),
            ("shares=on", "\"none\", \"group\" or \"steal\""),
        ] {
            let fault = text.parse::<PolicyChange>().expect_err(text);
            assert!(fault.message.contains(remedy), "{text}: {fault}");
        }
        assert!("on".parse::<ViewMode>().is_err());
        assert_eq!("auto".parse(), Ok(ViewMode::Auto));
    }
}
