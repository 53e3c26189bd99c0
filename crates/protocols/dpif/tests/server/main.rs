//! The server without sockets: replies to datagrams, and bounds for any client.

mod bounds;
mod flushes;
mod parked;
mod refused_flows;
mod requests;
mod upcalls;
mod wire;
