//! The embedded control plane: an Ethernet bridge made of flows.
//!
//! **Purpose.** A switch of module flow knows flows, but no addresses. [`Controller`] decides for it: it gets the
//! switches and their ports, learns addresses, and answers misses with the widest flow that is right for all its
//! packets, by the rules of the module bridge: VLANs, isolated ports, uplinks, own addresses, static entries, limits of
//! floods.
//!
//! **Contract.** Sans-io: datagrams of the control interface in and out, time as a number (CLOCK_MONOTONIC, which
//! flows' counters use, in ns). The flows treat a packet like the bridge, once the switch has taken the requests; a
//! change of ports or addresses reaches all flows that depend on it. Flows carry the controller's mark in their names;
//! it does not touch others. A new controller takes over the flows of the last one, and learns addresses from them.
//! Everything is bounded ([`bounds`]).
//!
//! **Not checked.** Whether settings of ports are consistent (two ports with one address): the switch refuses those
//! that are not.
//!
//! **Threading.** None.
//!
//! ```text
//!   ports, entries ──> Controller ── Switch: ports, addresses, flows ── decide: packet ──> actions, bits looked at
//!   misses, lists  ──>     │                      └ addresses change: flows that depend on them are revalidated
//!                          └──> links: flows, packets to be sent
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
mod dhcp;
mod flap_damping;
mod flows;
mod frame;
mod gate;
mod groups;
mod guard;
mod leases;
mod link;
mod open_packets;
mod ports;
mod process;
mod ranges;
mod requests;
mod served_switch;
mod slot_lists;
mod stats;
mod switch;

pub use config::{Address, MovedAddress, StaticAddress, SwitchConfig};
pub use controller::Controller;
pub use lasthop_api::controller_orders::LINKS;
pub use process::run;
pub use stats::ControllerStats;
