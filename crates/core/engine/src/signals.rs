//! Signals of a worker to guests and other workers, and its measures against those that take long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lasthop_fabric::bounds::{NS_COST, PACKET_COST, VISIT_COST};
use lasthop_fabric::{RingId, Signal};
use lasthop_ring::SignalRetry;
use lasthop_verdict::PortId;
use lasthop_vhost::ForeignFd;
use rustix::io::Errno;

use crate::control::ControlOutcome;
use crate::offences::Offence;
use crate::slow_calls::{SLOW_NS, WriteSpeed};
use crate::sys::thread_cpu_ns;
use crate::worker::{Worker, now_ns};

/// Within this time a guest reacts to a signal if it has a CPU, also if it has to wake up.
const REACTION_NS: u64 = 100_000;

/// The descriptors between a ring and its guest: the call descriptor, and whether there is a kick descriptor.
#[derive(Clone, Debug)]
pub(crate) struct GuestSignals {
    /// Shared, since any worker may deliver.
    pub(crate) call: Option<Arc<CallFd>>,
    /// The guest gave no kick descriptor.
    pub(crate) is_polled: bool,
}

/// A guest's call descriptor.
#[derive(Debug)]
pub(crate) struct CallFd {
    fd: ForeignFd,
    /// Never to be written again, by any worker.
    is_shut: AtomicBool,
}

/// The write to a call descriptor had to wait, and was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blocked;

impl CallFd {
    pub(crate) fn new(fd: ForeignFd) -> Self {
        Self { fd, is_shut: AtomicBool::new(false) }
    }

    /// Signals the guest, unless its calls are shut. A saturated eventfd is one that its guest has not read: it will see
    /// the packets when it does.
    ///
    /// # Errors
    /// [`Blocked`]: the descriptor is not non-blocking any more, and was saturated.
    pub(crate) fn signal(&self) -> Result<(), Blocked> {
        if self.is_shut() {
            return Ok(());
        }
        match rustix::io::write(&self.fd, &1_u64.to_ne_bytes()) {
            Err(Errno::INTR) => Err(Blocked),
            _ => Ok(()),
        }
    }

    /// Ends all writes to it. Returns false if that was done before.
    pub(crate) fn shut(&self) -> bool {
        !self.is_shut.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.is_shut.load(Ordering::Relaxed)
    }
}

impl Worker {
    /// Signals a guest, if it gave a call descriptor for this ring; whether it did.
    pub(crate) fn signal_guest(&mut self, port: PortId, index: u16) -> bool {
        self.signal_guest_timed(port, index, &mut now_ns(self.started))
    }

    /// As [`Self::signal_guest`]. `clock_ns` is the time just before; it is set to the time afterwards.
    fn signal_guest_timed(&mut self, port: PortId, index: u16, clock_ns: &mut u64) -> bool {
        let Some(call) = self.fds.get(&(port, index)).and_then(|fds| fds.signals.call.as_deref()) else {
            return false;
        };
        let cpu_ns = self.slow_calls.is_suspect(port).then(thread_cpu_ns);
        let signalled = self.pool.watchdog().guarded(self.stats.index, || call.signal());
        let since_ns = std::mem::replace(clock_ns, now_ns(self.started));
        if signalled == Err(Blocked) {
            // A worker that waited for the same descriptor has said so before.
            if call.shut() {
                self.refuse_calls(port, Offence::CallBlocks);
            }
        } else if let Some(before_ns) = cpu_ns {
            self.check_call(port, thread_cpu_ns() - before_ns, *clock_ns);
        } else if *clock_ns - since_ns >= SLOW_NS {
            self.slow_calls.suspect(port, *clock_ns);
        }
        true
    }

    /// A write to a call of `port` took `cpu_ns` of this thread's time.
    fn check_call(&mut self, port: PortId, cpu_ns: u64, now: u64) {
        let speed = self.slow_calls.enter(port, cpu_ns, now);
        if speed != WriteSpeed::Quick {
            self.debts.push((port, NS_COST * cpu_ns));
        }
        if speed == WriteSpeed::TooSlow {
            self.refuse_calls(port, Offence::CallSlow);
        }
    }

    /// No call descriptor of the port is written any more, by anybody, and its rings stop.
    fn refuse_calls(&self, port: PortId, offence: Offence) {
        self.calls(port).for_each(|call| _ = call.shut());
        self.pool.quarantine(port, offence);
    }

    fn calls(&self, port: PortId) -> impl Iterator<Item = &CallFd> {
        let of_port = self.fds.iter().filter(move |((owner, _), _)| *owner == port);
        of_port.filter_map(|(_, fds)| fds.signals.call.as_deref())
    }

    /// Stops the rings of a port whose front end held a worker up, unless that was by calls and it has given others meanwhile.
    pub(crate) fn stop_offender(&mut self, port: PortId, offence: Offence) {
        if !offence.is_by_calls() || self.calls(port).any(CallFd::is_shut) {
            self.stop_for(port, offence.why());
        }
    }

    /// Writes the call eventfds that the last visits asked for, and wakes sleeping workers to which packets were returned.
    pub(crate) fn send_signals(&mut self) {
        if !self.fabric.signals().is_empty() {
            self.signal_guests();
        }
        let mut wakes = self.fabric.wakes();
        self.stats.wakes += u64::from(wakes.count_ones());
        while wakes != 0 {
            self.pool.mailbox(wakes.trailing_zeros() as usize).wake();
            wakes &= wakes - 1;
        }
        if self.fabric.take_upcalled()
            && let Some(wake_fd) = &self.upcall_wake_fd
        {
            // An eventfd of ours, non-blocking: the write fails only when it is readable already.
            let _ = rustix::io::write(wake_fd, &1_u64.to_ne_bytes());
        }
    }

    fn signal_guests(&mut self) {
        let mut clock_ns = now_ns(self.started);
        let mut signals = std::mem::take(self.fabric.signals());
        for Signal { port, index } in signals.drain(..) {
            if self.signal_guest_timed(port, index, &mut clock_ns) {
                self.fabric.count_signal(port);
                if index.is_multiple_of(2) {
                    self.called = Some((RingId { port, queue: index / 2 }, clock_ns));
                }
            }
        }
        *self.fabric.signals() = signals;
    }

    /// There were no packets: if the guest that was signalled last has had time to react and has not, it is signalled once
    /// more, if that has been worth it.
    #[inline]
    pub(crate) fn retry_signals(&mut self, now: u64, signal_retry: &mut SignalRetry) {
        let is_due = |(_, at): &mut (RingId, u64)| now.saturating_sub(*at) >= REACTION_NS;
        if let Some((ring, _)) = self.called.take_if(is_due) {
            self.retry_if_unanswered(ring, now, signal_retry);
        }
    }

    fn retry_if_unanswered(&mut self, ring: RingId, now: u64, signal_retry: &mut SignalRetry) {
        if self.is_quiesced {
            return; // another worker may have the ring
        }
        let is_wanted = self.fabric.is_unheeded(ring) && signal_retry.is_worth_it(now);
        if is_wanted && self.signal_guest(ring.port, 2 * ring.queue) {
            self.fabric.count_signal(ring.port);
        }
        self.send_signals();
    }

    /// Serves a port's control queue, or later if that was done a moment ago.
    pub(crate) fn serve_control(&mut self, port: PortId, now: u64) {
        let Some(control) = self.controls.get_mut(&port) else { return };
        if let Some(due_ns) = control.defer(now) {
            self.late_control_ns = self.late_control_ns.min(due_ns);
            return;
        }
        let ControlOutcome { commands, granted, signal } = control.serve();
        let (index, rings) = (control.index, 2 * control.queue_pairs_max);
        if let Some(pairs) = granted {
            self.pool.grant_pairs(port, pairs);
            (0..rings).for_each(|ring| self.grant_ring(port, ring));
            self.debts.push((port, VISIT_COST * u64::from(rings)));
        }
        self.debts.push((port, PACKET_COST * commands as u64));
        if signal {
            self.signal_guest(port, index);
        }
        self.send_signals();
    }

    /// Serves the control queues whose guests kicked too soon.
    pub(crate) fn serve_late_controls(&mut self, now: u64) {
        self.late_control_ns = u64::MAX;
        let late = self.controls.iter().filter(|(_, control)| control.is_late()).map(|(port, _)| *port);
        for port in late.collect::<Vec<_>>() {
            self.serve_control(port, now);
        }
    }
}
