//! The steps by which a queue pair passes from one worker to another, without what a pair is.
//!
//! ```text
//!   control side   asks ... waits ... gives up? ── first: nothing moves
//!   old home       begins? ── first: releases ── gives the pair to the new home ── answers
//! ```

use crate::sync::{AtomicBool, Ordering};

/// Tells which came first: the old home that begins, or the control side that gives up.
pub(crate) struct FirstStep(AtomicBool);

impl FirstStep {
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Whether the caller is the first one. True once.
    pub(crate) fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}

/// The old home's part: has `release` take the pair out, `give` send it to its new home, and then `answer` tell the control
/// side. So tasks that the control side gives the new home after the answer are behind the pair. Does nothing if the control side has given up.
pub(crate) fn pass_on<P, E>(
    first: &FirstStep,
    release: impl FnOnce() -> Result<P, E>,
    give: impl FnOnce(P),
    answer: impl FnOnce(Result<(), E>),
) {
    if !first.take() {
        return;
    }
    answer(release().map(give));
}

/// The control side's part: `wait` returns the answer, or `None` after a while. `None`: it gave up, and nothing moves.
pub(crate) fn await_release<E>(
    first: &FirstStep,
    mut wait: impl FnMut() -> Option<Result<(), E>>,
) -> Option<Result<(), E>> {
    match wait() {
        Some(answer) => Some(answer),
        None if first.take() => None,
        // It is between two instructions of its part, which waits for nothing.
        None => Some(wait().unwrap_or(Ok(()))),
    }
}
