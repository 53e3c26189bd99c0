//! The library that lets the stock ovs-vswitchd, ovs-dpctl and ovs-appctl have the switch as their datapath.
//!
//! **Purpose.** Loaded in front of libc (LD_PRELOAD), it gives a program that asks for a generic-netlink or netfilter-netlink
//! socket a connection to the switch's control socket instead, and makes the connection behave like netlink. All other
//! sockets, and all other programs, are left alone.
//!
//! **Contract.** The kernel would have answered before `sendmsg` returns, so an empty socket means that no answer comes. The
//! library keeps to that: the switch sends END behind its last answer to a datagram, and while ENDs are missing a read waits,
//! even with MSG_DONTWAIT; after [`WAIT`] it fails with ETIMEDOUT. If the switch process goes away, the library waits up to
//! [`WAIT`] for the next one and connects again, with the same port id and groups, under the same descriptor. Requests under way
//! then fail with ENOBUFS, netlink's own error for lost messages, upon which OVS asks again. The next switch process tells members
//! of the ports' group the changes of ports meanwhile. An answer about a port that contradicts the kernel is
//! asked for again (`moved`). The environment names the control socket, `LASTHOP_DATAPATH`; else it
//! is [`PATH`].
//!
//! **Not checked.** That the program uses one socket from one thread at a time, which OVS does.
//!
//! **Threading.** Sockets are in a table behind a lock, which is held while a descriptor is looked up, never while something is
//! waited for.
//!
//! ```text
//!   ovs-vswitchd ── socket(AF_NETLINK, GENERIC) ──> table[fd] = SwitchSocket { missing ENDs, groups, port id }
//!        │ sendmsg ───── request datagram ────────────────────────────> switch      missing += 1
//!        │ recvmsg <──── answer, answer, [ END: missing -= 1 ] ────────┘            0: EAGAIN
//!        │
//!        └─ socket(AF_NETLINK, ROUTE) ──> the kernel, but for requests about tunnel devices: see `probe`
//! ```
#![deny(unsafe_code)]

mod connect;
mod descriptor;
mod moved;
mod probe;
mod switch_socket;
mod sys;
mod table;

use std::time::Duration;

/// Where the control socket is unless the environment says otherwise.
pub const PATH: &str = "/run/lasthop/datapath.sock";
/// How long a switch process that is not there is waited for. A restart takes a tenth of it.
pub const WAIT: Duration = Duration::from_secs(10);
