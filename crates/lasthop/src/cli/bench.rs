//! `lasthop bench`: the plan from its flags, and its results where they were asked for.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::{Args, ValueEnum};
use lasthop_bench::report::{self, Comparison, Heading};
use lasthop_bench::{
    BackendSpec, BenchError, Cores, Metric, Outcome, Plan, Progress, Sample, SocketRole, Suite, Workload,
};
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::fault::{Fault, Kind};
use crate::log::say;
use crate::output::print;

/// Rounds and seconds that one run may take: a day at most.
const ROUNDS_MAX: u32 = 1000;
const SECONDS_MAX: f64 = 3600.0;

#[derive(Debug, Args)]
pub(super) struct BenchArgs {
    /// A back end: lasthop (module bridge), lasthop-dummy, lasthop-flow (flows from port to port, no controller), limit (the bare algorithm), null (moves no packet), or
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
    /// A workload, as in stream,size=1500,touched (may be repeated). Pattern: stream, both, pairs=N, fan-in=N,
    /// offered=PPS, first=PPS (each packet begins a flow), rtt[,sleep][,pause-us=N], idle=N. Options: size=BYTES, ring=ENTRIES, flows=N, macs=N, touched
    #[arg(long = "workload", value_name = "WORK", value_parser = parse_workload)]
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
    /// Write every sample as a line
    #[arg(long, value_name = "FILE")]
    tsv: Option<PathBuf>,
    /// Write samples, settings and comparison as JSON (--json: to standard output, instead of the table)
    #[arg(long, value_name = "FILE")]
    json_file: Option<PathBuf>,
    /// Write the tables as Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Draw the medians
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Draw the round trips' percentiles
    #[arg(long, value_name = "FILE")]
    svg_round_trips: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum SocketMode {
    Listen,
    Connect,
}

fn parse_workload(text: &str) -> Result<Workload, String> {
    text.parse()
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=SECONDS_MAX).contains(seconds));
    seconds.ok_or_else(|| format!("a number from 0.01 to {SECONDS_MAX} is wanted"))
}

/// Measures, shows, and writes. 1 when the reference failed at something.
pub(super) fn run(args: BenchArgs, as_json: bool) -> Result<ExitCode, Fault> {
    let plan = args.plan()?;
    let reference = args.reference(&plan)?;
    let machine = lasthop_bench::machine();
    say!("{machine}; switch on CPU {}, guests on CPU {}", plan.cores.switch, plan.cores.generator);
    let mut count = 0;
    let outcome = lasthop_bench::run(&plan, &mut |progress| tell(&progress, &mut count)).map_err(fault)?;
    for (backend, setting) in &outcome.settings {
        say!("setting: {backend}: {setting}");
    }
    let results = Results { outcome, reference, machine, plan };
    args.write(&results)?;
    print(&if as_json { results.json() } else { report::table(&results.comparison()) })?;
    let failed = |name: &str| results.outcome.failures.iter().any(|failure| failure.backend == name);
    Ok(ExitCode::from(u8::from(failed(&results.reference))))
}

fn tell(progress: &Progress<'_>, count: &mut usize) {
    match progress {
        Progress::Starting(name) => say!("starting {name}"),
        Progress::Failure(failure) if failure.missing => say!("skip: {failure}"),
        Progress::Failure(failure) => say!("failed: {failure}"),
        Progress::Sample(sample, total) => {
            *count += 1;
            say!("{count}/{total} {}", line(sample));
        }
    }
}

fn line(sample: &Sample) -> String {
    let metric = sample.workload.metric();
    let value = sample.value().map_or("-".to_owned(), |value| format!("{value:.2} {}", metric.unit()));
    let cpu = match (metric, sample.cpu_percent()) {
        (Metric::CpuPercent, _) | (_, None) => String::new(),
        (_, Some(percent)) => format!(", {percent:.0} % CPU"),
    };
    format!(
        "{} {}: {value}{cpu}, cores {:.0} ns apart",
        sample.backend, sample.workload, sample.core_to_core_ns
    )
}

impl BenchArgs {
    fn plan(&self) -> Result<Plan, Fault> {
        let program = std::env::current_exe()
            .map_err(|error| Fault::internal("find this program's own file", error))?;
        let workloads = match self.suite {
            None if !self.workloads.is_empty() => self.workloads.clone(),
            suite => suite.unwrap_or(Suite::Quick).workloads(),
        };
        Ok(Plan {
            backends: self.backends()?,
            workloads,
            rounds: self.rounds,
            duration: Duration::from_secs_f64(self.seconds),
            cores: Cores::choose(self.switch_cpu, self.generator_cpu).map_err(fault)?,
            huge_pages: self.huge_pages,
            program,
            stop: stop_flag()?,
        })
    }

    fn backends(&self) -> Result<Vec<BackendSpec>, Fault> {
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
        match names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
            Some((_, name)) => {
                Err(Fault::params(format!("there are two back ends \"{name}\"; leave one out")))
            }
            None => Ok(backends),
        }
    }

    fn reference(&self, plan: &Plan) -> Result<String, Fault> {
        let names: Vec<String> = plan.backends.iter().map(ToString::to_string).collect();
        match &self.reference {
            Some(name) if !names.contains(name) => Err(Fault::params(format!(
                "--reference {name} is none of the back ends; there are {}",
                names.join(", ")
            ))),
            Some(name) => Ok(name.clone()),
            None => Ok(names[0].clone()),
        }
    }

    fn write(&self, results: &Results) -> Result<(), Fault> {
        let comparison = results.comparison();
        let heading = Heading { title: "Lasthop and its peers", machine: &results.machine };
        let files: [(&Option<PathBuf>, &dyn Fn() -> String); 5] = [
            (&self.tsv, &|| report::tsv(&results.outcome.samples)),
            (&self.json_file, &|| results.json()),
            (&self.markdown, &|| report::markdown(&comparison)),
            (&self.svg, &|| report::svg(&comparison, &heading)),
            (&self.svg_round_trips, &|| report::svg_round_trips(&comparison, &heading)),
        ];
        files.iter().try_for_each(|(path, text)| path.as_deref().map_or(Ok(()), |path| save(path, &text())))
    }
}

/// Set by Ctrl-C and its kin: what was started is then ended in order. A second one ends this program at once.
fn stop_flag() -> Result<Arc<AtomicBool>, Fault> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // In this order: the first signal only sets the flag.
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&flag))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
            .map_err(|error| Fault::internal("wait for signals", error))?;
    }
    Ok(flag)
}

fn save(path: &Path, text: &str) -> Result<(), Fault> {
    std::fs::write(path, text)
        .map_err(|error| Fault::params(format!("cannot write \"{}\": {error}", path.display())))
}

/// What came out, and what it was that was measured.
struct Results {
    outcome: Outcome,
    reference: String,
    machine: String,
    plan: Plan,
}

impl Results {
    fn comparison(&self) -> Comparison {
        Comparison::of(&self.outcome.samples, &self.reference)
    }

    fn json(&self) -> String {
        report::json(&self.settings(), &self.outcome.samples, &self.reference)
    }

    fn settings(&self) -> Value {
        let failures: Vec<String> = self.outcome.failures.iter().map(ToString::to_string).collect();
        json!({
            "machine": self.machine,
            "version": env!("CARGO_PKG_VERSION"),
            "switch_cpu": self.plan.cores.switch,
            "generator_cpu": self.plan.cores.generator,
            "rounds": self.plan.rounds,
            "seconds": self.plan.duration.as_secs_f64(),
            "backends": self.outcome.settings,
            "failures": failures,
        })
    }
}

fn fault(error: BenchError) -> Fault {
    match error {
        BenchError::Request(text) => Fault::params(text),
        other => Fault::new(Kind::Internal, other.to_string()),
    }
}
