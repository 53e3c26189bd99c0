//! A testpmd process, driven through its prompt.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::counters::{self, PortCounters};
use crate::process::{ProcessTree, Usage};
use crate::{BenchError, SocketRole};

const PROGRAM: &str = "dpdk-testpmd";
/// The time limit for setting up memory and rings, and for the back end to connect.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// The time limit of an answer: the prompt's thread shares its CPU with one that polls.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);
const ENDS_WITHIN: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(2);
const PROMPT: &str = "testpmd> ";
/// Number of mbufs: enough for two full pairs of rings of 1024, and for the caches.
const MBUFS: u32 = 10_240;
const MEMORY_MB: u32 = 384;
/// Lines of its log that a failure shows.
const LAST_LINES: usize = 3;

/// A port of one process.
#[derive(Clone, Debug)]
pub(super) struct Port {
    /// The number of the back end's port: 0 or 1. Its MAC address follows from it.
    pub(super) number: u16,
    pub(super) socket: PathBuf,
    pub(super) role: SocketRole,
}

/// How a process is started.
#[derive(Clone, Debug)]
pub(super) struct Start<'a> {
    pub(super) ports: Vec<Port>,
    pub(super) cpu: usize,
    pub(super) ring_entries: u16,
    pub(super) mergeable: bool,
    pub(super) in_order: bool,
    pub(super) packed: bool,
    pub(super) flows: u32,
    /// Size of a buffer, with 128 bytes of headroom.
    pub(super) mbuf_bytes: u32,
    /// The directory of its files.
    pub(super) directory: &'a Path,
    pub(super) stop: &'a Arc<AtomicBool>,
}

/// A running testpmd.
#[derive(Debug)]
pub(super) struct Testpmd {
    child: Child,
    input: ChildStdin,
    log: PathBuf,
    ports: usize,
    stop: Arc<AtomicBool>,
}

/// MAC address of the guest at port `port`.
fn address(port: u16) -> String {
    format!("02:4c:00:00:20:{port:02x}")
}

fn command(start: &Start<'_>) -> Command {
    let prefix = format!("guest{}", start.ports.first().map_or(0, |port| port.number));
    // Line-buffered: its answers are read from a file.
    let mut command = Command::new("stdbuf");
    command.args(["-oL", PROGRAM, "--no-huge", "-m", &MEMORY_MB.to_string(), "--no-pci", "--no-telemetry"]);
    command.args(["--lcores", &format!("0@{0},1@{0}", start.cpu), "--main-lcore", "0"]);
    command.args([&format!("--file-prefix={prefix}"), "--log-level=pmd.net.virtio.init:debug"]);
    for (index, port) in start.ports.iter().enumerate() {
        let server = if port.role == SocketRole::Connect { ",server=1" } else { "" };
        let (path, mac, ring) = (port.socket.display(), address(port.number), start.ring_entries);
        let mergeable = if start.mergeable { "" } else { ",mrg_rxbuf=0" };
        let in_order = if start.in_order { "" } else { ",in_order=0" };
        let packed = if start.packed { ",packed_vq=1" } else { "" };
        let words = format!(
            "net_virtio_user{index},path={path},mac={mac},queue_size={ring}{mergeable}{in_order}{packed}{server}"
        );
        command.args(["--vdev", &words]);
    }
    command.args(["--", "-i", "--forward-mode=flowgen", "--port-topology=loop", "--nb-cores=1"]);
    command.args([&format!("--rxd={}", start.ring_entries), &format!("--txd={}", start.ring_entries)]);
    command.args([&format!("--total-num-mbufs={MBUFS}"), &format!("--mbuf-size={}", start.mbuf_bytes)]);
    command.args([&format!("--flowgen-flows={}", start.flows), "--no-mlockall", "--disable-link-check"]);
    for (index, port) in start.ports.iter().enumerate() {
        command.arg(format!("--eth-peer={index},{}", address(port.number ^ 1)));
    }
    command.env("RUNTIME_DIRECTORY", start.directory);
    command
}

impl Testpmd {
    /// Starts a process and waits for its prompt, which comes when the back end has set up all ports.
    pub(super) fn start(start: &Start<'_>) -> Result<Self, BenchError> {
        let first = start.ports.first().map_or(0, |port| port.number);
        let log = start.directory.join(format!("testpmd{first}.log"));
        let output = File::create(&log)?;
        let mut command = command(start);
        command.stdin(Stdio::piped()).stdout(output.try_clone()?).stderr(output);
        let mut child = command.spawn()?;
        let input = child.stdin.take().ok_or_else(|| io::Error::other("testpmd has no standard input"))?;
        let mut testpmd = Self { child, input, log, ports: start.ports.len(), stop: Arc::clone(start.stop) };
        testpmd.wait_for(0, READY_WITHIN, |text| text.contains(PROMPT).then_some(()))?;
        Ok(testpmd)
    }

    pub(super) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn log_bytes(&self) -> u64 {
        fs::metadata(&self.log).map_or(0, |meta| meta.len())
    }

    /// The log from byte `from`, before which there is no part of the expected answer.
    fn log_from(&self, from: u64) -> io::Result<String> {
        let mut file = File::open(&self.log)?;
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(super) fn usage(&self) -> Usage {
        ProcessTree(Pid::from_child(&self.child)).usage()
    }

    /// Sends a command that has no answer.
    pub(super) fn say(&mut self, command: &str) -> Result<(), BenchError> {
        let said = writeln!(self.input, "{command}").and_then(|()| self.input.flush());
        said.map_err(|error| self.failure(&error.to_string()))
    }

    /// Sends a command and waits until the answer contains `words`.
    pub(super) fn ask(&mut self, command: &str, words: &str) -> Result<(), BenchError> {
        let from = self.log_bytes();
        self.say(command)?;
        self.wait_for(from, ANSWERS_WITHIN, |text| text.contains(words).then_some(()))
    }

    /// The counters of its ports.
    pub(super) fn counters(&mut self) -> Result<Vec<PortCounters>, BenchError> {
        let (from, ports) = (self.log_bytes(), self.ports);
        self.say("show port stats all")?;
        self.wait_for(from, ANSWERS_WITHIN, |text| counters::parse(text, ports))
    }

    fn wait_for<T>(
        &mut self,
        from: u64,
        limit: Duration,
        found: impl Fn(&str) -> Option<T>,
    ) -> Result<T, BenchError> {
        let start = Instant::now();
        while start.elapsed() < limit {
            if let Some(value) = found(&self.log_from(from)?) {
                return Ok(value);
            }
            if let Some(status) = self.child.try_wait()? {
                return Err(self.failure(&format!("it ended with {status}")));
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(BenchError::Interrupted);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Err(self.failure(&format!("no answer within {} s", limit.as_secs())))
    }

    fn failure(&self, why: &str) -> BenchError {
        let log = self.log();
        let lines: Vec<&str> = log.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("; ");
        BenchError::StockGuest(format!("{why}; {last}"))
    }
}

impl Drop for Testpmd {
    /// Terminates it, and kills it if it does not end.
    fn drop(&mut self) {
        let _ = writeln!(self.input, "quit"); // it may have ended
        let start = Instant::now();
        while start.elapsed() < ENDS_WITHIN && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(LOOK_EVERY);
        }
        let _ = kill_process(Pid::from_child(&self.child), Signal::KILL); // it has mostly ended
        let _ = self.child.wait();
    }
}

/// Names a missing program without which stock guests cannot run.
pub(super) fn missing_program() -> Option<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there =
        |program: &&str| std::env::split_paths(&path).any(|directory| directory.join(program).is_file());
    let missing = [PROGRAM, "stdbuf"].into_iter().find(|program| !is_there(program))?;
    Some(format!("{missing} is not installed (Debian: dpdk-dev and coreutils; tools/deps bench)"))
}
