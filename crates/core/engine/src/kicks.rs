//! A worker's handling of kicks, and of rings whose kicks it ignores.

use std::os::fd::AsFd;

use lasthop_fabric::RingId;
use lasthop_module_api::PortId;
use lasthop_vhost::ForeignFd;

use crate::clock::now_ns;
use crate::events::Event;
use crate::worker::Worker;

/// Time until the worker tries again to register a ring's kick descriptor.
pub(crate) const RETRY_NS: u64 = 10_000_000;

impl Worker {
    /// Registers the kick descriptor of a ring.
    pub(crate) fn listen(
        &mut self,
        port: PortId,
        index: u16,
        kick: Option<ForeignFd>,
    ) -> std::io::Result<()> {
        let Some(fds) = self.fds.get_mut(&(port, index)) else { return Ok(()) };
        if let Some(kick) = &kick {
            self.events.listen(kick.as_fd(), Event::Kick(port, index))?;
        }
        fds.kick = kick;
        Ok(())
    }

    /// Handles the event of a kick.
    pub(crate) fn kicked(&mut self, port: PortId, index: u16, now: u64) {
        if self.is_quiesced {
            return; // another worker may have the rings
        }
        self.handle_kick(port, index, now);
        self.persistent_counters.note();
        // A guest that waits for its packets does not wait for this.
        if self.heard.try_push((port, index)).is_err() {
            self.record_kick(port, index, now);
        }
    }

    /// Records the kicks since the last call.
    #[inline]
    pub(crate) fn record_kicks(&mut self, now: u64) {
        while let Some((port, index)) = self.heard.pop() {
            self.record_kick(port, index, now);
        }
    }

    /// Counts a kick, and ignores further ones if too many brought no packets. Its packets may have been taken already.
    fn record_kick(&mut self, port: PortId, index: u16, now: u64) {
        let position = match self.controls.is_control(port, index) {
            true => self.controls.position(port),
            false => self.fabric.ring_progress(port, index).map(|progress| progress.taken),
        };
        let Some(fds) = self.fds.get_mut(&(port, index)) else { return };
        fds.kicks += 1;
        if let Some(deaf_ns) = fds.record.note(position)
            && let Some(kick) = &fds.kick
        {
            self.events.forget(kick.as_fd());
            self.unheard.add((port, index), now + deaf_ns);
        }
    }

    /// Handles a kick.
    pub(crate) fn handle_kick(&mut self, port: PortId, index: u16, now: u64) {
        if self.controls.is_control(port, index) {
            self.serve_control(port, now);
            return;
        }
        let ring = RingId { port, queue: index / 2 };
        if index % 2 == 1 {
            self.activate(ring, now);
        } else {
            self.meter_drain(now);
            self.fabric.receive_kick(ring);
            self.send_signals();
        }
    }

    /// Visits all rings after kicks may have been missed.
    pub(crate) fn handle_missed_kicks(&mut self) {
        let at_home = self.fds.iter().filter(|(_, fds)| fds.is_home);
        let rings: Vec<(PortId, u16)> = at_home.map(|(ring, _)| *ring).collect();
        let now = now_ns(self.started);
        rings.into_iter().for_each(|(port, index)| self.handle_kick(port, index, now));
    }

    /// Registers rings again whose kicks were ignored, once that time is over. This causes an event: the descriptor has
    /// been readable since their last kick.
    pub(crate) fn hear_again(&mut self, now: u64) {
        while let Some((port, index)) = self.unheard.next_due(now) {
            let kick = self.fds.get(&(port, index)).and_then(|fds| fds.kick.as_ref());
            let heard = kick.map(|kick| self.events.listen(kick.as_fd(), Event::Kick(port, index)));
            if let Some(Err(_)) = heard {
                // The kernel has no memory for it.
                self.unheard.add((port, index), now + RETRY_NS);
            }
        }
    }

    /// Visits the rings without kicks whose pauses are over.
    pub(crate) fn look_at_polled(&mut self, now: u64) {
        while let Some(ring) = self.polled.next_due(now) {
            if !self.must_poll(ring) {
                self.polled.remove(ring);
            } else if self.fabric.arm(ring) {
                self.activate(ring, now);
            }
        }
    }

    /// Whether a quiet transmit ring must be polled, since its kicks are ignored.
    pub(crate) fn must_poll(&self, ring: RingId) -> bool {
        let index = 2 * ring.queue + 1;
        self.is_unheard(ring.port, index)
            && self.fabric.ring_state(ring.port, index).is_some_and(|state| state.error.is_none())
    }

    /// Whether packets wait for a guest whose kicks are ignored: it posts buffers without one.
    pub(crate) fn waits_for_a_polled_ring(&self) -> bool {
        self.fabric.waiting_rings().iter().any(|ring| self.is_unheard(ring.port, 2 * ring.queue))
    }

    /// Whether the guest gave no kick descriptor (vhost-user, `VHOST_USER_VRING_NOFD_MASK`), or its kicks are ignored
    /// for now.
    fn is_unheard(&self, port: PortId, index: u16) -> bool {
        self.fds.get(&(port, index)).is_some_and(|fds| fds.signals.is_polled)
            || self.unheard.contains((port, index))
    }
}
