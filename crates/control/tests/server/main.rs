//! The server without sockets: what datagrams are answered with, and that whatever a client does is bounded.

mod bounds;
mod parked;
mod requests;
mod upcalls;
mod wire;
