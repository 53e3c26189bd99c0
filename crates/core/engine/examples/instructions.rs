//! Runs one scenario of the packet path for `tools/instructions`, which counts instructions inside `measured_visit`.
//!
//! It is an example, not a benchmark, so that the build profile is the product's. It is in this crate since fabric's
//! own tests would need more crates.
//!
//! usage: instructions --list | SCENARIO BATCHES

#[path = "../../fabric/benches/traffic/mod.rs"]
mod traffic;

use std::hint::black_box;
use std::io::{Write, stdout};
use std::process::ExitCode;

use traffic::{Plan, Traffic, scenarios};

/// Visits before the measured ones: the rings have wrapped once, and all memory is allocated.
const WARM_UP_BATCHES: u64 = 16;

/// The only function whose instructions are counted, with those of the functions that it calls.
#[inline(never)]
fn measured_visit(traffic: &mut Traffic) -> usize {
    // Without black_box the compiler might emit a jump instead of a call, and callgrind would see no return.
    black_box(black_box(traffic).visit())
}

/// Runs batches of `plan`: first some to warm up, then `batches` measured ones. Returns the packets of the latter.
fn run(plan: &Plan, batches: u64) -> usize {
    let mut traffic = Traffic::new(plan);
    let mut packets = 0;
    for batch in 0..WARM_UP_BATCHES + batches {
        traffic.queue();
        if batch < WARM_UP_BATCHES {
            traffic.visit();
        } else {
            packets += measured_visit(&mut traffic);
        }
        traffic.clear();
    }
    traffic.check();
    packets
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let plan = |name: &str| scenarios::ALL.iter().find(|(known, _)| *known == name).map(|(_, plan)| plan());
    let text = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--list"] => scenarios::ALL.iter().map(|(name, _)| format!("{name}\n")).collect(),
        [name, batches] => match (plan(name), batches.parse()) {
            (Some(plan), Ok(batches)) => format!("{}\n", run(&plan, batches)),
            _ => return ExitCode::from(2),
        },
        _ => return ExitCode::from(2),
    };
    stdout().write_all(text.as_bytes()).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}
