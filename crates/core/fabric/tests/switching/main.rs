//! The switching of packets between simulated guests, without threads and clocks.
//!
//! One program, so that the simulated guests are compiled once.

mod afterwards;
mod copies;
mod delivery;
mod fairness;
mod flows;
mod fragments;
mod idle_ports;
mod in_order;
mod link;
mod metering;
mod offloads;
mod slow_receivers;
mod steering;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/tags.rs"]
mod tagging;
mod tags;
mod take_over;
mod taps;
#[path = "../support/tcp.rs"]
mod tcp;
mod upcalls;
