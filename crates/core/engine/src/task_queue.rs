//! The tasks of a worker, and the worker itself while it has no thread.

use std::collections::VecDeque;
use std::sync::PoisonError;

use crate::sync::{Mutex, MutexGuard};

/// Tasks `T` for a worker `W`, in the order in which they were given. Tasks are rare, so a lock for each is cheap enough.
///
/// A worker without a thread is parked here; then the thread that gives a task runs it.
pub(crate) struct TaskQueue<W, T> {
    tasks: Mutex<VecDeque<T>>,
    parked: Mutex<Option<Box<W>>>,
}

impl<W, T> std::fmt::Debug for TaskQueue<W, T> {
    /// Takes no lock: a parked worker may be at work.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TaskQueue")
    }
}

impl<W, T> TaskQueue<W, T> {
    pub(crate) fn new() -> Self {
        Self { tasks: Mutex::new(VecDeque::new()), parked: Mutex::new(None) }
    }

    fn tasks(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn parked(&self) -> MutexGuard<'_, Option<Box<W>>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Parks the worker here until it is taken.
    pub(crate) fn park(&self, worker: W) {
        *self.parked() = Some(Box::new(worker));
    }

    /// Takes the worker, for a thread of its own.
    pub(crate) fn take_worker(&self) -> Option<Box<W>> {
        self.parked().take()
    }

    pub(crate) fn len(&self) -> usize {
        self.tasks().len()
    }

    /// Adds a task.
    pub(crate) fn post(&self, task: T) {
        self.tasks().push_back(task);
    }

    /// Takes the next task.
    pub(crate) fn take(&self) -> Option<T> {
        self.tasks().pop_front()
    }

    /// Runs a task if the worker is parked here, else adds it. Returns whether it was added: then its thread is to be woken.
    pub(crate) fn give(&self, task: T, run: impl FnOnce(&mut W, T)) -> bool {
        // Held until the task is in the queue: its thread takes the worker before or behind that.
        let mut parked = self.parked();
        match &mut *parked {
            Some(worker) => {
                run(worker, task);
                false
            }
            None => {
                self.post(task);
                true
            }
        }
    }
}
