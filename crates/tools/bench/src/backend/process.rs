//! Back ends that the bench starts.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{BackendSpec, Setup, SocketRole};
use crate::BenchError;
use crate::process::ProcessTree;
use crate::work::Tally;

/// The time limit of a back end's start: DPDK clears its memory first.
const READY_WITHIN: Duration = Duration::from_secs(90);
/// The time limit of its end; it is killed afterwards.
const ENDS_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// The exit status of a peer that cannot run on this machine.
const NOT_HERE: i32 = 77;
/// The module that forwards by flow rules.
const FLOW: &str = "flow";
/// The default and the maximum size of a forwarding table.
const FDB_ENTRIES_MIN: u64 = 16_384;
const FDB_ENTRIES_MAX: u64 = 1 << 20;
/// Lines of a failed back end's output to show.
const LAST_LINES: usize = 4;

/// A child and its output.
#[derive(Debug)]
pub(super) struct Started {
    child: Child,
    log: PathBuf,
    /// The program and the run directory of a Lasthop, to ask it whether every packet is accounted for.
    accounts: Option<(PathBuf, PathBuf)>,
}

/// The path of port `port`'s socket.
pub(super) fn socket(dir: &Path, port: u16) -> PathBuf {
    dir.join(format!("port{port}.sock"))
}

/// Starts the back end and waits until it is ready; returns which side listens.
pub(super) fn start(spec: &BackendSpec, setup: &Setup) -> Result<(Started, SocketRole), BenchError> {
    let log = setup.dir.join("log");
    let (mut command, accounts) = match spec {
        BackendSpec::Lasthop { module } => {
            (lasthop(module, setup), Some((setup.program.clone(), setup.dir.clone())))
        }
        BackendSpec::Command { command, .. } => (shell(command, setup), None),
        other => return Err(BenchError::Request(format!("{other} is not started by a command"))),
    };
    let output = File::create(&log)?;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    let child = command.spawn()?;
    let mut started = Started { child, log, accounts };
    let role = started.ready(spec, setup)?;
    if matches!(spec, BackendSpec::Lasthop { module } if module == FLOW) {
        join_pairs(setup, &spec.to_string())?;
    }
    Ok((started, role))
}

/// Adds flows between each port and its neighbour, for comparison with back ends that can only join pairs.
fn join_pairs(setup: &Setup, name: &str) -> Result<(), BenchError> {
    for first in (0..setup.ports.saturating_sub(1)).step_by(2) {
        let pair = [first, first + 1].map(|port| format!("port{port}"));
        let mut command = Command::new(&setup.program);
        let output = command.arg("--dir").arg(&setup.dir).args(["flow", "join"]).args(pair).output()?;
        if !output.status.success() {
            let why = last_lines(&String::from_utf8_lossy(&output.stderr));
            return Err(BenchError::Backend { name: name.to_owned(), why });
        }
    }
    Ok(())
}

fn lasthop(module: &str, setup: &Setup) -> Command {
    let mut command = Command::new(&setup.program);
    command.arg("--dir").arg(&setup.dir).args(["run", "--module", module]);
    if module == FLOW {
        command.args(["--controller", "none", "--fail-mode", "secure"]);
    }
    command.args(["--cpus", &setup.cores.switch.to_string()]);
    // Twice as many entries as there will be addresses; each port gets a quarter of them.
    let entries = (8 * u64::from(setup.macs)).clamp(FDB_ENTRIES_MIN, FDB_ENTRIES_MAX);
    command.args(["--fdb-entries", &entries.to_string()]);
    for port in 0..setup.ports {
        command.args(["--vnic", &format!("port{port}")]);
    }
    command
}

fn shell(command: &str, setup: &Setup) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("exec env {command}")]);
    shell.env("LASTHOP_BENCH_DIR", &setup.dir);
    shell.env("LASTHOP_BENCH_PORTS", setup.ports.to_string());
    shell.env("LASTHOP_BENCH_CPU", setup.cores.switch.to_string());
    shell.env("LASTHOP_BENCH_OTHER_CPU", setup.cores.generator.to_string());
    shell.env("LASTHOP_BENCH_FRAME_BYTES", setup.frame_bytes.to_string());
    shell.env("LASTHOP_BENCH_MACS", setup.macs.to_string());
    if std::env::var_os("LASTHOP_BENCH_HUGE").is_none() {
        shell.env("LASTHOP_BENCH_HUGE", u8::from(setup.huge_pages).to_string());
    }
    shell
}

impl Started {
    pub(super) fn tree(&self) -> ProcessTree {
        ProcessTree(Pid::from_child(&self.child))
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The lines in which it reports its settings.
    pub(super) fn settings(&self) -> Vec<String> {
        let said = self.said();
        said.lines().filter_map(|line| line.strip_prefix("setting: ")).map(str::to_owned).collect()
    }

    fn ready(&mut self, spec: &BackendSpec, setup: &Setup) -> Result<SocketRole, BenchError> {
        let start = Instant::now();
        while start.elapsed() < READY_WITHIN {
            if let Some(role) = self.announced(spec, setup) {
                return Ok(role);
            }
            if let Some(status) = self.child.try_wait()? {
                let (name, why) = (spec.to_string(), last_lines(&self.said()));
                let missing = status.code() == Some(NOT_HERE);
                return Err(if missing {
                    BenchError::Missing { name, why }
                } else {
                    BenchError::Backend { name, why }
                });
            }
            if setup.stop.load(Ordering::Relaxed) {
                return Err(BenchError::Interrupted);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        let why = format!("it is not ready after {} s; {}", READY_WITHIN.as_secs(), last_lines(&self.said()));
        Err(BenchError::Backend { name: spec.to_string(), why })
    }

    fn announced(&self, spec: &BackendSpec, setup: &Setup) -> Option<SocketRole> {
        if matches!(spec, BackendSpec::Lasthop { .. }) {
            let all = (0..setup.ports).all(|port| socket(&setup.dir, port).exists());
            return all.then_some(SocketRole::Listen);
        }
        self.said().lines().find_map(|line| match line {
            "ready listen" => Some(SocketRole::Listen),
            "ready connect" => Some(SocketRole::Connect),
            _ => None,
        })
    }

    /// Checks by `lasthop stats --check` that every packet is accounted for.
    pub(super) fn check_accounts(&self, name: &str) -> Result<(), BenchError> {
        let Some((program, dir)) = &self.accounts else { return Ok(()) };
        let output = Command::new(program).arg("--dir").arg(dir).args(["stats", "--check"]).output()?;
        if output.status.success() {
            return Ok(());
        }
        let why = last_lines(&String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
        Err(BenchError::Backend { name: name.to_owned(), why })
    }

    /// The frames that a Lasthop received from its guests and delivered to them.
    pub(super) fn counted(&self) -> Result<Option<Tally>, BenchError> {
        let Some((program, dir)) = &self.accounts else { return Ok(None) };
        let output = Command::new(program).arg("--dir").arg(dir).args(["stats", "--json"]).output()?;
        let report: Value = serde_json::from_slice(&output.stdout).map_err(std::io::Error::from)?;
        let ports = report["ports"].as_array();
        let sum = |key| ports.into_iter().flatten().filter_map(|port: &Value| port[key].as_u64()).sum();
        Ok(Some(Tally { sent: sum("rx_packets"), received: sum("tx_packets") }))
    }
}

impl Drop for Started {
    /// Terminates the back end, and kills it if it does not end.
    fn drop(&mut self) {
        let all = self.tree().pids();
        self.tree().signal(Signal::CONT);
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let start = Instant::now();
        while start.elapsed() < ENDS_WITHIN && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(LOOK_EVERY);
        }
        for pid in all {
            let _ = kill_process(pid, Signal::KILL); // most have ended
        }
        let _ = self.child.wait(); // it has ended in any case
    }
}

fn last_lines(text: &str) -> String {
    let telling = |line: &&str| !line.trim().is_empty() && !line.starts_with("setting: ");
    let lines: Vec<&str> = text.lines().filter(telling).collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join("; ")
}
