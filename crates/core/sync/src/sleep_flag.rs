use crate::sync::{AtomicBool, Ordering};

/// A flag of a thread that sleeps and has to be woken for new work.
///
/// The sleeper calls `prepare_sleep`, fences, checks for work again, and sleeps. Others queue work, fence, and call
/// `wake`.
#[derive(Debug)]
pub struct SleepFlag(AtomicBool);

impl Default for SleepFlag {
    fn default() -> Self {
        Self(AtomicBool::new(false))
    }
}

impl SleepFlag {
    /// Announces sleep; a full fence and a last check follow.
    pub fn prepare_sleep(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Notes that the sleeper is awake. It checks for work before it prepares to sleep again.
    pub fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// After a full fence: whether the caller has to wake the sleeper. True for only one of several callers.
    #[inline]
    #[must_use]
    pub fn wake(&self) -> bool {
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}
