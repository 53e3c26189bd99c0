use crate::sync::{AtomicBool, Ordering};

/// Whether somebody sleeps and has to be woken for what is left for it.
///
/// The sleeper calls `prepare_sleep`, fences, looks once more, sleeps. Others leave something, fence, ask `wake`.
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

    /// Is awake, and looks at everything before it lies down again.
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
