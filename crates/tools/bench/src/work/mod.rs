//! The traffic of the workloads.

mod first_packets;
mod frames;
mod round_trip;
mod station;
mod traffic;

pub(crate) use station::{Done, FIRST_FRAME_SECONDS_MAX, Station};
pub(crate) use traffic::Tally;
