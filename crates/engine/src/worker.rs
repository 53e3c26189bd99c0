use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use lasthop_fabric::{Fabric, RingId};
use lasthop_guestmem::guard;
use lasthop_ring::DeviceRing;
use lasthop_verdict::PortId;

use crate::EngineSettings;
use crate::active::ActiveRings;
use crate::control::{Command, ControlQueue};
use crate::events::{Event, Events};
use crate::mailbox::Mailbox;
use crate::stats::WorkerStats;

/// How often a busy worker looks for kicks and errands: a ring that wakes meanwhile waits so long at most.
const POLL_NS: u64 = 20_000;
/// How long a worker without work looks around before it offers its core to others.
const BLIND_NS: u64 = 20_000;
/// A core that comes back later than this was wanted by somebody else.
const WANTED_NS: u64 = 10_000;

/// How often a receive ring without kick descriptor is looked at while packets wait for it.
const UNKICKED_NS: u64 = 100_000;

/// Time since the engine started, in ns.
pub(crate) fn now_ns(started: Instant) -> u64 {
    started.elapsed().as_nanos() as u64
}

/// A guest's eventfds of one virtqueue.
#[derive(Debug, Default)]
struct RingFds {
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
}

/// Signals a guest. A saturated eventfd is one that its guest has not read: it will see the packets when it does.
fn ring_bell(call: &OwnedFd) {
    let _ = rustix::io::write(call, &1_u64.to_ne_bytes());
}

/// A thread that owns a fabric.
pub(crate) struct Worker {
    pub(crate) fabric: Fabric,
    stats: WorkerStats,
    mailbox: Arc<Mailbox>,
    events: Events,
    active: ActiveRings,
    fds: HashMap<(PortId, u16), RingFds>,
    controls: HashMap<PortId, ControlQueue>,
    /// Queue pairs that guests asked for through their control queues: kept when rings are started again.
    granted_pairs: HashMap<PortId, u16>,
    failures: HashMap<PortId, String>,
    cpus: Vec<usize>,
    hysteresis_ns: u64,
    started: Instant,
    faults_seen: usize,
    polled_ns: u64,
    yielded_ns: u64,
    stopping: bool,
}

impl Worker {
    pub(crate) fn new(
        fabric: Fabric,
        mailbox: Arc<Mailbox>,
        settings: &EngineSettings,
        started: Instant,
    ) -> std::io::Result<Self> {
        let events = Events::new()?;
        events.listen(mailbox.bell(), Event::Bell)?;
        Ok(Self {
            fabric,
            stats: WorkerStats::default(),
            mailbox,
            events,
            active: ActiveRings::default(),
            fds: HashMap::new(),
            controls: HashMap::new(),
            granted_pairs: HashMap::new(),
            failures: HashMap::new(),
            cpus: settings.cpus.clone(),
            hysteresis_ns: u64::from(settings.hysteresis_us) * 1000,
            started,
            faults_seen: guard::faults(),
            polled_ns: 0,
            yielded_ns: 0,
            stopping: false,
        })
    }

    /// Works until told to stop.
    pub(crate) fn run(mut self) {
        self.choose_cpus();
        while !self.stopping {
            let now = now_ns(self.started);
            let worked = self.round(now);
            if self.active.is_empty() {
                self.sleep(now);
                continue;
            }
            if now - self.polled_ns >= POLL_NS {
                self.polled_ns = now;
                self.stats.polls += 1;
                self.take_events(Some(0));
                if worked {
                    self.leave_idle(now, self.hysteresis_ns);
                }
            }
            if !worked {
                self.wind_down(now);
            }
        }
    }

    fn choose_cpus(&self) {
        if self.cpus.is_empty() {
            return;
        }
        let mut set = rustix::thread::CpuSet::new();
        for &cpu in self.cpus.iter().filter(|cpu| **cpu < rustix::thread::CpuSet::MAX_CPU) {
            set.set(cpu);
        }
        // CPUs that went offline since the command line was checked leave the worker unpinned: slower, not broken.
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }

    /// Visits each active ring once; true if one had packets.
    fn round(&mut self, now: u64) -> bool {
        let mut worked = false;
        for index in 0..self.active.len() {
            let Some(active) = self.active.get(index) else { break };
            self.stats.visits += 1;
            if self.fabric.visit(active.ring, now) > 0 {
                self.stats.batches += 1;
                self.active.worked(index, now);
                worked = true;
            }
            self.send_signals();
        }
        if self.fabric.deadline_ns().is_some() {
            worked |= self.fabric.drain_waiting();
            self.fabric.expire(now);
            self.send_signals();
        }
        if guard::faults() != self.faults_seen {
            self.quarantine();
        }
        self.wake_unblocked(now); // last: what unblocks a ring behind it would be slept over
        worked
    }

    fn wake_unblocked(&mut self, now: u64) {
        while let Some(ring) = self.fabric.unblocked().pop() {
            self.activate(ring, now);
        }
    }

    /// Rings without packets for the hysteresis period are armed and left alone; when somebody else wants the core, all
    /// rings without packets are.
    fn wind_down(&mut self, now: u64) {
        let mut hysteresis = self.hysteresis_ns;
        if now - self.yielded_ns >= BLIND_NS {
            let offered_ns = now_ns(self.started);
            std::thread::yield_now();
            self.yielded_ns = now_ns(self.started);
            if self.yielded_ns - offered_ns > WANTED_NS {
                hysteresis = 0;
            }
        }
        self.leave_idle(now, hysteresis);
    }

    /// Arms the rings that yielded nothing for `hysteresis`, and leaves those alone that have nothing now either.
    fn leave_idle(&mut self, now: u64, hysteresis: u64) {
        for index in (0..self.active.len()).rev() {
            let Some(active) = self.active.get(index) else { continue };
            if now.saturating_sub(active.worked_ns) >= hysteresis && !self.must_poll(active.ring) {
                if self.fabric.arm(active.ring) {
                    self.fabric.suppress_kicks(active.ring);
                } else {
                    self.active.remove(active.ring);
                }
            }
        }
    }

    /// Whether the guest gave no kick descriptor: such a ring is looked at for ever (vhost-user, "VHOST_USER_VRING_NOFD_MASK").
    fn must_poll(&self, ring: RingId) -> bool {
        let key = (ring.port, 2 * ring.queue + 1);
        self.fds.get(&key).is_some_and(|fds| fds.kick.is_none())
            && self.fabric.ring_state(ring.port, key.1).is_some_and(|state| state.error.is_none())
    }

    /// Nothing is active: sleeps until a kick, an errand or the earliest deadline.
    fn sleep(&mut self, now: u64) {
        let timeout = if self.fabric.arm_waiting() {
            self.stats.polls += 1;
            Some(0) // others are heard whatever a receiver does to its index
        } else {
            self.stats.sleeps += 1;
            let deadline = self.fabric.deadline_ns().map(|deadline| deadline.saturating_sub(now));
            deadline.map(
                |timeout| if self.waits_for_a_polled_ring() { timeout.min(UNKICKED_NS) } else { timeout },
            )
        };
        self.take_events(timeout);
    }

    /// Whether packets wait for a guest that gave no kick descriptor: it will post buffers and tell nobody.
    fn waits_for_a_polled_ring(&self) -> bool {
        let kickless =
            |ring: &RingId| self.fds.get(&(ring.port, 2 * ring.queue)).is_some_and(|fds| fds.kick.is_none());
        self.fabric.waiting_rings().iter().any(kickless)
    }

    fn take_events(&mut self, timeout_ns: Option<u64>) {
        let events = self.events.wait(timeout_ns);
        let now = now_ns(self.started);
        for event in events {
            match event {
                Event::Bell => self.run_errands(),
                Event::Kick(port, index) => self.kicked(port, index, now),
            }
        }
    }

    fn run_errands(&mut self) {
        while let Some(errand) = self.mailbox.take() {
            errand(self);
            self.send_signals();
        }
    }

    fn kicked(&mut self, port: PortId, index: u16, now: u64) {
        if self.controls.get(&port).is_some_and(|control| control.index == index) {
            self.serve_control(port, index);
            return;
        }
        let ring = RingId { port, queue: index / 2 };
        if index % 2 == 1 {
            self.activate(ring, now);
        } else {
            self.fabric.drain(ring);
            self.send_signals();
        }
    }

    fn serve_control(&mut self, port: PortId, index: u16) {
        let Some(control) = self.controls.get_mut(&port) else { return };
        let (granted, signal) = control.serve();
        let pairs_max = control.queue_pairs_max;
        for Command::QueuePairs(pairs) in granted {
            self.granted_pairs.insert(port, pairs);
            for ring in 0..2 * pairs_max {
                self.fabric.set_ring_enabled(port, ring, ring < 2 * pairs);
            }
        }
        if signal && let Some(call) = self.fds.get(&(port, index)).and_then(|fds| fds.call.as_ref()) {
            ring_bell(call);
        }
        self.send_signals();
    }

    /// The control ring of a port starts.
    pub(crate) fn start_control(
        &mut self,
        port: PortId,
        control: ControlQueue,
        fds: (Option<OwnedFd>, Option<OwnedFd>),
    ) -> std::io::Result<()> {
        let index = control.index;
        self.replace_fds(port, index, fds)?;
        self.controls.insert(port, control);
        self.serve_control(port, index);
        Ok(())
    }

    /// Stops virtqueue `index`, if it runs, and listens to its new kick (first of `fds`).
    fn replace_fds(
        &mut self,
        port: PortId,
        index: u16,
        fds: (Option<OwnedFd>, Option<OwnedFd>),
    ) -> std::io::Result<()> {
        self.stop_ring(port, index);
        let (kick, call) = fds;
        if let Some(kick) = &kick {
            self.events.listen(kick.as_fd(), Event::Kick(port, index))?;
        }
        self.fds.insert((port, index), RingFds { kick, call });
        Ok(())
    }

    fn activate(&mut self, ring: RingId, now: u64) {
        if self.active.add(ring, now) {
            self.fabric.suppress_kicks(ring);
        }
    }

    /// Writes the call eventfds that the last visits asked for.
    fn send_signals(&mut self) {
        let mut signals = std::mem::take(self.fabric.signals());
        for signal in signals.drain(..) {
            let call = self.fds.get(&(signal.port, signal.index)).and_then(|fds| fds.call.as_ref());
            if let Some(call) = call {
                ring_bell(call);
                self.fabric.count_signal(signal.port);
            }
        }
        *self.fabric.signals() = signals;
    }

    /// Stops the rings of ports whose memory was cut short.
    fn quarantine(&mut self) {
        self.faults_seen = guard::faults();
        let mut ports: Vec<PortId> = self.fds.keys().map(|(port, _)| *port).collect();
        ports.sort_unstable();
        ports.dedup();
        for port in ports.into_iter().filter(|port| self.fabric.memory_is_dead(*port)).collect::<Vec<_>>() {
            self.stop_all(port);
            self.failures.insert(port, "the guest's memory file was cut short; restart the guest".into());
        }
    }

    pub(crate) fn stop_all(&mut self, port: PortId) {
        let indices: Vec<u16> =
            self.fds.keys().filter(|(owner, _)| *owner == port).map(|(_, index)| *index).collect();
        for index in indices {
            self.stop_ring(port, index);
        }
    }

    /// A ring starts: it is looked at once without a kick.
    pub(crate) fn start_ring(
        &mut self,
        port: PortId,
        index: u16,
        ring: DeviceRing,
        fds: (Option<OwnedFd>, Option<OwnedFd>),
        enabled: bool,
    ) -> std::io::Result<()> {
        self.replace_fds(port, index, fds)?;
        self.failures.remove(&port);
        let granted = self.granted_pairs.get(&port).is_none_or(|pairs| index / 2 < *pairs);
        self.fabric.start_ring(port, index, ring, enabled && granted);
        if index % 2 == 1 {
            self.activate(RingId { port, queue: index / 2 }, now_ns(self.started));
        }
        Ok(())
    }

    pub(crate) fn stop_ring(&mut self, port: PortId, index: u16) -> Option<u16> {
        let is_control = self.controls.get(&port).is_some_and(|control| control.index == index);
        let base = if is_control {
            self.controls.remove(&port).map(|control| control.ring.base())
        } else {
            self.fabric.stop_ring(port, index)
        };
        self.send_signals();
        if index % 2 == 1 {
            self.active.remove(RingId { port, queue: index / 2 });
        }
        if let Some(kick) = self.fds.remove(&(port, index)).and_then(|fds| fds.kick) {
            self.events.forget(kick.as_fd());
        }
        base
    }

    pub(crate) fn set_call(&mut self, port: PortId, index: u16, call: Option<OwnedFd>) {
        if let Some(fds) = self.fds.get_mut(&(port, index)) {
            // What was published while there was none, nobody was told of.
            call.iter().for_each(ring_bell);
            fds.call = call;
        }
    }

    /// The guest of a port is gone: nothing of it is kept.
    pub(crate) fn detach(&mut self, port: PortId) {
        self.stop_all(port);
        self.failures.remove(&port);
        self.granted_pairs.remove(&port);
        self.fabric.set_memory(port, &Arc::default());
        self.fabric.set_capabilities(port, lasthop_fabric::Capabilities::default());
    }

    pub(crate) fn remove_port(&mut self, port: PortId) {
        self.detach(port);
        self.fabric.remove_port(port);
    }

    /// What it counted, and how many rings are active.
    pub(crate) fn stats(&self) -> WorkerStats {
        WorkerStats { active_rings: self.active.len(), ..self.stats }
    }

    /// Why all rings of a port were stopped, if they were.
    pub(crate) fn failure(&self, port: PortId) -> Option<String> {
        let control = self.controls.get(&port).and_then(|control| control.error);
        self.failures.get(&port).cloned().or_else(|| control.map(|error| format!("control queue: {error}")))
    }

    pub(crate) fn stop(&mut self) {
        self.stopping = true;
    }
}
