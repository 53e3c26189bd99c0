//! Checks the whole switch and its machine.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use lasthop_api::cpus;
use lasthop_api::report::SandboxReport;
use lasthop_api::rundir::{control_socket, option};
use lasthop_api::sched::{GuestReport, SchedReport};
use lasthop_api::silence::{PATIENCE, connect_within};
use lasthop_runtime::fault::{Fault, Kind};
use lasthop_runtime::procfs;
use lasthop_runtime::sandbox::{SandboxMode, summary};

use super::controller;
use super::finding::{Finding, Link, Restarts, Verdict, YOUNG_MS};
use super::processes::Process;
use lasthop_api::facts::{Facts, SwitchFacts};
use lasthop_api::readable::{count, time};

/// Other switches that are named if none runs here.
const SWITCHES_SHOWN_MAX: usize = 3;
/// Descriptors that a guest takes: connection, memory, kicks and calls of a few queue pairs.
const GUEST_DESCRIPTORS: u64 = 16;
/// Guests whose threads are named, and threads of each: `lasthop sched show` has the others.
const GUESTS_SHOWN_MAX: usize = 8;
const THREADS_SHOWN_MAX: usize = 8;
/// Descriptors left below which the next guest may not fit.
const SPARE_DESCRIPTORS: u64 = 4 * GUEST_DESCRIPTORS;

/// Why the switch in `dir` gives no answer, if `fault` says so; otherwise the mistake is the user's.
pub(super) fn unanswered(dir: &Path, fault: &Fault, processes: &[Process]) -> Option<Finding> {
    let verdict = match fault.kind {
        Kind::SwitchDown | Kind::Socket => not_running(dir, fault, processes),
        Kind::Internal => other_version(fault),
        _ if fault.message.contains("there is no method") => other_version(fault),
        _ => return None,
    };
    Some(verdict.about(None, Link::Switch))
}

fn other_version(fault: &Fault) -> Verdict {
    Verdict::broken(
        format!(
            "version mismatch: this lasthop is {}, and the running switch is another version ({})",
            env!("CARGO_PKG_VERSION"),
            fault.message
        ),
        "restart the switch, or use the program that it was started with; lasthop version shows both",
    )
}

fn not_running(dir: &Path, fault: &Fault, processes: &[Process]) -> Verdict {
    let (shown, path) = (dir.display(), control_socket(dir));
    let kind = connect_within(PATIENCE, &path).map_err(|error| error.kind()).err();
    if kind == Some(ErrorKind::PermissionDenied) {
        return Verdict::broken(
            format!("permission denied at {}: the switch belongs to another user", path.display()),
            "run this as the user who started the switch (sudo lasthop doctor)",
        );
    }
    let switches = switches(dir, processes);
    if let Some((process, _)) = switches.iter().find(|(_, other)| other == dir) {
        let why = match kind {
            Some(ErrorKind::NotFound) => format!("its control socket {} was removed", path.display()),
            _ => fault.message.clone(),
        };
        if procfs::is_stopped(process.pid) {
            return Verdict::broken(
                format!("the switch in {shown} cannot be asked: {why}"),
                format!("continue it: kill -CONT {}", process.pid),
            );
        }
        return Verdict::broken(
            format!("the switch in {shown} (process {}) cannot be asked: {why}", process.pid),
            format!(
                "restart it: systemctl restart lasthop (guests stay attached); without a service kill {} and start it again, and \
                 guests have to connect again",
                process.pid
            ),
        );
    }
    if let Some((_, nearest)) = switches.first() {
        let named = switches.iter().take(SWITCHES_SHOWN_MAX);
        let named: Vec<_> =
            named.map(|(process, other)| format!("{} (process {})", other.display(), process.pid)).collect();
        return Verdict::broken(
            format!("no switch is running in {shown}, but in {}", named.join(", ")),
            format!(
                "ask that one: lasthop --dir {} doctor; or start one here: lasthop run{}",
                nearest.display(),
                option(dir)
            ),
        );
    }
    let left = if kind == Some(ErrorKind::ConnectionRefused) {
        " (its control socket is left over: it was killed)"
    } else {
        ""
    };
    Verdict::broken(
        format!("no switch is running in {shown}{left}"),
        format!("start one: lasthop run{} --vnic vm1 --vnic vm2", option(dir)),
    )
}

/// Switches of this machine with directories here. The most likely ones are first: those beside `dir`, then those of
/// the same user.
fn switches<'a>(dir: &Path, processes: &'a [Process]) -> Vec<(&'a Process, PathBuf)> {
    let own_uid = rustix::process::geteuid().as_raw();
    let all = processes.iter().filter_map(|process| Some((process, process.run_dir()?)));
    // In a container the same path is another directory.
    let mut switches: Vec<_> = all.filter(|(process, other)| process.sees(other)).collect();
    switches.sort_by_key(|(process, other)| {
        (other.parent() != dir.parent(), process.user.uid != own_uid, process.pid)
    });
    switches
}

/// All findings about the switch process and its machine, from facts of two times.
pub(super) fn findings(before: &Facts, facts: &Facts) -> Vec<Finding> {
    let switch = &facts.switch;
    let scheduler = switch.scheduler.as_ref().map(scheduler);
    let neighbours = neighbours(&before.switch, switch);
    let host = [descriptors(switch), processors(switch), neighbours, scheduler].into_iter().flatten();
    let mut findings = vec![process(switch).about(None, Link::Switch)];
    findings.extend(facts.controller.as_ref().map(|facts| {
        controller::controller(before.controller.as_ref(), facts).about(None, Link::Controller)
    }));
    findings.extend(
        facts.external.as_ref().map(|facts| controller::external(facts).about(None, Link::Controller)),
    );
    findings
        .extend(confinements(&switch.sandboxes).into_iter().map(|verdict| verdict.about(None, Link::Switch)));
    findings.extend(host.map(|verdict| verdict.about(None, Link::Host)));
    findings
}

/// The finding that the switch has no port.
pub(super) fn without_ports(facts: &Facts) -> Option<Finding> {
    let none =
        Verdict::broken("the switch has no vnics", "make one: lasthop port add NAME,backend=vhost-user");
    (facts.vnics.is_empty() && facts.ports.is_empty()).then(|| none.about(None, Link::Switch))
}

fn process(switch: &SwitchFacts) -> Verdict {
    let own = env!("CARGO_PKG_VERSION");
    let restarts = Restarts {
        process: "switch",
        number: switch.restarts,
        last_end: switch.last_end.as_ref(),
        remedy: "see the log of lasthop run; report it as a bug; if a guest causes it, remove its port (lasthop port del)",
    };
    let Some((pid, up_ms)) = switch.switch_pid.zip(switch.up_ms) else { return restarts.down() };
    if let Some(why) = &switch.deaf {
        return Verdict::broken(
            why,
            format!(
                "if it was stopped, continue it (kill -CONT {pid}); the supervisor restarts one that hangs"
            ),
        );
    }
    if switch.restarts > 0 && up_ms < YOUNG_MS {
        return restarts.young("crashed");
    }
    if switch.version != own {
        return Verdict::warning(
            format!("version mismatch: this lasthop is {own}, the running switch is {}", switch.version),
            "restart the switch",
        );
    }
    Verdict::ok(format!(
        "lasthop {}, module {}, {}, process {pid} for {}, {}",
        switch.version,
        switch.module,
        count(switch.workers, "worker"),
        time(up_ms),
        restarts.text()
    ))
}

/// The sandboxes of processes: one line for all with the same verdict.
fn confinements(sandboxes: &[SandboxReport]) -> Vec<Verdict> {
    let mut groups: Vec<(String, Vec<&SandboxReport>)> = Vec::new();
    for sandbox in sandboxes {
        let text = layers_text(sandbox);
        match groups.iter_mut().find(|(other, _)| *other == text) {
            Some((_, group)) => group.push(sandbox),
            None => groups.push((text, vec![sandbox])),
        }
    }
    groups.iter().filter_map(|(text, group)| confinement(text, group)).collect()
}

fn layers_text(sandbox: &SandboxReport) -> String {
    let is_whole = !sandbox.layers.is_empty() && sandbox.layers.iter().all(|layer| layer.on);
    if is_whole { "all layers (lasthop version lists them)".to_owned() } else { summary(&sandbox.layers) }
}

/// The verdict about processes with the same layers.
fn confinement(layers: &str, group: &[&SandboxReport]) -> Option<Verdict> {
    let SandboxReport { mode, layers: list, .. } = group.first()?;
    let names: Vec<&str> = group.iter().map(|sandbox| sandbox.process.as_str()).collect();
    let noun = if names.len() == 1 { "process" } else { "processes" };
    let text = format!("sandbox of the {} {noun}: {layers}", names.join(", "));
    let is_filtered = list.iter().any(|layer| layer.on && layer.name == "system calls");
    Some(match mode {
        SandboxMode::Off => Verdict::warning(
            text,
            "an attacker in that process has its user's rights: run without --sandbox=off",
        ),
        _ if !is_filtered => Verdict::warning(text, "use a kernel with seccomp (CONFIG_SECCOMP_FILTER)"),
        // Layers that a kernel or container lacks are no fault of this switch.
        _ => Verdict::ok(text),
    })
}

/// Open files of the switch process compared with its limit (proc(5): limits, fd).
fn descriptors(switch: &SwitchFacts) -> Option<Verdict> {
    let pid = switch.switch_pid?;
    let limits = procfs::text(pid, "limits")?;
    let limit = nofile(&limits)?;
    let used = std::fs::read_dir(procfs::dir(pid).join("fd")).ok()?.count() as u64;
    let text = format!("{used} of {limit} file descriptors in use");
    let is_short = limit.saturating_sub(used) < SPARE_DESCRIPTORS;
    let remedy = format!(
        "raise the limit before `lasthop run`: ulimit -n (a guest takes about {GUEST_DESCRIPTORS}); systemd: LimitNOFILE="
    );
    Some(if is_short {
        Verdict::warning(format!("the limit of open files is near: {text}"), remedy)
    } else {
        Verdict::ok(text)
    })
}

/// The soft limit of open files.
fn nofile(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn processors(switch: &SwitchFacts) -> Option<Verdict> {
    let allowed = cpus::allowed()?.0.len();
    let own = switch.cpus.as_ref().and_then(|list| list.parse::<cpus::CpuList>().ok());
    let cpus = own.map_or(allowed, |list| list.0.len());
    let text = format!("{} on {}", count(switch.workers, "worker"), count(cpus, "CPU"));
    let remedy = "start it with fewer --workers, or more --cpus";
    Some(if switch.workers > cpus {
        Verdict::warning(format!("{text}: some share a CPU"), remedy)
    } else {
        Verdict::ok(text)
    })
}

/// Other processes that compute on workers' CPUs. A worker counts if that is so at both times: a process that computes only
/// now and then is no reason to change anything.
fn neighbours(before: &SwitchFacts, now: &SwitchFacts) -> Option<Verdict> {
    let is_lasting = |worker: &&usize| before.scarce_workers.contains(worker);
    let workers: Vec<String> =
        now.scarce_workers.iter().filter(is_lasting).map(ToString::to_string).collect();
    let whose = match &workers[..] {
        [] => return None,
        [one] => format!("CPU of worker {one}"),
        many => format!("CPUs of workers {}", many.join(", ")),
    };
    Some(Verdict::hint(
        format!("other processes compute on the {whose}: packets may wait some milliseconds there"),
        "give the workers CPUs of their own (cpus), or a greater share (shares); docs/user/operating.md, \"CPUs that others use\"",
    ))
}

/// The view of the host's scheduler. Packets pass without one, so only missing rights are a warning.
fn scheduler(report: &SchedReport) -> Verdict {
    if report.lacks_rights {
        return Verdict::warning(
            "no view of the scheduler: lasthop run lacks CAP_BPF or CAP_PERFMON",
            "give it both capabilities, or set scheduler-view = \"off\"",
        );
    }
    if let Some(why) = &report.why {
        return Verdict::ok(format!("no view of the scheduler: {why}"));
    }
    let unseen = |guest: &GuestReport| Some(format!("{} ({})", guest.vnic, guest.why.as_ref()?));
    let unseen: Vec<String> = report.guests.iter().filter_map(unseen).collect();
    let seen = report.guests.len() - unseen.len();
    let mut text = format!("view of the scheduler: {seen} of {} seen", count(report.guests.len(), "guest"));
    let believed: Vec<String> = report.guests.iter().filter_map(believed).collect();
    if !believed.is_empty() {
        text = format!("{text}: {}", some_of(&believed, GUESTS_SHOWN_MAX));
    }
    if !unseen.is_empty() {
        text = format!("{text}; not {}", unseen.join(", "));
    }
    match report.guests.iter().any(|guest| guest.missing() > 0) {
        true => Verdict::hint(
            text,
            "a vCPU counts as soon as it was seen in KVM; -name NAME,debug-threads=on (QEMU) or vcpus= name all of them",
        ),
        false => Verdict::ok(text),
    }
}

/// The threads that count as a guest's, and why; `None` if there are none.
fn believed(guest: &GuestReport) -> Option<String> {
    let tids: Vec<String> = guest.threads.iter().map(|thread| thread.tid.to_string()).collect();
    let noun = if tids.len() == 1 { "thread" } else { "threads" };
    let evidence = guest.evidence().map_or_else(String::new, |evidence| format!(" ({evidence})"));
    let shown = || format!("{} by {noun} {}{evidence}", guest.vnic, some_of(&tids, THREADS_SHOWN_MAX));
    (!tids.is_empty()).then(shown)
}

/// The first of several words.
fn some_of(words: &[String], shown_max: usize) -> String {
    let shown = words.iter().take(shown_max).map(String::as_str).collect::<Vec<_>>().join(", ");
    match words.len().saturating_sub(shown_max) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::State;
    use lasthop_api::report::Ended;
    use lasthop_api::sched::ThreadReport;

    #[test]
    fn a_crash_loop_and_another_version_are_told() {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let sound = SwitchFacts {
            version,
            switch_pid: Some(7),
            up_ms: Some(90_000),
            workers: 1,
            ..SwitchFacts::default()
        };
        assert_eq!(process(&sound).state, State::Ok);
        let deaf = SwitchFacts { deaf: Some("it is stopped".into()), ..sound.clone() };
        assert_eq!(process(&deaf).state, State::NotOk);
        let last_end = Some(Ended { why: "was killed by signal 11".into(), ago_ms: 2000 });
        let crashed = SwitchFacts { restarts: 3, up_ms: Some(2000), last_end, ..sound.clone() };
        let verdict = process(&crashed);
        assert_eq!(verdict.state, State::Warning);
        assert!(
            verdict.text.contains("crashed")
                && verdict.text.contains("3 restarts): the last one was killed by signal 11 2 s ago"),
            "{}",
            verdict.text
        );
        assert_eq!(process(&SwitchFacts { switch_pid: None, ..crashed }).state, State::NotOk);
        let verdict = process(&SwitchFacts { version: "0.0.0".into(), ..sound.clone() });
        assert!(verdict.text.contains("the running switch is 0.0.0"), "{}", verdict.text);
        let many = SwitchFacts { workers: 9, cpus: Some("0-1".into()), ..sound };
        assert_eq!(processors(&many).map(|verdict| verdict.state), Some(State::Warning));
    }

    #[test]
    fn processes_that_compute_beside_workers_for_long_are_told() {
        let with =
            |workers: &[usize]| SwitchFacts { scarce_workers: workers.to_vec(), ..SwitchFacts::default() };
        let told = |before: &[usize], now: &[usize]| neighbours(&with(before), &with(now));
        for (before, now) in [(&[][..], &[0][..]), (&[0], &[]), (&[1], &[0])] {
            assert_eq!(told(before, now), None);
        }
        let one = told(&[0, 1], &[1]).expect("one");
        assert!(one.text.contains("compute on the CPU of worker 1: "), "{}", one.text);
        assert_eq!(one.state, State::Ok, "a switch that shares its CPUs is well");
        let both = told(&[0, 1], &[0, 1]).expect("both");
        assert!(both.text.contains("compute on the CPUs of workers 0, 1: "), "{}", both.text);
        assert!(both.remedy.is_some_and(|remedy| remedy.contains("CPUs of their own")));
    }

    #[test]
    fn guests_that_the_view_does_not_see_are_named_with_the_remedy() {
        let guest = |vnic: &str, why: Option<&str>| GuestReport {
            vnic: vnic.to_owned(),
            pid: Some(7),
            why: why.map(str::to_owned),
            ..GuestReport::default()
        };
        let guests = vec![guest("vm1", None), guest("vm2", Some("set debug-threads"))];
        let open = SchedReport { is_open: true, guests, ..SchedReport::default() };
        let text = scheduler(&open).text;
        assert_eq!(text, "view of the scheduler: 1 of 2 guests seen; not vm2 (set debug-threads)");
        let none = SchedReport { why: Some("no guest is attached".to_owned()), ..SchedReport::default() };
        let powerless = SchedReport { lacks_rights: true, ..none.clone() };
        assert_eq!((scheduler(&none).state, scheduler(&powerless).state), (State::Ok, State::Warning));
        assert_eq!(scheduler(&none).text, "no view of the scheduler: no guest is attached");
    }

    #[test]
    fn threads_that_count_as_a_guest_s_are_named_with_the_evidence() {
        let thread = |tid| ThreadReport { tid, activity: "sleeping".to_owned(), cpu: None };
        let guest = |vnic: &str, found_by: &str, tids: std::ops::Range<u32>| GuestReport {
            vnic: vnic.to_owned(),
            found_by: Some(found_by.to_owned()),
            threads: tids.map(thread).collect(),
            ..GuestReport::default()
        };
        let report = |guests| SchedReport { is_open: true, guests, ..SchedReport::default() };
        let whole = scheduler(&report(vec![guest("vm1", "names", 7..9), guest("vm2", "kvm", 11..12)]));
        let expected =
            "view of the scheduler: 2 of 2 guests seen: vm1 by threads 7, 8 (names), vm2 by thread 11 (KVM)";
        assert_eq!((whole.text.as_str(), whole.remedy), (expected, None));
        let partial = GuestReport { vcpus: Some(4), ..guest("vm1", "kvm", 1..4) };
        let partial = scheduler(&report(vec![partial]));
        assert!(partial.text.ends_with("vm1 by threads 1, 2, 3 (KVM, 3 of 4 vCPUs)"), "{}", partial.text);
        assert_eq!(partial.state, State::Ok, "packets pass");
        assert!(partial.remedy.is_some_and(|remedy| remedy.contains("debug-threads=on")));
        let many = scheduler(&report(vec![guest("vm1", "choice", 1..12); 10])).text;
        assert!(
            many.contains("7, 8 and 3 more (vcpus), vm1") && many.ends_with("(vcpus) and 2 more"),
            "{many}"
        );
    }

    #[test]
    fn sandboxes_of_which_the_same_is_to_be_said_have_one_line() {
        let sandbox = |process: &str, lacks: &str| -> SandboxReport {
            let layer = |name| serde_json::json!({"name": name, "on": name != lacks, "detail": "none"});
            let layers = ["system calls", "landlock"].map(layer);
            let report = serde_json::json!({"process": process, "mode": "auto", "layers": layers});
            serde_json::from_value(report).expect("a report")
        };
        let said = |sandboxes: &[SandboxReport]| -> Vec<(State, String)> {
            confinements(sandboxes).into_iter().map(|verdict| (verdict.state, verdict.text)).collect()
        };
        let whole = [sandbox("switch", ""), sandbox("controller", ""), sandbox("driver", "landlock")];
        let driver = "sandbox of the driver process: system calls; not landlock (none)".to_owned();
        let both = "sandbox of the switch, controller processes: all layers (lasthop version lists them)";
        assert_eq!(said(&whole), [(State::Ok, both.to_owned()), (State::Ok, driver)]);
        let lacking = ["switch", "controller", "driver"].map(|name| sandbox(name, "system calls"));
        assert_eq!(said(&lacking).len(), 1);
        assert_eq!(said(&lacking)[0].0, State::Warning);
    }

    #[test]
    fn the_limit_of_open_files_is_read() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max open files            1024                 524288               files\n";
        assert_eq!(nofile(limits), Some(1024));
    }
}
