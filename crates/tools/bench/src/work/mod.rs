//! The traffic of the workloads.

mod first_packets;
mod frames;
mod guest_group;
mod round_trip;
mod traffic;

pub(crate) use guest_group::{Done, FIRST_FRAME_SECONDS_MAX, GuestGroup};
pub(crate) use traffic::Tally;
