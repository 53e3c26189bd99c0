//! The engine's clock.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Time since the engine started, in ns.
pub(crate) fn now_ns(started: Instant) -> u64 {
    started.elapsed().as_nanos() as u64
}

/// Readings of one attempt to time them, and attempts: the quickest one is not disturbed.
const READINGS: u32 = 16;
const ATTEMPTS: usize = 4;

/// The time that a reading takes, in ns: some 30 by the vDSO, and that of a system call where there is none. So it is also the least
/// that a system call takes on such a machine.
pub(crate) fn reading_ns() -> u64 {
    let attempt = |_| {
        let start = Instant::now();
        (1..READINGS).for_each(|_| _ = black_box(Instant::now()));
        start.elapsed() / READINGS
    };
    (0..ATTEMPTS).map(attempt).min().map_or(0, |time: Duration| time.as_nanos() as u64)
}
