//! The sandbox of a running switch, seen from outside; and its list of system calls compared with those of the switch.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use lasthop_dpif::client::Client;
use lasthop_frontend::Guest;
use lasthop_rig::guests::{ONE, TWO, check_balance, frame, guest, receive, send};
use lasthop_rig::namespaces::{Namespace, may};
use lasthop_rig::{Switch, eventually, signal};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use rustix::process::Signal;
use serde_json::Value;

fn status_of(task: &Path) -> String {
    fs::read_to_string(task.join("status")).expect("a status")
}

fn layers(switch: &Switch) -> Vec<Value> {
    let version = switch.json(&["version"]);
    let sandbox = &version["running"]["sandboxes"][0];
    assert_eq!(sandbox["process"], "switch", "{version}");
    sandbox["layers"].as_array().expect("layers").clone()
}

fn is_on(layers: &[Value], name: &str) -> bool {
    layers.iter().any(|layer| layer["name"] == name && layer["on"] == true)
}

#[test]
fn every_thread_is_without_capabilities_and_filtered() {
    let switch = Switch::start(&["--vnic", "a", "--workers", "2"]);
    assert!(is_on(&layers(&switch), "system calls"), "{:?}", layers(&switch));
    let tasks = format!("/proc/{}/task", switch.switch_pid().expect("a switch process"));
    let tasks: Vec<_> = fs::read_dir(tasks).expect("threads").flatten().collect();
    assert!(tasks.len() >= 3, "main, workers, watchdog");
    for task in tasks {
        let status = status_of(&task.path());
        for line in
            ["CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"]
        {
            assert!(status.contains(line), "{line}: {status}");
        }
    }
}

#[test]
fn its_namespaces_are_its_own() {
    let switch = Switch::start(&[]);
    let layers = layers(&switch);
    let inner = switch.switch_pid().expect("a switch process");
    let space = |pid: u32, name: &str| fs::read_link(format!("/proc/{pid}/ns/{name}")).expect("a namespace");
    for (layer, name) in
        [("user namespace", "user"), ("mount namespace", "mnt"), ("network namespace", "net")]
    {
        assert_eq!(space(inner, name) != space(switch.pid(), name), is_on(&layers, layer), "{layers:?}");
    }
    assert_eq!(space(inner, "pid"), space(switch.pid(), "pid"), "its threads have the numbers that all see");
}

#[test]
fn what_was_possible_is_told_at_the_start_and_when_asked() {
    let switch = Switch::start(&["--vnic", "a"]);
    assert_eq!(switch.log().matches("sandbox of the switch process: ").count(), 1, "{}", switch.log());
    assert!(switch.ask(&["version"]).ok().contains("sandbox of the switch process: "));
    let doctor = switch.ask(&["doctor", "--json"]).out;
    let doctor: Value = serde_json::from_str(&doctor).expect("JSON");
    assert_eq!(
        doctor["facts"]["switch"]["sandboxes"][0]["layers"].as_array().expect("layers"),
        &layers(&switch)
    );
    let findings = doctor["findings"].as_array().expect("findings");
    let own =
        findings.iter().find(|finding| finding["text"].as_str().expect("text").starts_with("sandbox of"));
    assert_eq!(own.expect("a finding")["state"], "ok", "{doctor}");
    signal(switch.switch_pid().expect("a switch process"), Signal::KILL);
    eventually("the next one", || switch.log().contains("running again").then_some(()));
    assert!(is_on(&layers(&switch), "system calls"), "the next one has it, too");
    assert_eq!(switch.log().matches("sandbox of the switch process: ").count(), 1, "said once");
    let before = layers(&switch);
    switch.ask(&["upgrade"]).ok();
    assert_eq!(layers(&switch), before, "who takes over has it, too");
}

#[test]
fn without_a_sandbox_it_says_so() {
    let switch = Switch::start(&["--sandbox", "off"]);
    assert!(switch.log().contains("sandbox of the switch process: off"), "{}", switch.log());
    assert!(layers(&switch).is_empty());
    let inner = switch.switch_pid().expect("a switch process");
    assert!(status_of(Path::new(&format!("/proc/{inner}"))).contains("Seccomp:\t0"));
    let doctor = switch.ask(&["doctor"]).out;
    assert!(
        doctor.contains("sandbox of the switch, controller processes: off")
            && doctor.contains("--sandbox=off"),
        "{doctor}"
    );
}

#[test]
fn all_layers_are_required_if_the_user_says_so() {
    let is_whole = |switch: &Switch| layers(switch).iter().all(|layer| layer["on"] == true);
    if is_whole(&Switch::start(&[])) {
        assert!(is_whole(&Switch::start(&["--sandbox", "strict"])));
    }
}

/// strace replaces a call of the process by another one that is in no list.
#[test]
fn a_forbidden_call_is_told_in_the_log_and_by_the_doctor() {
    let switch = Switch::start(&["--vnic", "a"]);
    let process = switch.switch_pid().expect("a switch process").to_string();
    let other = ["-e", "trace=epoll_pwait", "-e", "inject=epoll_pwait:retval=0:syscall=getppid"];
    let strace =
        Command::new("strace").args(["-qq", "-p", &process]).args(other).stderr(Stdio::null()).spawn();
    let Some(mut strace) = strace_or_skip(strace) else { return };
    eventually("the end of the switch process", || {
        let _ = switch.ask(&["stats"]);
        switch.log().contains("ended by SIGSYS").then_some(())
    });
    strace.wait().expect("our child");
    let said = format!("the switch process {process} was ended by SIGSYS: it made system call ");
    assert!(switch.log().contains(&said) && switch.log().contains(" (getppid), "), "{}", switch.log());
    eventually("the next one", || switch.log().contains("running again").then_some(()));
    let doctor = switch.ask(&["doctor"]).out;
    assert!(doctor.contains("(getppid), which its sandbox does not allow"), "{doctor}");
}

/// strace, if it is here.
fn strace_or_skip(started: std::io::Result<Child>) -> Option<Child> {
    if started.is_err() {
        let _ = std::io::stderr().write_all(b"skip: there is no strace here; tools/deps test installs it\n");
    }
    started.ok()
}

/// Runs in a user namespace in which no further one can be created, as in many containers.
fn confined(base: &Path, mode: &str) -> Command {
    let script =
        "echo 0 >/proc/sys/user/max_user_namespaces && exec \"$0\" run --dir \"$1\" --sandbox \"$2\"";
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "sh", "-c", script, env!("CARGO_BIN_EXE_lasthop")]);
    command.arg(base.join("run")).arg(mode).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

#[test]
fn a_layer_that_cannot_be_had_is_left_out_or_ends_the_start() {
    let base = tempfile::tempdir().expect("a directory");
    let strict = confined(base.path(), "strict").output().expect("unshare runs");
    let text = String::from_utf8_lossy(&strict.stderr).into_owned();
    if text.contains("unshare:") || text.contains("sh:") {
        return; // this already is such a container
    }
    assert_eq!(strict.status.code(), Some(1), "{text}");
    assert!(text.contains("lacks a layer, user namespace: ") && text.contains("--sandbox=strict"), "{text}");
    let log = fs::File::create(base.path().join("log")).expect("a log");
    let mut auto = confined(base.path(), "auto").stderr(log).spawn().expect("unshare runs");
    let log = || fs::read_to_string(base.path().join("log")).expect("the log");
    eventually("the switch", || log().contains("switch is running").then_some(()));
    assert!(log().contains("; not user namespace ("), "{}", log());
    signal(auto.id(), Signal::TERM);
    eventually("the end", || auto.try_wait().expect("our child"));
}

/// The calls below these headings in docs/design/sandbox.md, whose lists are compared with the code
/// (`sandbox/tests/list.rs`): those that a process needs on any machine.
fn needed(headings: &[&str]) -> BTreeSet<String> {
    let mut heading = "";
    let mut needed = BTreeSet::new();
    for line in include_str!("../../../docs/design/sandbox.md").lines() {
        if line.starts_with('#') {
            heading = line;
        } else if line.starts_with("| `") && !line.ends_with("| kept |") && headings.contains(&heading) {
            needed.extend(line.split('`').nth(1).map(str::to_owned));
        }
    }
    needed
}

/// Captures during `work`, until the client ends it.
fn capture(switch: &Switch, mut act: impl FnMut()) {
    let (dir, file) = (switch.dir(), switch.base.path().join("captured"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_lasthop"));
    command.arg("--dir").arg(dir).args(["capture", "a", "--write"]).arg(&file).stderr(Stdio::null());
    let mut client = command.spawn().expect("a client");
    let empty_bytes = 4096;
    eventually("frames in the file", || {
        act();
        fs::metadata(&file).is_ok_and(|file| file.len() > empty_bytes).then_some(())
    });
    signal(client.id(), Signal::INT);
    eventually("the end of the capture", || client.try_wait().expect("our child"));
}

/// A client of the control interface, which sends nothing.
fn control_client(switch: &Switch) -> OwnedFd {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
    let address = SocketAddrUnix::new(switch.path("datapath.sock")).expect("a short path");
    rustix::net::connect(&socket, &address).expect("connected");
    socket
}

/// Everything that a switch process does: guests that attach, talk and leave, captures, stuck workers, all requests.
fn exercise(switch: &Switch) {
    let (mut one, mut two) = (guest(switch, "a", ONE), guest(switch, "b", TWO));
    let talk = |one: &mut Guest, two: &mut Guest| {
        send(one, &frame(TWO, ONE, 1, 100));
        receive(two);
    };
    capture(switch, || talk(&mut one, &mut two));
    // The cost of guests' memory is measured in one visit of 64, at random: one run in ten million has none.
    (0..1024).for_each(|_| talk(&mut one, &mut two));
    check_balance(switch);
    let _client = control_client(switch);
    for words in [
        &["vnic", "add", "e,mtu=1400"][..],
        &["vnic", "set", "a", "link=down"],
        &["vnic", "set", "a", "link=up"],
        &["fdb", "add", "02:00:00:00:00:07", "a"],
        &["fdb", "show"],
        &["fdb", "del", "02:00:00:00:00:07", "a"],
        &["fdb", "flush"],
        &["switch", "add", "red"],
        &["switch", "list"],
        &["switch", "del", "red"],
        &["switch", "add", "blue,module=flow"],
        &["switch", "del", "blue"],
        &["vnic", "del", "e"],
        &["vnic", "show", "a"],
        &["stats", "--workers"],
    ] {
        switch.ask(words).ok();
    }
}

/// A guest whose call descriptor blocks its worker until the watchdog interrupts the write.
fn misbehave(switch: &Switch) {
    let (mut one, two) = (guest(switch, "c", ONE), guest(switch, "d", TWO));
    let call = two.call_fds().next().expect("a call descriptor");
    while rustix::io::write(call, &(u64::MAX - 1).to_ne_bytes()).is_err() {
        let _ = rustix::io::read(call, &mut [0_u8; 8][..]);
    }
    rustix::io::ioctl_fionbio(call, false).expect("blocking");
    // As User Mode Linux does.
    let (calls, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
    one.front().set_vring_call(1, Some(calls.as_fd())).expect("taken");
    eventually("the watchdog", || {
        send(&mut one, &frame([0xff; 6], ONE, 1, 100));
        switch.port("d")["state"].as_str().expect("a state").contains("a call eventfd blocks").then_some(())
    });
}

/// strace's output for one process: each line is the number of a thread and a call.
struct Trace(String);

impl Trace {
    fn lines(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(thread, call)| (thread, call.trim_start()))
    }

    /// The numbers of a process's threads.
    fn threads<'a>(&'a self, process: &'a str) -> BTreeSet<&'a str> {
        let mut threads = BTreeSet::from([process]);
        for (thread, call) in self.lines() {
            if let Some((_, child)) = call.rsplit_once(" = ").filter(|_| call.contains("clone"))
                && threads.contains(thread)
            {
                threads.insert(child);
            }
        }
        threads
    }

    /// The names of a process's calls from the installation of its filter on.
    fn calls<'a>(&'a self, process: &'a str) -> BTreeSet<&'a str> {
        let threads = self.threads(process);
        let installs = |(thread, call): &(&str, &str)| *thread == process && call.starts_with("seccomp(");
        // Two filters are the list; one more may forbid calls that were needed once.
        let filters = self.lines().enumerate().filter(|(_, line)| installs(line)).map(|(index, _)| index);
        let second = filters.take(2).last().expect("a filter");
        let inside = self.lines().skip(second + 1);
        inside.filter(|(thread, _)| threads.contains(thread)).filter_map(|(_, call)| name(call)).collect()
    }
}

/// The name of a call that begins here.
fn name(call: &str) -> Option<&str> {
    assert!(!call.contains("SIGSYS"), "{call}");
    let (name, _) = call.split_once('(')?;
    name.chars().all(|char| char.is_ascii_alphanumeric() || char == '_').then_some(name)
}

/// Traces the next process that replaces `process` of the supervisor, while `work` runs; `next` returns the number of
/// the next one. `None` without strace.
fn traced(
    mut switch: Switch,
    process: u32,
    next: impl Fn(&Switch) -> Option<u32>,
    act: impl FnOnce(&Switch),
) -> Option<(Trace, String)> {
    let file = switch.base.path().join("trace");
    let pid = switch.pid().to_string();
    let mut strace = Command::new("strace");
    let strace = strace.args(["-f", "-qq", "-o"]).arg(&file).args(["-p", &pid]).stderr(Stdio::null()).spawn();
    let mut strace = strace_or_skip(strace)?;
    let supervisor = format!("/proc/{pid}");
    eventually("strace", || (!status_of(Path::new(&supervisor)).contains("TracerPid:\t0\n")).then_some(()));
    signal(process, Signal::KILL);
    let process = eventually("the next one", || next(&switch).filter(|next| *next != process));
    act(&switch);
    // It has a handler for the signals that it ignores.
    signal(process, Signal::TERM);
    // And it ends by itself without a supervisor.
    signal(switch.pid(), Signal::KILL);
    switch.wait();
    strace.wait().expect("our child");
    Some((Trace(fs::read_to_string(&file).expect("a trace")), process.to_string()))
}

/// Checks that all calls below these headings are used.
fn check_lists(headings: &[&str], trace: &Trace, process: &str) {
    let (seen, needed) = (trace.calls(process), needed(headings));
    let idle: Vec<&String> = needed.iter().filter(|name| !seen.contains(name.as_str())).collect();
    // Other C libraries make other calls.
    assert!(
        idle.is_empty() || !cfg!(target_env = "gnu"),
        "allowed or refused, and nothing calls them: {idle:?}"
    );
}

#[test]
fn all_that_the_switch_process_may_is_needed() {
    let cpus = ["--cpus", "0", "--workers", "2"];
    let vnics = ["--vnic", "a", "--vnic", "b", "--vnic", "c", "--vnic", "d"];
    let switch = Switch::start(&[&cpus[..], &vnics].concat());
    let process = switch.switch_pid().expect("a switch process");
    let again = |switch: &Switch| switch.log().contains("running again").then(|| switch.switch_pid())?;
    let act = |switch: &Switch| {
        exercise(switch);
        misbehave(switch);
        let mut client = Client::connect(&switch.path("datapath.sock")).expect("connected");
        drop(client.datapaths().expect("an answer"));
    };
    if let Some((trace, process)) = traced(switch, process, again, act) {
        check_lists(&["### All processes", "### The switch process", "### Refused"], &trace, &process);
    }
}

#[test]
fn all_that_the_controller_process_may_is_needed() {
    let switch = Switch::start(&["--module", "flow", "--vnic", "a", "--vnic", "b"]);
    let process = eventually("a controller process", || switch.child_pid("controller-process"));
    let act = |switch: &Switch| {
        let (mut one, mut two) = (guest(switch, "a", ONE), guest(switch, "b", TWO));
        eventually("a flow", || {
            send(&mut one, &frame(TWO, ONE, 1, 100));
            receive(&mut two);
            let list = switch.json(&["switch", "list"]);
            (list["switches"][0]["counters"]["flows_installed"].as_u64() > Some(0)).then_some(())
        });
        for words in [&["fdb", "show"][..], &["fdb", "flush"], &["vnic", "add", "c"], &["vnic", "del", "c"]] {
            switch.ask(words).ok();
        }
    };
    if let Some((trace, process)) =
        traced(switch, process, |switch| switch.child_pid("controller-process"), act)
    {
        check_lists(&["### The controller process"], &trace, &process);
    }
}

#[test]
fn all_that_the_driver_process_may_is_needed() {
    if !may() {
        return;
    }
    let (host, outside) = (Namespace::new(), Namespace::new());
    host.wire("wire", &outside, "eth0");
    host.wire("fast", &outside, "eth1");
    // Its short frames come by system calls, too.
    host.wire("ringless", &outside, "eth2");
    let ports = [
        "--uplink",
        "fast,backend=af_xdp,host=off",
        "--uplink",
        "wire,backend=af_packet",
        "--uplink",
        "ringless,backend=af_packet,packet-ring=false",
        "--host-port",
        "host=192.0.2.1/24",
        "--vnic",
        "a",
    ];
    let switch = Switch::start_in(host.name(), &ports);
    let driver = |switch: &Switch| switch.json(&["version"])["running"]["driver_pid"].as_u64();
    let driver = |switch: &Switch| driver(switch).and_then(|pid| u32::try_from(pid).ok());
    let process = eventually("a driver process", || driver(&switch));
    let state = |switch: &Switch, port: &str| switch.json(&["port", "show", port])["state"].clone();
    let act = |switch: &Switch| {
        for port in ["wire", "ringless", "fast", "host"] {
            eventually(port, || (state(switch, port) == "up").then_some(()));
        }
        let mut one = guest(switch, "a", ONE);
        // Each device receives and sends frames.
        let ways =
            ["wire", "ringless", "fast", "host"].map(|port| [(port, "to_device"), (port, "from_device")]);
        for (port, way) in ways.into_iter().flatten() {
            let mut attempts = 0;
            eventually(way, || {
                send(&mut one, &frame([0xff; 6], ONE, 1, 100));
                // Not each time: the traced supervisor has to keep up with the events.
                if attempts % 20 == 0 {
                    for end in ["eth0", "eth1", "eth2"] {
                        outside.ip(&format!("link set {end} down"));
                        outside.ip(&format!("link set {end} up"));
                    }
                    host.ip("link set host down");
                    host.ip("link set host up");
                }
                attempts += 1;
                let shown = switch.json(&["port", "show", port]);
                (shown["counters"][way]["frames"].as_u64() > Some(0)).then_some(())
            });
        }
        switch.ask(&["port", "del", "host"]).ok();
        host.ip("link del wire");
        eventually("its end", || (state(switch, "wire") == "no device").then_some(()));
    };
    if let Some((trace, process)) = traced(switch, process, driver, act) {
        check_lists(&["### All processes", "### The driver process", "### Refused"], &trace, &process);
    }
}
