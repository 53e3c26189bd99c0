//! `lasthop-bench`: builds the plan from its flags, and writes the results where they were requested.
//!
//! **Purpose.** Measure software switches against each other on the user's own machine. `lasthop bench` starts this program.
//!
//! **Contract.** The table or the JSON goes to standard output, progress and settings to standard error. Exit status:
//! 0, 1 when the reference failed or a request is invalid, 2 for arguments that clap refuses.
//!
//! **Not checked.** Back ends that the user names: one that does not start is a failure by name.
//!
//! **Threading.** The library's; a signal ends the run in order.
#![forbid(unsafe_code)]

mod console;
mod options;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use clap::Parser;
use lasthop_bench::report::{self, Comparison, Heading};
use lasthop_bench::{BenchPlan, Outcome};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use console::{Console, print};
use options::Options;

fn main() -> ExitCode {
    match start(&Options::parse()) {
        Ok(code) => code,
        Err(error) => {
            console::say(&format!("Error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn start(options: &Options) -> Result<ExitCode> {
    if let Some(directory) = &options.man {
        return options::write_man(directory).map(|()| ExitCode::SUCCESS);
    }
    if let Some(shell) = options.completions {
        return options::write_completions(shell).map(|()| ExitCode::SUCCESS);
    }
    measure(options)
}

/// Measures, prints, and writes files. Returns 1 when the reference failed at a workload.
fn measure(options: &Options) -> Result<ExitCode> {
    raise_descriptor_limit();
    let plan = options.plan(stop_flag()?)?;
    let reference = options.reference(&plan)?;
    let machine = lasthop_bench::machine();
    let mut console = Console::default();
    console.say(&format!(
        "{machine}; switch on CPU {}, guests on CPU {}",
        plan.cores.switch, plan.cores.generator
    ));
    let outcome = lasthop_bench::run(&plan, &mut |progress| console.tell(&progress));
    console.clear();
    let outcome = outcome?;
    for (backend, setting) in &outcome.settings {
        console.say(&format!("setting: {backend}: {setting}"));
    }
    let results = Results { outcome, reference, machine, plan };
    results.write(options)?;
    print(&if options.json { results.json() } else { report::table(&results.comparison()) })?;
    Ok(ExitCode::from(u8::from(results.reference_failed())))
}

/// Raises the limit of open descriptors as far as allowed: each guest needs some. Later errors name the limit if that
/// is not enough.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// A flag that Ctrl-C, SIGTERM and SIGHUP set: the run then ends in order. A second signal ends this program at once.
fn stop_flag() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // In this order: the first signal only sets the flag.
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&flag))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
            .context("cannot wait for signals")?;
    }
    Ok(flag)
}

/// The outcome of a run, and its plan.
struct Results {
    outcome: Outcome,
    reference: String,
    machine: String,
    plan: BenchPlan,
}

impl Results {
    fn comparison(&self) -> Comparison {
        Comparison::of(&self.outcome.samples, &self.reference)
    }

    fn json(&self) -> String {
        report::json(&self.settings(), &self.outcome.samples, &self.reference)
    }

    /// Whether the reference has no figure, or failed at a workload that is possible here.
    fn reference_failed(&self) -> bool {
        let failures = self.outcome.failures.iter().filter(|failure| failure.backend == self.reference);
        let is_measured = self.outcome.samples.iter().any(|sample| sample.backend == self.reference);
        !is_measured || failures.into_iter().any(|failure| !failure.missing)
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

    /// Writes the files that the options name.
    fn write(&self, options: &Options) -> Result<()> {
        type Text<'a> = &'a dyn Fn() -> String;
        let comparison = self.comparison();
        let heading = Heading { title: "Lasthop and its peers", machine: &self.machine };
        let files: [(&Option<_>, Text<'_>); 5] = [
            (&options.tsv, &|| report::tsv(&self.outcome.samples)),
            (&options.json_file, &|| self.json()),
            (&options.markdown, &|| report::markdown(&comparison)),
            (&options.svg, &|| report::svg(&comparison, &heading)),
            (&options.svg_round_trips, &|| report::svg_round_trips(&comparison, &heading)),
        ];
        for (path, text) in files.iter().filter_map(|(path, text)| Some((path.as_deref()?, text))) {
            std::fs::write(path, text()).with_context(|| format!("cannot write \"{}\"", path.display()))?;
        }
        Ok(())
    }
}
