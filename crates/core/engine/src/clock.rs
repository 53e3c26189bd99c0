//! The engine's clock.

use std::time::Instant;

/// Time since the engine started, in ns.
pub(crate) fn now_ns(started: Instant) -> u64 {
    started.elapsed().as_nanos() as u64
}
