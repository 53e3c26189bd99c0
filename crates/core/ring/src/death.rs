//! Lets tests kill a device before any of the stores that its successor or its driver sees.

#[cfg(debug_assertions)]
use std::cell::Cell;

#[cfg(debug_assertions)]
thread_local! {
    static STORES_LEFT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Makes this thread panic before the store that follows this many others; `None` for never. For tests; release builds
/// ignore it.
pub fn after_stores(stores: Option<u64>) {
    #[cfg(debug_assertions)]
    STORES_LEFT.with(|left| left.set(stores));
    #[cfg(not(debug_assertions))]
    let _ = stores;
}

/// Called before each store to the ring or its ledger.
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
