//! Descriptors from other processes, which must not block this one.
//!
//! **Purpose.** The sender of a descriptor can make its close(2) take any time: a TCP socket lingers over unsent data
//! (SO_LINGER), a file of a FUSE file system waits for its daemon (FLUSH), and a UNIX socket closes all unread descriptors in
//! it. So a [`ForeignFd`] is closed by a thread that nothing else waits for. [`receive`] takes messages with descriptors.
//! A send that fails for lack of memory is retried after a pause ([`Shortage`]).
//!
//! **Contract.** To drop a [`ForeignFd`] never waits. At most [`THREADS_MAX`] threads close, one at a time for each
//! [`Origin`], and an origin with [`WAITING_MAX`] unclosed descriptors is to be read no further. [`PendingCloses`] says when a
//! port has to be held.
//!
//! **Not checked.** The kind of a descriptor: its receiver asks [`is_memory`] and its neighbours. They ask the kernel only, never
//! the file system behind it.
//!
//! **Threading.** Any thread may drop a [`ForeignFd`]. [`start`] starts the first closing thread; it starts others when it is busy.
//!
//! ```text
//!   recvmsg ──> ForeignFd ── dropped by any thread ──> queue of its Origin ──> closing threads: one at a time for each origin
//!                                                           │
//!   one connection ── has one Origin ── PendingCloses of a port ──┴─ held while closing takes long
//! ```
//!
//! # Examples
//!
//! ```
//! use std::os::fd::AsFd;
//! use std::os::unix::net::UnixStream;
//!
//! use lasthop_foreign::{Origin, receive};
//! use rustix::net::RecvFlags;
//!
//! let (peer, socket) = UnixStream::pair().unwrap();
//! drop(peer);
//! let (mut bytes, mut fds) = ([0; 16], Vec::new());
//! let received = receive(socket.as_fd(), &mut bytes, RecvFlags::empty(), &Origin::new("vm1"), &mut fds).unwrap();
//! assert_eq!((received.bytes, fds.len()), (0, 0));
//! ```

#![forbid(unsafe_code)]

mod closing;
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
