//! The inner processes as children of the supervisor: started, watched, restarted, reaped.
//!
//! **Purpose.** A [`RestartingChild`] starts a process with a channel as its standard input, and restarts it when it
//! has ended. The [`Reaper`] watches every child by its pidfd and relays its standard error to the log. [`Liveness`]
//! decides when to ask a process for a sign of life, and when it has not answered for too long.
//!
//! **Contract.** Nothing blocks on a child except [`Reaper::await_all`] before the end and [`await_end`] before a
//! start. A killed child that cannot end counts as dead once none of its threads runs. A dropped child is killed and
//! reaped.
//!
//! **Not checked.** The meaning of messages: the channel carries any type with serde support. The program that is
//! started.
//!
//! **Threading.** One thread owns all values. A second one, with a table of descriptors of its own, starts processes.
//!
//! ```text
//!   RestartingChild ── job ──> spawner (thread) ── fork, exec ──> process
//!        │ channel: frames + descriptors  <───────────────────────  │ │
//!   Reaper  <── pidfd: it has ended ──────────────────────────────  ┘ │
//!   LogRelay <── pipe: lines of standard error ───────────────────────┘
//! ```
#![deny(unsafe_code)] // files called sys.rs alone may have some

mod child;
mod liveness;
mod log_relay;
mod program;
mod reaper;
mod slice_boost;
mod spawner;
mod sys;

pub use child::{ChildRole, RestartingChild, RunningChild};
pub use liveness::{Liveness, LivenessStep};
pub use program::{ChildProgram, own_path};
pub use reaper::{Reaper, await_end, is_process};
pub use slice_boost::SliceBoost;
