//! Descriptors from other processes, which must not block this one.
//!
//! The sender of a descriptor can make its close(2) take any time: a TCP socket lingers over unsent data (SO_LINGER), a
//! file of a FUSE file system waits for its daemon (FLUSH), and a UNIX socket closes all unread descriptors in it. So a
//! [`ForeignFd`] is closed by a thread that nothing else waits for. A send that fails for lack of memory is retried
//! after a pause ([`Shortage`]).
//!
//! ```text
//!   recvmsg ──> ForeignFd ── dropped by any thread ──> queue of its Origin ──> closing threads: one at a time for each origin
//!                                                           │
//!   one connection ── has one Origin ── PendingCloses of a port ──┴─ held while closing takes long
//! ```

#![forbid(unsafe_code)]

mod closing;
mod costs;
mod fd;
mod kind;
mod origin;
mod pending_closes;
mod receive;
mod shortage;
#[cfg(test)]
mod tests;

pub use closing::{THREADS_MAX, start};
pub use fd::ForeignFd;
pub use kind::{is_eventfd, is_memory, is_unix_socket, is_unix_stream, keep_descriptor_names};
pub use origin::{LOOK_PAUSE, LOOKS_MAX, Origin, WAITING_MAX};
pub use pending_closes::{HoldReason, PendingCloses};
pub use receive::{Received, discard, receive, set_limit};
pub use shortage::Shortage;
