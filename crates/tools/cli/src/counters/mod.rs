//! Counters of the CPUs for threads of other processes: instructions and misses of the last level cache.

mod sys;

use std::os::fd::OwnedFd;

use rustix::io::Errno;

/// `PERF_TYPE_HARDWARE` with `PERF_COUNT_HW_INSTRUCTIONS` and `PERF_COUNT_HW_CACHE_MISSES`.
const INSTRUCTIONS: (u32, u64) = (0, 1);
const CACHE_MISSES: (u32, u64) = (0, 3);
/// `exclude_kernel`: without privileges only user space can be counted.
const EXCLUDE_KERNEL: u64 = 1 << 5;
/// `PERF_FORMAT_TOTAL_TIME_ENABLED` and `PERF_FORMAT_TOTAL_TIME_RUNNING`: several events may share a counter in turns.
const WITH_TIMES: u64 = 1 | 2;

/// Both counters of a thread, which count since they were opened.
#[derive(Debug)]
pub(crate) struct ThreadCounters {
    instructions: OwnedFd,
    cache_misses: OwnedFd,
}

/// Counts of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) instructions: u64,
    pub(crate) cache_misses: u64,
}

impl ThreadCounters {
    /// Starts to count; the error says why that is impossible.
    pub(crate) fn begin(thread: i32) -> Result<Self, String> {
        Ok(Self { instructions: open(INSTRUCTIONS, thread)?, cache_misses: open(CACHE_MISSES, thread)? })
    }

    /// The counts until now.
    pub(crate) fn read(&self) -> Option<Counts> {
        Some(Counts { instructions: read(&self.instructions)?, cache_misses: read(&self.cache_misses)? })
    }
}

fn open(event: (u32, u64), thread: i32) -> Result<OwnedFd, String> {
    let is_refused = |error: &std::io::Error| {
        [Errno::ACCESS, Errno::PERM].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
    };
    let opened = match sys::open(event, thread, WITH_TIMES, 0) {
        Err(error) if is_refused(&error) => sys::open(event, thread, WITH_TIMES, EXCLUDE_KERNEL),
        opened => opened,
    };
    opened.map_err(|error| match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT | Errno::NODEV | Errno::OPNOTSUPP) => {
            "this machine has no counters of them".to_owned()
        }
        Some(Errno::ACCESS | Errno::PERM) => "not permitted; ask as root".to_owned(),
        _ => error.to_string(),
    })
}

/// Reads a count, scaled to the whole time if the event had the counter for a part of it.
fn read(counter: &OwnedFd) -> Option<u64> {
    let mut bytes = [0; 24];
    if rustix::io::read(counter, &mut bytes).ok()? < bytes.len() {
        return None;
    }
    let word = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let (count, enabled, running) = (word(0)?, word(8)?, word(16)?);
    let scaled = u128::from(count) * u128::from(enabled) / u128::from(running.max(1));
    u64::try_from(scaled).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `PERF_TYPE_SOFTWARE`, `PERF_COUNT_SW_TASK_CLOCK`: available without counters in the CPU.
    const TASK_CLOCK: (u32, u64) = (1, 1);

    #[test]
    fn work_of_a_thread_is_counted_or_the_reason_told() {
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        match ThreadCounters::begin(own) {
            Ok(counters) => assert!(counters.read().expect("counts").instructions > 0),
            Err(why) => assert!(why.contains("counters") || why.contains("permitted"), "{why}"),
        }
        match open(TASK_CLOCK, own) {
            Ok(clock) => assert!((0..1000).any(|_| read(&clock).expect("a count") > 0)),
            Err(why) => assert!(why.contains("permitted"), "{why}"),
        }
    }
}
