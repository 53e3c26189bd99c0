//! Tests of both sides of a ring against each other.

mod fixture;
mod hostile;
mod in_order;
mod inflight;
mod model;
mod packed;
mod threads;

use lasthop_ring::RingFormat;

/// Both formats.
const FORMATS: [RingFormat; 2] = [RingFormat::Split, RingFormat::Packed];
