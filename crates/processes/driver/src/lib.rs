//! The driver: network devices and tunnels as ports of the switch, in a process of their own.
//!
//! **Purpose.** For the switch the driver is a guest: a vNIC over vhost-user, with memory of its own. On its other side
//! it reads and writes devices. `lasthop-netdev` opens them in the privileged process and configures their descriptors.
//! [`Driver`] runs in the driver process, which gets descriptors and opens nothing.
//!
//! ```text
//!   supervisor                          driver process
//!   netdev: packet, tap, Uplink ──────> Driver::attach(port, facts, descriptors, connection to the switch)
//!                           DeviceGone
//!   open again <────────────────────────  events_fd, next_event
//!              ───────────────────────> Driver::replace_device
//!                           SwitchGone
//!   connect again <─────────────────────
//!                 ────────────────────> Driver::replace_switch
//!
//!   a lane:   device's queue <── Queue (a back end) ──> VnicPair <── rings in shared memory ──> switch
//! ```
//!
//! **Contract.** Frames of one queue keep their order, each way. The vNIC's features say which offloads a
//! device leaves undone; offloads of the device are not repeated by the switch. Every frame taken from either
//! side is counted at its end ([`DriverCounters::is_conserved`]). When a device or a switch goes, nothing else
//! fails: an event reports it, and the port waits for a replacement. Nothing is allocated for a frame; bounds
//! are in `bounds.rs`. An idle driver makes no system call. The system calls of a driver that serves packet
//! sockets, UDP and raw sockets and taps: `recvmmsg`, `sendmmsg`, `read`, `writev`, `write` (eventfds), `epoll_pwait`,
//! `epoll_ctl`, `sched_yield`, `getsockname` and `getsockopt` (a socket that says that its link is down, or
//! whose ring is empty; statistics), `clock_gettime`, `gettid`; on the control side those of a vhost-user front end: `sendmsg`,
//! `recvmsg`, `memfd_create`, `ftruncate`, `mmap`, `munmap`, `eventfd2`, `fcntl`, `fstat`, `fstatfs`,
//! `close`, `futex`.
//!
//! **Not checked.** Frames are not parsed, except for the virtio-net header of a frame whose tag is restored, TCP out of tunnels
//! that may be joined, frames that are cut or summed for a tunnel, and packets too long for it: the switch checks frames from here like those of any guest. The switch has the vNIC's memory mapped. It may change
//! frames while the kernel reads them, which gains it nothing: it can send any frame anyway.
//!
//! **Threading.** One I/O thread serves a lane, and shares nothing with others. One thread uses [`Driver`]; its
//! requests to an I/O thread are tasks between two visits. Calls that need the switch wait for its answers.

#![deny(unsafe_code)] // sys.rs alone may have some

mod aux;
mod bounds;
mod driver;
mod error;
mod event;
mod inbound;
mod io;
mod lane;
mod outbound;
mod packet;
mod process;
mod queue;
mod stats;
mod sys;
mod tap;
#[cfg(test)]
mod tests;
mod udp;
mod watch;
mod xdp;

pub use driver::Driver;
pub use error::DriverError;
pub use event::DriverEvent;
pub use process::run;
pub use queue::{Needs, Next, Queue, QueueError, Visit};
pub use stats::{DevicePortId, DevicePortStats, DriverSettings, DriverStats, ThreadStats};
pub use xdp::XdpQueue;
