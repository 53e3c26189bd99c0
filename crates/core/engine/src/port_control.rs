//! The control side of ports: the homes of rings, and changes that involve all workers.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lasthop_fabric::{Capabilities, RingPart};
use lasthop_guestmem::MemoryMap;
use lasthop_module_api::PortId;
use lasthop_ring::DeviceRing;
use lasthop_vhost::ForeignFd;

use crate::EngineError;
use crate::control::ControlQueue;
use crate::homes::Homes;
use crate::port_changes::PortChanges;
use crate::ring_fds::{CallFd, GuestSignals};
use crate::worker::Worker;
use crate::worker_pool::WorkerPool;

/// Attempts to stop or enable a ring, with a grace period of all workers in between: one until no worker has the ring,
/// one that recalls its packets, one after another home of the ring has counted them, and one more.
const STOPS_MAX: u32 = 4;

/// Changes ports and their rings, by tasks of the workers.
#[derive(Debug)]
pub(crate) struct PortControl {
    pub(crate) pool: Arc<WorkerPool<Worker>>,
    homes: Mutex<Homes>,
    /// Rings that stop later than their sessions waited, so that the sessions do not know their positions.
    adrift: Mutex<HashSet<(PortId, u16)>>,
    /// By port: how often a worker waited in vain to change a ring, since the session last asked.
    waits: Mutex<HashMap<PortId, u64>>,
    port_changes: PortChanges,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PortControl {
    pub(crate) fn new(pool: Arc<WorkerPool<Worker>>) -> Self {
        let homes = Mutex::new(Homes::new(pool.helpers().workers()));
        Self {
            pool,
            homes,
            adrift: Mutex::default(),
            waits: Mutex::default(),
            port_changes: PortChanges::default(),
        }
    }

    /// Sets the queue pairs that a guest requested from another process's control queue.
    pub(crate) fn grant_pairs(&self, port: PortId, pairs: u16) {
        self.pool.grant_pairs(port, pairs);
    }

    /// The serialization of changes. A thread uses it before it starts, stops or removes anything of a port.
    pub(crate) fn port_changes(&self) -> &PortChanges {
        &self.port_changes
    }

    fn assign_home(&self, port: PortId, pair: u16) -> usize {
        lock(&self.homes).assign(port, pair)
    }

    /// The home of virtqueue `index`, if it was ever started.
    pub(crate) fn home(&self, port: PortId, index: u16) -> Option<usize> {
        lock(&self.homes).find(port, index / 2)
    }

    pub(crate) fn set_home(&self, port: PortId, pair: u16, home: usize) {
        lock(&self.homes).set(port, pair, home);
    }

    /// Starts a virtqueue: its home prepares it, the others are told, then packets pass.
    pub(crate) fn start_ring(
        &self,
        port: PortId,
        index: u16,
        ring: DeviceRing,
        (kick, call): (Option<ForeignFd>, Option<ForeignFd>),
        enabled: bool,
    ) -> Result<std::io::Result<()>, EngineError> {
        let running = self.recall_ring(port, index)?;
        let stands_at = running.or_else(|| self.pool.take_stopped(port, index));
        if stands_at.is_some_and(|base| base != ring.base()) {
            self.set_adrift(port, index);
        }
        self.check_adrift(port, index)?;
        self.check_held(port)?;
        self.pool.stops().restarted(port);
        let home = self.assign_home(port, index / 2);
        let signals = GuestSignals {
            is_polled: kick.is_none(),
            has_event_index: ring.has_event_index(),
            call: call.map(|fd| Arc::new(CallFd::new(fd))),
        };
        let prepared = self.pool.call(home, move |worker| worker.prepare_ring(port, index, ring))?;
        let Some(part) = prepared else { return Ok(Ok(())) };
        self.pool.call_all(move |worker| join(worker, port, index, &part, &signals))?;
        let granted = self.pool.granted_pairs(port).is_none_or(|pairs| index / 2 < pairs);
        self.pool.call(home, move |worker| worker.open_ring(port, index, kick, enabled && granted))
    }

    fn set_adrift(&self, port: PortId, index: u16) {
        lock(&self.adrift).insert((port, index));
    }

    /// Returns an error if the session does not know the position of a ring. Only the next guest can start it.
    fn check_adrift(&self, port: PortId, index: u16) -> Result<(), EngineError> {
        let is_adrift = lock(&self.adrift).contains(&(port, index));
        if is_adrift { Err(EngineError::Adrift(port, index)) } else { Ok(()) }
    }

    /// Starts a control ring.
    pub(crate) fn start_control(
        &self,
        port: PortId,
        control: ControlQueue,
        (kick, call): (Option<ForeignFd>, Option<ForeignFd>),
    ) -> Result<std::io::Result<()>, EngineError> {
        let index = control.index;
        self.stop_ring(port, index)?;
        self.check_adrift(port, index)?;
        self.check_held(port)?;
        let home = self.assign_home(port, index / 2);
        let signals = GuestSignals {
            is_polled: kick.is_none(),
            has_event_index: control.ring.has_event_index(),
            call: call.map(|fd| Arc::new(CallFd::new(fd))),
        };
        self.pool.call(home, move |worker| worker.start_control(port, control, kick, signals))
    }

    /// Stops a virtqueue. Returns its position, also if a worker has stopped it before.
    pub(crate) fn stop_ring(&self, port: PortId, index: u16) -> Result<Option<u16>, EngineError> {
        let base = self.recall_ring(port, index).inspect_err(|_| self.set_adrift(port, index))?;
        let before = self.pool.take_stopped(port, index);
        Ok(base.or(before))
    }

    /// Stops a virtqueue that its session runs. `None` if its position is not known: then only the next guest can start it,
    /// since a start at an earlier position would repeat packets.
    pub(crate) fn stop_running(&self, port: PortId, index: u16) -> Option<u16> {
        // After an error it is adrift already.
        let base = self.stop_ring(port, index).ok()?;
        if base.is_none() {
            self.set_adrift(port, index);
        }
        base
    }

    /// Recalls all references to a virtqueue from all workers, and then has all workers forget it.
    fn recall_ring(&self, port: PortId, index: u16) -> Result<Option<u16>, EngineError> {
        let Some(home) = self.home(port, index) else { return Ok(None) };
        for _ in 0..STOPS_MAX {
            match self.pool.call(home, move |worker| worker.stop_ring(port, index))? {
                Some(base) => {
                    self.pool.call_all(move |worker| worker.leave_ring(port, index))?;
                    return Ok(base);
                }
                None => self.await_all(port)?,
            }
        }
        Err(EngineError::RingBusy(port, index))
    }

    /// Waits for all workers, since one of them holds a ring for long. The error names a worker that does not answer.
    fn await_all(&self, port: PortId) -> Result<(), EngineError> {
        *lock(&self.waits).entry(port).or_default() += 1;
        // Those that a ring was moved away from may have to count its packets.
        self.pool.call_all(Worker::settle_returns).map(drop)
    }

    /// How often a worker waited for others since the last call.
    pub(crate) fn take_waits(&self, port: PortId) -> u64 {
        lock(&self.waits).remove(&port).unwrap_or_default()
    }

    pub(crate) fn set_ring_enabled(
        &self,
        port: PortId,
        index: u16,
        enabled: bool,
    ) -> Result<(), EngineError> {
        let Some(home) = self.home(port, index) else { return Ok(()) };
        for _ in 0..STOPS_MAX {
            if self.pool.call(home, move |worker| worker.set_ring_enabled(port, index, enabled))? {
                return Ok(());
            }
            self.await_all(port)?;
        }
        Err(EngineError::RingBusy(port, index))
    }

    /// Sets a port's link up or down. When this returns, no packet passes a link that is down, and none waits for its
    /// guest.
    pub(crate) fn set_link(&self, port: PortId, up: bool) -> Result<(), EngineError> {
        self.pool.call(0, move |worker| worker.fabric.set_link(port, up))?;
        if up {
            return Ok(());
        }
        for _ in 0..STOPS_MAX {
            // Workers that saw the link up have finished that visit.
            self.pool.call_all(|_| ())?;
            if self.pool.call(0, move |worker| worker.fabric.drop_waiting(port))? {
                return Ok(());
            }
        }
        // If a worker takes long, packets that still wait there expire.
        Ok(())
    }

    pub(crate) fn set_ring_call(
        &self,
        port: PortId,
        index: u16,
        call: Option<ForeignFd>,
    ) -> Result<(), EngineError> {
        let call = call.map(|fd| Arc::new(CallFd::new(fd)));
        self.pool.call_all(move |worker| worker.set_call(port, index, call.as_ref()))?;
        // Chains that were completed before had no signal.
        self.signal_guest(port, index)
    }

    /// Signals a guest, even if nothing was completed. A worker does it, since the watchdog guards workers.
    pub(crate) fn signal_guest(&self, port: PortId, index: u16) -> Result<(), EngineError> {
        match self.home(port, index) {
            Some(home) => self.pool.call(home, move |worker| worker.signal_guest(port, index)).map(drop),
            None => Ok(()),
        }
    }

    /// Like `signal_guest`, once the worker is idle: guests that wake up need CPUs.
    pub(crate) fn signal_guest_later(&self, port: PortId, index: u16) {
        if let Some(home) = self.home(port, index) {
            self.pool.mailbox(home).post(Box::new(move |worker| _ = worker.signal_guest(port, index)));
        }
    }

    /// Returns an error while the port is held for its offences; the port's state shows it, too.
    fn check_held(&self, port: PortId) -> Result<(), EngineError> {
        let Some((left, offence)) = self.pool.hold(port) else { return Ok(()) };
        let error = EngineError::Held(whole_seconds(left), offence.description());
        let why = error.to_string();
        self.pool.call(0, move |worker| worker.fail(port, why))?;
        Err(error)
    }

    pub(crate) fn set_capabilities(
        &self,
        port: PortId,
        capabilities: Capabilities,
    ) -> Result<(), EngineError> {
        self.pool.call_all(move |worker| worker.fabric.set_capabilities(port, capabilities)).map(drop)
    }

    pub(crate) fn set_memory(&self, port: PortId, map: &Arc<MemoryMap>) -> Result<(), EngineError> {
        self.pool.memory_costs().set_memory(port, map);
        let map = Arc::clone(map);
        self.pool.call_all(move |worker| worker.fabric.set_memory(port, &map)).map(drop)
    }

    /// Removes all state of a port's guest.
    pub(crate) fn detach(&self, port: PortId) -> Result<(), EngineError> {
        let pairs = lock(&self.homes).pairs(port);
        let indices = pairs.into_iter().flat_map(|pair| [2 * pair, 2 * pair + 1]);
        // An error at one ring does not prevent the others from being stopped.
        let stopped: Vec<_> = indices.map(|index| self.stop_ring(port, index).map(drop)).collect();
        if stopped.iter().all(Result::is_ok) {
            // On an error the homes stay known: the next start stops these rings there first.
            lock(&self.homes).remove_port(port);
        }
        self.pool.forget_guest(port);
        lock(&self.adrift).retain(|(of, _)| *of != port);
        self.take_waits(port);
        for _ in 0..STOPS_MAX {
            let forgotten = self.pool.call_all(move |worker| worker.forget_guest(port))?;
            if forgotten.into_iter().all(|is_forgotten| is_forgotten) {
                break;
            }
        }
        stopped.into_iter().collect()
    }

    pub(crate) fn remove_port(&self, port: PortId) -> Result<(), EngineError> {
        self.detach(port)?;
        self.pool.forget_port(port);
        self.pool.call_all(move |worker| worker.remove_port(port)).map(drop)
    }
}

fn whole_seconds(time: Duration) -> u64 {
    time.as_millis().div_ceil(1000) as u64
}

fn join(worker: &mut Worker, port: PortId, index: u16, part: &RingPart, signals: &GuestSignals) {
    worker.join_ring(port, index, part, signals.clone());
}
