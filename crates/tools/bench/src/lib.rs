//! The library of `lasthop-bench`: it measures traffic between guests through any vhost-user back end. Guests are bare
//! virtio rings of its own, or DPDK's testpmd.
//!
//! **Purpose.** Reliable figures of speed: several back ends get the same work in the same run, in turns, and every
//! figure comes with its known disturbances.
//!
//! **Contract.** A [`Sample`] is one measurement of one [`Workload`] on one back end; it carries the distance of the
//! two cores as probed before and after it, and only samples of one [`Placement`] are compared. A run leaves no process
//! behind.
//!
//! **Not checked.** Whether the machine does other work: spreads and the probed distances show it.
//!
//! **Threading.** One thread has the turns and drives the bench's own guests, pinned to a core of [`Cores`]. Back ends within this process have
//! a thread pinned to another one.
//!
//! ```text
//!   BenchPlan ──> run: each round ── each back end in turns ──> guests ── ring ──> back end ── ring ──> guests
//!                                                                └──> Sample ──> report: text, JSON, markdown, SVG
//! ```
#![forbid(unsafe_code)]

mod backend;
mod cores;
mod error;
mod guests;
mod machine;
mod process;
pub mod report;
mod resident;
mod run;
mod sample;
mod stock;
mod suite;
mod work;
mod workload;

pub use backend::{BackendSpec, SocketRole};
pub use cores::Cores;
pub use error::BenchError;
pub use machine::machine;
pub use run::{BenchPlan, Failure, Outcome, Progress, run};
pub use sample::{MemoryUse, Placement, RoundTrip, Sample};
pub use stock::DriverChoice;
pub use suite::Suite;
pub use workload::{GRAMMAR, Metric, StockTraffic, TrafficKind, Workload};
