//! Facilities for every process of the switch.
//!
//! **Purpose.** The event loop ([`poller`]), the channel between supervisor and inner processes ([`ipc`]), the sandbox
//! that an inner process enters before it serves a guest ([`sandbox`]), the log, signals, clocks, the service manager
//! and `/proc`. The crate does not know ports, switches or packets.
//!
//! **Contract.** A failure is a [`fault::Fault`]: one sentence for the user, with the number that the API gives it.
//! Only [`poller::Poller::wait`] blocks. Bytes from another process are bounded before they are parsed.
//!
//! **Not checked.** The meaning of messages: [`ipc::Channel`] carries any type with serde support.
//!
//! **Threading.** Each value belongs to one thread. The log may be used by all threads.
//!
//! ```text
//!   supervisor, dataplane, driver, controller, command line
//!        │ events       │ frames + descriptors      │ before any guest      │ lines
//!      poller          ipc                        sandbox              log, notify
//! ```
#![deny(unsafe_code)] // files called sys.rs alone may have some

pub mod clock;
pub mod descriptors;
pub mod fault;
pub mod hangs;
pub mod harmless;
pub mod ipc;
pub mod logging;
pub mod notify;
pub mod poller;
pub mod procfs;
pub mod sandbox;
pub mod signals;
mod sys;
pub mod thread_sample;
