//! A profile of the workers: a meter of stages on each, while a client profiles.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use lasthop_fabric::{StageMeter, StageProfile, TickClock};

use crate::worker::Worker;
use crate::worker_pool::WorkerPool;
use crate::{Engine, EngineError, sys};

/// Whether a profile is running: two would mix up their samples.
#[derive(Debug, Default)]
pub(crate) struct ProfileSlot(Arc<AtomicBool>);

/// A running profile. Dropping it ends it.
pub struct RunningProfile {
    pool: Arc<WorkerPool<Worker>>,
    running: Arc<AtomicBool>,
    clock: TickClock,
    is_time_stamp: bool,
    begun: (Instant, u64),
    is_over: bool,
}

/// The results of a profile.
#[derive(Clone, Debug)]
pub struct EngineProfile {
    /// Its duration, in ns.
    pub ns: u64,
    /// Ticks in that time.
    pub ticks: u64,
    /// Whether ticks are those of the CPU's time stamp counter; otherwise they are ns.
    pub is_time_stamp: bool,
    /// By worker number. A worker that did not run meanwhile has empty stages.
    pub workers: Vec<StageProfile>,
}

impl Engine {
    /// Starts a profile that samples one round in `every` of each worker.
    ///
    /// # Errors
    /// [`EngineError::ProfileRuns`], [`EngineError::NoAnswer`].
    pub fn profile(&self, every: u32) -> Result<RunningProfile, EngineError> {
        let running = Arc::clone(&self.profile_slot.0);
        if running.swap(true, Ordering::AcqRel) {
            return Err(EngineError::ProfileRuns);
        }
        let (clock, is_time_stamp) = tick_clock();
        let begun = (Instant::now(), clock());
        // From here on a drop frees the slot.
        let pool = Arc::clone(&self.pool);
        let profile = RunningProfile { pool, running, clock, is_time_stamp, begun, is_over: false };
        for worker in 0..profile.pool.mailboxes().len() {
            let seed = RandomState::new().hash_one(worker);
            let meter = Box::new(StageMeter::new(clock, every, seed));
            profile.pool.call(worker, move |worker| worker.fabric.begin_profile(meter))?;
        }
        Ok(profile)
    }
}

impl RunningProfile {
    /// Ends the profile.
    ///
    /// # Errors
    /// [`EngineError::NoAnswer`].
    pub fn finish(mut self) -> Result<EngineProfile, EngineError> {
        let answers = self.pool.call_all(|worker| worker.fabric.end_profile())?;
        self.is_over = true;
        let (since, ticks) = self.begun;
        Ok(EngineProfile {
            ticks: (self.clock)().saturating_sub(ticks),
            ns: since.elapsed().as_nanos() as u64,
            is_time_stamp: self.is_time_stamp,
            workers: answers.into_iter().map(Option::unwrap_or_default).collect(),
        })
    }
}

impl Drop for RunningProfile {
    fn drop(&mut self) {
        if !self.is_over {
            // Tasks run in order, so the next profile begins after this.
            for mailbox in self.pool.mailboxes() {
                mailbox.post(Box::new(|worker| drop(worker.fabric.end_profile())));
            }
        }
        self.running.store(false, Ordering::Release);
    }
}

/// The time stamp counter if it is steady, else the monotonic clock in ns; and whether it is the former.
fn tick_clock() -> (TickClock, bool) {
    #[cfg(target_arch = "x86_64")]
    if sys::has_steady_time_stamp() {
        return (sys::time_stamp, true);
    }
    (sys::monotonic_ns, false)
}
