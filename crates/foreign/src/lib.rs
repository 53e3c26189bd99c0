//! Descriptors that another process sent, which must not make this one wait.
//!
//! close(2) of a descriptor can take as long as its sender likes: a TCP socket lingers over unsent data (SO_LINGER), a file of a
//! FUSE file system waits for its daemon (FLUSH), and a UNIX socket closes whatever descriptors lie unread in it. So a
//! [`ForeignFd`] is closed by a thread that nothing else waits for.
//!
//! ```text
//!   recvmsg ──> ForeignFd ── dropped by any thread ──> queue of its Origin ──> closing threads: one at a time for each origin
//!                                                           │
//!   one connection ── has one Origin ── Arrears of a port ──┴─ held while closing takes long
//! ```

#![forbid(unsafe_code)]

mod arrears;
mod closing;
mod fd;
mod kind;
mod origin;
mod receive;
#[cfg(test)]
mod tests;

pub use arrears::{Arrears, Held};
pub use closing::{THREADS_MAX, start};
pub use fd::ForeignFd;
pub use kind::{is_eventfd, is_memory, is_unix_socket, is_unix_stream, keep_descriptor_names};
pub use origin::{LOOK_PAUSE, LOOKS_MAX, Origin, WAITING_MAX};
pub use receive::{Received, discard, receive, set_limit};
