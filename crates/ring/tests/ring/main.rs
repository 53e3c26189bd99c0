//! The two sides of a ring against each other.

mod fixture;
mod hostile;
mod inflight;
mod model;
mod threads;
