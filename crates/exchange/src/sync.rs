//! The primitives by the names that loom's have, so that the models run the very same code.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering, fence};

/// Memory that one thread at a time uses.
#[derive(Debug)]
pub(crate) struct Cell<T>(std::cell::UnsafeCell<T>);

impl<T> Cell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline]
    pub(crate) fn with_mut<R>(&self, work: impl FnOnce(*mut T) -> R) -> R {
        work(self.0.get())
    }
}

/// Stores before it are seen by whoever's loads come after another full fence that comes after this one.
#[inline]
pub fn full_fence() {
    fence(Ordering::SeqCst);
}
