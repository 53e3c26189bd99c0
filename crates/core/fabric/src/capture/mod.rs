//! Captures of frames.

pub(crate) mod events;
pub(crate) mod tap;
