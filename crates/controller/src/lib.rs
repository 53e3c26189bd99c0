//! The embedded control plane: an Ethernet bridge that lives in flows.
//!
//! **Purpose.** A switch of module flow knows flows and nothing of addresses. [`Controller`] is who decides: it is told of
//! switches and their ports, learns where addresses are, and answers packets of no flow with the widest flow that is right
//! for all like it, by the rules of the module bridge: VLANs, isolated ports, uplinks, own addresses, entries of the user's,
//! limits of floods.
//!
//! **Contract.** Sans-io: datagrams of the control interface in and out, time as a number (CLOCK_MONOTONIC, which flows' counters
//! use, in ns). What the flows do with a packet is what the bridge would do with it, as soon as the switch has taken what was
//! asked for; a change of ports or addresses reaches all flows that depend on it. Flows carry the controller's mark in
//! their names: those of others are left alone, and a controller that begins takes over what one before it installed, and learns from
//! it where addresses are. Everything is bounded ([`bounds`]).
//!
//! **Not checked.** Whether settings of ports make sense together (two ports with one address): the switch refuses those.
//!
//! **Threading.** None.
//!
//! ```text
//!   ports, entries ──> Controller ── Switch: ports, addresses, flows ── decide: packet ──> actions, bits looked at
//!   misses, lists  ──>     │                      └ addresses change: flows about them are looked at again
//!                          └──> links: flows, packets to be sent on
//! ```
#![forbid(unsafe_code)]

mod addresses;
pub mod bounds;
mod config;
mod controller;
mod decide;
mod errand;
mod flows;
mod frame;
mod link;
mod look;
mod ports;
mod restless;
mod served;
mod stats;
mod switch;

pub use config::{Address, Moved, StaticEntry, SwitchConfig};
pub use controller::{Controller, LINKS};
pub use stats::Stats;
