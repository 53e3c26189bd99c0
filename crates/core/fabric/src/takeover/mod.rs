//! Hand-over of pending chains to a successor.

pub(crate) mod postpone;
