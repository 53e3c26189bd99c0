//! The flow table: what the control plane installed, looked up and done for each packet.
//!
//! **Purpose.** [`FlowTable`] holds flows: what they match, and what is done with packets that do. [`FlowModule`] is the
//! module that looks packets up there and turns the actions of their flows into verdicts. Packets of no flow go to the
//! control plane (Hyper-Switch, 3.1: packet headers, flow table, control interface).
//!
//! **Contract.** As of `lasthop-verdict`. What a packet costs is bounded (`bounds`), and for a packet whose like came before
//! it depends neither on the number of flows nor on that of masks: a first-level cache of each worker knows it. Installing,
//! replacing, dumping and removing flows costs workers nothing but the look at their caches that a removal asks for.
//! Flows have no priorities: if several match a packet, one of them does. They speak of ports by the numbers that the control
//! plane gave them; what comes from a port without a number, or matches no flow while nobody is to be asked, is for the
//! module behind this one, if there is one.
//!
//! **Not checked.** Whether a match makes sense for packets (`lasthop_flow::Match::check` does), whether ports exist (the
//! fabric does).
//!
//! **Threading.** Workers call [`lasthop_verdict::Module::decide`], each with its own number, and never wait: what they share is
//! atomic words, whose memory is used again when all visits that might look at it are over. Everything else takes the
//! writer's lock, which no worker ever does.
//!
//! ```text
//!   header image ─> cache_key ─ this worker's caches ─ hit ──────────────────────────────┬─> statistics ─> actions ─> verdicts
//!                     └─ none: key ─> masks, by use ─> buckets ─> flow ─ cache it ────┘      │            │
//!                                                        └─ none: upcall                     │            └─ recirculate ─> key
//!   FlowTable: install, replace, dump, remove ── one writer ── words that workers load     └─ this worker's entry of the flow
//! ```
#![forbid(unsafe_code)]

mod action_packet;
mod arena;
mod batch_lookup;
pub mod bounds;
mod buckets;
mod cache;
mod cache_key;
mod chunks;
mod compact;
mod decide;
mod describe;
mod error;
mod execute;
mod executions;
mod flow_memory;
mod grace;
mod hash;
mod lane;
mod meter;
mod module;
mod numbers;
mod pending;
mod pending_filter;
mod program;
mod rewrite;
mod shared;
mod slot;
mod stats;
mod table;
mod tally;

pub use describe::describe;
pub use error::{InstallError, Refused};
pub use executions::{EXECUTED, Execution, Executions};
pub use flow_memory::Installed;
pub use meter::{MeterRate, MeterStats};
pub use module::{FlowModule, LookUps};
pub use table::{Dumped, Flow, FlowName, FlowTable, Removed};

#[cfg(test)]
mod tests;
