//! The command line.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, Parser, Subcommand, ValueEnum};
use lasthop_sched::{OffloadCriteria, PlaceCriteria};

use crate::console::print;
use crate::desk::usual_offload;
use crate::figures::{self, FigureSettings};
use crate::gains::{self, GainSettings};
use crate::model::Model;
use crate::replay::ReplayOptions;
use crate::scenario::{LabWork, Scenario, WINDOW_BYTES};
use crate::sim::{Architecture, Choices, HelpCounts, RunResult, StageTimes};
use crate::{criteria, io, placements, schedules, validate};

/// Simulate guests and switches in virtual time, with the fabric and the decisions of Lasthop.
#[derive(Debug, Parser)]
#[command(name = "lasthop-lab", version, max_term_width = 100)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// One run
    Run(RunOptions),
    /// Figures 4 to 8 of Hyper-Switch: TSV and SVG, and the paper's statements next to the lab's
    Figures(FigureOptions),
    /// Figures 10 to 13 of Liao and Bhuyan: TSV and SVG, and the paper's statements next to the lab's
    IoFigures(IoFigureOptions),
    /// Criteria of the offload to idle CPUs next to each other
    Criteria(CriteriaOptions),
    /// Threads on any CPUs, and brought into one last-level cache: the product's placement
    Placement(PlacementOptions),
    /// The product's helpers next to no helpers: gains, shares of time, and the latency of another ring
    Helpers(HelperOptions),
    /// Measured values of a machine next to the lab's; status 1 if one is outside of the stated error
    Validate(ValidateOptions),
    /// Random schedules: none may reorder frames, or lose one without a reason
    Schedules(ScheduleOptions),
    /// A trace of a real switch (lasthop sched trace --json) against the production decisions; status 1 if one cannot be
    /// explained
    Replay(ReplayOptions),
}

/// An architecture, as users write it.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum ArchitectureName {
    Lasthop,
    HyperSwitch,
    Xen,
    Kvm,
}

impl From<ArchitectureName> for Architecture {
    fn from(name: ArchitectureName) -> Self {
        match name {
            ArchitectureName::Lasthop => Self::Lasthop,
            ArchitectureName::HyperSwitch => Self::HyperSwitch,
            ArchitectureName::Xen => Self::Xen,
            ArchitectureName::Kvm => Self::Kvm,
        }
    }
}

/// Options of `figures`.
#[derive(Debug, Args)]
pub(crate) struct FigureOptions {
    /// A model: two-cpus, opteron, epyc, or a file in TOML
    #[arg(long, default_value = "opteron")]
    model: String,
    /// Where the tables go, as TSV
    #[arg(long, value_name = "DIR", default_value = "target/lab")]
    out: PathBuf,
    /// Where the pictures go, as SVG [default: as --out]
    #[arg(long, value_name = "DIR")]
    pictures: Option<PathBuf>,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Measured virtual time of each run, in ms
    #[arg(long, value_name = "MS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    ms: u64,
    /// Bytes that the sender of a stream has under way, in KiB
    #[arg(long, value_name = "KIB", default_value_t = WINDOW_BYTES >> 10, value_parser = clap::value_parser!(u64).range(1..=8192))]
    window_kib: u64,
}

impl FigureOptions {
    /// Makes the figures, and prints the table.
    pub(crate) fn execute(&self) -> Result<()> {
        let model = Model::load(&self.model)?;
        let settings = FigureSettings {
            seed: self.seed,
            measured_ns: self.ms * 1_000_000,
            window_bytes: self.window_kib << 10,
        };
        let pictures = self.pictures.as_ref().unwrap_or(&self.out);
        print(&figures::make(&model, settings, &self.out, pictures)?)
    }
}

/// Options of `io-figures`.
#[derive(Debug, Args)]
pub(crate) struct IoFigureOptions {
    /// Where the tables go, as TSV
    #[arg(long, value_name = "DIR", default_value = "target/lab")]
    out: PathBuf,
    /// Where the pictures go, as SVG [default: as --out]
    #[arg(long, value_name = "DIR")]
    pictures: Option<PathBuf>,
}

impl IoFigureOptions {
    /// Makes the figures, and prints the table.
    pub(crate) fn execute(&self) -> Result<()> {
        print(&io::figures::make(&self.out, self.pictures.as_ref().unwrap_or(&self.out))?)
    }
}

/// Options of `placement`.
#[derive(Debug, Args)]
pub(crate) struct PlacementOptions {
    /// A model: opteron, epyc, or a file in TOML
    #[arg(long, default_value = "epyc")]
    model: String,
    /// Workloads as those of `run`
    #[arg(long = "workload", value_name = "WORK", num_args = 1.., default_values = placements::WORKS)]
    workloads: Vec<LabWork>,
    /// Random places of threads, each with a run for each mode
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
}

impl PlacementOptions {
    /// Runs all, and prints the table.
    pub(crate) fn execute(&self) -> Result<()> {
        print(&placements::table(&Model::load(&self.model)?, &self.workloads, self.rounds)?)
    }
}

/// Options of `criteria`.
#[derive(Debug, Args)]
pub(crate) struct CriteriaOptions {
    /// A model: two-cpus, opteron, epyc, or a file in TOML
    #[arg(long, default_value = "opteron")]
    model: String,
    /// Workloads, as of run; may be repeated
    #[arg(long = "workload", value_name = "WORK", default_values = ["pairs=1", "pairs=4", "pairs=6", "pairs=8", "all-to-all=12"])]
    workloads: Vec<LabWork>,
    /// Bytes that the sender of a stream has under way, in KiB
    #[arg(long, value_name = "KIB", default_value_t = WINDOW_BYTES >> 10, value_parser = clap::value_parser!(u64).range(1..=8192))]
    window_kib: u64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl CriteriaOptions {
    /// Prints the table.
    pub(crate) fn execute(&self) -> Result<()> {
        let model = Model::load(&self.model)?;
        print(&criteria::table(&model, &self.workloads, self.window_kib << 10, self.seed)?)
    }
}

/// Options of `helpers`.
#[derive(Debug, Args)]
pub(crate) struct HelperOptions {
    /// A model: two-cpus, opteron, epyc, or a file in TOML
    #[arg(long, default_value = "opteron")]
    model: String,
    /// Workloads, as of run; may be repeated
    #[arg(long = "workload", value_name = "WORK", default_values = gains::WORKS)]
    workloads: Vec<LabWork>,
    /// Bytes that the sender of a stream has under way, in KiB
    #[arg(long, value_name = "KIB", default_value_t = WINDOW_BYTES >> 10, value_parser = clap::value_parser!(u64).range(1..=8192))]
    window_kib: u64,
    /// Only the helper's own CPU has to be idle, not all that share its second-level cache
    #[arg(long)]
    idle_cpu: bool,
    /// The home signals after each frame, too, instead of at the end of its visit
    #[arg(long)]
    early_signals: bool,
    /// Helpers are sought near the CPU of the data movement table's row, not near the receiver's
    #[arg(long)]
    movement: bool,
    /// Helpers of a visit; the product has one
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=8))]
    visit_helpers: u64,
    /// The product's helpers also share frames whose checksum the switch completes, from this length on
    #[arg(long, value_name = "BYTES", default_value_t = u32::MAX, hide_default_value = true)]
    summed_bytes: u32,
    /// The product's helpers also share frames for receivers without a common last-level cache, from this length on
    #[arg(long, value_name = "BYTES", default_value_t = u32::MAX, hide_default_value = true)]
    far_bytes: u32,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl HelperOptions {
    /// Prints the table.
    pub(crate) fn execute(&self) -> Result<()> {
        let place = PlaceCriteria { whole_group: !self.idle_cpu, ..PlaceCriteria::default() };
        let Self { seed, early_signals, movement, .. } = *self;
        let visit_helpers = self.visit_helpers as usize;
        let window_bytes = self.window_kib << 10;
        let offload = OffloadCriteria {
            summed_bytes_min: self.summed_bytes,
            far_bytes_min: self.far_bytes,
            ..usual_offload()
        };
        let settings =
            GainSettings { seed, window_bytes, place, early_signals, movement, visit_helpers, offload };
        print(&gains::table(&Model::load(&self.model)?, &self.workloads, settings)?)
    }
}

/// Options of `validate`.
#[derive(Debug, Args)]
pub(crate) struct ValidateOptions {
    /// A model with measured values
    #[arg(long, default_value = "two-cpus")]
    model: String,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl ValidateOptions {
    /// Prints the comparison.
    pub(crate) fn execute(&self) -> Result<()> {
        let (text, is_within) = validate::table(&Model::load(&self.model)?, self.seed)?;
        print(&text)?;
        ensure!(is_within, "a value is outside of the stated error of {} %", validate::ERROR_PERCENT_MAX);
        Ok(())
    }
}

/// Options of `schedules`.
#[derive(Debug, Args)]
pub(crate) struct ScheduleOptions {
    /// Number of schedules
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    count: u64,
    /// Number of the first one; a number is a schedule
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1_u64 << 60))]
    first: u64,
}

impl ScheduleOptions {
    /// Tries them.
    pub(crate) fn execute(&self) -> Result<()> {
        let counts = schedules::try_all(self.first, self.count)?;
        print(&format!(
            "{} schedules: {} frames in order, {} copies offloaded, {} frames dropped for named reasons\n",
            self.count, counts.frames, counts.offloaded, counts.drops
        ))
    }
}

/// Options of `run`.
#[derive(Debug, Args)]
pub(crate) struct RunOptions {
    /// A model: two-cpus, opteron, epyc, or a file in TOML
    #[arg(long, default_value = "opteron")]
    model: String,
    /// The architecture of the switch
    #[arg(long, value_enum, default_value = "hyper-switch")]
    architecture: ArchitectureName,
    /// pairs=N, all-to-all=N, fan-in=N, beside=N (N pairs, and short requests between two further guests), echo,
    /// bare-stream=N, bare-fan-in=N or bare-echo=PAUSE_US; behind commas payload=BYTES, nap-us=N (bare guests sleep
    /// between two looks at their rings), tso=off (guests without receive offloads: the switch cuts), and csum=off (guests
    /// without checksums: the switch completes them)
    #[arg(long, value_name = "WORK", default_value = "pairs=1")]
    workload: LabWork,
    /// The same seed gives the same run
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Measured virtual time, in ms
    #[arg(long, value_name = "MS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=59_000))]
    ms: u64,
    /// Workers of the architecture lasthop
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=16))]
    workers: u64,
    /// Bytes that the sender of a stream has under way, in KiB
    #[arg(long, value_name = "KIB", default_value_t = WINDOW_BYTES >> 10, value_parser = clap::value_parser!(u64).range(1..=8192))]
    window_kib: u64,
    /// CPUs with a helper of the architecture lasthop, at most those without a worker
    #[arg(long, value_name = "CPUS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=63))]
    helpers: u64,
    /// With --helpers: the least length of frames that are shared, on average
    #[arg(long, value_name = "BYTES", default_value_t = usual_offload().packet_bytes_min)]
    helper_bytes: u32,
    /// Nothing is offloaded to idle CPUs (hyper-switch)
    #[arg(long)]
    no_offload: bool,
}

impl RunOptions {
    /// Runs, and prints the result.
    pub(crate) fn execute(&self) -> Result<()> {
        let model = Model::load(&self.model)?;
        let mut choices = Choices::default();
        if self.helpers > 0 {
            let packet_bytes_min = self.helper_bytes;
            choices.offload = Some(OffloadCriteria { packet_bytes_min, ..usual_offload() });
        }
        if self.no_offload {
            choices.offload = None;
        }
        let scenario = Scenario {
            choices,
            workers: self.workers as usize,
            helpers: self.helpers as usize,
            seed: self.seed,
            window_bytes: self.window_kib << 10,
            measured_ns: self.ms * 1_000_000,
            ..Scenario::new(&model, self.architecture.into(), self.workload)
        };
        print(&lines(&scenario, &scenario.run()?))
    }
}

fn lines(scenario: &Scenario, result: &RunResult) -> String {
    let packets = result.received.packets.max(1) as f64;
    let cycles = result.busy_ns as f64 * scenario.model.cpu.mhz as f64 / 1000.0 / packets;
    let drops: Vec<String> =
        result.drops.nonzero().map(|(reason, count)| format!("{} {count}", reason.name())).collect();
    let drops = if drops.is_empty() { "none".to_owned() } else { drops.join(", ") };
    let text = format!(
        "model          {}\narchitecture   {}\nworkload       {}\npayload        {:.3} Gbit/s\npackets        {:.4} Mpps\n\
         transactions   {:.0} /s\nwork           {:.2} CPUs, {cycles:.0} cycles/packet, polling not counted\nvisits         {}\n\
         offloaded      {} copies\nframes         {} sent, {} received, {} lost\ndrops          {drops}\nhash           {:016x}\n",
        scenario.model.name,
        scenario.architecture.name(),
        scenario.work,
        result.gbit_per_s(),
        result.mpps(),
        result.transactions_per_s(),
        result.busy_ns as f64 / result.measured_ns as f64,
        result.visits,
        result.offloaded,
        result.frames.sent,
        result.frames.received,
        result.frames.skipped,
        result.hash,
    );
    if scenario.architecture == Architecture::Lasthop { text + &helper_lines(result) } else { text }
}

/// The share of time of a worker's stages, and its helpers.
fn helper_lines(result: &RunResult) -> String {
    let percent = |ns: u64| 100.0 * ns as f64 / (result.measured_ns * result.worker_cpus.len() as u64) as f64;
    let StageTimes { visit_ns, packets_ns, own_ns, helpers_ns } = result.stages;
    let HelpCounts { desk, given_up, delay_ns_max, step_ns_max, .. } = result.help;
    let mut text = format!(
        "workers        visits {:.1} %, look-up {:.1} %, copies {:.1} %; copies of helpers {:.1} %\n\
         busiest CPU    worker {:.0} %, guest {:.0} %\n",
        percent(visit_ns),
        percent(packets_ns),
        percent(own_ns),
        percent(helpers_ns),
        result.busiest_percent(&result.worker_cpus),
        result.busiest_percent(&result.guest_cpus),
    );
    if desk.shared + desk.alone > 0 {
        text += &format!(
            "helpers        {} visits shared, {} alone; {} of {} placements near where both were free\n\
             given back     {given_up} orders; a CPU within {delay_ns_max} ns, the longest frame {step_ns_max} ns\n",
            desk.shared, desk.alone, desk.near, desk.both_free,
        );
    }
    if !result.round_trips_ns.is_empty() {
        let [half, most] = [50, 99].map(|share| result.round_trip_ns(share) as f64 / 1000.0);
        text += &format!("round trips    p50 {half:.2} us, p99 {most:.2} us\n");
    }
    text
}
