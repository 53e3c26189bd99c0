//! Tests have a device die before any one of the stores that its successor or its driver will see.

#[cfg(debug_assertions)]
use std::cell::Cell;

#[cfg(debug_assertions)]
thread_local! {
    static STORES_LEFT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// This thread panics before the store after this many others; `None`: never. For tests; release builds
/// ignore it.
pub fn after_stores(stores: Option<u64>) {
    #[cfg(debug_assertions)]
    STORES_LEFT.with(|left| left.set(stores));
    #[cfg(not(debug_assertions))]
    let _ = stores;
}

/// A store to the ring or its ledger is next.
#[inline(always)]
pub(crate) fn may_come() {
    #[cfg(debug_assertions)]
    STORES_LEFT.with(|left| match left.get() {
        None => {}
        Some(0) => {
            left.set(None);
            std::panic::resume_unwind(Box::new("killed"));
        }
        Some(more) => left.set(Some(more - 1)),
    });
}
