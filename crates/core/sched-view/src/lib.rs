//! The view: the owner of each CPU, and for each tracked thread whether it runs, waits or sleeps.
//!
//! **Purpose.** Polling, yielding and signalling need to know whether a guest runs. The kernel knows it. Four BPF
//! programs record it at each context switch, wake-up and migration:
//!
//! ```text
//!   kernel      sched_switch  sched_wakeup  sched_wakeup_new  sched_migrate_task
//!                    └──────────────┴──────┬───────┴──────────────────┘
//!                  lookup: tid -> slot     │ one word each
//!                         ^                v
//!   supervisor    ViewWriter        ┌──────────────┐  descriptor   ┌──────────┐
//!                 track, forget     │ view (frozen)│ ────────────> │ ViewReader│  switch process
//!                                   └──────────────┘   read-only   └──────────┘
//! ```
//!
//! **Contract.** The view is a hint. It may be late, and its counts may be wrong for a while; it never blocks, and
//! reading it costs a load. Only the programs can write it, so a compromised process cannot. Each entry is one word
//! that is read atomically, so there are no torn reads on any machine ([`layout`]).
//!
//! **Not checked.** The caller names the process of a guest's front end. [`guest_threads`] finds the guest's threads in
//! it, and [`KvmThreads`] those without telling names.
//!
//! **Threading.** Readers may be shared between threads. A writer belongs to one.
//!
//! # Examples
//!
//! ```no_run
//! use lasthop_sched_view::guest_threads::{ProcessSnapshot, ThreadChoice};
//! use lasthop_sched_view::{KvmThreads, ViewWriter};
//!
//! // As root: tracks the threads of a VMM, and reads what one of them does.
//! let mut view = ViewWriter::open()?;
//! view.attach()?;
//! let process = ProcessSnapshot::read(4711)?;
//! let guest = KvmThreads::default().guest_threads(4711, &process, &ThreadChoice::Auto)?;
//! for thread in guest.threads {
//!     let tracked = view.track(thread)?;
//!     println!("{}: {:?}", tracked.thread.tid, view.reader().thread(tracked.slot, 0));
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod front_end;
pub mod guest_threads;
mod host;
mod kvm_threads;
pub mod layout;
mod offsets;
mod programs;
mod reader;
mod thread;
mod topology;
mod writer;

pub use front_end::FrontEndProcess;
pub use host::halt_polls;
pub use host::has_rights;
pub use kvm_threads::KvmThreads;
pub use lasthop_bpf::EventQueue;
pub use offsets::OffsetError;
pub use reader::ViewReader;
pub use reader::WakeUps;
pub use thread::{ThreadError, ThreadId};
pub use topology::cpu_places;
pub use writer::{TrackError, TrackedThread, ViewOpenError, ViewWriter};
