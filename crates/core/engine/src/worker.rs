//! A worker: a fabric, its active rings, and the descriptors by which guests and the control side wake it.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use lasthop_fabric::bounds::{PACKET_COST, VISIT_COST};
use lasthop_fabric::{DrrScheduler, Fabric, RingId, RingPart, SettledCopies, Stopping, Visited, WorkStage};
use lasthop_guestmem::{Mapping, guard};
use lasthop_module_api::PortId;
use lasthop_ring::{AdaptivePoll, CoreReturn, CoreYield, DeviceRing, arm_and_recheck};
use lasthop_vhost::ForeignFd;

use crate::answers::FirstPackets;
use crate::clock::now_ns;
use crate::control::{ControlOutcome, ControlQueue, ControlQueues, ServedControl};
use crate::empty_kicks::UnheardRings;
use crate::events::{EVENTS_MAX, Event, EventList, Events};
use crate::helpers::{Helping, OffloadCounts};
use crate::load::{Load, MoveDamping};
use crate::mailbox::{TaskRunner, WorkerTask};
use crate::memory_meter::{MemoryMeter, Sampling};
use crate::offences::Offence;
use crate::persistent_counters::PersistentCounters;
use crate::polled::{PolledRings, UNKICKED_NS};
use crate::ring_fds::{CallFd, GuestSignals, RingFdMap, RingFds, calls};
use crate::scheduling::{PolicyCounters, Scheduling};
use crate::signals::SignalSender;
use crate::stats::WorkerStats;
use crate::sys::ThreadUsage;
use crate::transmit_timers::TransmitTimers;
use crate::worker_pool::{PoolMember, WorkerPool};

/// How long stopping a ring waits for other workers' visits, which take some 100 us, before the control side waits for
/// all workers.
const RECALL: Duration = Duration::from_millis(10);

/// A fabric with everything that it needs to run. One thread at a time serves it.
pub(crate) struct Worker {
    pub(crate) fabric: Fabric,
    pub(crate) stats: WorkerStats,
    pub(crate) pool: Arc<WorkerPool<Self>>,
    pub(crate) events: Events,
    pub(crate) active: DrrScheduler,
    pub(crate) persistent_counters: PersistentCounters,
    pub(crate) fds: RingFdMap,
    pub(crate) signals: SignalSender<Self>,
    pub(crate) controls: ControlQueues,
    pub(crate) polled: PolledRings,
    pub(crate) unheard: UnheardRings,
    /// Virtqueues that were kicked since kicks were recorded.
    pub(crate) heard: ArrayVec<(PortId, u16), EVENTS_MAX>,
    pub(crate) timers: TransmitTimers,
    sampling: Sampling,
    /// Its thread's core when that was offered last, if it is the first of the thread's workers.
    core_yield: CoreYield,
    /// Start of the last round, if it found packets.
    busy_since_ns: Option<u64>,
    /// Ports whose rings were stopped, and why.
    pub(crate) failures: HashMap<PortId, String>,
    /// The share of time that its rounds take, and how long it stays with the thread that serves it.
    pub(crate) load: Load,
    pub(crate) stay: MoveDamping,
    pub(crate) scheduling: Scheduling,
    pub(crate) offload_counts: Arc<OffloadCounts>,
    /// The state of a worker that is a helper.
    pub(crate) helping: Helping,
    pub(crate) started: Instant,
    pub(crate) faults_seen: usize,
    polled_ns: u64,
    /// Whether the last round found packets.
    has_worked: bool,
    pub(crate) first_packets: FirstPackets,
    /// Whether it fetches nothing from guests.
    is_draining: bool,
    /// Whether it also writes no word of their rings, since another process may be using them.
    pub(crate) is_quiesced: bool,
    stopping: bool,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "worker {}", self.stats.index)
    }
}

impl Worker {
    pub(crate) fn new(
        mut fabric: Fabric,
        pool: Arc<WorkerPool<Self>>,
        started: Instant,
    ) -> std::io::Result<Self> {
        let events = Events::new()?;
        events.listen(pool.mailbox(fabric.worker()).wake_fd(), Event::Mailbox)?;
        let meter = MemoryMeter::new(Arc::clone(&pool), started);
        let sampling = Sampling::new(RandomState::new().hash_one(0), meter.seen());
        fabric.set_meter(Box::new(meter));
        let stats = WorkerStats { index: fabric.worker(), ..WorkerStats::default() };
        let persistent_counters = PersistentCounters::new(Arc::clone(pool.copy_clock(fabric.worker())));
        let signals = SignalSender::new(fabric.worker(), Arc::clone(&pool), started);
        Ok(Self {
            fabric,
            stats,
            pool,
            events,
            active: DrrScheduler::default(),
            persistent_counters,
            fds: RingFdMap::default(),
            signals,
            controls: ControlQueues::default(),
            polled: PolledRings::default(),
            unheard: UnheardRings::default(),
            heard: ArrayVec::new(),
            timers: TransmitTimers::default(),
            sampling,
            core_yield: CoreYield::default(),
            busy_since_ns: None,
            failures: HashMap::new(),
            load: Load::default(),
            stay: MoveDamping::default(),
            scheduling: Scheduling::default(),
            offload_counts: Arc::default(),
            helping: Helping::default(),
            started,
            faults_seen: guard::faults(),
            polled_ns: 0,
            has_worked: false,
            first_packets: FirstPackets::default(),
            is_draining: false,
            is_quiesced: false,
            stopping: false,
        })
    }

    /// The worker's number in the pool.
    pub(crate) fn number(&self) -> usize {
        self.stats.index
    }

    /// Declares that thread number `thread` serves it from now on.
    pub(crate) fn set_thread(&mut self, thread: usize) {
        self.stats.thread = thread;
    }

    /// Readable when the worker has something to do.
    pub(crate) fn events(&self) -> BorrowedFd<'_> {
        self.events.fd()
    }

    /// Whether it has active rings.
    pub(crate) fn is_active(&self) -> bool {
        !self.is_quiesced && (!self.active.is_empty() || self.helping.is_awake())
    }

    /// The port that received the packets of its last round, if that found any.
    pub(crate) fn debtor(&self) -> Option<PortId> {
        self.fabric.last_destination().filter(|_| self.has_worked).map(|(port, _)| port)
    }

    /// Whether it was told to stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// Does a round; returns whether there were packets.
    pub(crate) fn step(&mut self, now: u64, adaptive_poll: &mut AdaptivePoll) -> bool {
        self.fabric.next_round(now, self.has_worked);
        if self.signals.send_delayed(&mut self.fabric, &self.fds, &mut self.scheduling, now) {
            self.send_signals();
        }
        if let Some(since_ns) = self.busy_since_ns.take() {
            self.sampling.note_round(now, now - since_ns, ThreadUsage::now);
            self.sampling.note_alarms(now, self.pool.memory_costs().alarms());
        }
        self.has_worked = self.round(now, adaptive_poll);
        self.busy_since_ns = self.has_worked.then_some(now);
        self.persistent_counters.write_if_due(now, &self.fabric);
        self.has_worked
    }

    /// Polls for kicks and tasks if it has not for `poll_ns`; then arms rings that have had no packets for `look_ns`.
    pub(crate) fn poll_events_if_due(&mut self, now: u64, poll_ns: u64, look_ns: u64) {
        if now - self.polled_ns >= poll_ns {
            self.polled_ns = now;
            self.poll_events(0);
            if self.has_worked {
                self.arm_idle_rings(now, look_ns);
            }
        }
    }

    /// Handles kicks and tasks; waits for one up to `sleep_ns` (`u64::MAX`: without limit).
    pub(crate) fn poll_events(&mut self, sleep_ns: u64) {
        self.count_sleep(sleep_ns);
        self.take_events((sleep_ns < u64::MAX).then_some(sleep_ns));
    }

    /// Counts whether others took its thread's core, which was offered.
    pub(crate) fn count_offer(&mut self, back: CoreReturn, core_yield: CoreYield) {
        self.core_yield = core_yield;
        self.stats.crowded += u64::from(back.was_taken);
        self.stats.scarce += u64::from(back.is_scarce);
    }

    /// Counts a sleep of up to `sleep_ns`, or a poll if that is 0.
    pub(crate) fn count_sleep(&mut self, sleep_ns: u64) {
        self.stats.sleeps += u64::from(sleep_ns > 0);
        self.stats.polls += u64::from(sleep_ns == 0);
    }

    /// Does all that is due; returns whether there were packets.
    fn round(&mut self, now: u64, adaptive_poll: &mut AdaptivePoll) -> bool {
        if self.is_quiesced {
            return false;
        }
        // The guests of active rings have waited for a wake-up, so their packets come first.
        let is_first = !self.active.is_empty();
        let mut worked = is_first && self.visit_active(now, adaptive_poll);
        self.record_kicks(now);
        if self.fabric.take_returns() {
            self.send_signals();
        }
        if now >= self.controls.late_ns() {
            self.serve_late_controls(now);
        }
        self.hear_again(now);
        self.look_at_polled(now);
        self.visit_timed(now);
        worked |= self.pool.helpers().is_one(self.stats.index) && self.help(now, adaptive_poll);
        worked |= !is_first && self.visit_active(now, adaptive_poll);
        while let Some((port, cost)) = self.signals.next_debt() {
            self.active.charge(port, cost);
        }
        if self.fabric.deadline_ns().is_some() {
            self.meter_drain(now);
            worked |= self.drain_waiting();
            self.fabric.expire(now);
            self.send_signals();
        }
        if guard::faults() != self.faults_seen {
            self.quarantine();
        }
        self.wake_unblocked(now); // last: a ring that is unblocked after it would be slept over
        worked
    }

    /// Gives each port with active rings its turn; returns whether one had packets.
    fn visit_active(&mut self, now: u64, adaptive_poll: &mut AdaptivePoll) -> bool {
        let mut active = std::mem::take(&mut self.active);
        let worked = active.round(now, |ring| self.visit(ring, now, adaptive_poll));
        self.active = active;
        worked
    }

    fn visit(&mut self, ring: RingId, now: u64, adaptive_poll: &mut AdaptivePoll) -> Visited {
        if self.is_draining {
            return Visited::default();
        }
        self.stats.visits += 1;
        let weight = self.sampling.of_visit(now);
        self.fabric.set_metered(weight);
        let visited = self.visit_signalling(ring, now);
        self.sampling.note_cost(visited.cost);
        if visited.packets > 0 {
            self.stats.batches += 1;
            self.note_first_packets(ring);
            adaptive_poll.found(ring.port.index(), now);
            if self.scheduling.movement.is_some() {
                self.note_delivery(now);
            }
        }
        self.persistent_counters.note();
        self.fabric.mark(WorkStage::Other);
        self.send_signals();
        self.fabric.mark(WorkStage::Signal);
        self.fabric.finish_rest();
        self.fabric.mark_visit(ring.port, visited.packets);
        visited
    }

    /// Decides whether the next delivery of packets that wait for receive buffers is metered.
    pub(crate) fn meter_drain(&mut self, now: u64) {
        let weight = self.sampling.of_drain(now);
        self.fabric.set_metered(weight);
    }

    fn wake_unblocked(&mut self, now: u64) {
        if self.is_quiesced {
            return; // they keep
        }
        while let Some(ring) = self.fabric.unblocked().pop() {
            self.activate(ring, now);
        }
    }

    /// Arms the rings without packets for `look_ns`, and deactivates those that have none now either.
    pub(crate) fn arm_idle_rings(&mut self, now: u64, look_ns: u64) {
        if self.is_quiesced {
            return; // another worker may have the rings
        }
        self.helping.rest(now, look_ns);
        for index in (0..self.active.len()).rev() {
            let Some(active) = self.active.get(index) else { continue };
            if now.saturating_sub(active.worked_ns) >= look_ns {
                if self.is_to_be_timed(active, now) {
                    self.active.remove(active.ring);
                } else if self.fabric.arm(active.ring) {
                    self.fabric.suppress_kicks(active.ring);
                } else {
                    self.active.remove(active.ring);
                    if self.must_poll(active.ring) {
                        self.polled.add(active.ring, now);
                    }
                }
            }
        }
        self.note_broken();
    }

    /// Called when no ring is active: prepares to sleep until a kick, a task, another worker or the earliest deadline.
    /// Returns for how long, in ns; 0: not at all, `u64::MAX`: without limit.
    pub(crate) fn prepare_sleep(&mut self, now: u64) -> u64 {
        if self.is_quiesced {
            return u64::MAX; // a task ends this, and new packets are found then
        }
        self.note_broken();
        self.persistent_counters.write_before_sleep(now, &self.fabric);
        let moved = self.fabric.arm_waiting();
        self.send_signals();
        let deadline = self.fabric.deadline_ns().map(|deadline| deadline.saturating_sub(now));
        // Packets that were delivered while arming may have unblocked a ring without kicks.
        self.wake_unblocked(now);
        if moved || deadline == Some(0) || !self.active.is_empty() {
            return 0; // other rings are armed even if a receiver moves its index without end
        }
        let returned = arm_and_recheck(
            self,
            |worker| worker.fabric.prepare_sleep(),
            |worker| worker.fabric.take_returns() || worker.fabric.has_orders(),
        );
        if returned {
            return 0; // others are heard however fast packets come back
        }
        let shortened =
            |timeout: u64| if self.waits_for_a_polled_ring() { timeout.min(UNKICKED_NS) } else { timeout };
        let due = self.persistent_counters.due_in_ns(now);
        let late = Some(self.controls.late_ns()).filter(|late_ns| *late_ns < u64::MAX);
        let looks = self
            .polled
            .due_ns()
            .into_iter()
            .chain(self.unheard.due_ns())
            .chain(late)
            .chain(self.signals.delayed_until_ns())
            .chain(self.timers.due_ns())
            .map(|at| at.saturating_sub(now));
        deadline.map(shortened).into_iter().chain(due).chain(looks).min().unwrap_or(u64::MAX)
    }

    /// Called after a sleep, real or omitted, and after its events.
    pub(crate) fn wake(&mut self, now: u64) {
        self.polled_ns = now;
        self.fabric.end_sleep();
        self.send_signals();
        self.wake_unblocked(now);
    }

    /// Handles kicks and tasks; waits for one up to `timeout_ns` (`None`: without limit).
    pub(crate) fn take_events(&mut self, timeout_ns: Option<u64>) {
        self.fabric.mark(WorkStage::Other);
        let mut events = EventList::new();
        self.events.wait(timeout_ns, &mut events);
        match timeout_ns {
            Some(0) => self.fabric.mark(WorkStage::Kick),
            _ => self.fabric.mark_sleep(),
        }
        // Most polls of a busy worker find nothing, and need no time.
        if !events.is_empty() {
            self.handle_events(events.iter().copied(), now_ns(self.started));
        }
    }

    pub(crate) fn handle_events(&mut self, events: impl IntoIterator<Item = Event>, now: u64) {
        for event in events {
            match event {
                Event::Mailbox => {
                    self.run_tasks();
                    self.fabric.mark(WorkStage::Control);
                }
                Event::Sleeper => {
                    self.scheduling.clear_events(self.stats.index);
                    self.timers.note_event();
                }
                Event::Kick(port, index) => {
                    self.kicked(port, index, now);
                    self.fabric.mark(WorkStage::Kick);
                }
            }
        }
    }

    fn run_tasks(&mut self) {
        // Later tasks wait for the next call.
        for _ in 0..self.pool.mailbox(self.stats.index).len() {
            let Some(task) = self.pool.mailbox(self.stats.index).take() else { break };
            self.run_task(task);
        }
    }

    /// Writes the call eventfds that the last visits requested, and wakes sleeping workers to which packets were
    /// returned.
    #[inline]
    pub(crate) fn send_signals(&mut self) {
        self.signals.send(&mut self.fabric, &self.fds, &mut self.scheduling);
    }

    /// Sends all delayed signals.
    pub(crate) fn flush_signals(&mut self) {
        self.signals.flush(&mut self.fabric, &self.fds);
    }

    /// Signals a guest; returns whether this ring has a call descriptor.
    pub(crate) fn signal_guest(&mut self, port: PortId, index: u16) -> bool {
        self.signals.signal_guest(&self.fds, port, index)
    }

    /// Enables or disables a ring as its guest requested; retries by itself.
    pub(crate) fn grant_ring(&mut self, port: PortId, index: u16) {
        let Some(pairs) = self.pool.granted_pairs(port) else { return };
        if !self.set_ring_enabled(port, index, index / 2 < pairs) {
            let again: WorkerTask<Self> = Box::new(move |worker: &mut Self| worker.grant_ring(port, index));
            self.pool.mailbox(self.stats.index).post(again);
        }
    }

    /// Starts the control ring of a port.
    pub(crate) fn start_control(
        &mut self,
        port: PortId,
        control: ControlQueue,
        kick: Option<ForeignFd>,
        signals: GuestSignals,
    ) -> std::io::Result<()> {
        let index = control.index;
        self.fds.insert((port, index), RingFds::new(signals, true));
        self.listen(port, index, kick)?;
        self.controls.insert(port, control);
        self.serve_control(port, now_ns(self.started));
        Ok(())
    }

    /// Serves a port's control queue, or defers it if it was served recently.
    pub(crate) fn serve_control(&mut self, port: PortId, now: u64) {
        let Some(ServedControl { index, rings, outcome }) = self.controls.serve(port, now) else { return };
        let ControlOutcome { commands, granted, signal } = outcome;
        if let Some(why) = self.control_failure(port) {
            self.pool.stops().note(port, &why);
        }
        if let Some(pairs) = granted {
            self.pool.grant_pairs(port, pairs);
            (0..rings).for_each(|ring| self.grant_ring(port, ring));
            self.signals.add_debt(port, VISIT_COST * u64::from(rings));
        }
        self.signals.add_debt(port, PACKET_COST * commands as u64);
        if signal {
            self.signal_guest(port, index);
        }
        self.send_signals();
    }

    /// Serves deferred control queues that are due.
    fn serve_late_controls(&mut self, now: u64) {
        for port in self.controls.take_late() {
            self.serve_control(port, now);
        }
    }

    pub(crate) fn activate(&mut self, ring: RingId, now: u64) {
        self.polled.remove(ring);
        self.timers.remove(ring);
        if self.active.add(ring, now) {
            self.fabric.suppress_kicks(ring);
        }
    }

    /// Prepares a ring of this worker; no packet passes yet.
    pub(crate) fn prepare_ring(&mut self, port: PortId, index: u16, ring: DeviceRing) -> Option<RingPart> {
        let part = self.fabric.prepare_ring(port, index, ring)?;
        let signals = GuestSignals { call: None, is_polled: false, has_event_index: false };
        self.fds.insert((port, index), RingFds::new(signals, true));
        Some(part)
    }

    /// Registers a ring that this worker or another one has prepared.
    pub(crate) fn join_ring(&mut self, port: PortId, index: u16, part: &RingPart, signals: GuestSignals) {
        self.failures.remove(&port);
        self.fabric.join_ring(port, index, part);
        let is_home = self.is_home(port, index);
        self.fds.insert((port, index), RingFds::new(signals, is_home));
    }

    /// Starts a ring of this worker, which all workers know by now. Its first visit needs no kick.
    pub(crate) fn open_ring(
        &mut self,
        port: PortId,
        index: u16,
        kick: Option<ForeignFd>,
        enabled: bool,
    ) -> std::io::Result<()> {
        self.listen(port, index, kick)?;
        self.enable_or_retry(port, index, enabled);
        if index % 2 == 1 {
            self.activate(RingId { port, queue: index / 2 }, now_ns(self.started));
        }
        Ok(())
    }

    /// Enables or disables a ring; retries later if others use it for long.
    fn enable_or_retry(&mut self, port: PortId, index: u16, enabled: bool) {
        if !self.set_ring_enabled(port, index, enabled) {
            let again: WorkerTask<Self> =
                Box::new(move |worker| worker.enable_or_retry(port, index, enabled));
            self.pool.mailbox(self.stats.index).post(again);
        }
    }

    /// Whether this worker is the home of virtqueue `index`.
    pub(crate) fn is_home(&self, port: PortId, index: u16) -> bool {
        self.fds.get(&(port, index)).is_some_and(|fds| fds.is_home)
    }

    /// Kicks of a ring of this worker since it started.
    pub(crate) fn kicks(&self, port: PortId, index: u16) -> u64 {
        self.fds.get(&(port, index)).map_or(0, |fds| fds.kicks)
    }

    /// Stops a ring of this worker, and returns its position; `None` if others use it for long: ask again.
    pub(crate) fn stop_ring(&mut self, port: PortId, index: u16) -> Option<Option<u16>> {
        if self.controls.is_control(port, index) {
            let control = self.controls.remove(port);
            self.leave_ring(port, index);
            return Some(control.map(|control| control.ring.base()));
        }
        self.flush_signals();
        let until = Instant::now() + RECALL;
        let mut step = self.fabric.stop_step(port, index);
        while step == Stopping::Busy && Instant::now() < until {
            self.send_signals();
            std::thread::yield_now();
            step = self.fabric.stop_step(port, index);
        }
        self.send_signals();
        match step {
            Stopping::Busy => None,
            Stopping::Done(base) => {
                self.leave_ring(port, index);
                Some(base)
            }
        }
    }

    /// Removes all state of a stopped ring, of this worker or another one.
    pub(crate) fn leave_ring(&mut self, port: PortId, index: u16) {
        self.flush_signals();
        self.signals.forget_ring(port, index);
        self.unheard.remove((port, index));
        self.fabric.leave_ring(port, index);
        if index % 2 == 1 {
            self.forget_active(RingId { port, queue: index / 2 });
        }
        if let Some(kick) = self.fds.remove(&(port, index)).and_then(|fds| fds.kick) {
            self.events.forget(kick.as_fd());
        }
    }

    /// Visits a transmit ring no more.
    pub(crate) fn forget_active(&mut self, ring: RingId) {
        self.active.remove(ring);
        self.polled.remove(ring);
        self.timers.remove(ring);
    }

    /// Enables or disables a ring; returns false if others use it for long: ask again.
    pub(crate) fn set_ring_enabled(&mut self, port: PortId, index: u16, enabled: bool) -> bool {
        let until = Instant::now() + RECALL;
        let mut done = self.fabric.set_ring_enabled(port, index, enabled);
        while !done && Instant::now() < until {
            std::thread::yield_now();
            done = self.fabric.set_ring_enabled(port, index, enabled);
        }
        self.send_signals();
        done
    }

    pub(crate) fn set_call(&mut self, port: PortId, index: u16, call: Option<&Arc<CallFd>>) {
        if let Some(fds) = self.fds.get_mut(&(port, index)) {
            fds.signals.call = call.cloned();
        }
    }

    /// Removes all state of a port's guest, whose rings have stopped. False while the control plane is sending one of its
    /// packets: call again.
    pub(crate) fn forget_guest(&mut self, port: PortId) -> bool {
        self.failures.remove(&port);
        self.fabric.set_memory(port, &Arc::default());
        self.fabric.set_capabilities(port, lasthop_fabric::Capabilities::default());
        self.fabric.forget_guest(port)
    }

    /// Sets whether it stops fetching from guests. Afterwards it visits rings again that it ignored meanwhile.
    pub(crate) fn set_draining(&mut self, is_draining: bool) {
        let was_still = std::mem::replace(&mut self.is_quiesced, false);
        self.is_draining = is_draining;
        if was_still {
            self.handle_missed_kicks();
        }
    }

    pub(crate) fn is_quiesced(&self) -> bool {
        self.is_quiesced
    }

    /// Whether it fetches nothing from guests.
    pub(crate) fn is_still(&self) -> bool {
        self.is_quiesced || self.is_draining
    }

    /// Stops work, and writes the persistent counters.
    pub(crate) fn quiesce(&mut self) {
        self.flush_signals();
        self.is_quiesced = true;
        self.persistent_counters.write(now_ns(self.started), &self.fabric);
    }

    /// Called once all workers are quiesced: returns packets that wait for receive buffers to their homes.
    pub(crate) fn withdraw(&mut self) {
        self.fabric.withdraw();
    }

    /// Postpones pending packets; they will be fetched from their rings again.
    pub(crate) fn postpone(&mut self) {
        self.fabric.postpone();
        self.persistent_counters.write(now_ns(self.started), &self.fabric);
    }

    /// Removes a port.
    pub(crate) fn remove_port(&mut self, port: PortId) {
        self.fabric.remove_port(port);
        self.persistent_counters.close(port);
        self.signals.forget(port);
    }

    /// Keeps a copy of this worker's counters for a port.
    pub(crate) fn keep_counters(&mut self, port: PortId, memory: &Arc<Mapping>) {
        self.persistent_counters.open(port, self.stats.index, memory);
    }

    /// Writes its persistent counters.
    pub(crate) fn persist_counters(&mut self) {
        self.persistent_counters.write(now_ns(self.started), &self.fabric);
    }

    /// Its counters, the number of active rings, and whether its core is scarce.
    pub(crate) fn stats(&self) -> WorkerStats {
        let [offloads_shared, offloads_alone, offloads_moved] = self.offload_counts.read();
        WorkerStats {
            is_scarce: self.core_yield.is_scarce(now_ns(self.started)),
            active_rings: self.active.len(),
            handoffs: self.fabric.handoff_counters(),
            wakes: self.signals.wakes(),
            helper_cpu: self.pool.helpers().cpu_of(self.stats.index),
            policies: PolicyCounters {
                offloads_shared,
                offloads_alone,
                offloads_moved,
                ..self.scheduling.counters
            },
            ..self.stats
        }
    }

    pub(crate) fn stop(&mut self) {
        self.stopping = true;
    }
}

impl TaskRunner for Worker {
    fn run_task(&mut self, task: WorkerTask<Self>) {
        task(self);
        self.send_signals();
        if self.is_quiesced {
            self.flush_signals(); // nothing else would, before another process continues the rings
        }
    }
}

impl PoolMember for Worker {
    fn settle_copies(&mut self, copies: SettledCopies) {
        self.fabric.settle_copies(copies);
    }

    /// An offence by calls may be over: the front end may have given other descriptors meanwhile.
    fn stop_offender(&mut self, port: PortId, offence: Offence) {
        if !offence.is_by_calls() || calls(&self.fds, port).any(CallFd::is_shut) {
            self.stop_for(port, offence.why());
        }
    }
}
