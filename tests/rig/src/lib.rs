//! The built binary in a directory of its own, and guests, front ends and clients for it.
//!
//! **Purpose.** All that the tests of the binary share (`crates/lasthop/tests`), compiled once for all their programs.
#![deny(unsafe_code)]
#![allow(missing_docs, reason = "names of tests' parts say enough")]
#![allow(clippy::print_stderr, reason = "the log of a failed test")]
#![allow(clippy::new_without_default, clippy::should_implement_trait, reason = "only tests call them")]

pub mod fuse;
pub mod guests;
pub mod namespaces;
pub mod odd_fds;
pub mod random;
pub mod rogue;
pub mod sequences;
pub mod starts;
pub mod successors;
pub mod sys;
pub mod talkers;
pub mod victims;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// The longest wait, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes of the switch's log in a failure message.
const LOG_BYTES: usize = 4000;

/// The built binary. Cargo names it to tests only, not to a library; this program is in target/PROFILE/deps.
pub fn program() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this program");
    test.ancestors().nth(2).expect("cargo's folders").join("lasthop")
}

/// Whether a view of the scheduler can be opened: only root may load its programs, and only outside of containers. If not, reports
/// that `test` is skipped.
pub fn may_see_scheduler(test: &str) -> bool {
    let namespace = std::fs::read_link("/proc/self/ns/pid").expect("a namespace");
    let may = rustix::process::geteuid().is_root() && namespace.to_str() == Some("pid:[4026531836]");
    if !may {
        // Not by a macro, as libtest hides its output for tests that pass.
        let line = format!("skip {test}: only root in the host's PID namespace has a view\n");
        let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
    }
    may
}

/// Waits until `condition` returns a value.
pub fn eventually<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The output of a command, and how it ended.
#[derive(Debug)]
pub struct Answer {
    pub out: String,
    pub err: String,
    pub code: Option<i32>,
}

impl Answer {
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}", self.err);
        self.out
    }

    /// The output of a command that reports a finding by its exit status.
    pub fn refused_with_output(self) -> String {
        assert_eq!(self.code, Some(1), "{}{}", self.out, self.err);
        self.out
    }

    pub fn refused(self) -> String {
        assert_eq!(self.code, Some(1), "{}{}", self.out, self.err);
        self.err
    }
}

/// Runs the binary to its end.
pub fn lasthop(words: &[&str]) -> Answer {
    let output = starts::output(Command::new(program()).args(words).stdin(Stdio::null()));
    let output = output.expect("the binary runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    Answer { out: text(output.stdout), err: text(output.stderr), code: output.status.code() }
}

/// A copy of the binary, as in a package. Another process makes the copy: a file that is open for writing here is also
/// open in forks of other tests' threads, and cannot be executed.
pub fn copy_of_lasthop(directory: &Path, name: &str) -> PathBuf {
    let path = directory.join(name);
    let copied = starts::status(Command::new("cp").arg(program()).arg(&path));
    assert!(copied.expect("cp runs").success());
    path
}

/// The module of switches whose tests name none: the default, or that of LASTHOP_TEST_MODULE.
pub fn module() -> String {
    std::env::var("LASTHOP_TEST_MODULE").unwrap_or_else(|_| "flow".to_owned())
}

/// A running `lasthop run`.
pub struct Switch {
    child: Child,
    pub base: TempDir,
}

impl Switch {
    /// Starts a switch and waits until it is ready.
    pub fn start(words: &[&str]) -> Self {
        Self::start_by(Command::new(program()), words)
    }

    /// The same with a command that starts `lasthop` and appends arguments.
    pub fn start_by(command: Command, words: &[&str]) -> Self {
        let switch = Self::spawn_by(command, tempfile::tempdir().expect("a directory"), words);
        eventually("the switch", || switch.log().contains("switch is running").then_some(()));
        switch
    }

    /// Starts a switch in a network namespace and waits until it is ready.
    pub fn start_in(namespace: &str, words: &[&str]) -> Self {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]).arg(program());
        Self::start_by(command, words)
    }

    /// Starts a switch in `base`, without waiting for it.
    pub fn spawn(base: TempDir, words: &[&str]) -> Self {
        Self::spawn_by(Command::new(program()), base, words)
    }

    pub fn spawn_by(mut command: Command, base: TempDir, words: &[&str]) -> Self {
        let log = File::create(base.path().join("log")).expect("a log");
        command.arg("run").arg("--dir").arg(base.path().join("run")).args(words);
        let is_open = !words.iter().any(|word| ["--module", "-c", "--config"].contains(word));
        if is_open && std::env::var_os("LASTHOP_TEST_MODULE").is_some() {
            command.arg("--module").arg(module());
        }
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = starts::spawn(command).expect("the binary runs");
        Self { child, base }
    }

    pub fn dir(&self) -> PathBuf {
        self.base.path().join("run")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.base.path().join("log")).expect("the log")
    }

    /// A message in which commands address this switch.
    pub fn addressed(&self, message: &str) -> String {
        message.replace("lasthop ", &format!("lasthop --dir {} ", self.dir().display()))
    }

    /// Runs a subcommand for this switch.
    pub fn ask(&self, words: &[&str]) -> Answer {
        let dir = self.dir();
        let mut all = vec!["--dir", dir.to_str().expect("text")];
        all.extend(words);
        lasthop(&all)
    }

    pub fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.ask(&[words, &["--json"]].concat()).ok()).expect("JSON")
    }

    /// The counters of a port.
    pub fn port(&self, name: &str) -> Value {
        self.json(&["stats", name])["ports"][0].clone()
    }

    pub fn connect(&self, name: &str) -> UnixStream {
        UnixStream::connect(self.path(name)).expect("connected")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The switch process, if there is one.
    pub fn switch_pid(&self) -> Option<u32> {
        self.child_pid("switch-process")
    }

    /// The inner process with this role, if there is one.
    pub fn child_pid(&self, role: &str) -> Option<u32> {
        let has_role = |pid: &u32| {
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words.split(|byte| *byte == 0).any(|word| word == role.as_bytes())
        };
        self.children().into_iter().find(has_role)
    }

    /// All living processes that the supervisor started.
    pub fn children(&self) -> Vec<u32> {
        children(self.pid())
    }

    /// Sends SIGTERM and waits for the end.
    pub fn end(&mut self) -> ExitStatus {
        signal(self.pid(), Signal::TERM);
        self.wait()
    }

    pub fn wait(&mut self) -> ExitStatus {
        eventually("the end", || self.child.try_wait().expect("our child"))
    }
}

impl Drop for Switch {
    #[allow(clippy::print_stderr, reason = "the harness shows it with the failure")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read(self.base.path().join("log")).unwrap_or_default();
            let tail = &log[log.len().saturating_sub(LOG_BYTES)..];
            eprintln!("the log of {} ends:\n{}", self.dir().display(), String::from_utf8_lossy(tail));
        }
        // Its switch process notices that and ends as well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process");
    kill_process(pid, signal).expect("signalled");
}

/// Stops a process. Its threads are stopped when this returns, whereas a signal takes effect in each at its next
/// chance.
pub fn stop(pid: u32) {
    signal(pid, Signal::STOP);
    eventually("all threads to be stopped", || threads_are_stopped(pid).then_some(()));
}

/// A thread in an uninterruptible wait (D) stops before it continues.
fn threads_are_stopped(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a process").flatten();
    let states: Vec<char> =
        threads.filter_map(|thread| ProcessStat::read(&thread.path()).map(|stat| stat.state)).collect();
    states.iter().all(|state| "TDZX".contains(*state)) && states.contains(&'T')
}

/// Whether a process has ended and its parent has not reaped it yet.
pub fn is_zombie(pid: u32) -> bool {
    ProcessStat::of(pid).is_some_and(|stat| stat.state == 'Z')
}

/// All processes that a process started, in any of its threads; the oldest first, even if process numbers wrapped.
pub fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let listed = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let pids = |listed: String| -> Vec<u32> {
        listed.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    };
    let mut all: Vec<u32> = listed.flat_map(pids).collect();
    all.sort_by_key(|pid| ProcessStat::of(*pid).map(|stat| stat.start_ticks));
    all
}

/// Fields of /proc/PID/stat (proc_pid_stat(5)), in clock ticks.
#[derive(Clone, Copy, Debug)]
pub struct ProcessStat {
    pub state: char,
    /// CPU time, including that of the kernel for it.
    pub cpu_ticks: u64,
    /// The start time, since the system's.
    pub start_ticks: u64,
}

impl ProcessStat {
    /// Statistics of a process; `None` if it is gone.
    pub fn of(pid: u32) -> Option<Self> {
        Self::read(Path::new(&format!("/proc/{pid}")))
    }

    /// Statistics of a process or thread, by its directory.
    pub fn read(directory: &Path) -> Option<Self> {
        let stat = std::fs::read_to_string(directory.join("stat")).ok()?;
        // Its name, in parentheses, may have spaces; the third and all other fields follow it.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        let state = fields.first()?.chars().next()?;
        Some(Self { state, cpu_ticks: number(14)? + number(15)?, start_ticks: number(22)? })
    }
}

/// The descriptors of a process.
pub fn fds(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a process").count()
}

pub fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// The files of a process's descriptors, by number; `None` if the process is gone.
pub fn open_files(pid: u32) -> BTreeMap<u32, String> {
    let directory = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let of_entry = |entry: std::fs::DirEntry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        Some((number, std::fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned()))
    };
    directory.filter_map(of_entry).collect()
}
