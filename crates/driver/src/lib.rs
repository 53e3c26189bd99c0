//! The driver: network devices as ports of the switch, in a process of their own.
//!
//! **Purpose.** To the switch the driver is a guest: a vNIC over vhost-user, with memory of its own. To the machine it is the
//! one who reads and writes devices. Two halves: [`open`] runs in the process that has the privileges and makes descriptors
//! with everything set on them; the rest ([`Driver`]) runs in the driver process, which gets descriptors and opens nothing.
//!
//! ```text
//!   supervisor                          driver process
//!   open::packet, open::tap ──────────> Driver::attach(port, facts, descriptors, connection to the switch)
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
//! **Contract.** Frames of one queue keep their order, each way. What a device leaves undone is what the vNIC's features say,
//! and what the device does is not done by the switch. Every frame taken from either side is counted where it went
//! ([`Counters::is_conserved`]). A device or a switch that goes takes nothing else along: an event tells, and the port waits for
//! the other one to be replaced. Nothing is allocated for a frame; bounds stand in `bounds.rs`. An idle driver makes no system
//! call. The system calls of a driver that serves packet sockets and taps:
//! `recvmmsg`, `sendmmsg`, `read`, `writev`, `write` (eventfds), `epoll_pwait`, `epoll_ctl`, `sched_yield`, `getsockname` and `getsockopt`
//! (a socket that says that its link is down; statistics), `clock_gettime`, `gettid`; on the control side those of a vhost-user front
//! end: `sendmsg`, `recvmsg`, `memfd_create`, `ftruncate`, `mmap`, `munmap`, `eventfd2`, `fcntl`, `fstat`, `fstatfs`, `close`, `futex`.
//!
//! **Not checked.** Frames are not looked at, except for the virtio-net header of one whose tag is put back: the switch
//! checks what it gets from here as it does with any guest. That the switch, which has the vNIC's memory mapped, leaves
//! frames alone while the kernel reads them: it can send what it likes anyway.
//!
//! **Threading.** A lane is served by one I/O thread and shares nothing with others. [`Driver`] is for one thread; what it
//! asks of an I/O thread is an errand between two visits. Calls that talk to the switch wait for its answers.

#![deny(unsafe_code)] // sys.rs alone may have some

mod aux;
mod backend;
mod bounds;
mod counters;
mod driver;
mod error;
mod event;
mod facts;
mod inbound;
mod io;
mod lane;
pub mod open;
mod outbound;
mod packet;
mod queue;
mod sys;
mod tap;
#[cfg(test)]
mod tests;
mod watch;
mod xdp;

pub use counters::{Counters, DropReason, Flow};
pub use driver::{Driver, DriverSettings, DriverStats, PortId, PortStats, ThreadStats};
pub use error::DriverError;
pub use event::DriverEvent;
pub use facts::{Backend, DeviceFacts, OpenedDevice, XdpFacts};
pub use queue::{Needs, Next, Queue, QueueError, Visit};
pub use xdp::XdpQueue;
