use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::closing;
use crate::kind::is_memory;

/// A close that takes longer waits for something. Those of memory do not count: to free much of it takes its time.
pub const CLOSE_PATIENCE: Duration = Duration::from_secs(1);
/// Descriptors of one connection that may wait to be closed before it is to end: two whole messages of the most that the system
/// lets one have (SCM_MAX_FD, 253).
pub const WAITING_MAX: usize = 512;
/// Descriptors closed before another connection's have their turn.
const CLOSED_PER_TURN: usize = 64;

/// One connection, as the origin of descriptors. They are closed one after the other, so a descriptor that takes long delays only
/// others of its own connection.
#[derive(Clone, Debug)]
pub struct Origin(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// For the log: "vnic a".
    name: String,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<OwnedFd>,
    /// A closing thread has it, or will have it.
    is_queued: bool,
    /// When the close under way began, unless it is of memory.
    closing_since: Option<Instant>,
    /// When the last close began that took too long.
    slow_since: Option<Instant>,
    /// It was told that one takes too long.
    is_told: bool,
}

impl Queue {
    fn slow_since(&self) -> Option<Instant> {
        let is_slow = |since: &Instant| since.elapsed() >= CLOSE_PATIENCE;
        self.closing_since.filter(is_slow).or(self.slow_since)
    }
}

impl Origin {
    /// A connection of `name`: a vnic, or what else the log is to say.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(Arc::new(Shared { name: name.to_owned(), queue: Mutex::default() }))
    }

    /// The origin of descriptors that this process makes itself.
    #[must_use]
    pub fn own() -> &'static Self {
        static OWN: OnceLock<Origin> = OnceLock::new();
        OWN.get_or_init(|| Self::new("lasthop"))
    }

    /// Of whom it is a connection.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Descriptors that are not closed yet.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let queue = self.queue();
        queue.waiting.len() + usize::from(queue.closing_since.is_some())
    }

    /// Whether the connection is to end, since closing takes too long or too many descriptors are to be closed.
    #[must_use]
    pub fn is_overdue(&self) -> bool {
        let queue = self.queue();
        queue.waiting.len() > WAITING_MAX || queue.slow_since().is_some()
    }

    /// When the last close began that took, or takes, too long.
    pub(crate) fn slow_since(&self) -> Option<Instant> {
        self.queue().slow_since()
    }

    /// Whether one takes too long that was not told of.
    pub(crate) fn is_to_be_told(&self) -> bool {
        let mut queue = self.queue();
        queue.slow_since().is_some() && !std::mem::replace(&mut queue.is_told, true)
    }

    pub(crate) fn is_told(&self) -> bool {
        self.queue().is_told
    }

    /// Whether descriptors of it are open, or its connection is.
    pub(crate) fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Has a descriptor closed by a closing thread.
    pub(crate) fn close(&self, fd: OwnedFd) {
        let mut queue = self.queue();
        queue.waiting.push_back(fd);
        if !std::mem::replace(&mut queue.is_queued, true) {
            drop(queue);
            closing::queue(self.clone());
        }
    }

    /// Closes some of the descriptors that wait.
    pub(crate) fn close_some(&self) {
        for _ in 0..CLOSED_PER_TURN {
            let Some(fd) = self.next() else { return };
            drop(fd);
            self.closed();
        }
    }

    /// Whether descriptors are left. Otherwise it is not queued any more.
    pub(crate) fn stays_queued(&self) -> bool {
        let mut queue = self.queue();
        queue.is_queued = !queue.waiting.is_empty();
        queue.is_queued
    }

    fn next(&self) -> Option<OwnedFd> {
        let mut queue = self.queue();
        let fd = queue.waiting.pop_front();
        if fd.as_ref().is_some_and(|fd| !is_memory(fd.as_fd())) {
            queue.closing_since = Some(Instant::now());
        }
        fd
    }

    fn closed(&self) {
        let mut queue = self.queue();
        queue.slow_since = queue.slow_since();
        queue.closing_since = None;
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
