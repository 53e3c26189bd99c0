//! Tasks from the control side to a worker.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::worker::Worker;

/// Something for the worker to do between two visits.
pub(crate) type WorkerTask = Box<dyn FnOnce(&mut Worker) + Send>;

/// Tasks from the control side to a worker, and the eventfd that wakes it. Tasks are rare, so a lock each time is fine.
///
/// Before a worker has a thread it is here itself, and the caller runs the task.
#[derive(Debug)]
pub(crate) struct Mailbox {
    tasks: Mutex<TaskQueue>,
    wake_fd: OwnedFd,
    at_hand: Mutex<AtHand>,
}

#[derive(Default)]
struct AtHand(Option<Box<Worker>>);

impl std::fmt::Debug for AtHand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", if self.0.is_some() { "at hand" } else { "on a thread" })
    }
}

#[derive(Default)]
struct TaskQueue(VecDeque<WorkerTask>);

impl std::fmt::Debug for TaskQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} tasks", self.0.len())
    }
}

impl Mailbox {
    pub(crate) fn new() -> std::io::Result<Self> {
        let wake_fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { tasks: Mutex::default(), wake_fd, at_hand: Mutex::default() })
    }

    /// Has the worker here until it is taken.
    pub(crate) fn park(&self, worker: Worker) {
        self.at_hand().0 = Some(Box::new(worker));
    }

    /// The worker, for a thread of its own.
    pub(crate) fn take_worker(&self) -> Option<Box<Worker>> {
        self.at_hand().0.take()
    }

    fn at_hand(&self) -> MutexGuard<'_, AtHand> {
        self.at_hand.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Readable when there are tasks; edge-triggered, never read.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake_fd.as_fd()
    }

    /// Wakes the worker.
    pub(crate) fn wake(&self) {
        // An eventfd of ours, non-blocking: the write fails only when it is readable already.
        let _ = rustix::io::write(&self.wake_fd, &1_u64.to_ne_bytes());
    }

    /// Leaves a task and wakes the worker.
    pub(crate) fn post(&self, task: WorkerTask) {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).0.push_back(task);
        self.wake();
    }

    pub(crate) fn len(&self) -> usize {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).0.len()
    }

    /// The next task.
    pub(crate) fn take(&self) -> Option<WorkerTask> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).0.pop_front()
    }

    /// Has the worker run `task`; the receiver gets its result.
    pub(crate) fn ask<R: Send + 'static>(
        &self,
        task: impl FnOnce(&mut Worker) -> R + Send + 'static,
    ) -> Receiver<R> {
        let (reply, answer) = sync_channel(1);
        let task: WorkerTask = Box::new(move |worker| {
            let _ = reply.send(task(worker));
        });
        match &mut self.at_hand().0 {
            Some(worker) => worker.run_task(task),
            None => self.post(task),
        }
        answer
    }
}
