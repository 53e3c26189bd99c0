//! Distances between CPUs, measured.
//!
//! **Purpose.** sysfs tells which CPUs share a cache, but a virtual machine's may tell anything, and nothing tells how dear a
//! copy from another CPU's cache is. [`measure`] finds out for all pairs of CPUs.
//!
//! **Contract.** Threads run pinned for some milliseconds for each pair. Of several passes over all pairs the median counts, so
//! a pass beside other work does little harm.
//!
//! **Not checked.** Whether the CPUs are idle meanwhile: on busy ones distances look longer.
//!
//! **Threading.** Each measurement starts and ends its own threads.
//!
//! ```text
//!   line:  CPU a ──store──> [ one cache line ] ──store──> CPU b      round trips, halved
//!   copy:  CPU a writes a buffer;  CPU b copies it                   bytes by time
//! ```
#![forbid(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Batches of a ping-pong, and round trips in each.
const BATCHES: usize = 21;
const TRIPS: u32 = 200;
/// In place of a number of players: one of them cannot play.
const GAVE_UP: u32 = 1 << 16;
/// Bytes of a copy: a large frame, which fits into a second-level cache.
const COPY_BYTES: usize = 64 * 1024;
/// Copies of a measurement.
const COPIES: usize = 9;

/// A measured pair of CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuPair {
    /// The CPU that writes.
    pub one: usize,
    /// The CPU that reads.
    pub other: usize,
    /// Time for a cache line from one to the other, in ns.
    pub line_ns: u64,
    /// Copies on `other` of what `one` has written, in MB a second.
    pub copy_mb_per_s: u64,
}

/// The CPUs that this process may use.
///
/// # Errors
/// The kernel does not tell: more CPUs than 1024.
pub fn usable_cpus() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// Measures all pairs of the given CPUs in `passes` passes. `progress` gets the number of measurements done, and of all.
///
/// # Errors
/// Threads cannot be made or pinned.
pub fn measure(
    cpus: &[usize],
    passes: usize,
    mut progress: impl FnMut(usize, usize),
) -> io::Result<Vec<CpuPair>> {
    let of = |at: usize| cpus[at + 1..].iter().map(move |other| (cpus[at], *other));
    let pairs: Vec<(usize, usize)> = (0..cpus.len()).flat_map(of).collect();
    let mut found: Vec<(Vec<f64>, Vec<f64>)> = vec![Default::default(); pairs.len()];
    for pass in 0..passes {
        for (at, (one, other)) in pairs.iter().enumerate() {
            found[at].0.push(line_ns(*one, *other)?);
            found[at].1.push(copy_mb_per_s(*one, *other)?);
            progress(pass * pairs.len() + at + 1, passes * pairs.len());
        }
    }
    let pair = |((one, other), (lines, copies)): ((usize, usize), (Vec<f64>, Vec<f64>))| CpuPair {
        one,
        other,
        line_ns: median(lines).round() as u64,
        copy_mb_per_s: median(copies).round() as u64,
    };
    Ok(pairs.into_iter().zip(found).map(pair).collect())
}

/// The time in ns to move a cache line from one CPU to the other: the median of many. Takes a few milliseconds, and needs
/// both CPUs for itself.
///
/// # Errors
/// The threads cannot be made or pinned.
pub fn line_ns(one: usize, other: usize) -> io::Result<f64> {
    let (ball, players) = (AtomicU32::new(0), AtomicU32::new(0));
    // A player alone would wait for the other one for ever.
    let play_on = |cpu: usize, side: u32| match pin(cpu) {
        Ok(()) => {
            players.fetch_add(1, Ordering::AcqRel);
            while players.load(Ordering::Acquire) == 1 {
                std::hint::spin_loop();
            }
            Ok((players.load(Ordering::Acquire) == 2).then(|| play(&ball, side)))
        }
        Err(error) => {
            players.store(GAVE_UP, Ordering::Release);
            Err(error)
        }
    };
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new;
        let away = builder().spawn_scoped(scope, || play_on(one, 1))?;
        let home = builder().spawn_scoped(scope, || play_on(other, 0));
        if home.is_err() {
            players.store(GAVE_UP, Ordering::Release);
        }
        let home = home?.join().map_err(died)?;
        away.join().map_err(died)??;
        home?.map(|times| median(times) / 2.0).ok_or_else(|| io::Error::other("the other CPU cannot be used"))
    })
}

/// MB a second that CPU `reader` copies of 64 KiB that CPU `writer` has just written: the median of some copies.
///
/// # Errors
/// The threads cannot be made or pinned.
pub fn copy_mb_per_s(writer: usize, reader: usize) -> io::Result<f64> {
    let (mut written, mut copied) = (vec![0_u8; COPY_BYTES], vec![1_u8; COPY_BYTES]);
    let mut rates = Vec::with_capacity(COPIES);
    for round in 0..=COPIES {
        on(writer, || written.fill(round as u8))?;
        let taken = on(reader, || {
            // Its own pages and lines are there already, as those of a receiver's buffer in use.
            copied.fill(0xff);
            let start = Instant::now();
            copied.copy_from_slice(std::hint::black_box(&written));
            std::hint::black_box(&copied);
            start.elapsed()
        })?;
        // The first round brings the pages in.
        if round > 0 {
            rates.push(COPY_BYTES as f64 / taken.as_nanos().max(1) as f64 * 1000.0);
        }
    }
    Ok(median(rates))
}

/// Does something on a thread that is pinned to a CPU.
fn on<R: Send>(cpu: usize, work: impl FnOnce() -> R + Send) -> io::Result<R> {
    std::thread::scope(|scope| scope.spawn(|| pin(cpu).map(|()| work())).join().map_err(died)?)
}

fn died(_: Box<dyn std::any::Any + Send>) -> io::Error {
    io::Error::other("the probe's thread died")
}

/// Plays one side of a ping-pong on a cache line; returns ns for each round trip, one value for each batch.
fn play(ball: &AtomicU32, side: u32) -> Vec<f64> {
    let mut next = side;
    let mut batch = || {
        let start = Instant::now();
        for _ in 0..TRIPS {
            while ball.load(Ordering::Acquire) != next {
                std::hint::spin_loop();
            }
            ball.store(next + 1, Ordering::Release);
            next += 2;
        }
        start.elapsed().as_nanos() as f64 / f64::from(TRIPS)
    };
    (0..BATCHES).map(|_| batch()).collect()
}

/// The median of the values, of which there is at least one.
#[must_use]
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Pins the calling thread to a CPU.
///
/// # Errors
/// The CPU is not there, or not allowed.
pub fn pin(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_is_measured_once_and_progress_is_told() {
        let cpus = usable_cpus().expect("CPUs");
        let cpus = &cpus[..cpus.len().min(3)];
        let mut told = Vec::new();
        let pairs = measure(cpus, 2, |done, of| told.push((done, of))).expect("measured");
        assert_eq!(pairs.len(), cpus.len() * (cpus.len() - 1) / 2);
        assert_eq!(told.last().copied(), Some((2 * pairs.len(), 2 * pairs.len())).filter(|_| cpus.len() > 1));
        assert!(pairs.iter().all(|pair| pair.line_ns > 0 && pair.copy_mb_per_s > 0 && pair.one < pair.other));
    }

    #[test]
    fn a_cpu_that_is_not_there_is_an_error() {
        assert!(copy_mb_per_s(1023, 0).is_err());
        assert!(line_ns(1023, 0).is_err() && line_ns(0, 1023).is_err(), "the other side does not wait");
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![9.0, 1.0, 5.0]), 5.0);
        assert_eq!(median(vec![2.0]), 2.0);
    }
}
