//! A worker's signals to guests, other workers and the control plane, and its measures against slow calls.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use lasthop_fabric::bounds::NS_COST;
use lasthop_fabric::{Fabric, RingId, Signal};
use lasthop_module_api::PortId;
use lasthop_sched::bounds::REACTION_NS;
use lasthop_sched::{Notification, Notify};

use crate::clock::now_ns;
use crate::decision_trace::Judged;
use crate::delayed_signals::{DelayedSignal, DelayedSignals};
use crate::offences::Offence;
use crate::ring_fds::{Blocked, RingFdMap, calls};
use crate::scheduling::Scheduling;
use crate::slow_calls::{SLOW_NS, SlowCalls, VERY_SLOW_NS, WriteSpeed, WriteTime};
use crate::worker_pool::{PoolMember, WorkerPool};

/// The sender of all signals of a worker.
pub(crate) struct SignalSender<W> {
    /// The worker's number.
    worker: usize,
    pool: Arc<WorkerPool<W>>,
    started: Instant,
    /// Ports whose calls were slow.
    slow_calls: SlowCalls,
    /// Costs of ports outside of their visits, to be charged at the end of the round.
    debts: Vec<(PortId, u64)>,
    /// The receive ring whose guest was signalled last, and the time, until a second signal is decided.
    called: Option<(RingId, u64)>,
    delayed: DelayedSignals,
    /// Written when there is an upcall.
    upcall_wake_fd: Option<Arc<OwnedFd>>,
    /// Number of times that another worker was woken.
    wakes: u64,
}

impl<W: PoolMember> SignalSender<W> {
    pub(crate) fn new(worker: usize, pool: Arc<WorkerPool<W>>, started: Instant) -> Self {
        Self {
            worker,
            pool,
            started,
            slow_calls: SlowCalls::default(),
            debts: Vec::new(),
            called: None,
            delayed: DelayedSignals::default(),
            upcall_wake_fd: None,
            wakes: 0,
        }
    }

    /// Number of times that it woke another worker.
    pub(crate) fn wakes(&self) -> u64 {
        self.wakes
    }

    /// Adds work that a port caused outside of its visits.
    pub(crate) fn add_debt(&mut self, port: PortId, cost: u64) {
        self.debts.push((port, cost));
    }

    /// Takes a cost to be charged, in no order.
    #[inline]
    pub(crate) fn next_debt(&mut self) -> Option<(PortId, u64)> {
        self.debts.pop()
    }

    /// Removes a port.
    pub(crate) fn forget(&mut self, port: PortId) {
        self.slow_calls.forget(port);
    }

    /// The eventfd that tells the control plane of upcalls.
    pub(crate) fn upcall_wake_fd(&self) -> Option<&Arc<OwnedFd>> {
        self.upcall_wake_fd.as_ref()
    }

    pub(crate) fn set_upcall_wake_fd(&mut self, wake_fd: Option<Arc<OwnedFd>>) {
        self.upcall_wake_fd = wake_fd;
    }

    /// Signals a guest; returns whether this ring has a call descriptor.
    pub(crate) fn signal_guest(&mut self, fds: &RingFdMap, port: PortId, index: u16) -> bool {
        self.signal_guest_timed(fds, port, index, &mut now_ns(self.started))
    }

    /// Like [`Self::signal_guest`]. `clock_ns` is the time before; it is set to the time afterwards.
    fn signal_guest_timed(&mut self, fds: &RingFdMap, port: PortId, index: u16, clock_ns: &mut u64) -> bool {
        let Some(call) = fds.get(&(port, index)).and_then(|fds| fds.signals.call.as_deref()) else {
            return false;
        };
        let signalled = Cell::new(Ok(()));
        let signal = || signalled.set(self.pool.watchdog().guarded(self.worker, || call.signal()));
        let mut time = if self.slow_calls.is_suspect(port) {
            Some(WriteTime::measure(signal))
        } else {
            signal();
            None
        };
        let since_ns = std::mem::replace(clock_ns, now_ns(self.started));
        let write_ns = *clock_ns - since_ns;
        if time.is_none() && signalled.get().is_ok() && write_ns >= SLOW_NS {
            self.slow_calls.suspect(port, *clock_ns);
            if write_ns >= VERY_SLOW_NS {
                time = Some(WriteTime::measure(signal));
                *clock_ns = now_ns(self.started);
            }
        }
        if signalled.get() == Err(Blocked) {
            // Another worker that was blocked by the same descriptor has reported it already.
            if call.shut() {
                self.refuse_calls(fds, port, Offence::CallBlocks);
            }
        } else if let Some(time) = time {
            self.check_call(fds, port, time, *clock_ns);
        }
        true
    }

    /// Checks the time of a write to a call of `port`.
    fn check_call(&mut self, fds: &RingFdMap, port: PortId, time: WriteTime, now: u64) {
        let speed = self.slow_calls.enter(port, time, now);
        if speed != WriteSpeed::Quick {
            self.add_debt(port, NS_COST * time.total_ns());
        }
        match speed {
            WriteSpeed::Quick | WriteSpeed::Slow => {}
            WriteSpeed::TooSlow => self.refuse_calls(fds, port, Offence::CallSlow),
            WriteSpeed::VerySlow => self.refuse_calls(fds, port, Offence::CallVerySlow),
        }
    }

    /// Shuts all call descriptors of the port for all workers, and stops its rings.
    fn refuse_calls(&self, fds: &RingFdMap, port: PortId, offence: Offence) {
        calls(fds, port).for_each(|call| _ = call.shut());
        self.pool.quarantine(port, offence);
    }

    /// Writes the call eventfds that the last visits requested, and wakes sleeping workers to which packets were
    /// returned.
    pub(crate) fn send(&mut self, fabric: &mut Fabric, fds: &RingFdMap, scheduling: &mut Scheduling) {
        if !fabric.signals().is_empty() {
            self.signal_guests(fabric, fds, scheduling);
        }
        let wakes = fabric.wakes();
        if wakes != 0 {
            self.wake_others(fabric, wakes);
        }
        if fabric.take_upcalled()
            && let Some(wake_fd) = &self.upcall_wake_fd
        {
            // A non-blocking eventfd of ours: the write only fails if it is readable already.
            let _ = rustix::io::write(wake_fd, &1_u64.to_ne_bytes());
        }
    }

    /// Wakes other workers, and tells them of their chains.
    fn wake_others(&mut self, fabric: &mut Fabric, mut wakes: u64) {
        self.wakes += u64::from(wakes.count_ones());
        while let Some((home, copies)) = fabric.take_settled() {
            self.pool.mailbox(home).post(Box::new(move |worker| worker.settle_copies(copies)));
            wakes &= !(1 << home);
        }
        while wakes != 0 {
            self.pool.mailbox(wakes.trailing_zeros() as usize).wake();
            wakes &= wakes - 1;
        }
    }

    fn signal_guests(&mut self, fabric: &mut Fabric, fds: &RingFdMap, scheduling: &mut Scheduling) {
        let mut clock_ns = now_ns(self.started);
        let mut signals = std::mem::take(fabric.signals());
        for Signal { port, index } in signals.drain(..) {
            if !self.delays((&*fabric, fds), scheduling, (port, index), clock_ns) {
                self.signal_ring(fabric, fds, (port, index), &mut clock_ns);
            }
        }
        *fabric.signals() = signals;
    }

    /// Signals a ring, and remembers the last receive ring.
    fn signal_ring(
        &mut self,
        fabric: &mut Fabric,
        fds: &RingFdMap,
        (port, index): (PortId, u16),
        clock_ns: &mut u64,
    ) {
        if self.signal_guest_timed(fds, port, index, clock_ns) {
            fabric.count_signal(port);
            if index.is_multiple_of(2) {
                self.called = Some((RingId { port, queue: index / 2 }, *clock_ns));
            }
        }
    }

    /// Whether a signal of a receive ring is delayed, since its guest runs and more packets will follow.
    #[inline]
    fn delays(
        &mut self,
        (fabric, fds): (&Fabric, &RingFdMap),
        scheduling: &mut Scheduling,
        (port, index): (PortId, u16),
        now: u64,
    ) -> bool {
        if !scheduling.notifies() || !index.is_multiple_of(2) {
            return false;
        }
        let held = self.delayed.find(port, index);
        let signal = held.unwrap_or(DelayedSignal { port, index, first_ns: now });
        let (is_now, judged) = judge((fabric, fds), scheduling, &self.delayed, &signal, now);
        if is_now {
            self.delayed.forget(port, index);
            self.delayed.note(port, index, now);
            return false;
        }
        scheduling.note_delay((port, self.worker), held.is_some(), judged, now);
        self.delayed.delay(signal);
        true
    }

    /// Sends delayed signals that are due, unless the guest has taken their packets. Returns whether there were any: then
    /// other signals may have become necessary.
    #[inline]
    pub(crate) fn send_delayed(
        &mut self,
        fabric: &mut Fabric,
        fds: &RingFdMap,
        scheduling: &mut Scheduling,
        now: u64,
    ) -> bool {
        if self.delayed.is_empty() {
            return false;
        }
        let mut clock_ns = now_ns(self.started);
        let mut delayed = std::mem::take(&mut self.delayed);
        let held = delayed.len();
        let mut judged = Judged::default();
        while let Some(signal) = delayed.take_if(|delayed, signal| {
            let is_now;
            (is_now, judged) = judge((&*fabric, fds), scheduling, delayed, signal, now);
            is_now
        }) {
            let ring = RingId { port: signal.port, queue: signal.index / 2 };
            if fabric.wants_delayed_signal(ring) {
                delayed.note(signal.port, signal.index, clock_ns);
                self.signal_ring(fabric, fds, (signal.port, signal.index), &mut clock_ns);
            } else {
                scheduling.note_drained(signal.port, judged, now);
            }
        }
        let is_any_due = delayed.len() < held;
        self.delayed = delayed;
        is_any_due
    }

    /// Sends all delayed signals.
    pub(crate) fn flush(&mut self, fabric: &mut Fabric, fds: &RingFdMap) {
        let mut clock_ns = now_ns(self.started);
        while let Some(signal) = self.delayed.take_if(|_, _| true) {
            self.delayed.note(signal.port, signal.index, clock_ns);
            self.signal_ring(fabric, fds, (signal.port, signal.index), &mut clock_ns);
        }
    }

    /// The time at which the oldest delayed signal has to be sent.
    pub(crate) fn delayed_until_ns(&self) -> Option<u64> {
        self.delayed.due_ns()
    }

    /// Forgets a ring: another ring may get its number.
    pub(crate) fn forget_ring(&mut self, port: PortId, index: u16) {
        self.delayed.forget(port, index);
    }

    /// The ring whose guest was signalled last, and the time, until a second signal is decided.
    #[inline]
    pub(crate) fn called(&self) -> Option<(RingId, u64)> {
        self.called
    }

    /// Notes that the second signal is decided.
    pub(crate) fn forget_called(&mut self) {
        self.called = None;
    }

    /// Takes the ring whose guest was signalled last, once that guest has had time to react.
    #[inline]
    pub(crate) fn take_called(&mut self, now: u64) -> Option<RingId> {
        let is_due = |(_, at): &mut (RingId, u64)| now.saturating_sub(*at) >= REACTION_NS;
        self.called.take_if(is_due).map(|(ring, _)| ring)
    }
}

/// Whether a signal that the ring requested is due at `now`, and the state that decided so.
fn judge(
    (fabric, fds): (&Fabric, &RingFdMap),
    scheduling: &Scheduling,
    delayed: &DelayedSignals,
    signal: &DelayedSignal,
    now: u64,
) -> (bool, Judged) {
    let ring = RingId { port: signal.port, queue: signal.index / 2 };
    let pending = Notification {
        is_wanted: true,
        first_ns: signal.first_ns,
        signalled_ns: delayed.signalled_ns(signal.port, signal.index),
        // The guest moves its event index behind the packets that it has taken, which made the ring request this one.
        has_progressed: fds.get(&(signal.port, signal.index)).is_some_and(|fds| fds.signals.has_event_index),
        is_full: fabric.waiting_rings().contains(&ring),
    };
    let (notified, judged) = scheduling.notify(&pending, signal.port, now);
    (notified == Notify::Now, judged)
}
