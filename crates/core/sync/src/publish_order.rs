//! The order in which workers' pieces of work are published.

use crate::WORKERS_MAX;
use crate::sync::{AtomicBool, AtomicU8, Ordering};

const NO_WORKER: u8 = u8::MAX;

/// Records which workers have finished their piece of work. Pieces are published in the order in which they began; each
/// worker has at most one.
///
/// The order itself is kept under the lock. These flags tell its holder about work outside the lock.
#[derive(Debug)]
pub struct PublishOrder {
    finished: [AtomicBool; WORKERS_MAX],
    oldest: AtomicU8,
}

impl Default for PublishOrder {
    fn default() -> Self {
        let finished = std::array::from_fn(|_| AtomicBool::new(false));
        Self { finished, oldest: AtomicU8::new(NO_WORKER) }
    }
}

impl PublishOrder {
    /// `worker` has finished its piece. A thread that sees this also sees the writes of the piece.
    #[inline]
    pub fn finish(&self, worker: u8) {
        self.finished[usize::from(worker)].store(true, Ordering::Release);
    }

    /// Whether the piece of `worker` is finished. If it is, it is removed, and the worker may begin another one.
    #[inline]
    pub fn take_finished(&self, worker: u8) -> bool {
        let finished = &self.finished[usize::from(worker)];
        let is_finished = finished.load(Ordering::Acquire);
        if is_finished {
            finished.store(false, Ordering::Relaxed);
        }
        is_finished
    }

    /// Sets the worker whose piece is published next. Only under the lock.
    #[inline]
    pub fn set_oldest(&self, worker: Option<u8>) {
        self.oldest.store(worker.unwrap_or(NO_WORKER), Ordering::Relaxed);
    }

    /// Whether the next piece is finished: a worker has to take the lock and publish it.
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
        let order = PublishOrder::default();
        assert!(!order.is_due());
        order.set_oldest(Some(3));
        order.finish(5);
        assert!(!order.is_due());
        order.finish(3);
        assert!(order.is_due());
        assert!(order.take_finished(3));
        order.set_oldest(Some(5));
        assert!(order.is_due() && order.take_finished(5) && !order.take_finished(5));
        order.set_oldest(None);
        assert!(!order.is_due());
    }
}
