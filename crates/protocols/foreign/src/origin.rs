use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::kind::is_memory;

/// Shortest time between two checks of a close in progress.
pub const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// A close that is still in progress after this number of checks is blocked. The checking thread got the CPU for each
/// check, after a sleep, so a close that only needs the CPU got it as well, even on a busy machine. Elapsed time alone
/// is no proof. Closes of memory do not count: freeing much of it takes time.
pub const LOOKS_MAX: u32 = 20;
/// Descriptors of one connection that may wait to be closed before no more are read from it: two messages with the most
/// that the system permits (SCM_MAX_FD, 253).
pub const WAITING_MAX: usize = 512;
/// Descriptors that are closed in a row before another connection's.
const CLOSED_PER_TURN: usize = 64;

/// One connection, as the origin of descriptors. They are closed one after the other, so a slow close only delays
/// others of its connection.
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
    /// Whether it is queued, or a closing thread serves it.
    is_queued: bool,
    /// Number of checks of the present close, unless it is of memory.
    looks: Option<u32>,
    /// When a close was last found to take too long.
    slow_at: Option<Instant>,
    /// Whether that was reported.
    is_told: bool,
    /// CPU time of closes since the last call of [`Origin::take_spent`].
    spent: Duration,
}

impl Origin {
    /// A connection; `name` is for the log: a vnic, for example.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(Arc::new(Shared { name: name.to_owned(), queue: Mutex::default() }))
    }

    /// The origin of descriptors that this process makes.
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

    /// Number of descriptors that are not closed yet.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let queue = self.queue();
        queue.waiting.len() + usize::from(queue.looks.is_some())
    }

    /// Whether the connection has to end, since closes take too long.
    #[must_use]
    pub fn is_overdue(&self) -> bool {
        self.slow_at().is_some()
    }

    /// Whether the connection must not be read for now: too many of its descriptors wait to be closed.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.queue().waiting.len() > WAITING_MAX
    }

    /// The CPU time of closes since the last call.
    #[must_use]
    pub fn take_spent(&self) -> Duration {
        std::mem::take(&mut self.queue().spent)
    }

    /// When a close was last found to take too long.
    pub(crate) fn slow_at(&self) -> Option<Instant> {
        self.queue().slow_at
    }

    /// Checks the close in progress, [`LOOK_PAUSE`] after the last check.
    pub(crate) fn look(&self, now: Instant) {
        let mut queue = self.queue();
        let Some(looks) = &mut queue.looks else { return };
        *looks += 1;
        if *looks >= LOOKS_MAX {
            queue.slow_at = Some(now);
        }
    }

    /// Whether a close takes too long that was not reported yet.
    pub(crate) fn is_to_be_told(&self) -> bool {
        let mut queue = self.queue();
        queue.slow_at.is_some() && !std::mem::replace(&mut queue.is_told, true)
    }

    pub(crate) fn is_told(&self) -> bool {
        self.queue().is_told
    }

    /// Whether descriptors of it, or its connection, are open.
    pub(crate) fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Adds CPU time as if closes had taken it.
    #[cfg(test)]
    pub(crate) fn spend(&self, time: Duration) {
        self.queue().spent += time;
    }

    /// Adds a descriptor to be closed, without queueing for a closing thread.
    #[cfg(test)]
    pub(crate) fn close_later(&self, fd: OwnedFd) {
        self.queue().waiting.push_back(fd);
    }

    /// Adds a descriptor to those that wait. Returns true if the caller has to queue this origin for a closing thread.
    pub(crate) fn push(&self, fd: OwnedFd) -> bool {
        let mut queue = self.queue();
        queue.waiting.push_back(fd);
        !std::mem::replace(&mut queue.is_queued, true)
    }

    /// Closes some of the waiting descriptors.
    pub(crate) fn close_some(&self) {
        let before = cpu_time();
        for _ in 0..CLOSED_PER_TURN {
            let Some(fd) = self.next() else { break };
            drop(fd);
            self.queue().looks = None;
        }
        self.queue().spent += cpu_time().saturating_sub(before);
    }

    /// Whether descriptors are left; otherwise it is not queued any more.
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
