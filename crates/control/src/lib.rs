//! The control interface: the datapath protocol of Open vSwitch over a socket of our own.
//!
//! **Purpose.** Whoever decides about flows (the embedded controller, or the stock ovs-vswitchd under `ovs-glue`) says so
//! in the messages that the kernel's datapath takes: generic netlink, families `ovs_datapath`, `ovs_vport`, `ovs_flow`,
//! `ovs_packet`, `ovs_meter` and `ovs_ct_limit`. They go over a UNIX SEQPACKET socket, since netlink needs a kernel module.
//! [`message`], [`family`], [`key`] and [`action`] are the codec; [`server`] answers requests by what a [`datapath::Datapath`] has, and
//! [`socket`] gives it clients; [`client`] is the other side, [`talk`] the same for who cannot wait, and [`mod@format`] prints flows as ovs-dpctl does.
//!
//! **Contract.** Bytes from a socket are checked before they mean anything; what makes no sense is refused with the number
//! that the kernel would refuse it with. Attributes of a message that have no meaning here are passed over, unknown keys and
//! actions are refused: OVS finds out so what it may use. Everything is bounded ([`bounds`]): a client that does not read is not
//! read from either, and loses misses, which are counted; nobody waits for it.
//!
//! **Restart.** Datapaths, ports and where misses go are [`server::DatapathRecord`]s, from which another process goes on; clients come
//! back with their port ids. Flows are asked for again.
//!
//! **Not checked.** Whether actions fit the packets that they are for: who carries them out has to look anyway.
//!
//! **Own codec.** The crate `netlink-bindings` 0.3.5, made from the kernel's specifications, was looked at first. It knows neither
//! meters nor limits of connections, takes an MPLS stack for one entry and SET_MASKED for an unmasked key, and searches a
//! key once for each field. What it would have spared is the small part.
//!
//! **Threading.** None: server and sockets belong to one thread, which waits for [`socket::Connections::fd`].
//!
//! ```text
//!   ovs-vswitchd ── LD_PRELOAD ──┐                   requests
//!   lasthop controller ──────────┼── SEQPACKET <──> Connections <──> Server ── codec ──> Datapath: ports, flows, meters
//!   lasthop flow ────────────────┘   answers, notifications, misses     ^
//!                                                                       └── upcall()
//! ```
#![deny(unsafe_code)]

pub mod action;
pub mod attr;
pub mod bounds;
pub mod client;
mod conntrack;
pub mod datapath;
pub mod family;
pub mod format;
pub mod key;
pub mod memory;
pub mod message;
mod nsh;
pub mod private;
mod refusal;
mod rewrite;
pub mod server;
pub mod shortage;
pub mod socket;
mod sys;
pub mod talk;
mod tunnel;
mod uapi;

pub use refusal::{Errno, Refusal};
