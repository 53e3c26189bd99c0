//! Tests of both sides of a ring against each other.

mod fixture;
mod hostile;
mod in_order;
mod inflight;
mod model;
mod packed;
mod threads;
