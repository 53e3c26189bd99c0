//! Back ends inside the bench's own process, to measure against: see `lasthop_ceiling`, which also says why nothing else
//! may use them.
//!
//! ```text
//!   guest --- socket --> control thread of port 0 --+                        +-- data thread, pinned
//!   guest --- socket --> control thread of port 1 --+--> [ LaneTable: lanes ] <--+   0 -> 1, 1 -> 0, 2 -> 3, ...
//! ```

mod bed;
mod lane_table;
mod session_thread;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::thread::{CpuSet, sched_setaffinity};

use lane_table::{Exchange, LaneTable};
use session_thread::SessionThread;

use crate::workload::GUESTS_MAX;

/// The kind of ceiling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResidentKind {
    /// Passes ring entries but no bytes: the upper limit of the generator.
    Null,
    /// The bare algorithm of a switch that copies once.
    Limit,
    /// The same, which sleeps when no frame has come for a while, and is woken by a kick.
    SleepingLimit,
}

/// A back end in this process. Dropping it ends its sessions and threads.
#[derive(Debug)]
pub(crate) struct Resident {
    lane_table: Arc<LaneTable>,
    session_threads: Mutex<HashMap<u16, SessionThread>>,
    worker: Option<JoinHandle<()>>,
}

impl Resident {
    /// Starts a data thread, on `cpu` if given, which does not poll yet: see [`Self::set_running`].
    ///
    /// # Errors
    /// The CPU does not exist, or the thread cannot be created.
    pub(crate) fn start(kind: ResidentKind, cpu: Option<usize>) -> io::Result<Self> {
        let lane_table = Arc::new(LaneTable::new(kind)?);
        let (ready, pinned) = sync_channel(1);
        let own = Arc::clone(&lane_table);
        let worker = std::thread::Builder::new()
            .name("ceiling".to_owned())
            .spawn(move || work(&own, kind, cpu, &ready))?;
        let resident = Self { lane_table, session_threads: Mutex::default(), worker: Some(worker) };
        pinned.recv().map_err(|_| io::Error::other("the ceiling's data thread ended at once"))??;
        Ok(resident)
    }

    /// Serves a front end on `port`, in its own thread; ends the port's earlier one. Ports 2 i and 2 i + 1 are joined.
    ///
    /// # Errors
    /// The port is beyond [`GUESTS_MAX`], or the system refuses a thread or a descriptor.
    pub(crate) fn attach(&self, port: u16, socket: UnixStream) -> io::Result<()> {
        if port >= GUESTS_MAX {
            let text = format!("a ceiling has ports 0 to {}, not {port}", GUESTS_MAX - 1);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let mut session_threads = self.session_threads.lock().unwrap_or_else(PoisonError::into_inner);
        drop(session_threads.remove(&port));
        let session_thread = SessionThread::start(port, socket, Arc::clone(&self.lane_table))?;
        session_threads.insert(port, session_thread);
        Ok(())
    }

    /// Starts or stops polling; a stopped data thread sleeps and uses no CPU. Returns once the change is in effect.
    pub(crate) fn set_running(&self, running: bool) {
        self.lane_table.set_running(running);
        // A thread that ended early has panicked: its guests will notice.
        let ended = || self.worker.as_ref().is_none_or(JoinHandle::is_finished);
        while self.lane_table.is_polling() != running && !ended() {
            std::thread::yield_now();
        }
    }

    /// Why the guest on `port` is not served, if it asked for a feature that a ceiling lacks or broke the rules of a
    /// ring.
    pub(crate) fn fault(&self, port: u16) -> Option<String> {
        self.lane_table.fault(port)
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        // Sessions first: they stop their rings, which needs the lane table.
        self.session_threads.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        self.lane_table.end();
        if let Some(worker) = self.worker.take() {
            let _ = worker.join(); // a panic was reported already
        }
    }
}

/// The data thread.
fn work(lane_table: &LaneTable, kind: ResidentKind, cpu: Option<usize>, ready: &SyncSender<io::Result<()>>) {
    let pinned = cpu.map_or(Ok(()), pin);
    let failed = pinned.is_err();
    let _ = ready.send(pinned); // `start` waits for it
    if !failed {
        lane_table.work(&mut Exchange::new(kind));
    }
}

/// Pins this thread to a CPU.
fn pin(cpu: usize) -> io::Result<()> {
    let refused = |why: io::Error| io::Error::new(why.kind(), format!("cannot run on CPU {cpu}: {why}"));
    if cpu >= CpuSet::MAX_CPU {
        return Err(refused(io::ErrorKind::InvalidInput.into()));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|errno| refused(errno.into()))
}
