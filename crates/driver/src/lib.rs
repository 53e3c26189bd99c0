//! The driver: network devices as ports of the switch, in a process of their own.
//!
//! **Purpose.** To the switch the driver is a guest: a vNIC over vhost-user, with memory of its own. To the machine it is the
//! one who reads and writes devices. Two halves: [`open`] runs in the process that has the privileges and makes descriptors
//! with everything set on them; the rest runs in the driver process, which gets descriptors and opens nothing.
//!
//! ```text
//!   supervisor                       driver process
//!   open::packet, open::tap ──fds──> Driver::attach(port, facts, device fds, connection to the switch)
//!                                      Driver::replace_device   a device that came back
//!                                      Driver::replace_switch   a connection to a switch that came back
//!                                      Driver::detach, Driver::stats
//!   <────────── events ───────────── Driver::events: DeviceGone, SwitchGone, ... (a descriptor to wait for)
//! ```
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

pub use counters::{Counters, DropReason, Flow};
pub use driver::{Driver, DriverSettings, DriverStats, PortId, PortStats, ThreadStats};
pub use error::DriverError;
pub use event::DriverEvent;
pub use facts::{Backend, DeviceFacts, OpenedDevice};
pub use queue::{Needs, Next, Queue, QueueError, Visit};
