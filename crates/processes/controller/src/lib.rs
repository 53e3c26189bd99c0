//! The embedded control plane: an Ethernet bridge that lives in flows.
//!
//! **Purpose.** A switch of module flow knows flows and nothing of addresses. [`Controller`] decides for it: it is told of
//! switches and their ports, learns where addresses are, and answers misses with the widest flow that is right for all
//! packets like it, by the rules of the module bridge: VLANs, isolated ports, uplinks, own addresses, static entries,
//! limits of floods.
//!
//! **Contract.** Sans-io: datagrams of the control interface in and out, time as a number (CLOCK_MONOTONIC, which flows' counters
//! use, in ns). The flows do with a packet the same as the bridge, as soon as the switch has taken the requests; a change of
//! ports or addresses reaches all flows that depend on it. Flows carry the controller's mark in their names: those of others
//! are left alone. A controller that begins takes over the flows of the one before it, and learns from them where addresses
//! are. Everything is bounded ([`bounds`]).
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

mod acl;
mod addresses;
pub mod bounds;
mod claims;
mod config;
mod connection;
mod consult;
mod controller;
mod decide;
mod denial_log;
mod flap_damping;
mod flows;
mod frame;
mod gate;
mod groups;
mod guard;
mod link;
mod open_packets;
mod ports;
mod process;
mod ranges;
mod requests;
mod served_switch;
mod stats;
mod switch;

pub use config::{Address, MovedAddress, StaticAddress, SwitchConfig};
pub use controller::Controller;
pub use lasthop_api::controller_orders::LINKS;
pub use process::run;
pub use stats::ControllerStats;
