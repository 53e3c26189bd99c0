//! Signals of a worker to guests, to other workers and to the control plane, and its measures against calls that take long.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use lasthop_fabric::bounds::NS_COST;
use lasthop_fabric::{Fabric, RingId, Signal};
use lasthop_module_api::PortId;

use crate::clock::now_ns;
use crate::offences::Offence;
use crate::ring_fds::{Blocked, RingFdMap, calls};
use crate::slow_calls::{SLOW_NS, SlowCalls, WriteSpeed};
use crate::sys::thread_cpu_ns;
use crate::worker_pool::{PoolMember, WorkerPool};

/// Within this time a guest reacts to a signal if it has a CPU, also if it has to wake up.
const REACTION_NS: u64 = 100_000;

/// A worker's end of all signals.
pub(crate) struct SignalSender<W> {
    /// The worker's number.
    worker: usize,
    pool: Arc<WorkerPool<W>>,
    started: Instant,
    /// Ports whose calls took long.
    slow_calls: SlowCalls,
    /// Costs of ports beside their visits, to be charged at the end of the round.
    debts: Vec<(PortId, u64)>,
    /// The receive ring whose guest was signalled last, and when, until that was looked after.
    called: Option<(RingId, u64)>,
    /// To be written when the control plane was handed something.
    upcall_wake_fd: Option<Arc<OwnedFd>>,
    /// Times that another worker was woken.
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
            upcall_wake_fd: None,
            wakes: 0,
        }
    }

    /// Times that it woke another worker.
    pub(crate) fn wakes(&self) -> u64 {
        self.wakes
    }

    /// A port has caused work beside its visits.
    pub(crate) fn add_debt(&mut self, port: PortId, cost: u64) {
        self.debts.push((port, cost));
    }

    /// A cost to be charged, in no order.
    #[inline]
    pub(crate) fn next_debt(&mut self) -> Option<(PortId, u64)> {
        self.debts.pop()
    }

    /// The port is removed.
    pub(crate) fn forget(&mut self, port: PortId) {
        self.slow_calls.forget(port);
    }

    /// Where the control plane hears of upcalls.
    pub(crate) fn upcall_wake_fd(&self) -> Option<&Arc<OwnedFd>> {
        self.upcall_wake_fd.as_ref()
    }

    pub(crate) fn set_upcall_wake_fd(&mut self, wake_fd: Option<Arc<OwnedFd>>) {
        self.upcall_wake_fd = wake_fd;
    }

    /// Signals a guest, if it gave a call descriptor for this ring; whether it did.
    pub(crate) fn signal_guest(&mut self, fds: &RingFdMap, port: PortId, index: u16) -> bool {
        self.signal_guest_timed(fds, port, index, &mut now_ns(self.started))
    }

    /// As [`Self::signal_guest`]. `clock_ns` is the time just before; it is set to the time afterwards.
    fn signal_guest_timed(&mut self, fds: &RingFdMap, port: PortId, index: u16, clock_ns: &mut u64) -> bool {
        let Some(call) = fds.get(&(port, index)).and_then(|fds| fds.signals.call.as_deref()) else {
            return false;
        };
        let cpu_ns = self.slow_calls.is_suspect(port).then(thread_cpu_ns);
        let signalled = self.pool.watchdog().guarded(self.worker, || call.signal());
        let since_ns = std::mem::replace(clock_ns, now_ns(self.started));
        if signalled == Err(Blocked) {
            // A worker that waited for the same descriptor has said so before.
            if call.shut() {
                self.refuse_calls(fds, port, Offence::CallBlocks);
            }
        } else if let Some(before_ns) = cpu_ns {
            self.check_call(fds, port, thread_cpu_ns() - before_ns, *clock_ns);
        } else if *clock_ns - since_ns >= SLOW_NS {
            self.slow_calls.suspect(port, *clock_ns);
        }
        true
    }

    /// A write to a call of `port` took `cpu_ns` of this thread's time.
    fn check_call(&mut self, fds: &RingFdMap, port: PortId, cpu_ns: u64, now: u64) {
        let speed = self.slow_calls.enter(port, cpu_ns, now);
        if speed != WriteSpeed::Quick {
            self.add_debt(port, NS_COST * cpu_ns);
        }
        if speed == WriteSpeed::TooSlow {
            self.refuse_calls(fds, port, Offence::CallSlow);
        }
    }

    /// No call descriptor of the port is written any more, by any worker, and its rings stop.
    fn refuse_calls(&self, fds: &RingFdMap, port: PortId, offence: Offence) {
        calls(fds, port).for_each(|call| _ = call.shut());
        self.pool.quarantine(port, offence);
    }

    /// Writes the call eventfds that the last visits asked for, and wakes sleeping workers to which packets were returned.
    pub(crate) fn send(&mut self, fabric: &mut Fabric, fds: &RingFdMap) {
        if !fabric.signals().is_empty() {
            self.signal_guests(fabric, fds);
        }
        let mut wakes = fabric.wakes();
        self.wakes += u64::from(wakes.count_ones());
        while wakes != 0 {
            self.pool.mailbox(wakes.trailing_zeros() as usize).wake();
            wakes &= wakes - 1;
        }
        if fabric.take_upcalled()
            && let Some(wake_fd) = &self.upcall_wake_fd
        {
            // An eventfd of ours, non-blocking: the write fails only when it is readable already.
            let _ = rustix::io::write(wake_fd, &1_u64.to_ne_bytes());
        }
    }

    fn signal_guests(&mut self, fabric: &mut Fabric, fds: &RingFdMap) {
        let mut clock_ns = now_ns(self.started);
        let mut signals = std::mem::take(fabric.signals());
        for Signal { port, index } in signals.drain(..) {
            if self.signal_guest_timed(fds, port, index, &mut clock_ns) {
                fabric.count_signal(port);
                if index.is_multiple_of(2) {
                    self.called = Some((RingId { port, queue: index / 2 }, clock_ns));
                }
            }
        }
        *fabric.signals() = signals;
    }

    /// The ring whose guest was signalled last, once, when it has had time to react.
    #[inline]
    pub(crate) fn take_called(&mut self, now: u64) -> Option<RingId> {
        let is_due = |(_, at): &mut (RingId, u64)| now.saturating_sub(*at) >= REACTION_NS;
        self.called.take_if(is_due).map(|(ring, _)| ring)
    }
}
