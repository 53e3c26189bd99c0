//! The library that lets the stock ovs-vswitchd, ovs-dpctl and ovs-appctl use the switch as their datapath.
//!
//! **Purpose.** It is preloaded in front of libc (LD_PRELOAD). When a program asks for a generic-netlink or
//! netfilter-netlink socket, it gives the program a connection to the switch's control socket instead, and makes the
//! connection behave like netlink. It does not change other sockets, or other programs.
//!
//! **Contract.** The kernel answers before `sendmsg` returns, so an empty socket means that no answer comes. The
//! library preserves that: the switch sends END after its last answer to a datagram, and while ENDs are missing a read
//! waits, even with MSG_DONTWAIT; after [`WAIT`] it fails with ETIMEDOUT. Threads that answer upcalls do not wait, but all other
//! requests wait for theirs (`ahead`). If the switch process ends, the library waits up to [`WAIT`] for the next one and reconnects,
//! with the same port id, groups and descriptor. A pending dump is requested again (`dump`). Other pending requests fail with ENOBUFS,
//! netlink's error for lost messages, after which OVS asks again. The next switch process sends
//! members of the ports' group the changes of ports meanwhile. An answer about a port that contradicts the kernel is
//! requested again (`moved`). The variable `LASTHOP_DATAPATH` names the control socket; the default is [`PATH`].
//!
//! **Not checked.** That the program uses one socket from one thread at a time, which OVS does.
//!
//! **Threading.** Sockets are in a table behind a lock, which is held while a descriptor is looked up, but never while
//! waiting.
//!
//! ```text
//!   ovs-vswitchd ── socket(AF_NETLINK, GENERIC) ──> table[fd] = SwitchSocket { missing ENDs, groups, port id }
//!        │ sendmsg ───── request datagram ────────────────────────────> switch      missing += 1
//!        │ recvmsg <──── answer, answer, [ END: missing -= 1 ] ────────┘            0: EAGAIN
//!        │
//!        └─ socket(AF_NETLINK, ROUTE) ──> the kernel, but for requests about tunnel devices: see `probe`
//! ```
#![deny(unsafe_code)]

mod ahead;
mod connect;
mod descriptor;
mod dump;
mod moved;
mod probe;
mod switch_socket;
mod sys;
mod table;

use std::time::Duration;

/// The default path of the control socket.
pub const PATH: &str = "/run/lasthop/datapath.sock";
/// How long to wait for a switch process. A restart takes a tenth of it.
pub const WAIT: Duration = Duration::from_secs(10);
