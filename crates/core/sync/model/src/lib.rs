//! The code of `lasthop-sync`, run on loom's primitives instead of the standard library's.
//!
//! **Purpose.** The tests have loom try the orders of loads and stores that the memory model allows.
//!
//! **Contract.** The sources are those of `lasthop-sync` (`#[path]`). Only the primitives below differ, and bounds are small.
//!
//! A test may include further files of the switch that wait for nothing else: `tests/rendezvous.rs`, `tests/moves.rs`.
//!
//! **Not checked.** More than two workers, and more preemptions than LOOM_MAX_PREEMPTIONS (CONTRIBUTING.md).
//!
//! **Threading.** loom's: each test is run once for each order.
//!
//! ```text
//!   sync/src/queue.rs ─┬─ use crate::sync: std::sync ───────────> lasthop-sync, in the switch
//!                      └─ use crate::sync: loom::sync ──────────> this crate, in tests
//! ```
#![allow(dead_code)] // items that the models do not use

#[path = "../../src/combining_lock.rs"]
mod combining_lock;
#[path = "../../src/flow_queues.rs"]
mod flow_queues;
#[path = "../../src/lease_order.rs"]
mod lease_order;
#[path = "../../src/marked_stack.rs"]
mod marked_stack;
#[path = "../../src/orders.rs"]
mod orders;
#[path = "../../src/publish_order.rs"]
mod publish_order;
#[path = "../../src/queue.rs"]
mod queue;
#[path = "../../src/records.rs"]
mod records;
#[path = "../../src/sleep_flag.rs"]
mod sleep_flag;
#[path = "../../src/version.rs"]
mod version;

pub use combining_lock::{CombiningGuard, CombiningLock};
pub use flow_queues::{FlowPlace, FlowQueues, UNUSED_MS};
pub use lease_order::LeaseOrder;
pub use marked_stack::{Marked, MarkedStack};
pub use orders::OrderFlag;
pub use publish_order::PublishOrder;
pub use queue::Bounded;
pub use records::{RecordReader, RecordWriter, records};
pub use sleep_flag::SleepFlag;
pub use version::Version;

/// Small, since loom tracks each atomic.
pub const FLOW_PLACES: usize = 2;
/// Small, since loom tracks each atomic.
pub const WORKERS_MAX: usize = 2;

mod sync {
    pub(crate) use loom::sync::Arc;
    pub(crate) use loom::sync::atomic::{
        AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };

    pub(crate) struct Cell<T>(loom::cell::UnsafeCell<T>);

    impl<T> std::fmt::Debug for Cell<T> {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Cell")
        }
    }

    impl<T> Cell<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::cell::UnsafeCell::new(value))
        }

        pub(crate) fn with_mut<R>(&self, work: impl FnOnce(*mut T) -> R) -> R {
            self.0.with_mut(work)
        }
    }

    pub(crate) fn places<T>(count: usize) -> Box<[Cell<std::mem::MaybeUninit<T>>]> {
        (0..count).map(|_| Cell::new(std::mem::MaybeUninit::uninit())).collect()
    }

    pub fn full_fence() {
        fence(Ordering::SeqCst);
    }
}
pub use sync::full_fence;

/// Tests interleavings with up to three preemptions, or as many as LOOM_MAX_PREEMPTIONS says. All interleavings take
/// minutes.
pub fn bounded() -> loom::model::Builder {
    let mut model = loom::model::Builder::new();
    model.preemption_bound.get_or_insert(3);
    model
}
