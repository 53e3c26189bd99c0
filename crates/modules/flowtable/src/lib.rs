//! The flow table: flows that the control plane installed are looked up and executed for each packet.
//!
//! **Purpose.** [`FlowTable`] holds flows: matches and actions. [`FlowModule`] is the module that looks
//! packets up there and turns the actions of their flows into verdicts. A miss is an upcall to the control
//! plane (Hyper-Switch, 3.1: packet headers, flow table, control interface).
//!
//! **Contract.** That of `lasthop-module-api`. The cost of a packet is bounded (`bounds`). A packet like an earlier one
//! hits its worker's cache, so its cost depends neither on the number of flows nor on that of masks. Installing,
//! replacing, dumping and removing flows costs workers nothing, except that a removal makes them revalidate their
//! caches. Flows have no priorities: if several match a packet, one of them is used. Flows name ports by the control
//! plane's numbers. Packets from a port without a number, and misses without a control plane, go to the fallback bridge,
//! if there is one.
//!
//! **Not checked.** `lasthop_flow::Match::check` checks whether a match can match any packet; the fabric checks whether
//! ports exist.
//!
//! **Threading.** Workers call [`lasthop_module_api::Module::decide`], each with its own number, and never wait.
//! They share atomic words; memory is reused after all visits that might read it are over. All other calls
//! take the writer's lock, which workers never take.
//!
//! ```text
//!   header image ─> cache_key ─ this worker's caches ─ hit ──────────────────────────────┬─> statistics ─> actions ─> verdicts
//!                     └─ none: key ─> masks, by use ─> buckets ─> flow ─ cache it ────┘      │            │
//!                                                        └─ none: upcall                     │            └─ recirculate ─> key
//!   FlowTable: install, replace, dump, remove ── one writer ── words that workers load     └─ this worker's entry of the flow
//! ```
//!
//! A flow for all IPv4 packets, installed and found by its match:
//!
//! ```
//! use lasthop_flow::{Action, Ethernet, FlowKey, Match};
//! use lasthop_flowtable::{FlowModule, FlowSelector, FlowSpec};
//!
//! let module = FlowModule::for_workers(1);
//! let key = FlowKey { ethernet: Some(Ethernet::default()), ether_type: Some(0x0800), ..FlowKey::default() };
//! let mask = FlowKey { ether_type: Some(0xffff), ..FlowKey::default() };
//! let matching = Match { key: key.clone(), mask: Some(mask) };
//! let flow = FlowSpec { ufid: None, matching, actions: vec![Action::Output(2)], is_probe: false };
//! module.table().install(flow).expect("room for a flow");
//! let (installed, stats) = module.table().get(FlowSelector::Key(&key)).expect("the flow");
//! assert_eq!((&installed.actions, stats.packets), (&vec![Action::Output(2)], 0));
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
mod course;
mod ct_words;
mod decide;
mod describe;
mod dry_event;
mod dry_run;
mod error;
mod execute;
mod execution;
mod executions;
mod executor;
mod flow_memory;
mod grace;
mod hash;
mod layer3;
mod meter;
mod module;
mod numbers;
mod pending;
mod pending_filter;
mod program;
mod rewrite;
mod second_pass;
mod send_run;
mod shared;
mod slot;
mod stats;
mod table;
mod tracked_batch;
mod tracked_run;
mod tracking;
mod worker_state;

pub use compact::tracked;
pub use describe::describe;
pub use dry_event::{DryEvent, DryOutput, DryPass, DryTracked};
pub use dry_run::{DryRun, DryStory, EVENTS_MAX};
pub use error::{InstallError, UnsupportedFlow};
pub use execution::{EXECUTED, Execution, suspended_zone};
pub use executions::Executions;
pub use flow_memory::{FlowSpec, Installed};
pub use meter::{MeterCounters, MeterRate};
pub use module::{FlowModule, LookUps};
pub use table::{Dumped, FlowSelector, FlowTable, Removed};

#[cfg(test)]
mod tests;
