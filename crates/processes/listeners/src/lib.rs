//! Sockets in the file system that the supervisor listens at, and the clients of its API.
//!
//! **Purpose.** [`ListenSocket`] makes a socket with the owner, group and mode of a [`SocketAccess`], and removes its file in the end.
//! [`ApiClients`] reads requests from clients of the control socket and writes answers. [`DatapathListener`], [`ControlClients`] and
//! [`LentConnections`] are for clients that the switch process serves.
//!
//! **Contract.** Nothing waits: a client that does not read is dropped, and one that reads slowly delays no other. Clients, connections and
//! the bytes of a request are bounded.
//!
//! **Not checked.** Requests: lines are passed on unchanged.
//!
//! **Threading.** All values belong to one thread, which has the [`lasthop_runtime::poller::Poller`].
//!
//! ```text
//!   lasthop CLI ──connects──> control.sock ──> ApiClients ── RequestLine ──> supervisor ── answer ──> ApiClients ──> CLI
//!   ovs-vswitchd ──connects──> DatapathListener ── connection ──> switch process; a copy in LentConnections
//! ```
#![forbid(unsafe_code)]

mod access;
mod api_clients;
mod client;
mod control;
mod control_clients;
mod datapath_listener;
mod lent;
mod sockets;

pub use access::SocketAccess;
pub use api_clients::{ApiClients, Caller};
pub use control::{ApiSources, RequestLine};
pub use control_clients::ControlClients;
pub use datapath_listener::DatapathListener;
pub use lent::LentConnections;
pub use sockets::{ListenSocket, check_absolute, check_length, connect_to};
