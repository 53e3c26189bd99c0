use crate::WORKERS_MAX;
use crate::sync::{AtomicBool, AtomicU8, Ordering};

const NOBODY: u8 = u8::MAX;

/// Who has finished what was begun in an order that has to be kept, one piece per worker.
///
/// The order itself is kept under a claim; here is what has to be told to its holder from outside.
#[derive(Debug)]
pub struct Turns {
    finished: [AtomicBool; WORKERS_MAX],
    oldest: AtomicU8,
}

impl Default for Turns {
    fn default() -> Self {
        let finished = std::array::from_fn(|_| AtomicBool::new(false));
        Self { finished, oldest: AtomicU8::new(NOBODY) }
    }
}

impl Turns {
    /// `worker` has finished its piece; what it wrote is seen by who sees this.
    #[inline]
    pub fn finish(&self, worker: u8) {
        self.finished[usize::from(worker)].store(true, Ordering::Release);
    }

    /// Whether the piece of `worker` is finished; if so it is taken off, and the worker may begin another one.
    #[inline]
    pub fn take_finished(&self, worker: u8) -> bool {
        let finished = &self.finished[usize::from(worker)];
        let is_finished = finished.load(Ordering::Acquire);
        if is_finished {
            finished.store(false, Ordering::Relaxed);
        }
        is_finished
    }

    /// Whose turn is next; under the claim only.
    #[inline]
    pub fn set_oldest(&self, worker: Option<u8>) {
        self.oldest.store(worker.unwrap_or(NOBODY), Ordering::Relaxed);
    }

    /// Whether the next in turn has finished: somebody has to claim and go on.
    #[inline]
    #[must_use]
    pub fn is_due(&self) -> bool {
        let finished = self.finished.get(usize::from(self.oldest.load(Ordering::Relaxed)));
        finished.is_some_and(|finished| finished.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_oldest_is_due_and_once() {
        let turns = Turns::default();
        assert!(!turns.is_due());
        turns.set_oldest(Some(3));
        turns.finish(5);
        assert!(!turns.is_due());
        turns.finish(3);
        assert!(turns.is_due());
        assert!(turns.take_finished(3));
        turns.set_oldest(Some(5));
        assert!(turns.is_due() && turns.take_finished(5) && !turns.take_finished(5));
        turns.set_oldest(None);
        assert!(!turns.is_due());
    }
}
