//! The control interface: the datapath protocol of Open vSwitch over a socket of our own.
//!
//! **Purpose.** Whoever decides about flows (the embedded controller, or the stock ovs-vswitchd under `ovs-glue`) says so
//! in the messages that the kernel's datapath takes: generic netlink, families `ovs_datapath`, `ovs_vport`, `ovs_flow`,
//! `ovs_packet`, `ovs_meter` and `ovs_ct_limit`. They go over a UNIX SEQPACKET socket, since netlink needs a kernel module.
//! [`message`] and [`family`] are the codec.
//!
//! **Contract.** Bytes from a socket are checked before they mean anything; what makes no sense is refused with the number
//! that the kernel would refuse it with. Attributes of a message that have no meaning here are passed over, unknown keys and
//! actions are refused: OVS finds out so what it may use. Everything is bounded ([`bounds`]).
//!
//! **Not checked.** Whether actions fit the packets that they are for: who carries them out has to look anyway.
//!
//! **Own codec.** The crate `netlink-bindings`, made from the kernel's specifications, was looked at first. It has neither meters
//! nor limits of connections; it writes requests and reads answers, while a datapath does the opposite; and it follows
//! the kernel in what is optional, so that a key would be searched once for each field.
//!
//! **Threading.** None: values, and functions of them.
//!
//! ```text
//!   ovs-vswitchd ── LD_PRELOAD ──┐
//!   lasthop controller ──────────┼── SEQPACKET ──> datagram ──> Message ──> FlowMessage ...
//!   lasthop flow ────────────────┘                                         { FlowKey, mask, [Action] }
//! ```
#![forbid(unsafe_code)]

pub mod action;
pub mod attr;
pub mod bounds;
mod conntrack;
pub mod family;
pub mod key;
pub mod message;
mod nsh;
mod refusal;
mod rewrite;
mod tunnel;
mod uapi;

pub use refusal::{Errno, Refusal};
