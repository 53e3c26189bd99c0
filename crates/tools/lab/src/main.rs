//! `lasthop-lab`: a deterministic simulator in virtual time of machines, guests and switches.
//!
//! **Purpose.** Judge decisions of the scheduler-aware switch on machines that are not at hand. The fabric, the module
//! `bridge`, the rings and the decisions of `lasthop-sched` are those of the product, unchanged. CPUs, guests' stacks and
//! their costs are a model.
//!
//! **Contract.** The same model, workload and seed give the same bits. Each run checks the order of all frames, and that
//! each frame is accounted for; a violation is an error. Tables go to standard output, progress to standard error. Exit
//! status: 0, 1 for errors, 2 for arguments that clap refuses.
//!
//! **Not checked.** Whether the costs of a model are right: `validate` compares them with a machine.
//!
//! **Threading.** One thread.
//!
//! ```text
//!   model (TOML) ──> scenario ──> simulation: events, CPUs, guests ──> fabric, sched ──> result ──> tables, figures
//! ```
#![forbid(unsafe_code)]

mod console;
mod copies;
mod criteria;
mod desk;
mod events;
mod figures;
mod flow;
mod frame;
mod gains;
mod io;
mod linechart;
mod machine;
mod model;
mod nic;
mod options;
mod placements;
mod random;
mod replay;
mod scenario;
mod schedules;
mod sim;
mod switch;
mod validate;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use options::{Options, Verb};

fn main() -> ExitCode {
    match start(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            console::say(&format!("Error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn start(options: &Options) -> Result<()> {
    match &options.verb {
        Verb::Run(run) => run.execute(),
        Verb::Figures(figures) => figures.execute(),
        Verb::IoFigures(figures) => figures.execute(),
        Verb::Criteria(criteria) => criteria.execute(),
        Verb::Placement(placement) => placement.execute(),
        Verb::Helpers(helpers) => helpers.execute(),
        Verb::Validate(validate) => validate.execute(),
        Verb::Schedules(schedules) => schedules.execute(),
        Verb::Replay(replay) => replay.execute(),
    }
}
