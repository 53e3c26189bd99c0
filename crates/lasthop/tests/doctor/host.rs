//! No switch, another one, one that crashed, one of another version, one that refuses requests.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};

use rustix::process::Signal;

use crate::{ONE, TWO, blames, controlled, diagnosed, first_lines, guest, has_all};
use lasthop_rig::guests::{frame, receive, send};
use lasthop_rig::{Answer, Switch, copy_of_lasthop, eventually, lasthop, signal, stop};

fn doctor_in(dir: &Path) -> Answer {
    lasthop(&["--dir", dir.to_str().expect("text"), "doctor"])
}

fn check(answer: &Answer, words: &[&str]) {
    assert_eq!(answer.code, Some(1), "{}{}", answer.out, answer.err);
    assert!(
        has_all(&first_lines(&answer.out), words),
        "{words:?} are not in the first three lines of:\n{}",
        answer.out
    );
}

#[test]
fn a_switch_that_is_not_running_is_told_with_how_to_start_it() {
    let base = tempfile::tempdir().expect("a directory");
    check(&doctor_in(&base.path().join("run")), &["no switch is running in", "lasthop run --dir"]);
}

#[test]
fn a_switch_in_another_directory_is_named() {
    let switch = Switch::start(&[]);
    let answer = doctor_in(&switch.base.path().join("ran"));
    let named = format!("but in {} (process {})", switch.dir().display(), switch.pid());
    check(&answer, &["no switch is running in", &named, "ask that one"]);
}

#[test]
fn a_switch_that_was_killed_leaves_a_socket_that_is_no_switch() {
    let mut switch = Switch::start(&["--vnic", "vm1"]);
    signal(switch.pid(), Signal::KILL);
    switch.wait();
    check(&doctor_in(&switch.dir()), &["no switch is running in"]);
}

#[test]
fn a_control_socket_that_was_removed_is_told() {
    let switch = Switch::start(&["--vnic", "vm1"]);
    std::fs::remove_file(switch.path("control.sock")).expect("removed");
    let process = format!("process {}", switch.pid());
    let answer = doctor_in(&switch.dir());
    check(&answer, &["cannot be asked", &process, "control socket", "was removed", "restart"]);
    assert!(!answer.out.contains("no switch is running"), "{}", answer.out);
    let refused = switch.ask(&["stats"]).refused();
    let known = ["cannot be asked", &process, "was removed", "lasthop doctor"];
    assert!(has_all(&refused, &known), "{refused}");
    let version = switch.ask(&["version"]).ok();
    assert!(version.contains("\nrunning: not known: ") && has_all(&version, &known), "{version}");
}

#[test]
fn two_switches_in_one_directory_are_told() {
    let first = Switch::start(&["--vnic", "vm1"]);
    let dir = first.dir();
    let second = lasthop(&["run", "--dir", dir.to_str().expect("text")]).refused();
    let process = format!("process {}", first.pid());
    assert!(has_all(&first_lines(&second), &["another switch", &process, "--dir"]), "{second}");
}

#[test]
fn a_switch_process_that_crashed_is_told() {
    let switch = Switch::start(&["--vnic", "vm1"]);
    signal(switch.switch_pid().expect("a switch process"), Signal::KILL);
    eventually("the next one", || switch.log().contains("running again").then_some(()));
    let answer = eventually("the crash", || {
        let answer = switch.ask(&["doctor"]);
        answer.out.contains("crashed").then_some(answer)
    });
    assert!(has_all(&answer.out, &["warning: switch", "1 restart", "killed by signal 9"]), "{}", answer.out);
}

#[test]
fn a_switch_without_vnics_is_told() {
    let switch = Switch::start(&[]);
    blames(&switch, &["no vnics", "port add"]);
}

#[test]
fn packets_of_guests_are_not_known_while_the_switch_process_is_stopped() {
    let switch = Switch::start(&["--vnic", "vm1", "--vnic", "vm2"]);
    let (mut one, mut two) = (guest(&switch, "vm1", ONE), guest(&switch, "vm2", TWO));
    send(&mut one, &frame([0xff; 6], ONE, 7, 60));
    receive(&mut two);
    let pid = switch.switch_pid().expect("a switch process");
    stop(pid);
    let said = diagnosed(&switch, &["not ok: switch", "is stopped", &format!("kill -CONT {pid}")]).out;
    assert!(!said.contains("has sent nothing"), "{said}");
    assert!(said.contains("learning     not known"), "{said}");
    signal(pid, Signal::CONT);
    diagnosed(&switch, &["ok: nothing is wrong with 2 vnics"]);
}

#[test]
fn a_controller_process_that_is_stopped_is_told() {
    let switch = Switch::start(&["--module", "flow", "--vnic", "vm1"]);
    controlled(&switch);
    // One that does not answer for long is replaced.
    eventually("the stopped process", || {
        let pid = switch.child_pid("controller-process")?;
        stop(pid);
        let said = switch.ask(&["doctor"]).out;
        let words = ["not ok: controller", "is stopped (T)", &format!("continue it: kill -CONT {pid}")];
        has_all(&first_lines(&said), &words).then_some(())
    });
}

/// The answer for monitoring systems: exit status and first line.
fn health(switch: &Switch) -> (Option<i32>, String) {
    let answer = switch.ask(&["doctor", "--switch"]);
    (answer.code, answer.out.lines().next().unwrap_or_default().to_owned())
}

#[test]
fn the_switch_is_well_while_guests_are_off() {
    let mut switch = Switch::start(&["--vnic", "vm1", "--vnic", "vm2"]);
    let well = |guests: u32| (Some(0), format!("ok: the switch is well; {guests} of 2 vnics have a guest"));
    assert_eq!(health(&switch), well(0));
    let _guest = guest(&switch, "vm1", ONE);
    assert_eq!(health(&switch), well(1));
    assert_eq!(switch.json(&["doctor", "--switch"])["ok"], true);
    std::fs::remove_file(switch.path("vm2.sock")).expect("removed");
    let (code, line) = health(&switch);
    assert_eq!((code, line.starts_with("not ok: vm2 socket: ")), (Some(2), true), "{line}");
    assert_eq!(switch.end().code(), Some(0));
    let (code, line) = health(&switch);
    assert_eq!((code, line.starts_with("not ok: switch: no switch is running")), (Some(2), true), "{line}");
}

#[test]
fn a_switch_process_that_was_replaced_is_a_warning() {
    let switch = Switch::start(&[]);
    assert_eq!(health(&switch).0, Some(0), "a switch without vnics is well");
    signal(switch.switch_pid().expect("a switch process"), Signal::KILL);
    eventually("the next one", || switch.log().contains("running again").then_some(()));
    let warned = || Some(health(&switch)).filter(|(code, _)| *code == Some(1));
    let (_, line) = eventually("the warning", warned);
    assert!(line.starts_with("warning: switch: the switch process crashed"), "{line}");
}

/// A process that computes on one CPU.
struct Hog(Child);

impl Hog {
    fn on(cpu: &str) -> Self {
        let mut command = Command::new("taskset");
        Self(command.args(["-c", cpu, "sh", "-c", "while :; do :; done"]).spawn().expect("util-linux has it"))
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// The first CPU that this process may use.
fn first_cpu() -> String {
    let status = std::fs::read_to_string("/proc/self/status").expect("proc");
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("a list");
    list.trim().split([',', '-']).next().expect("a CPU").to_owned()
}

#[test]
fn processes_that_compute_on_a_workers_cpu_are_told_without_an_alarm() {
    let cpu = first_cpu();
    // It polls for long where it may, so that it offers its CPU.
    let own = ["--workers", "1", "--cpus", &cpu, "--hysteresis-us", "10000"];
    let switch = Switch::start(&[&own[..], &["--vnic", "one", "--vnic", "two"]].concat());
    controlled(&switch);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let _hogs = [Hog::on(&cpu), Hog::on(&cpu)];
    let told = "other processes compute on the CPU of worker 0: ";
    let said = std::thread::scope(|scope| {
        let asked = scope.spawn(|| {
            eventually(told, || {
                let answer = switch.ask(&["doctor", "--switch"]);
                answer.out.contains(told).then_some(answer)
            })
        });
        while !asked.is_finished() {
            send(&mut one, &frame(TWO, ONE, 7, 60));
            receive(&mut two);
            send(&mut two, &frame(ONE, TWO, 7, 60));
            receive(&mut one);
        }
        asked.join().expect("told")
    });
    assert_eq!(said.code, Some(0), "{}", said.out);
    assert!(said.out.starts_with("ok: the switch is well; "), "{}", said.out);
    assert!(said.out.contains("remedy: give the workers CPUs of their own"), "{}", said.out);
}

#[test]
fn a_switch_of_another_version_is_told() {
    let base = tempfile::tempdir().expect("a directory");
    let listener = UnixListener::bind(base.path().join("control.sock")).expect("bound");
    let old = std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("asked");
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).expect("a question");
        let answer =
            r#"{"id":1,"jsonrpc":"2.0","error":{"code":-32601,"message":"there is no method \"doctor\""}}"#;
        writeln!(&stream, "{answer}").expect("answered");
    });
    check(&doctor_in(base.path()), &["version mismatch", "restart the switch"]);
    old.join().expect("asked once");
}

#[test]
fn a_switch_of_another_user_is_told() {
    if !rustix::process::geteuid().is_root() {
        return; // there is no other user
    }
    let switch = Switch::start(&["--vnic", "vm1"]);
    // A directory without access, with a program that cannot run.
    let base = switch.base.path();
    let program = copy_of_lasthop(base, "lasthop");
    for path in [base, &program] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("opened");
    }
    let output =
        Command::new(&program).arg("--dir").arg(switch.dir()).arg("doctor").uid(65534).gid(65534).output();
    let output = output.expect("run");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(has_all(&first_lines(&text), &["permission denied", "user who started the switch"]), "{text}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_switch_of_a_container_is_not_taken_for_that_of_the_host() {
    if !lasthop_rig::namespaces::may() {
        return;
    }
    let base = tempfile::tempdir().expect("a directory");
    let dir = base.path().join("run");
    std::fs::create_dir(&dir).expect("a directory");
    let (shown, binary) = (dir.display(), env!("CARGO_BIN_EXE_lasthop"));
    let script = format!("mount -t tmpfs tmpfs {shown} && exec {binary} run --dir {shown} --vnic vm1");
    let mut other = Command::new("unshare");
    other.args(["--mount", "sh", "-c", &script]).stderr(std::process::Stdio::null());
    let mut other = other.spawn().expect("util-linux has it");
    let socket = std::path::PathBuf::from(format!("/proc/{}/root{shown}/control.sock", other.id()));
    eventually("the other switch", || socket.exists().then_some(()));
    let said = lasthop(&["doctor", "--dir", dir.to_str().expect("text")]).out;
    other.kill().and_then(|()| other.wait()).expect("a child");
    assert!(said.starts_with(&format!("not ok: switch: no switch is running in {shown}")), "{said}");
    assert!(!said.contains(&format!("process {}", other.id())), "{said}");
}
