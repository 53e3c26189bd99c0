use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::worker::Worker;

/// Something for the worker to do between two visits.
pub(crate) type Errand = Box<dyn FnOnce(&mut Worker) + Send>;

/// Errands from the control side to a worker, and the bell that wakes it. Errands are rare, so a lock each time is fine.
///
/// Before a worker has a thread it is here itself, and whoever asks runs the errand.
#[derive(Debug)]
pub(crate) struct Mailbox {
    errands: Mutex<Errands>,
    bell: OwnedFd,
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
struct Errands(VecDeque<Errand>);

impl std::fmt::Debug for Errands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} errands", self.0.len())
    }
}

impl Mailbox {
    pub(crate) fn new() -> std::io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { errands: Mutex::default(), bell, at_hand: Mutex::default() })
    }

    /// Has the worker here until it is taken.
    pub(crate) fn lay_down(&self, worker: Worker) {
        self.at_hand().0 = Some(Box::new(worker));
    }

    /// The worker, for a thread of its own.
    pub(crate) fn take_worker(&self) -> Option<Box<Worker>> {
        self.at_hand().0.take()
    }

    fn at_hand(&self) -> MutexGuard<'_, AtHand> {
        self.at_hand.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Readable when there are errands; edge-triggered, never read.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Wakes the worker.
    pub(crate) fn ring(&self) {
        // An eventfd of ours, non-blocking: the write fails only when the bell rings already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Leaves an errand and wakes the worker.
    pub(crate) fn post(&self, errand: Errand) {
        self.errands.lock().unwrap_or_else(PoisonError::into_inner).0.push_back(errand);
        self.ring();
    }

    pub(crate) fn len(&self) -> usize {
        self.errands.lock().unwrap_or_else(PoisonError::into_inner).0.len()
    }

    /// The next errand.
    pub(crate) fn take(&self) -> Option<Errand> {
        self.errands.lock().unwrap_or_else(PoisonError::into_inner).0.pop_front()
    }

    /// Has the worker run `errand`; what it returns comes out of the receiver.
    pub(crate) fn ask<R: Send + 'static>(
        &self,
        errand: impl FnOnce(&mut Worker) -> R + Send + 'static,
    ) -> Receiver<R> {
        let (reply, answer) = sync_channel(1);
        let errand: Errand = Box::new(move |worker| {
            let _ = reply.send(errand(worker));
        });
        match &mut self.at_hand().0 {
            Some(worker) => worker.run_errand(errand),
            None => self.post(errand),
        }
        answer
    }
}
