//! The control interface: the datapath protocol of Open vSwitch over a socket of our own.
//!
//! **Purpose.** A control plane (the embedded controller, or the stock ovs-vswitchd under `ovs-glue`) speaks to the
//! switch in the messages of the kernel's datapath: generic netlink, families `ovs_datapath`, `ovs_vport`, `ovs_flow`,
//! `ovs_packet`, `ovs_meter` and `ovs_ct_limit`. They go over a UNIX SEQPACKET socket, since netlink needs a kernel
//! module. [`message`], [`family`], [`key`] and [`action`] are the codec. [`server`] answers requests from a
//! [`datapath::Datapath`], and [`socket`] gives it clients. [`client`] is the blocking client, [`talk`] a non-blocking
//! one, and [`mod@format`] prints flows as ovs-dpctl does.
//!
//! **Contract.** Bytes from a socket are checked before use. Invalid ones are refused with the kernel's error number.
//! Attributes without a use here are ignored; unknown keys and actions are refused, since OVS probes features that way.
//! Everything is bounded ([`bounds`]). The server reads no requests of a client that does not read its answers. Such a
//! client loses misses, which are counted; the server never waits for it.
//!
//! **Restart.** Datapaths, ports and port ids for misses are kept as [`server::DatapathRecord`]s, from which another
//! process continues. Clients reconnect with their port ids. Flows are installed again.
//!
//! **Not checked.** Whether actions fit their packets: the code that executes them checks that.
//!
//! **Own codec.** The crate `netlink-bindings` 0.3.5, generated from the kernel's specifications, was tried first. It
//! knows neither meters nor limits of connections, treats an MPLS stack as one entry and SET_MASKED as an unmasked key,
//! and searches a key once for each field. It would have replaced only the smaller part of the codec.
//!
//! **Threading.** None: server and sockets belong to one thread, which waits for [`socket::Connections::fd`].
//!
//! ```text
//!   ovs-vswitchd ── LD_PRELOAD ──┐                   requests
//!   lasthop controller ──────────┼── SEQPACKET <──> Connections <──> Server ── codec ──> Datapath: ports, flows, meters
//!   lasthop flow ────────────────┘   answers, notifications, misses     ^
//!                                                                       └── upcall()
//! ```
//!
//! A request as a client sends it, and its header as the server reads it:
//!
//! ```
//! use lasthop_dpif::message::Messages;
//! use lasthop_dpif::talk::DpifRequest;
//!
//! let datagram = DpifRequest::Ports(2).encode(7, 1).expect("a short message");
//! let message = Messages::new(&datagram).next().expect("one message");
//! assert_eq!((message.header.seq, message.header.port_id), (7, 1));
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
mod netfilter;
mod nsh;
pub mod private;
mod refusal;
mod rewrite;
pub mod server;
pub mod socket;
mod sys;
pub mod talk;
mod tunnel;
mod uapi;

/// A connection's tuple.
pub use lasthop_conntrack::CtTuple as ConnectionTuple;
pub use netfilter::{Connection, ConnectionSelector, TimeoutPolicy};
pub use refusal::{Errno, Refusal};
