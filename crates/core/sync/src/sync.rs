//! The primitives under loom's names, so that the models run the same code.

use std::mem::MaybeUninit;
pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

/// Memory that only one thread uses at a time.
#[derive(Debug)]
#[repr(transparent)]
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

/// Places for `count` values. Their pages are not touched before use.
pub(crate) fn places<T>(count: usize) -> Box<[Cell<MaybeUninit<T>>]> {
    let places = Box::<[Cell<MaybeUninit<T>>]>::new_uninit_slice(count);
    // SAFETY: a cell consists only of its content, and this content may be uninitialised.
    unsafe { places.assume_init() }
}

/// A full fence: of two threads that store, fence and load, at least one sees the other's store.
#[inline]
pub fn full_fence() {
    fence(Ordering::SeqCst);
}
