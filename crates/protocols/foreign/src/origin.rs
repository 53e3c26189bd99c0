use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::kind::is_memory;

/// The time from one look at a close that is under way to the next one, at least.
pub const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// A close that is still under way after this number of looks waits for something. The looking thread got the CPU for each look, after
/// a sleep, so a close that only needs the CPU got it as well, even on a busy machine. Elapsed time alone is no proof. Closes of memory
/// do not count: to free much of it takes its time.
pub const LOOKS_MAX: u32 = 20;
/// Descriptors of one connection that may wait to be closed before no more are taken from it: two whole messages of the most that the
/// system lets one have (SCM_MAX_FD, 253).
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
    /// Looks at the close under way so far, unless it is of memory.
    looks: Option<u32>,
    /// When a close was seen last to take too long.
    slow_at: Option<Instant>,
    /// It was told that one takes too long.
    is_told: bool,
    /// CPU time of closing that was not asked for.
    spent: Duration,
}

impl Origin {
    /// A connection of `name`, as the log is to have it: a vnic, for example.
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

    /// The name of its owner, for the log.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Descriptors that are not closed yet.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let queue = self.queue();
        queue.waiting.len() + usize::from(queue.looks.is_some())
    }

    /// Whether the connection is to end, since closing takes too long.
    #[must_use]
    pub fn is_overdue(&self) -> bool {
        self.slow_at().is_some()
    }

    /// Whether the connection is not to be read for now: too many of its descriptors wait for their close.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.queue().waiting.len() > WAITING_MAX
    }

    /// The CPU time that closing has taken since this was asked last.
    #[must_use]
    pub fn take_spent(&self) -> Duration {
        std::mem::take(&mut self.queue().spent)
    }

    /// When a close was seen last to take too long.
    pub(crate) fn slow_at(&self) -> Option<Instant> {
        self.queue().slow_at
    }

    /// Looks at the close under way, [`LOOK_PAUSE`] after the last look.
    pub(crate) fn look(&self, now: Instant) {
        let mut queue = self.queue();
        let Some(looks) = &mut queue.looks else { return };
        *looks += 1;
        if *looks >= LOOKS_MAX {
            queue.slow_at = Some(now);
        }
    }

    /// Whether one takes too long that was not told of.
    pub(crate) fn is_to_be_told(&self) -> bool {
        let mut queue = self.queue();
        queue.slow_at.is_some() && !std::mem::replace(&mut queue.is_told, true)
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

    /// As if closing had taken so much CPU time.
    #[cfg(test)]
    pub(crate) fn spend(&self, time: Duration) {
        self.queue().spent += time;
    }

    /// Leaves a descriptor to be closed, without a closing thread that does it.
    #[cfg(test)]
    pub(crate) fn close_later(&self, fd: OwnedFd) {
        self.queue().waiting.push_back(fd);
    }

    /// Adds a descriptor to those that wait. True: no closing thread has this origin, and the caller queues it.
    pub(crate) fn push(&self, fd: OwnedFd) -> bool {
        let mut queue = self.queue();
        queue.waiting.push_back(fd);
        !std::mem::replace(&mut queue.is_queued, true)
    }

    /// Closes some of the descriptors that wait.
    pub(crate) fn close_some(&self) {
        let before = cpu_time();
        for _ in 0..CLOSED_PER_TURN {
            let Some(fd) = self.next() else { break };
            drop(fd);
            self.queue().looks = None;
        }
        self.queue().spent += cpu_time().saturating_sub(before);
    }

    /// Whether descriptors are left. Otherwise it is not queued any more.
    pub(crate) fn stays_queued(&self) -> bool {
        let mut queue = self.queue();
        queue.is_queued = !queue.waiting.is_empty();
        queue.is_queued
    }

    pub(crate) fn next(&self) -> Option<OwnedFd> {
        let mut queue = self.queue();
        let fd = queue.waiting.pop_front();
        if fd.as_ref().is_some_and(|fd| !is_memory(fd.as_fd())) {
            queue.looks = Some(0);
        }
        fd
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The CPU time of this thread so far.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
