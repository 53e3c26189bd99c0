//! A thread that interrupts workers that block in a write to a guest's call descriptor, and inspects guests' memory for
//! them.
//!
//! Descriptors are made non-blocking when they arrive, but the front end shares that flag and may clear it at any time,
//! and no write to an eventfd is non-blocking by itself. So a worker counts when it begins a write and when it returns,
//! and the watchdog's thread checks at intervals whether a worker is inside:
//!
//! ```text
//!   worker      [odd: inside] write ... [even: back]            wakes the watchdog if it sleeps
//!   watchdog    sleeps ──woken──> every 100 ms: interrupt who is inside ──no write for 100 ms──> sleeps
//! ```
//!
//! A signal does not interrupt a write that does not block, so interrupting a worker that would have returned anyway
//! does no harm; and a write that was interrupted has blocked.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use lasthop_module_api::PortId;
use rustix::thread::Pid;

use crate::shrinking_files::{LOOK_PAUSE, ShrinkingFiles};
use crate::stalls::{CONTROL_PAUSE, Suspects, is_slow_for_all};
use crate::sys;

/// Interval of an awake watchdog's checks. A worker is blocked for at most this long, or twice as long if the signal
/// came just before it began to block.
const TICK: Duration = Duration::from_millis(100);

/// One worker's writes, on a cache line of its own, since the worker changes it for each signal.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Watch {
    /// Begins and ends of writes: odd inside a write.
    moves: AtomicU64,
    /// The thread that serves it (gettid(2)); 0 if there is none yet.
    thread: AtomicI32,
}

/// A question about a port's memory that takes time to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inquiry {
    /// Has the switch filled too much of it?
    Filled,
    /// Did a worker wait for it, or for something else?
    Stalled,
}

/// The result of an inquiry that confirms the suspicion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// The memory has to be audited.
    Filled,
    /// A worker waited for its memory. `has_shrunk`: pages were removed from it since the last wait.
    Stalled { has_shrunk: bool },
}

/// Access of the watchdog's thread to the memory of ports, and to the measures against them.
pub(crate) trait Examiner: Send + 'static {
    /// Allocated bytes of the files of a port's memory.
    fn filled_bytes(&self, port: PortId) -> u64;

    /// Acts on a finding.
    fn settle(&self, port: PortId, finding: Finding);
}

/// State shared by workers and the watchdog's thread.
#[derive(Debug)]
pub(crate) struct Watchdog {
    watches: Vec<Watch>,
    /// Whether the thread checks, or is about to.
    is_awake: AtomicBool,
    is_over: AtomicBool,
    /// Questions of workers, without duplicates.
    inquiries: Mutex<Vec<(PortId, Inquiry)>>,
    thread: OnceLock<Thread>,
}

impl Watchdog {
    /// A watchdog for `workers` workers; it watches none before `start`.
    pub(crate) fn new(workers: usize) -> Self {
        Self {
            watches: (0..workers).map(|_| Watch::default()).collect(),
            is_awake: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            inquiries: Mutex::default(),
            thread: OnceLock::new(),
        }
    }

    /// Starts the watchdog's thread, which ends after `end`. It answers inquiries about filled memory, and about
    /// stalls.
    ///
    /// # Errors
    /// If the signal handler cannot be installed, or the thread cannot be started.
    pub(crate) fn start(this: &Arc<Self>, examiner: impl Examiner) -> std::io::Result<JoinHandle<()>> {
        sys::install()?;
        let thread = std::thread::Builder::new().name("watchdog".into());
        let watching = Arc::clone(this);
        let thread = thread.spawn(move || watching.run(&examiner))?;
        let _ = this.thread.set(thread.thread().clone());
        Ok(thread)
    }

    /// Declares that the calling thread serves `worker` from now on.
    pub(crate) fn watch_me(&self, worker: usize) {
        sys::unblock();
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        self.watches[worker].thread.store(thread, Ordering::Relaxed);
    }

    /// CPU time of the thread that serves `worker`, in ns; `None` if there is none yet.
    pub(crate) fn cpu_ns(&self, worker: usize) -> Option<u64> {
        sys::thread_cpu_ns_of(self.watches[worker].thread.load(Ordering::Relaxed))
    }

    /// Does `write` on the thread of `worker`; interrupts it if it blocks.
    #[inline]
    pub(crate) fn guarded<R>(&self, worker: usize, write: impl FnOnce() -> R) -> R {
        let moves = &self.watches[worker].moves;
        let count = moves.load(Ordering::Relaxed); // changed by the thread that serves it only
        // Either the watchdog sees this in its last check, or this thread sees that the watchdog sleeps.
        moves.store(count + 1, Ordering::SeqCst);
        if !self.is_awake.load(Ordering::SeqCst) {
            self.wake();
        }
        let result = write();
        moves.store(count + 2, Ordering::Release);
        result
    }

    #[cold]
    fn wake(&self) {
        if !self.is_awake.swap(true, Ordering::SeqCst) {
            self.thread.get().into_iter().for_each(Thread::unpark);
        }
    }

    fn inquiries(&self) -> MutexGuard<'_, Vec<(PortId, Inquiry)>> {
        self.inquiries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests an inspection of a port's memory, which takes system calls: a worker does that itself only if the
    /// watchdog is late.
    pub(crate) fn inquire(&self, port: PortId, inquiry: Inquiry) {
        let mut inquiries = self.inquiries();
        if !inquiries.contains(&(port, inquiry)) {
            inquiries.push((port, inquiry));
        }
        self.thread.get().into_iter().for_each(Thread::unpark);
    }

    /// Ends the watchdog's thread; all workers have ended before.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.thread.get().into_iter().for_each(Thread::unpark);
    }

    fn run(&self, examiner: &impl Examiner) {
        let (mut seen, mut looked) = (vec![0; self.watches.len()], Instant::now());
        let (mut suspects, mut files) = (Suspects::default(), ShrinkingFiles::default());
        while !self.is_over.load(Ordering::SeqCst) {
            let inquiries = std::mem::take(&mut *self.inquiries());
            for (port, inquiry) in inquiries {
                match inquiry {
                    Inquiry::Filled => examiner.settle(port, Finding::Filled),
                    Inquiry::Stalled => suspects.add(port, Instant::now()),
                }
            }
            files.look(Instant::now(), |port| examiner.filled_bytes(port));
            for port in suspects.look(Instant::now(), is_slow_for_all) {
                let has_shrunk = files.note_wait(port, examiner.filled_bytes(port), Instant::now());
                examiner.settle(port, Finding::Stalled { has_shrunk });
            }
            let is_awake = self.is_awake.load(Ordering::SeqCst);
            let pause = match (suspects.is_empty(), files.is_empty()) {
                (false, _) => Some(CONTROL_PAUSE),
                (true, false) => Some(LOOK_PAUSE),
                (true, true) => is_awake.then_some(TICK),
            };
            pause.map_or_else(std::thread::park, std::thread::park_timeout);
            if is_awake && (pause == Some(TICK) || looked.elapsed() >= TICK) {
                self.tick(&mut seen);
                looked = Instant::now();
            }
        }
    }

    /// Checks the workers, and goes to sleep if none wrote since the last time. `seen` has the counts of that time.
    fn tick(&self, seen: &mut [u64]) {
        if !self.look(seen) {
            self.is_awake.store(false, Ordering::SeqCst);
            if self.look(seen) {
                self.is_awake.store(true, Ordering::SeqCst);
            }
        }
    }

    /// Interrupts workers inside a write; returns whether one is inside, or was since the last time.
    fn look(&self, seen: &mut [u64]) -> bool {
        let mut any = false;
        for (watch, seen) in self.watches.iter().zip(seen) {
            let moves = watch.moves.load(Ordering::SeqCst);
            let inside = moves % 2 == 1;
            if inside {
                Pid::from_raw(watch.thread.load(Ordering::Relaxed)).into_iter().for_each(sys::interrupt);
            }
            any |= inside || moves != *seen;
            *seen = moves;
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::io::{Errno, write};

    /// An examiner of memory that does not change; forwards the findings.
    struct Findings(std::sync::mpsc::Sender<(PortId, Finding)>);

    impl Examiner for Findings {
        fn filled_bytes(&self, _port: PortId) -> u64 {
            1 << 20
        }

        fn settle(&self, port: PortId, finding: Finding) {
            self.0.send((port, finding)).unwrap();
        }
    }

    #[test]
    fn it_is_awake_as_long_as_a_worker_writes() {
        let (watchdog, mut seen) = (Watchdog::new(2), [0; 2]);
        assert!(watchdog.guarded(1, || watchdog.is_awake.load(Ordering::SeqCst)), "woken before the write");
        watchdog.tick(&mut seen);
        assert!(watchdog.is_awake.load(Ordering::SeqCst), "a worker wrote");
        watchdog.guarded(0, || watchdog.tick(&mut seen));
        watchdog.tick(&mut seen);
        assert!(watchdog.is_awake.load(Ordering::SeqCst), "a worker came back");
        watchdog.tick(&mut seen);
        assert!(!watchdog.is_awake.load(Ordering::SeqCst), "no worker wrote");
        watchdog.guarded(0, || {
            watchdog.tick(&mut seen);
            watchdog.tick(&mut seen);
            assert!(watchdog.is_awake.load(Ordering::SeqCst), "a worker is inside");
        });
    }

    #[test]
    fn a_write_that_waits_is_interrupted_and_one_that_does_not_is_not() {
        let watchdog = Arc::new(Watchdog::new(1));
        let thread = Watchdog::start(&watchdog, Findings(std::sync::mpsc::channel().0)).unwrap();
        watchdog.watch_me(0);
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let tell = || write(&event, &1_u64.to_ne_bytes());
        assert_eq!(watchdog.guarded(0, tell), Err(Errno::INTR));
        rustix::io::ioctl_fionbio(&event, true).unwrap();
        let interrupted = || {
            (0..1000).for_each(|_| sys::interrupt(rustix::thread::gettid()));
            tell()
        };
        assert_eq!(watchdog.guarded(0, interrupted), Err(Errno::AGAIN));
        watchdog.end();
        thread.join().unwrap();
    }

    #[test]
    fn inquiries_are_settled_and_a_stall_only_after_its_time() {
        let watchdog = Arc::new(Watchdog::new(1));
        let (sender, settled) = std::sync::mpsc::channel();
        let thread = Watchdog::start(&watchdog, Findings(sender)).unwrap();
        // On a busy machine a control may be slow: then the wait is no stall, and the inquiry is repeated.
        let mut asked = Instant::now();
        watchdog.inquire(PortId(1), Inquiry::Stalled);
        watchdog.inquire(PortId(2), Inquiry::Filled);
        assert_eq!(settled.recv().unwrap(), (PortId(2), Finding::Filled));
        while let Err(error) = settled
            .recv_timeout(Duration::from_secs(1))
            .map(|told| assert_eq!(told, (PortId(1), Finding::Stalled { has_shrunk: false })))
        {
            assert_eq!(error, std::sync::mpsc::RecvTimeoutError::Timeout);
            asked = Instant::now();
            watchdog.inquire(PortId(1), Inquiry::Stalled);
        }
        assert!(asked.elapsed() >= crate::stalls::INQUIRY);
        watchdog.end();
        thread.join().unwrap();
    }
}
