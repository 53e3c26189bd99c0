//! A capture: one tap on each worker, read in the order of time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use lasthop_fabric::{CapturedFrame, Tap, TapClock, TapReader, Watch, tap};

use crate::worker::Worker;
use crate::worker_pool::WorkerPool;
use crate::{Engine, EngineError};

/// Captures at a time: each may cost every frame a copy.
pub const CAPTURES_MAX: usize = 4;
/// How long frames wait for older ones of other workers: longer than a worker takes to record a frame.
const SETTLING_NS: u64 = 1_000_000;

/// State that the captures of an engine share.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    begun: AtomicU64,
    /// Its reference count is the number of running captures plus one.
    running: Arc<()>,
}

impl Captures {
    fn number(&self) -> Result<u64, EngineError> {
        if Arc::strong_count(&self.running) > CAPTURES_MAX {
            return Err(EngineError::TooManyCaptures);
        }
        Ok(self.begun.fetch_add(1, Ordering::Relaxed))
    }
}

/// A running capture. Its frames wait in bounded rings for their reader; dropping it ends it. Any thread may read.
pub struct Capture {
    number: u64,
    pool: Arc<WorkerPool<Worker>>,
    readers: Vec<TapReader>,
    clock: TapClock,
    /// Frames after this time are held back.
    until_ns: u64,
    is_stopped: bool,
    _running: Arc<()>,
}

impl Engine {
    /// Starts a capture; all workers see it when this returns.
    ///
    /// # Errors
    /// [`EngineError::TooManyCaptures`], [`EngineError::System`] if memory is short,
    /// [`EngineError::NoAnswer`].
    pub fn capture(&self, watch: &Watch) -> Result<Capture, EngineError> {
        let number = self.captures.number()?;
        let clock = wall_clock();
        let no_memory = |_| EngineError::System("capture", std::io::ErrorKind::OutOfMemory.into());
        let made = self.pool.mailboxes().iter().map(|_| tap(number, watch, &clock));
        let (taps, readers): (Vec<Tap>, Vec<TapReader>) =
            made.collect::<Result<Vec<_>, _>>().map_err(no_memory)?.into_iter().unzip();
        let pool = Arc::clone(&self.pool);
        let running = Arc::clone(&self.captures.running);
        let capture =
            Capture { number, pool, readers, clock, until_ns: 0, is_stopped: false, _running: running };
        for (worker, tap) in taps.into_iter().enumerate() {
            self.pool.call(worker, move |worker| worker.fabric.add_tap(tap))?;
        }
        Ok(capture)
    }
}

impl Capture {
    /// Lets [`Self::pop`] return all frames that are older than `SETTLING_NS` now.
    pub fn look(&mut self) {
        if !self.is_stopped {
            self.until_ns = (self.clock)().saturating_sub(SETTLING_NS);
        }
    }

    /// Takes the oldest frame; its bytes replace those in `frame`. `None` if there is none until the next
    /// [`Self::look`].
    pub fn pop(&mut self, frame: &mut Vec<u8>) -> Option<CapturedFrame> {
        let time_ns = |reader: &&mut TapReader| reader.time_ns().unwrap_or(u64::MAX);
        let oldest = self.readers.iter_mut().min_by_key(time_ns)?;
        oldest.time_ns().filter(|time_ns| *time_ns < self.until_ns)?;
        oldest.pop(frame)
    }

    /// Ends the capture. Frames captured so far can still be popped.
    pub fn stop(&mut self) {
        let number = self.number;
        // A worker that does not answer now runs the task later.
        let _ = self.pool.call_all(move |worker| worker.fabric.remove_tap(number));
        (self.is_stopped, self.until_ns) = (true, u64::MAX);
    }

    /// Time of day in ns since 1970, on the clock of the frames' time stamps.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        (self.clock)()
    }

    /// Frames of an interface that were lost because unread ones filled the rings.
    #[must_use]
    pub fn lost(&self, interface: u16) -> u64 {
        self.readers.iter().map(|reader| reader.lost(interface)).sum()
    }

    /// Whether all its ports are removed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.readers.iter().all(|reader| reader.ports() == 0)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let number = self.number;
        for mailbox in self.pool.mailboxes() {
            mailbox.post(Box::new(move |worker| worker.fabric.remove_tap(number)));
        }
    }
}

/// A clock that starts with the time of day and then counts monotonic time, so it does not jump when the clock is set.
fn wall_clock() -> TapClock {
    let begun = Instant::now();
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    Arc::new(move || since_1970 + begun.elapsed().as_nanos() as u64)
}
