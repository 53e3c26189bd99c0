//! The cost of the view, per context switch: two threads on one CPU pass a byte to and fro, with and without the view by
//! turns.
//!
//! `cargo run --release -p lasthop-sched-view --example switch_cost [ROUNDS]`, as root, on a machine that does nothing
//! else.

use std::error::Error;
use std::io::{Write, pipe};
use std::time::Instant;

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

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let rounds = std::env::args().nth(1).map_or(Ok(ROUNDS), |text| text.parse())?;
    let view = std::sync::Mutex::new(ViewWriter::open()?);
    let (mut off, mut on, mut tracked) = (Vec::new(), Vec::new(), Vec::new());
    let track = |thread| {
        if let Ok(mut view) = view.lock() {
            let _ = view.track(thread);
        }
    };
    let mut out = std::io::stdout();
    for _ in 0..rounds {
        off.push(measure(|_| {})?);
        view.lock().map_err(|_| "poisoned")?.attach()?;
        on.push(measure(|_| {})?);
        tracked.push(measure(track)?);
        view.lock().map_err(|_| "poisoned")?.detach();
        let last = |values: &[f64]| values.last().copied().unwrap_or_default();
        writeln!(out, "{:.0} {:.0} {:.0}", last(&off), last(&on), last(&tracked))?;
    }
    let more = |with: &[f64]| median(with.iter().zip(&off).map(|(with, without)| with - without).collect());
    writeln!(out, "median ns per context switch: {:.0} without the view", median(off.clone()))?;
    writeln!(out, "{:+.0} with the view, {:+.0} with both threads tracked", more(&on), more(&tracked))?;
    Ok(())
}
