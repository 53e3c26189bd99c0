//! Sends packets through a tracker, by its public interface alone.

mod adopt;
mod bench;
mod frames;
mod helpers;
mod icmp;
mod model;
mod nat;
mod requests;
mod sctp;
mod tcp;
mod udp;
