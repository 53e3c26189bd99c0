//! The view of the host's scheduler.

use lasthop_api::sched::{
    CpuReturnLine, DecisionLine, GuestReport, GuestThreadCounts, PolicyCounts, SchedReport, SchedTrace,
    SharesReport, ThreadReport, WorkerPolicies,
};

use super::placement;
use super::table::Table;

/// The name of the policy with the data movement table.
const MOVEMENT: &str = "movement";
/// The name of the policy by which workers leave the first thread.
const GATHERING: &str = "gathering";
/// Number of threads of one guest that are shown; user-mode Linux has one for each program.
const THREADS_SHOWN_MAX: usize = 8;

/// The view, the policies, each guest, and the decisions of each worker.
pub(crate) fn sched(report: &SchedReport) -> String {
    let view = match &report.why {
        None => "view of the scheduler: open".to_owned(),
        Some(why) => format!("view of the scheduler: none: {why}"),
    };
    let mut policies = Table::new(&["POLICY", "MODE", "USED"]);
    for policy in &report.policies {
        let used = if policy.is_used { "yes" } else { "no" };
        policies.row([policy.name.clone(), policy.mode.clone(), used.to_owned()]);
    }
    let mut parts = vec![format!("{view}\n"), policies.text(), shares(&report.shares)];
    // Earlier supervisors do not tell.
    if report.caches.cpus > 0 {
        parts.push(placement::placement(report));
    }
    if !report.queues.is_empty() {
        let mut queues = Table::new(&["VNIC", ">QUEUE", ">WORKER"]);
        for home in &report.queues {
            queues.row([home.port.clone(), home.queue.to_string(), home.worker.to_string()]);
        }
        parts.push(queues.text());
    }
    if !report.guests.is_empty() {
        let mut guests = Table::new(&["VNIC", "PROCESS", "KIND", "FOUND BY", "THREADS"]);
        report.guests.iter().for_each(|guest| guests.row(guest_row(guest)));
        parts.push(guests.text());
    }
    if !report.workers.is_empty() {
        parts.push(decisions(&report.workers));
        parts.push(savings(&report.workers));
        parts.push(timers(&report.workers));
        if report.workers.iter().any(|worker| worker.helper_cpu.is_some()) {
            parts.push(helpers(&report.workers));
        }
        let is_used = |name: &str| report.policies.iter().any(|policy| policy.name == name && policy.is_used);
        if is_used(GATHERING) {
            parts.push(separations(&report.workers));
        }
        if is_used(MOVEMENT) {
            parts.push(landings(&report.workers));
        }
    }
    parts.join("\n")
}

/// The cgroup of the processes, and the shares of threads in it.
fn shares(report: &SharesReport) -> String {
    let mode = report.mode.as_str();
    let text = match (&report.why, &report.group) {
        (Some(why), _) => format!("shares: {mode}, not in effect: {why}\n"),
        (None, Some(group)) => format!("shares: {mode}, in {group}\n"),
        (None, None) => format!("shares: {mode}\n"),
    };
    if report.threads.is_empty() {
        return text;
    }
    let mut threads = Table::new(&["THREAD", ">TID", "LOAD", ">CREDIT", ">WEIGHT"]);
    for thread in &report.threads {
        let [credit, weight] = [thread.credit, thread.weight].map(|number| number.to_string());
        threads.row([thread.name.clone(), thread.tid.to_string(), thread.load.clone(), credit, weight]);
    }
    let (changed, lent) = (report.weights_changed, report.periods_lent);
    format!("{text}{}weights changed {changed} times; shares lent in {lent} periods\n", threads.text())
}

/// A table of the workers' counts. The first heading is that of their numbers.
fn counts<const N: usize>(
    headings: &[&'static str],
    workers: &[WorkerPolicies],
    of: impl Fn(&PolicyCounts) -> [u64; N],
) -> String {
    let mut table = Table::new(headings);
    for worker in workers {
        let numbers = std::iter::once(worker.index as u64).chain(of(&worker.counts));
        table.row(numbers.map(|number| number.to_string()));
    }
    table.text()
}

/// How often look and yield decided.
fn decisions(workers: &[WorkerPolicies]) -> String {
    let headings = [">WORKER", ">POLLS", ">YIELDS", ">SLEEPS", ">UNSEEN", ">KEPT", ">OFFERS", ">TAKEN"];
    counts(&headings, workers, |counts| {
        [
            counts.look_polls,
            counts.look_yields,
            counts.look_sleeps,
            counts.look_unseen,
            counts.offers_spared,
            counts.offers,
            counts.offers_taken,
        ]
    })
}

/// Second signals, and the actions that were spared.
fn savings(workers: &[WorkerPolicies]) -> String {
    let headings = [
        ">WORKER",
        ">2ND SIGNALS",
        ">ANSWERED",
        ">SPARED",
        ">DELAYED",
        ">JOINED",
        ">DRAINED",
        ">POLLING SPARED, us",
    ];
    counts(&headings, workers, |counts| {
        [
            counts.second_signals,
            counts.second_signals_answered,
            counts.second_signals_spared,
            counts.signals_delayed,
            counts.signals_joined,
            counts.signals_drained,
            counts.look_spared_us,
        ]
    })
}

/// Transmit timers, and threads that went to sleep.
fn timers(workers: &[WorkerPolicies]) -> String {
    let headings = [">WORKER", ">TIMERS", ">KICKS SPARED", ">EMPTY VISITS", ">SLEEPERS"];
    counts(&headings, workers, |counts| {
        [counts.transmits_timed, counts.kicks_spared, counts.timed_in_vain, counts.sleep_events]
    })
}

/// Where vCPUs ran for which packets had been written while they slept, and copies that the table moved.
fn landings(workers: &[WorkerPolicies]) -> String {
    let headings = [">WORKER", ">RAN ON WRITER'S CPU", ">IN ITS LLC", ">ELSEWHERE", ">COPIES MOVED"];
    counts(&headings, workers, |counts| {
        [counts.landed_same, counts.landed_near, counts.landed_far, counts.offloads_moved]
    })
}

/// How often a worker left a thread that served several, and how often none did since no CPU was idle.
fn separations(workers: &[WorkerPolicies]) -> String {
    let headings = [">WORKER", ">HELD TOGETHER", ">APART", ">EARLY", ">LATE"];
    counts(&headings, workers, |counts| {
        [counts.separations_held, counts.separations, counts.separations_early, counts.separations_late]
    })
}

/// Large frames that workers share with helpers.
fn helpers(workers: &[WorkerPolicies]) -> String {
    let mut table =
        Table::new(&[">WORKER", "HELPER ON", ">SHARED FRAMES", ">VISITS SHARED", ">ALONE", ">GIVEN UP"]);
    for WorkerPolicies { index, helper_cpu, shared, counts } in workers {
        let cpu = helper_cpu.map_or_else(|| "-".to_owned(), |cpu| format!("CPU {cpu}"));
        let numbers = [*shared, counts.offloads_shared, counts.offloads_alone, counts.helps_given_up];
        table.row([index.to_string(), cpu].into_iter().chain(numbers.map(|number| number.to_string())));
    }
    table.text()
}

/// The last decisions.
pub(crate) fn sched_trace(trace: &SchedTrace) -> String {
    if trace.decisions.is_empty() {
        return "no decisions by the view of the scheduler".to_owned();
    }
    let mut table = Table::new(&[
        ">AGO, us",
        ">FOR, us",
        ">TIMES",
        ">WORKER",
        "POLICY",
        "DECISION",
        "VNIC",
        "ITS THREADS; A HELPER'S CPU",
    ]);
    trace.decisions.iter().for_each(|line| table.row(decision_row(line)));
    table.text()
}

fn decision_row(line: &DecisionLine) -> [String; 8] {
    [
        line.ago_us.to_string(),
        line.for_us.to_string(),
        line.times.to_string(),
        line.worker.to_string(),
        line.policy.clone(),
        line.decision.clone(),
        line.vnic.clone().unwrap_or_else(|| "-".to_owned()),
        line.guest
            .as_ref()
            .map_or_else(|| line.cpu_return.map_or_else(|| "-".to_owned(), return_text), counts_text),
    ]
}

/// How soon a helper gave its CPU back.
fn return_text(back: CpuReturnLine) -> String {
    let CpuReturnLine { frames, unseen_ns, leaving_ns } = back;
    format!("waited {unseen_ns} ns at most, {frames} frame; left within {leaving_ns} ns")
}

fn counts_text(counts: &GuestThreadCounts) -> String {
    let waiting = counts.waiting_here + counts.waiting_elsewhere;
    let of = [("running", counts.running), ("waiting", waiting), ("sleeping", counts.sleeping)];
    let some = of.iter().filter(|(_, count)| *count > 0);
    some.map(|(word, count)| format!("{count} {word}")).collect::<Vec<_>>().join(", ")
}

fn guest_row(guest: &GuestReport) -> [String; 5] {
    let threads = match &guest.why {
        Some(why) => why.clone(),
        None => threads_text(&guest.threads),
    };
    let pid = guest.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
    let [kind, found_by] =
        [guest.kind.clone(), guest.evidence()].map(|word| word.unwrap_or_else(|| "-".to_owned()));
    [guest.vnic.clone(), pid, kind, found_by, threads]
}

fn threads_text(threads: &[ThreadReport]) -> String {
    let one = |thread: &ThreadReport| match thread.cpu {
        Some(cpu) => format!("{} {} on {cpu}", thread.tid, thread.activity),
        None => format!("{} {}", thread.tid, thread.activity),
    };
    let shown: Vec<String> = threads.iter().take(THREADS_SHOWN_MAX).map(one).collect();
    match threads.len().saturating_sub(THREADS_SHOWN_MAX) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_api::sched::{PolicyCounts, ShareReport, SharesMode};
    use lasthop_sched::{Mode, Modes, Policy};

    #[test]
    fn a_view_that_is_open_has_guests_and_decisions() {
        let thread = |tid| ThreadReport { tid, activity: "running".to_owned(), cpu: Some(1) };
        let guest = |vnic: &str, why: Option<&str>, count| GuestReport {
            vnic: vnic.to_owned(),
            pid: Some(7),
            kind: why.is_none().then(|| "vmm".to_owned()),
            why: why.map(str::to_owned),
            found_by: why.is_none().then(|| "kvm".to_owned()),
            vcpus: why.is_none().then_some(3),
            threads: (0..count).map(thread).collect(),
        };
        let counts =
            PolicyCounts { look_polls: 3, offers_spared: 5, second_signals: 4, ..PolicyCounts::default() };
        let mut modes = Modes::default();
        modes.set(Policy::Look, Mode::On);
        let report = SchedReport {
            is_open: true,
            policies: SchedReport::policies(&modes, true),
            guests: vec![guest("vm1", None, 2), guest("vm2", Some("no names"), 0)],
            workers: vec![WorkerPolicies { index: 0, helper_cpu: None, shared: 0, counts }],
            ..SchedReport::default()
        };
        let expected = "view of the scheduler: open\n\n\
                        POLICY          MODE  USED\n\
                        look            on    yes\n\
                        yield           auto  no\n\
                        second-signal   auto  no\n\
                        notify          auto  no\n\
                        transmit-timer  auto  no\n\
                        offload         auto  no\n\
                        movement        auto  no\n\
                        gathering       auto  no\n\n\
                        shares: none\n\n\
                        VNIC  PROCESS  KIND  FOUND BY           THREADS\n\
                        vm1   7        vmm   KVM, 2 of 3 vCPUs  0 running on 1, 1 running on 1\n\
                        vm2   7        -     -                  no names\n\n\
                        WORKER  POLLS  YIELDS  SLEEPS  UNSEEN  KEPT  OFFERS  TAKEN\n     0      3       0       0       0     5       0      0\n\n\
                        WORKER 2ND SIGNALS ANSWERED SPARED DELAYED JOINED DRAINED POLLING SPARED, us\n     0           4        0      0       0      0       0                  0\n\n\
                        WORKER  TIMERS  KICKS SPARED  EMPTY VISITS  SLEEPERS\n     0       0             0             0         0\n";
        assert_eq!(sched(&report), expected);
        let mut moved = report.clone();
        moved.policies.iter_mut().for_each(|policy| policy.is_used = true);
        assert!(sched(&moved).contains(
            "\nWORKER  HELD TOGETHER  APART  EARLY  LATE\n     0              0      0      0     0\n"
        ));
        assert!(sched(&moved).ends_with(
            "ELSEWHERE  COPIES MOVED\n     0                    0           0          0             0\n"
        ));
        let mut helped = report.clone();
        let helper = WorkerPolicies { index: 1, helper_cpu: Some(3), shared: 9, ..helped.workers[0].clone() };
        helped.workers.push(helper);
        let text = sched(&helped);
        let rows: Vec<Vec<&str>> =
            text.lines().rev().take(2).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["1", "CPU", "3", "9", "0", "0", "0"]);
        assert_eq!(rows[1], ["0", "-", "0", "0", "0", "0"]);
        assert!(threads_text(&(0..11).map(thread).collect::<Vec<_>>()).ends_with("and 3 more"));
    }

    #[test]
    fn shares_have_a_line_for_each_thread_or_the_reason() {
        let thread = |name: &str, load: &str, weight| ShareReport {
            name: name.to_owned(),
            tid: 7,
            credit: 1024,
            weight,
            load: load.to_owned(),
        };
        let mut report = SharesReport {
            mode: SharesMode::Steal,
            group: Some("/sys/fs/cgroup/cpu/lasthop-x".to_owned()),
            threads: vec![thread("worker0", "io", 1536), thread("worker1", "idle", 512)],
            weights_changed: 2,
            periods_lent: 3,
            ..SharesReport::default()
        };
        let expected = "shares: steal, in /sys/fs/cgroup/cpu/lasthop-x\n\
                        THREAD   TID  LOAD  CREDIT  WEIGHT\n\
                        worker0    7  io      1024    1536\n\
                        worker1    7  idle    1024     512\n\
                        weights changed 2 times; shares lent in 3 periods\n";
        assert_eq!(shares(&report), expected);
        report.why = Some("no controller".to_owned());
        assert!(shares(&report).starts_with("shares: steal, not in effect: no controller\n"));
        assert_eq!(shares(&SharesReport::default()), "shares: none\n");
    }

    #[test]
    fn a_trace_has_a_line_for_each_decision() {
        let line = DecisionLine {
            worker: 1,
            ago_us: 900,
            for_us: 20,
            times: 3,
            policy: "look".to_owned(),
            decision: "poll".to_owned(),
            vnic: Some("vm1".to_owned()),
            guest: Some(GuestThreadCounts { running: 1, sleeping: 2, ..GuestThreadCounts::default() }),
            cpu_return: None,
            inputs: None,
            repetitions: None,
        };
        let offer = DecisionLine { decision: "offer".to_owned(), vnic: None, guest: None, ..line.clone() };
        let back = CpuReturnLine { frames: 1, unseen_ns: 9000, leaving_ns: 400 };
        let left = DecisionLine { cpu_return: Some(back), ..offer.clone() };
        let text = sched_trace(&SchedTrace { decisions: vec![line, offer, left] });
        let rows: Vec<Vec<&str>> =
            text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["900", "20", "3", "1", "look", "poll", "vm1", "1", "running,", "2", "sleeping"]);
        assert_eq!(rows[1], ["900", "20", "3", "1", "look", "offer", "-", "-"]);
        assert!(text.ends_with(" -    waited 9000 ns at most, 1 frame; left within 400 ns\n"), "{text}");
        assert!(sched_trace(&SchedTrace::default()).starts_with("no decisions"));
    }

    #[test]
    fn without_a_view_it_says_why() {
        let report = SchedReport { why: Some("no guest is attached".to_owned()), ..SchedReport::default() };
        assert!(sched(&report).starts_with("view of the scheduler: none: no guest is attached\n"));
    }
}
