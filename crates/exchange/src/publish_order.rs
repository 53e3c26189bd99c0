use crate::WORKERS_MAX;
use crate::sync::{AtomicBool, AtomicU8, Ordering};

const NOBODY: u8 = u8::MAX;

/// Who has finished what was begun in an order that has to be kept, one piece per worker.
///
/// The order itself is kept under a guard; here is what has to be told to its holder from outside.
#[derive(Debug)]
pub struct PublishOrder {
    finished: [AtomicBool; WORKERS_MAX],
    oldest: AtomicU8,
}

impl Default for PublishOrder {
    fn default() -> Self {
        let finished = std::array::from_fn(|_| AtomicBool::new(false));
        Self { finished, oldest: AtomicU8::new(NOBODY) }
    }
}

impl PublishOrder {
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

    /// Whose turn is next; under the guard only.
    #[inline]
    pub fn set_oldest(&self, worker: Option<u8>) {
        self.oldest.store(worker.unwrap_or(NOBODY), Ordering::Relaxed);
    }

    /// Whether the next in turn has finished: somebody has to guard and go on.
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
