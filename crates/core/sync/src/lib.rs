//! Lock-free hand-over between workers: a combining lock, its queue, an order of publication, and a sleep
//! flag.
//!
//! **Purpose.** Several workers deliver into one receive ring, and return heads to the worker that completes
//! them.
//! - [`CombiningLock`]: one worker at a time uses the value; the others queue their work for it.
//! - [`PublishOrder`] and [`LeaseOrder`]: keep the order of work that workers do in parallel outside the lock.
//! - [`OrderFlag`]: one order at a time to work at a place.
//! - [`Bounded`]: the queue.
//! - [`SleepFlag`]: tells whether the reader of a queue sleeps.
//! - [`records()`]: a ring of records of any length from one thread to another one, for captures and upcalls.
//! - [`Version`]: words that many workers read and change.
//! - [`FlowQueues`]: the receive queue of each flow of a guest.
//! - [`MarkedStack`]: places that have to be checked again.
//! - [`prefetch()`]: loads a cache line ahead of its use.
//!
//! **Contract.** No operation waits, allocates or makes a system call. Queued work is never stranded: the lock's holder
//! checks for it after unlocking, and the thread that queued it tries the lock again
//! ([`CombiningLock::try_lock_again`]). Either a sleeper sees an entry before it sleeps, or the thread that pushed the
//! entry learns that it has to wake the sleeper.
//!
//! **Not checked.** Workers have to finish the pieces that they begin, and to release locks: a worker that panics in
//! between ends the process (panics abort).
//!
//! **Threading.** All workers share everything. Each rendezvous is that of `lasthop_ring::arm_and_recheck`: store, full
//! fence, load on both sides, so that at least one side sees the other's store. `crates/core/sync/model` has models
//! that loom runs in every order.
//!
//! ```text
//!   worker A                                      worker B
//!   try_lock() ─ Some ─ works ─ release()         try_lock() ─ None ─ enqueue(x) ─ try_lock_again()
//!                                  │                                                  │
//!                                fence                                              fence
//!                                  │                                                  ├─ None: A will look
//!                                  └─ queue not empty? ─ try_lock() again             └─ Some: B serves the queue
//! ```
//!
//! # Examples
//!
//! ```
//! use lasthop_sync::CombiningLock;
//!
//! let lock = CombiningLock::new(0, 4);
//! let guard = lock.try_lock().unwrap();
//! // Another worker does not wait: it queues its work and continues.
//! assert!(lock.try_lock().is_none());
//! lock.enqueue(3).unwrap();
//! assert!(lock.try_lock_again().is_none());
//! // The holder learns at the end that there is work, and serves it.
//! assert!(guard.release());
//! let mut guard = lock.try_lock().unwrap();
//! while let Some(work) = guard.dequeue() {
//!     *guard += work;
//! }
//! assert_eq!(*guard, 3);
//! ```

mod combining_lock;
mod flow_queues;
mod lease_order;
mod marked_stack;
mod orders;
mod publish_order;
mod queue;
mod records;
mod sleep_flag;
mod sync;
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
pub use sync::full_fence;
pub use version::Version;

/// Places for flows of a guest with several queue pairs. Flows of one place do not move at the same time; they keep their queues.
pub const FLOW_PLACES: usize = 1024;

/// Workers that can share a lock: sets of workers are the bits of one word, and a server has few cores more to give.
pub const WORKERS_MAX: usize = 64;

/// Prefetches the cache lines in which `item` begins, without waiting for them.
#[inline(always)]
pub fn prefetch<T>(item: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch has no architectural effect and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(item).cast::<i8>()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = item;
}
