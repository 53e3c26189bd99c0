//! What workers hand to each other without ever waiting: a claim, what is left with it, turns, and waking.
//!
//! **Purpose.** Several workers deliver into one receive ring, and return heads to the worker that completes them.
//! [`CombiningLock`] is a thing that one worker at a time works on, with a queue for what others leave there meanwhile. [`PublishOrder`]
//! keeps the order of work that several of them do side by side. [`Bounded`] is the queue, [`SleepFlag`] tells whether its
//! reader sleeps. [`records()`] makes a ring of records of any length, from one thread to one other, for what a capture sees.
//! [`prefetch()`] asks for what will be looked at next.
//!
//! **Contract.** No operation waits, allocates or makes a system call. What was left is seen by somebody: by the holder of
//! the claim, who looks again after releasing it, or by who left it, who tries the claim again ([`CombiningLock::try_lock_again`]).
//! What is pushed for a sleeper is seen by it before it sleeps, or its pusher is told to wake it.
//!
//! **Not checked.** That a worker finishes a turn that it has taken, and that a claimed desk is released: a worker that is
//! killed in between takes the process along (panics abort).
//!
//! **Threading.** Everything is shared by all workers. Each rendezvous is the one of `lasthop_ring::arm_and_recheck`: store,
//! full fence, load on both sides, so that at least one side sees the other. `crates/exchange/model` has the models by which
//! loom tries every order.
//!
//! ```text
//!   worker A                                   worker B
//!   claim() ── Some ── works ── release()      claim() ── None ── leave(x) ── fence ── claim() ── None: A will look
//!                                  │                                            └── Some: B serves what was left
//!                                  └─ fence ── something left? ── claim again
//! ```

mod combining_lock;
mod prefetch;
mod publish_order;
mod queue;
mod records;
mod sleep_flag;
mod sync;

pub use combining_lock::{CombiningGuard, CombiningLock};
pub use prefetch::prefetch;
pub use publish_order::PublishOrder;
pub use queue::Bounded;
pub use records::{RecordReader, RecordWriter, records};
pub use sleep_flag::SleepFlag;
pub use sync::full_fence;

/// Workers that can take turns: one per core of what a switch is given on a large server.
pub const WORKERS_MAX: usize = 16;
