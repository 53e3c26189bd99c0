//! The threads that close descriptors.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::Origin;
use crate::origin::LOOK_PAUSE;

/// Largest number of closing threads of a process. Each stuck connection occupies one; beyond that, descriptors wait
/// open until one is free. A thread costs the kernel some 25 KiB.
pub const THREADS_MAX: usize = 128;
/// Number of idle threads that stay; others end.
const SPARE: usize = 2;
/// Stack of a closing thread, which calls close(2) and writes a log line.
const STACK_BYTES: usize = 128 * 1024;

static POOL: Pool = Pool {
    state: Mutex::new(State {
        queue: VecDeque::new(),
        busy: Vec::new(),
        threads: 0,
        is_watched: false,
        looked_at: None,
        report: None,
    }),
    woken: Condvar::new(),
};

struct Pool {
    state: Mutex<State>,
    woken: Condvar,
}

struct State {
    /// Origins with descriptors to close, each once.
    queue: VecDeque<Origin>,
    /// Origins whose descriptors are being closed.
    busy: Vec<Origin>,
    threads: usize,
    /// Whether an idle thread will check if busy ones take too long.
    is_watched: bool,
    /// Time of the last such check.
    looked_at: Option<Instant>,
    report: Option<fn(&str)>,
}

/// Starts the first closing thread, so that no other thread has to. `report` gets the name of each connection whose
/// descriptors take long to close.
pub fn start(report: fn(&str)) {
    let mut state = POOL.lock();
    state.report = Some(report);
    state.keep_one_free();
}

/// Passes a descriptor of `origin` to a closing thread.
pub(crate) fn close(origin: &Origin, fd: OwnedFd) {
    if origin.push(fd) {
        queue(origin.clone());
    }
}

/// Queues `origin` for a closing thread.
fn queue(origin: Origin) {
    let mut state = POOL.lock();
    state.queue.push_back(origin);
    if state.threads == 0 {
        state.keep_one_free();
    }
    drop(state);
    POOL.woken.notify_one();
}

impl State {
    fn free(&self) -> usize {
        self.threads - self.busy.len()
    }

    /// Whether busy threads need to be checked, and no thread will do it.
    fn is_to_be_watched(&self) -> bool {
        !self.is_watched && !self.busy.iter().all(Origin::is_told)
    }

    /// Checks busy threads if the last check, by any thread, is long enough ago.
    fn look(&mut self, now: Instant) {
        if self.looked_at.is_none_or(|at| now.saturating_duration_since(at) >= LOOK_PAUSE) {
            self.looked_at = Some(now);
            self.busy.iter().for_each(|origin| origin.look(now));
        }
    }

    /// Makes sure that a thread is free for the next origin. Without memory for one, a busy thread serves it later.
    fn keep_one_free(&mut self) {
        if self.free() == 0 && self.threads < THREADS_MAX {
            let thread = std::thread::Builder::new().name("closing".to_owned()).stack_size(STACK_BYTES);
            self.threads += usize::from(thread.spawn(|| POOL.work()).is_ok());
        }
    }
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&'static self) {
        let mut state = self.lock();
        loop {
            let Some(origin) = state.queue.pop_front() else {
                if state.free() > SPARE && !state.is_to_be_watched() {
                    state.threads -= 1;
                    return;
                }
                state = self.idle(state);
                continue;
            };
            state.busy.push(origin.clone());
            state.keep_one_free();
            if !state.is_watched {
                self.woken.notify_one();
            }
            drop(state);
            origin.close_some();
            state = self.lock();
            state.busy.retain(|other| !other.is(&origin));
            // Under the pool's lock, so that no other thread takes it meanwhile.
            if origin.stays_queued() {
                state.queue.push_back(origin);
            }
        }
    }

    /// Waits for work, and reports connections whose descriptors take too long.
    fn idle<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let slow: Vec<Origin> = state.busy.iter().filter(|busy| busy.is_to_be_told()).cloned().collect();
        if let Some(report) = state.report.filter(|_| !slow.is_empty()) {
            drop(state);
            slow.iter().for_each(|origin| report(origin.name()));
            return self.lock();
        }
        if !state.is_to_be_watched() {
            return self.woken.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.is_watched = true;
        let waited = self.woken.wait_timeout(state, LOOK_PAUSE);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_watched = false;
        state.look(Instant::now());
        state
    }
}
