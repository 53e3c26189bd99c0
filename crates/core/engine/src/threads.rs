//! The workers' threads. They exist before guests wait for them, since starting one takes a while on busy CPUs.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use crate::EngineError;
use crate::worker_thread::WorkerThread;

/// The threads. Each waits for its workers, or for the end.
#[derive(Default)]
pub(crate) struct Threads {
    idle: Vec<Sender<WorkerThread>>,
    threads: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Starts `workers` threads, and one for each CPU of `helpers`.
    pub(crate) fn start(workers: usize, helpers: &[usize]) -> Result<Self, EngineError> {
        let mut threads = Self::default();
        let names = (0..workers).map(|number| format!("worker{number}"));
        for name in names.chain(helpers.iter().map(|cpu| format!("helper{cpu}"))) {
            let (worker_thread, given) = channel();
            let thread = std::thread::Builder::new()
                .name(name)
                .spawn(move || work(&given))
                .map_err(|error| EngineError::System("start a worker thread", error))?;
            threads.idle.push(worker_thread);
            threads.threads.push(thread);
        }
        Ok(threads)
    }

    /// Gives each thread its workers, once.
    pub(crate) fn begin(&mut self, worker_threads: Vec<WorkerThread>) {
        for (idle, worker_thread) in self.idle.drain(..).zip(worker_threads) {
            // A thread ends with its workers, or when it gets none.
            let _ = idle.send(worker_thread);
        }
    }

    /// Waits until all threads have ended. The workers must have been told to stop.
    pub(crate) fn join(&mut self) {
        self.idle.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A thread's main function. A panic ends the process, even in a build that unwinds: a switch without one of its
/// workers would block guests for ever, while the supervisor restarts one that has died.
fn work(given: &Receiver<WorkerThread>) {
    struct AbortOnPanic;
    impl Drop for AbortOnPanic {
        fn drop(&mut self) {
            if std::thread::panicking() {
                std::process::abort();
            }
        }
    }
    let _abort_on_panic = AbortOnPanic;
    if let Ok(worker_thread) = given.recv() {
        worker_thread.run();
    }
}
