//! The library that lets the stock ovs-vswitchd, ovs-dpctl and ovs-appctl have the switch as their datapath.
//!
//! **Purpose.** Loaded in front of libc (LD_PRELOAD), it gives a program that asks for a generic-netlink or netfilter-netlink
//! socket a connection to the switch's control socket instead, and makes the connection behave like netlink. All other
//! sockets, and all other programs, get what they ask for.
//!
//! **Contract.** Where the kernel would have answered before `sendmsg` returns, the answer is waited for, so that "nothing
//! there" means that nothing comes: the switch says END behind its last answer to a datagram, and while ENDs are
//! missing a read waits, whatever its flags say; after [`WAIT`] it is ETIMEDOUT. A switch process that goes away is waited for, [`WAIT`] long; the
//! connection is made anew with the same port id and groups, under the same descriptor. What was under way is then told
//! as ENOBUFS, netlink's own word for lost messages, upon which OVS asks again. Members of the ports' group are told by the next switch process
//! what became of ports meanwhile. The control socket is named by the environment,
//! `LASTHOP_DATAPATH`, or is [`PATH`].
//!
//! **Not checked.** That the program uses one socket from one thread at a time, which OVS does.
//!
//! **Threading.** Sockets are in a table behind a lock, which is held while a descriptor is looked up, never while something is
//! waited for.
//!
//! ```text
//!   ovs-vswitchd ── socket(AF_NETLINK, GENERIC) ──> table[fd] = Diverted { missing ENDs, groups, port id }
//!        │ sendmsg ───── request datagram ────────────────────────────> switch      missing += 1
//!        │ recvmsg <──── answer, answer, [ END: missing -= 1 ] ────────┘            0: EAGAIN
//!        │
//!        └─ socket(AF_NETLINK, ROUTE) ──> the kernel, but for requests about tunnel devices: see `probe`
//! ```
#![deny(unsafe_code)]

mod dial;
mod diverted;
mod probe;
mod sys;
mod table;

use std::time::Duration;

/// Where the control socket is unless the environment says otherwise.
pub const PATH: &str = "/run/lasthop/datapath.sock";
/// How long a switch process that is not there is waited for. A restart takes a tenth of it.
pub const WAIT: Duration = Duration::from_secs(10);
