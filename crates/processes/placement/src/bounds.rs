//! Bounds and times.

use std::time::Duration;

/// The time from one decision to the next: some thirty of the paper's slices. The host's scheduler settles in between.
pub(crate) const PERIOD: Duration = Duration::from_secs(1);
/// The most threads of one guest that are placed: those of its vCPUs that ran most. A guest with more busy vCPUs than that does
/// not fit into one cache in any case.
pub(crate) const GUEST_THREADS_MAX: usize = 16;
/// The most threads of which a decision takes account: its time grows with flows times threads.
pub(crate) const THREADS_MAX: usize = 512;
/// A thread that ran for less than this part of the period moves no packets worth a move. The kernel counts in ticks of 10 ms, so
/// these are two.
pub(crate) const USED_PART: u32 = 50;
/// The longest use of measured caches: a year.
pub(crate) const LIFETIME_S_MAX: u64 = 366 * 86_400;
/// The largest file of an earlier supervisor that is read.
pub(crate) const RECORD_BYTES_MAX: u64 = 1 << 20;
