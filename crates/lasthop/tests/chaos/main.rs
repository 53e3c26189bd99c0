//! Random trouble over random traffic, on the built binary: guest processes are killed, stopped, reset and replaced, vnics
//! removed and added, while every frame that arrives is checked byte by byte and all counters are compared.
//!
//! Environment: `CHAOS_SECONDS` (45), `CHAOS_SEED` (printed; the same seed gives the same actions; several with commas between
//! share the time), `CHAOS_GUESTS` (5), `CHAOS_WORKERS` (3), `CHAOS_TRACE` (1: each action is shown, and when guests carry it out). docs/results/reliability.md
//! lists the checks.

#![deny(unsafe_code)]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program of its own, not a test of the harness"
)]

mod action;
mod crew;
mod frame;
mod outsiders;
mod storm;
mod talker;
mod watch;

use std::time::{SystemTime, UNIX_EPOCH};

use storm::{Plan, Storm};

fn setting(name: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(name) else { return default };
    text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number"))
}

/// A plan for each seed; all of them together take the time given.
fn plans() -> Vec<Plan> {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64);
    let seeds = std::env::var("CHAOS_SEED").unwrap_or_else(|_| (clock % 1_000_000).to_string());
    let number =
        |text: &str| text.parse().unwrap_or_else(|_| panic!("CHAOS_SEED={seeds}: {text} is not a number"));
    let seeds: Vec<u64> = seeds.split(',').map(number).collect();
    let plan = |seed| Plan {
        seconds: setting("CHAOS_SECONDS", 45).div_ceil(seeds.len() as u64),
        seed,
        guests: setting("CHAOS_GUESTS", 5).clamp(2, 100) as u8,
        workers: setting("CHAOS_WORKERS", 3).clamp(1, 64) as u8,
        trace: setting("CHAOS_TRACE", 0) > 0,
    };
    seeds.iter().copied().map(plan).collect()
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == "guest") {
        return talker::run(&words[1..]);
    }
    // Arguments as the test harness has them: a filter, and a list.
    if words.iter().any(|word| word == "--list") {
        return println!("chaos: test");
    }
    if words.iter().any(|word| !word.starts_with('-') && !"chaos".contains(word.as_str())) {
        return;
    }
    for plan in plans() {
        println!("\nrunning chaos: {plan:?}");
        let summary = Storm::start(plan).run(&mut |line| println!("chaos: {line}"));
        println!("chaos: seed {}, {} s, {summary}", plan.seed, plan.seconds);
    }
    println!("test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
}
