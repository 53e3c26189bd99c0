//! Hands pending chains over to a successor.

pub(crate) mod postpone;
