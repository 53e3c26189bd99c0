//! Tasks from the control side to a worker.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, sync_channel};

use rustix::event::{EventfdFlags, eventfd};

use crate::task_queue::TaskQueue;

/// A task that worker `W` runs between two visits.
pub(crate) type WorkerTask<W> = Box<dyn FnOnce(&mut W) + Send>;

/// A worker that can be parked.
pub(crate) trait TaskRunner: Sized {
    /// Runs a task, and sends the signals that result.
    fn run_task(&mut self, task: WorkerTask<Self>);
}

/// Tasks from the control side to a worker, and the eventfd that wakes it.
///
/// A worker without a thread is parked here, and the caller runs the task.
#[derive(Debug)]
pub(crate) struct Mailbox<W> {
    queue: TaskQueue<W, WorkerTask<W>>,
    wake_fd: OwnedFd,
}

impl<W: TaskRunner> Mailbox<W> {
    pub(crate) fn new() -> std::io::Result<Self> {
        let wake_fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { queue: TaskQueue::new(), wake_fd })
    }

    /// Parks the worker here until it is taken.
    pub(crate) fn park(&self, worker: W) {
        self.queue.park(worker);
    }

    /// Takes the worker, for a thread of its own.
    pub(crate) fn take_worker(&self) -> Option<Box<W>> {
        self.queue.take_worker()
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
        self.queue.post(task);
        self.wake();
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Takes the next task.
    pub(crate) fn take(&self) -> Option<WorkerTask<W>> {
        self.queue.take()
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
        if self.queue.give(task, TaskRunner::run_task) {
            self.wake();
        }
    }
}
