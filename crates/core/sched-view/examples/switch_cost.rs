//! The cost of the view, per context switch: two threads on one CPU pass a byte to and fro, with and without the view by
//! turns, and with empty programs at the two tracepoints that such a switch passes: the part that no shorter program spares.
//!
//! `cargo run --release -p lasthop-sched-view --example switch_cost [ROUNDS]`, as root, on a machine that does nothing
//! else.

use std::error::Error;
use std::io::{Write, pipe};
use std::time::Instant;

use lasthop_bpf::{Assembler, Btf, Licence, Link, Program, ProgramKind, Register};
use lasthop_sched_view::{ThreadId, ViewWriter};
use rustix::thread::{CpuSet, sched_setaffinity};

const ROUNDS: usize = 15;
/// Round trips of a measurement: some tenths of a second.
const TRIPS: u32 = 100_000;
/// A trip there and back.
const SWITCHES_PER_TRIP: f64 = 2.0;
const CPU: usize = 1;

fn pin() {
    let mut set = CpuSet::new();
    set.set(CPU);
    // Without it the figures are those of two CPUs that wake each other.
    let _ = sched_setaffinity(None, &set);
}

/// ns per context switch; `before` runs in both threads before they start.
fn measure(before: impl Fn(ThreadId) + Sync) -> Result<f64, Box<dyn Error>> {
    let (mut here, mut to_there) = pipe()?;
    let (mut there, mut to_here) = pipe()?;
    let ns = std::thread::scope(|scope| {
        use std::io::Read;
        scope.spawn(|| -> Result<(), Box<dyn Error + Send + Sync>> {
            pin();
            before(ThreadId::current()?);
            let mut byte = [0];
            for _ in 0..TRIPS {
                here.read_exact(&mut byte)?;
                to_here.write_all(&byte)?;
            }
            Ok(())
        });
        pin();
        before(ThreadId::current()?);
        let start = Instant::now();
        let mut byte = [0];
        for _ in 0..TRIPS {
            to_there.write_all(&byte)?;
            there.read_exact(&mut byte)?;
        }
        Ok::<_, Box<dyn Error>>(start.elapsed().as_nanos() as f64)
    })?;
    Ok(ns / f64::from(TRIPS) / SWITCHES_PER_TRIP)
}

/// Programs that do nothing, attached until they are dropped.
fn attach_empty() -> Result<Vec<(Program, Link)>, Box<dyn Error>> {
    let btf = Btf::kernel()?;
    let attach = |name| -> Result<(Program, Link), Box<dyn Error>> {
        let kind = ProgramKind::Tracing { btf_id: btf.tracepoint(name)?.btf_id() };
        let mut code = Assembler::new();
        code.set(Register::R0, 0).exit();
        let program = Program::load(kind, Licence::MitOrGpl, "lasthop_empty", &code.finish()?)?;
        let link = program.attach()?;
        Ok((program, link))
    };
    ["sched_switch", "sched_wakeup"].into_iter().map(attach).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let rounds = std::env::args().nth(1).map_or(Ok(ROUNDS), |text| text.parse())?;
    let view = std::sync::Mutex::new(ViewWriter::open()?);
    let [mut off, mut empty, mut on, mut tracked] = [const { Vec::new() }; 4];
    let track = |thread| {
        if let Ok(mut view) = view.lock() {
            let _ = view.track(thread);
        }
    };
    let mut out = std::io::stdout();
    for _ in 0..rounds {
        off.push(measure(|_| {})?);
        let programs = attach_empty()?;
        empty.push(measure(|_| {})?);
        drop(programs);
        view.lock().map_err(|_| "poisoned")?.attach()?;
        on.push(measure(|_| {})?);
        tracked.push(measure(track)?);
        view.lock().map_err(|_| "poisoned")?.detach();
        let last = |values: &[f64]| values.last().copied().unwrap_or_default();
        writeln!(out, "{:.0} {:.0} {:.0} {:.0}", last(&off), last(&empty), last(&on), last(&tracked))?;
    }
    let more = |with: &[f64]| median(with.iter().zip(&off).map(|(with, without)| with - without).collect());
    writeln!(out, "median ns per context switch: {:.0} without the view", median(off.clone()))?;
    writeln!(out, "{:+.0} with empty programs", more(&empty))?;
    writeln!(out, "{:+.0} with the view, {:+.0} with both threads tracked", more(&on), more(&tracked))?;
    Ok(())
}
