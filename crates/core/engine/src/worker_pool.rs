//! All workers of a switch: their mailboxes, and the state that they share with each other and the control side.

use std::collections::HashMap;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lasthop_fabric::SettledCopies;
use lasthop_module_api::PortId;

use crate::helpers::Helpers;
use crate::mailbox::{Mailbox, TaskRunner};
use crate::memory_costs::MemoryCosts;
use crate::offences::{Offence, Offences};
use crate::persistent_counters::CopyClock;
use crate::stops::Stops;
use crate::watchdog::{Examiner, Finding, Watchdog};
use crate::{EngineError, REPLY_TIMEOUT};

/// A worker of a pool.
pub(crate) trait PoolMember: TaskRunner + Send + 'static {
    /// Settles chains of rings that were moved here, whose packets another worker has counted.
    fn settle_copies(&mut self, copies: SettledCopies);

    /// Stops the rings of a port whose front end blocked a worker, unless its offence is over.
    fn stop_offender(&mut self, port: PortId, offence: Offence);
}

/// The mailboxes of workers `W`, and their shared state.
#[derive(Debug)]
pub(crate) struct WorkerPool<W> {
    mailboxes: Vec<Mailbox<W>>,
    /// Queue pairs that guests requested through their control queues; kept when rings are restarted.
    granted_pairs: Mutex<HashMap<PortId, u16>>,
    /// Positions of rings that a worker stopped by itself, until their session asks.
    stopped: Mutex<HashMap<(PortId, u16), u16>>,
    watchdog: Arc<Watchdog>,
    offences: Mutex<Offences>,
    stops: Stops,
    memory_costs: MemoryCosts,
    helpers: Arc<Helpers>,
    /// One for each worker.
    copy_clocks: Vec<Arc<CopyClock>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<W: PoolMember> WorkerPool<W> {
    /// A pool of `workers`, the last of which are `helpers`.
    pub(crate) fn new(workers: usize, helpers: Arc<Helpers>) -> std::io::Result<Self> {
        Ok(Self {
            mailboxes: (0..workers).map(|_| Mailbox::new()).collect::<Result<_, _>>()?,
            granted_pairs: Mutex::default(),
            stopped: Mutex::default(),
            watchdog: Arc::new(Watchdog::new(workers)),
            offences: Mutex::default(),
            stops: Stops::default(),
            memory_costs: MemoryCosts::default(),
            helpers,
            copy_clocks: (0..workers).map(|_| Arc::default()).collect(),
        })
    }

    /// The helpers among the workers.
    pub(crate) fn helpers(&self) -> &Arc<Helpers> {
        &self.helpers
    }

    pub(crate) fn watchdog(&self) -> &Arc<Watchdog> {
        &self.watchdog
    }

    /// The stops of rings by workers, for sessions.
    pub(crate) fn stops(&self) -> &Stops {
        &self.stops
    }

    pub(crate) fn memory_costs(&self) -> &MemoryCosts {
        &self.memory_costs
    }

    /// Audits the memory cost of `port`: stops its rings if that is too much.
    pub(crate) fn audit(&self, port: PortId) {
        if self.memory_costs.audit(port) {
            self.quarantine(port, Offence::MemoryFilled);
        }
    }

    pub(crate) fn mailbox(&self, worker: usize) -> &Mailbox<W> {
        &self.mailboxes[worker]
    }

    /// The time of the worker's last write of its persistent counters.
    pub(crate) fn copy_clock(&self, worker: usize) -> &Arc<CopyClock> {
        &self.copy_clocks[worker]
    }

    pub(crate) fn mailboxes(&self) -> &[Mailbox<W>] {
        &self.mailboxes
    }

    /// Has one worker run `task` and waits for its result.
    pub(crate) fn call<R: Send + 'static>(
        &self,
        worker: usize,
        task: impl FnOnce(&mut W) -> R + Send + 'static,
    ) -> Result<R, EngineError> {
        wait_for(worker, &self.mailboxes[worker].ask(task), Instant::now())
    }

    /// Has all workers run `task`, concurrently. When they have answered, each was between two visits since (grace
    /// period): no worker uses a thing that `task` removed.
    pub(crate) fn call_all<R: Send + 'static>(
        &self,
        task: impl Fn(&mut W) -> R + Clone + Send + 'static,
    ) -> Result<Vec<R>, EngineError> {
        let asked = Instant::now();
        let answers: Vec<_> = self.mailboxes.iter().map(|mailbox| mailbox.ask(task.clone())).collect();
        let numbered = answers.iter().enumerate();
        numbered.map(|(worker, answer)| wait_for(worker, answer, asked)).collect()
    }

    /// Notes the position `base` of a ring that a worker stopped by itself; its session does not know yet.
    pub(crate) fn note_stopped(&self, port: PortId, index: u16, base: u16) {
        lock(&self.stopped).insert((port, index), base);
    }

    /// Takes the position of a ring that a worker stopped by itself; its session gets it once.
    pub(crate) fn take_stopped(&self, port: PortId, index: u16) -> Option<u16> {
        lock(&self.stopped).remove(&(port, index))
    }

    /// Sets the queue pairs that a guest requested through its control queue.
    pub(crate) fn grant_pairs(&self, port: PortId, pairs: u16) {
        lock(&self.granted_pairs).insert(port, pairs);
    }

    pub(crate) fn granted_pairs(&self, port: PortId) -> Option<u16> {
        lock(&self.granted_pairs).get(&port).copied()
    }

    /// Stops the rings of `port`, whose front end blocked a worker or took more than its share.
    pub(crate) fn quarantine(&self, port: PortId, offence: Offence) {
        lock(&self.offences).record(port, offence, Instant::now());
        for mailbox in &self.mailboxes {
            mailbox.post(Box::new(move |worker| worker.stop_offender(port, offence)));
        }
    }

    /// How long a port's rings must not be started yet for its offences, and why.
    pub(crate) fn hold(&self, port: PortId) -> Option<(Duration, Offence)> {
        lock(&self.offences).hold(port, Instant::now())
    }

    /// Removes the state of a port's guest.
    pub(crate) fn forget_guest(&self, port: PortId) {
        lock(&self.granted_pairs).remove(&port);
        lock(&self.stopped).retain(|(of, _), _| *of != port);
        self.stops.forget(port);
    }

    /// Removes a port.
    pub(crate) fn forget_port(&self, port: PortId) {
        lock(&self.offences).forget(port);
        self.memory_costs.forget(port);
    }
}

/// Waits for the answer to a question of time `asked`.
pub(crate) fn wait_for<R>(worker: usize, answer: &Receiver<R>, asked: Instant) -> Result<R, EngineError> {
    let left = REPLY_TIMEOUT.saturating_sub(asked.elapsed());
    answer.recv_timeout(left).map_err(|_| EngineError::NoAnswer(worker))
}
impl<W: PoolMember> Examiner for Arc<WorkerPool<W>> {
    fn filled_bytes(&self, port: PortId) -> u64 {
        self.memory_costs.filled_bytes(port)
    }

    fn settle(&self, port: PortId, finding: Finding) {
        match finding {
            Finding::Filled => self.audit(port),
            Finding::Stalled { has_shrunk } if self.memory_costs.stall(port, has_shrunk) => {
                self.quarantine(port, Offence::MemoryStalls);
            }
            Finding::Stalled { .. } => {}
        }
    }
}
