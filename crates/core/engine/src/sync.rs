//! The primitives of hand-overs under loom's names, so that the models run the same code.

pub(crate) use std::sync::atomic::{AtomicBool, Ordering};
pub(crate) use std::sync::{Mutex, MutexGuard};
