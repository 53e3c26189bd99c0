use crate::sync::{AtomicBool, Ordering};

/// Tells whether a thread sleeps and has to be woken for new work.
///
/// The sleeper calls `prepare_sleep`, fences, looks once more, and sleeps. Others queue work, fence, and call `wake`.
#[derive(Debug)]
pub struct SleepFlag(AtomicBool);

impl Default for SleepFlag {
    fn default() -> Self {
        Self(AtomicBool::new(false))
    }
}

impl SleepFlag {
    /// Announces sleep; a full fence and a last look follow.
    pub fn prepare_sleep(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// The sleeper is awake. It looks for work before it prepares to sleep again.
    pub fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// After a full fence: whether the caller has to wake the sleeper. True for one of several callers.
    #[inline]
    #[must_use]
    pub fn wake(&self) -> bool {
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}
