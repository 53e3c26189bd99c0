//! Transmit rings: fetching chains, their homes, and completions.

pub(crate) mod chain;
pub(crate) mod detached;
pub(crate) mod injected_counts;
pub(crate) mod internal;
pub(crate) mod meter;
pub(crate) mod moved;
pub(crate) mod moves;
pub(crate) mod offloads;
pub(crate) mod postponement;
pub(crate) mod sender;
pub(crate) mod senders;
pub(crate) mod tx_queue;
