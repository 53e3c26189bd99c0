//! A switch under a service manager that keeps descriptors.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use lasthop_frontend::Guest;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use lasthop_rig::{Switch, children, eventually, is_alive, signal};

pub(crate) const MANAGER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/service-manager");
/// The most descriptors that the manager keeps.
const ROOM: &str = "512";
/// Checks without a change, 10 ms apart, after which the state counts as final.
const QUIET: usize = 50;
/// The time limit for descriptors to return to their earlier number.
const PATIENCE: Duration = Duration::from_secs(120);

/// The switch's end of a guest's connection is closed.
pub(crate) fn is_hung_up_on(guest: &mut Guest) {
    eventually("the end of its connection", || {
        guest.wait(Some(Duration::from_millis(10))).is_err().then_some(())
    });
}

/// The manager is the process of its `switch`, whose log has the output of all supervisors.
pub(crate) struct Service {
    pub(crate) switch: Switch,
}

impl Service {
    /// Starts a service and waits until it is ready.
    pub(crate) fn start(words: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().expect("a directory"), words, ROOM)
    }

    pub(crate) fn start_in(base: TempDir, words: &[&str], room: &str) -> Self {
        Self::start_by(Command::new(MANAGER), base, words, room)
    }

    /// Starts a service in a network namespace.
    pub(crate) fn start_within(namespace: &str, words: &[&str]) -> Self {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace, MANAGER]);
        Self::start_by(command, tempfile::tempdir().expect("a directory"), words, ROOM)
    }

    fn start_by(mut command: Command, base: TempDir, words: &[&str], room: &str) -> Self {
        let path = |name: &str| base.path().join(name);
        command
            .arg(path("notify"))
            .arg(path("state"))
            .arg(env!("CARGO_BIN_EXE_lasthop"))
            .env("FDSTORE", room);
        let this = Self { switch: Switch::spawn_by(command, base, words) };
        this.started(1);
        this
    }

    /// The manager's state.
    pub(crate) fn state(&self) -> Value {
        eventually("the manager", || {
            let text = std::fs::read(self.switch.base.path().join("state")).ok()?;
            serde_json::from_slice(&text).ok()
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        pid_in(&self.state())
    }

    /// Names of the kept descriptors.
    pub(crate) fn kept(&self) -> Vec<String> {
        let state = self.state();
        names_in(&state).iter().map(|name| name.as_str().expect("a name").to_owned()).collect()
    }

    /// How often it became ready.
    fn ready(&self) -> usize {
        self.said("switch is running")
    }

    /// Waits until it became ready this many times.
    pub(crate) fn started(&self, times: usize) {
        eventually("the start", || (self.ready() >= times).then_some(()));
    }

    /// The switch process, if there is one.
    pub(crate) fn inner(&self) -> Option<u32> {
        switch_process_of(self.pid())
    }

    /// Kills the supervisor; waits for its successor.
    pub(crate) fn kill(&self) {
        let times = self.ready();
        signal(self.pid(), Signal::KILL);
        self.started(times + 1);
    }

    /// Has the manager restart it; waits for the successor.
    pub(crate) fn restart(&self) {
        let times = self.ready();
        self.ask_for_restart();
        self.started(times + 1);
    }

    pub(crate) fn ask_for_restart(&self) {
        signal(self.switch.pid(), Signal::USR1);
    }

    /// The numbers of descriptors of supervisor, switch process and manager.
    fn count(&self) -> [usize; 3] {
        let count = |pid: u32| std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        let state = self.state();
        let supervisor = pid_in(&state);
        [count(supervisor), switch_process_of(supervisor).map_or(0, count), names_in(&state).len()]
    }

    /// The same, once they have been constant for a while.
    pub(crate) fn descriptors(&self) -> [usize; 3] {
        let (mut before, mut same) = ([0; 3], 0);
        eventually("quiet", || {
            let counts = self.count();
            same = if counts == before { same + 1 } else { 0 };
            before = counts;
            (same > QUIET).then_some(counts)
        })
    }

    /// Waits until the numbers are as before.
    pub(crate) fn has_descriptors(&self, expected: [usize; 3]) {
        let (mut counts, end) = (self.count(), Instant::now() + PATIENCE);
        while counts != expected && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
            counts = self.count();
        }
        assert_eq!(counts, expected, "descriptors leak, or are lost");
    }

    /// Waits until the manager has everything.
    pub(crate) fn settle(&self) {
        self.descriptors();
    }

    /// How often a log line occurred.
    pub(crate) fn said(&self, words: &str) -> usize {
        self.switch.log().matches(words).count()
    }

    /// Checks that no guest was disconnected.
    pub(crate) fn nobody_was_let_go(&self) {
        let log = self.switch.log();
        for words in ["connect again", "panicked"] {
            assert!(!log.contains(words), "{log}");
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let supervisor = self.state()["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        if is_alive(self.switch.pid()) {
            signal(self.switch.pid(), Signal::TERM);
        }
        if !std::thread::panicking() {
            self.switch.wait();
            return;
        }
        let _ = std::io::stderr().write_all(self.switch.log().as_bytes());
        if let Some(pid) = supervisor.filter(|pid| *pid > 0 && is_alive(*pid)) {
            signal(pid, Signal::KILL);
        }
    }
}

/// The supervisor in the manager's state.
fn pid_in(state: &Value) -> u32 {
    u32::try_from(state["pid"].as_u64().expect("a number")).expect("a process")
}

/// Names of the kept descriptors in the manager's state.
fn names_in(state: &Value) -> &[Value] {
    state["names"].as_array().expect("names")
}

/// The switch process of a supervisor, if there is one.
fn switch_process_of(supervisor: u32) -> Option<u32> {
    let is_switch = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == b"switch-process")
    };
    children(supervisor).into_iter().find(is_switch)
}

/// The number of names of each kind.
pub(crate) fn kinds(names: &[String]) -> BTreeMap<&'static str, usize> {
    let kind = |name: &String| match name.as_str() {
        "lasthop-head" => "head",
        name if name.starts_with("lasthop-port-") => "port",
        _ => "other",
    };
    let mut kinds = BTreeMap::new();
    names.iter().for_each(|name| *kinds.entry(kind(name)).or_default() += 1);
    kinds
}
