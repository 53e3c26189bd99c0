//! The command line, and the files for packages that are made from it: manual page, shell completions.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{CommandFactory, Parser, ValueEnum};
use lasthop_bench::{BackendSpec, BenchPlan, Cores, SocketRole, Suite, Workload};

use crate::console::print;

/// Limits of rounds and seconds.
const ROUNDS_MAX: u32 = 1000;
const SECONDS_MAX: f64 = 3600.0;

/// Measure software switches: traffic between guests, back ends in turns.
///
/// Guests are bare virtio rings inside this program, or testpmd of DPDK on virtio-user ports for workloads that begin with
/// testpmd=. Exit status: 0; 1 if the reference failed at something or a request makes no sense.
#[derive(Debug, Parser)]
#[command(name = "lasthop-bench", version, max_term_width = 100)]
pub(crate) struct Options {
    /// A back end: lasthop (module bridge), lasthop-dummy, lasthop-flow (flows from port to port, no controller), limit (the bare algorithm), limit-sleeping (the same, asleep when idle), null (moves no packet), or
    /// NAME=COMMAND, which starts one (bench/peers/README.md); may be repeated [default: lasthop, limit, null]
    #[arg(long = "backend", value_name = "NAME[=COMMAND]")]
    backends: Vec<BackendSpec>,
    /// A back end that already runs: its sockets, one for each guest
    #[arg(long, value_name = "PATH,...", value_delimiter = ',')]
    sockets: Vec<PathBuf>,
    /// Maker of these sockets: listen (the back end) or connect (the guests)
    #[arg(long, value_enum, default_value = "listen", requires = "sockets")]
    socket_mode: SocketMode,
    /// Process of that back end, to measure its CPU time
    #[arg(long, requires = "sockets")]
    pid: Option<u32>,
    /// A workload, as in stream,size=1500,touched (may be repeated). Pattern: stream, both, pairs=N, fan-in=N, all-to-all=N,
    /// offered=PPS, first=PPS (each packet begins a flow), rtt[,sleep][,pause-us=N], idle=N; with DPDK's testpmd as the guests
    /// testpmd=flowgen, 5tswap, macswap, txonly or rtt. Options: size=BYTES, ring=ENTRIES, flows=N, macs=N, touched, idle-ports=N (further guests, silent); tso=off (guests do
    /// not take frames to be cut); nap-us=N (guests sleep between two looks at their rings), or signalled (until they are signalled); mrg=off, in-order=off, packed=on (testpmd only)
    #[arg(long = "workload", value_name = "WORK")]
    workloads: Vec<Workload>,
    /// Named list of workloads: quick, standard, full [default: quick]
    #[arg(long, conflicts_with = "workloads")]
    suite: Option<Suite>,
    /// Repetitions of each workload on each back end, in turns
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=i64::from(ROUNDS_MAX)))]
    rounds: u32,
    /// Duration of each measurement
    #[arg(long, default_value_t = 1.0, value_parser = parse_seconds)]
    seconds: f64,
    /// CPU of the switch [default: the second one that may be used]
    #[arg(long, value_name = "CPU")]
    switch_cpu: Option<usize>,
    /// CPU of the guests [default: the first one that may be used]
    #[arg(long, value_name = "CPU")]
    generator_cpu: Option<usize>,
    /// Peers may use huge pages
    #[arg(long)]
    huge_pages: bool,
    /// Back end to compare the others with [default: the first one]
    #[arg(long, value_name = "NAME")]
    reference: Option<String>,
    /// The program lasthop [default: the one beside this program]
    #[arg(long, value_name = "FILE")]
    lasthop: Option<PathBuf>,
    /// Answer in JSON instead of the table
    #[arg(long)]
    pub(crate) json: bool,
    /// Write every sample as a line
    #[arg(long, value_name = "FILE")]
    pub(crate) tsv: Option<PathBuf>,
    /// Write samples, settings and comparison as JSON (--json: to standard output, instead of the table)
    #[arg(long, value_name = "FILE")]
    pub(crate) json_file: Option<PathBuf>,
    /// Write the tables as Markdown
    #[arg(long, value_name = "FILE")]
    pub(crate) markdown: Option<PathBuf>,
    /// Draw the medians
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Draw the round trips' percentiles
    #[arg(long, value_name = "FILE")]
    pub(crate) svg_round_trips: Option<PathBuf>,
    /// Write the manual page into a directory, and do nothing else
    #[arg(long, value_name = "DIR", hide = true)]
    pub(crate) man: Option<PathBuf>,
    /// Write the script that completes this command line in a shell, and do nothing else
    #[arg(long, value_name = "SHELL", hide = true)]
    pub(crate) completions: Option<clap_complete::Shell>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum SocketMode {
    Listen,
    Connect,
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=SECONDS_MAX).contains(seconds));
    seconds.ok_or_else(|| format!("a number from 0.01 to {SECONDS_MAX} is wanted"))
}

impl Options {
    /// The run that these options ask for; it ends early once `stop` is set.
    pub(crate) fn plan(&self, stop: Arc<AtomicBool>) -> Result<BenchPlan> {
        let workloads = match self.suite {
            None if !self.workloads.is_empty() => self.workloads.clone(),
            suite => suite.unwrap_or(Suite::Quick).workloads(),
        };
        let backends = self.backends()?;
        let program = self.program()?;
        if backends.iter().any(|spec| matches!(spec, BackendSpec::Lasthop { .. })) && !program.is_file() {
            bail!(
                "there is no program \"{}\" to measure; install it beside this one (make install), build it (cargo build \
                 --release -p lasthop), or name it with --lasthop",
                program.display()
            );
        }
        Ok(BenchPlan {
            backends,
            workloads,
            rounds: self.rounds,
            duration: Duration::from_secs_f64(self.seconds),
            cores: Cores::choose(self.switch_cpu, self.generator_cpu)?,
            huge_pages: self.huge_pages,
            program,
            stop,
        })
    }

    /// The path of the program `lasthop`, whether it exists or not.
    fn program(&self) -> Result<PathBuf> {
        if let Some(path) = &self.lasthop {
            return Ok(path.clone());
        }
        let own = std::env::current_exe().context("cannot find this program's own file")?;
        Ok(beside(&own))
    }

    fn backends(&self) -> Result<Vec<BackendSpec>> {
        let mut backends = self.backends.clone();
        if !self.sockets.is_empty() {
            let role = match self.socket_mode {
                SocketMode::Listen => SocketRole::Listen,
                SocketMode::Connect => SocketRole::Connect,
            };
            backends.insert(0, BackendSpec::Outside { sockets: self.sockets.clone(), role, pid: self.pid });
        }
        if backends.is_empty() {
            let lasthop = BackendSpec::Lasthop { module: "bridge".to_owned() };
            backends.extend([lasthop, BackendSpec::Limit, BackendSpec::Null]);
        }
        let names: Vec<String> = backends.iter().map(ToString::to_string).collect();
        if let Some((_, name)) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
            bail!("there are two back ends \"{name}\"; leave one out");
        }
        Ok(backends)
    }

    /// The name of the back end that the others are compared with.
    pub(crate) fn reference(&self, plan: &BenchPlan) -> Result<String> {
        let names: Vec<String> = plan.backends.iter().map(ToString::to_string).collect();
        match &self.reference {
            Some(name) if !names.contains(name) => {
                bail!("--reference {name} is none of the back ends; there are {}", names.join(", "))
            }
            Some(name) => Ok(name.clone()),
            None => Ok(names[0].clone()),
        }
    }
}

fn beside(own: &Path) -> PathBuf {
    own.with_file_name("lasthop")
}

const NAME: &str = "lasthop-bench";

/// Writes the manual page into `directory`, which is created if missing.
pub(crate) fn write_man(directory: &Path) -> Result<()> {
    let made = std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Options::command(), directory));
    made.with_context(|| format!("cannot write the manual page into \"{}\"", directory.display()))
}

/// Writes the completion script for a shell.
pub(crate) fn write_completions(shell: clap_complete::Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Options::command(), NAME, &mut script);
    print(&String::from_utf8_lossy(&script))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
        assert_eq!(beside(Path::new("/usr/bin/lasthop-bench")), Path::new("/usr/bin/lasthop"));
    }
}
