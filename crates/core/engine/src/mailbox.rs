//! Tasks from the control side to a worker.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

/// A task that worker `W` runs between two visits.
pub(crate) type WorkerTask<W> = Box<dyn FnOnce(&mut W) + Send>;

/// A worker that can be parked.
pub(crate) trait TaskRunner: Sized {
    /// Runs a task, and sends the signals that result.
    fn run_task(&mut self, task: WorkerTask<Self>);
}

/// Tasks from the control side to a worker, and the eventfd that wakes it. Tasks are rare, so a lock for each is cheap
/// enough.
///
/// A worker without a thread is parked here, and the caller runs the task.
#[derive(Debug)]
pub(crate) struct Mailbox<W> {
    tasks: Mutex<TaskQueue<W>>,
    wake_fd: OwnedFd,
    parked: Mutex<ParkedWorker<W>>,
}

struct ParkedWorker<W>(Option<Box<W>>);

impl<W> std::fmt::Debug for ParkedWorker<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", if self.0.is_some() { "at hand" } else { "on a thread" })
    }
}

struct TaskQueue<W>(VecDeque<WorkerTask<W>>);

impl<W> std::fmt::Debug for TaskQueue<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} tasks", self.0.len())
    }
}

impl<W: TaskRunner> Mailbox<W> {
    pub(crate) fn new() -> std::io::Result<Self> {
        let wake_fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let (tasks, parked) = (Mutex::new(TaskQueue(VecDeque::new())), Mutex::new(ParkedWorker(None)));
        Ok(Self { tasks, wake_fd, parked })
    }

    /// Parks the worker here until it is taken.
    pub(crate) fn park(&self, worker: W) {
        self.parked().0 = Some(Box::new(worker));
    }

    /// Takes the worker, for a thread of its own.
    pub(crate) fn take_worker(&self) -> Option<Box<W>> {
        self.parked().0.take()
    }

    fn parked(&self) -> MutexGuard<'_, ParkedWorker<W>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Readable when there are tasks; edge-triggered, never read.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake_fd.as_fd()
    }

    /// Wakes the worker.
    pub(crate) fn wake(&self) {
        // A non-blocking eventfd of ours: the write only fails if it is readable already.
        let _ = rustix::io::write(&self.wake_fd, &1_u64.to_ne_bytes());
    }

    /// Adds a task and wakes the worker.
    pub(crate) fn post(&self, task: WorkerTask<W>) {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).0.push_back(task);
        self.wake();
    }

    pub(crate) fn len(&self) -> usize {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).0.len()
    }

    /// Takes the next task.
    pub(crate) fn take(&self) -> Option<WorkerTask<W>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).0.pop_front()
    }

    /// Has the worker run `task`; the receiver gets its result.
    pub(crate) fn ask<R: Send + 'static>(
        &self,
        task: impl FnOnce(&mut W) -> R + Send + 'static,
    ) -> Receiver<R> {
        let (reply, answer) = sync_channel(1);
        let task: WorkerTask<W> = Box::new(move |worker| {
            let _ = reply.send(task(worker));
        });
        self.give(task);
        answer
    }

    /// Adds a task, or runs it if the worker is parked here.
    pub(crate) fn give(&self, task: WorkerTask<W>) {
        match &mut self.parked().0 {
            Some(worker) => worker.run_task(task),
            None => self.post(task),
        }
    }
}
