//! A helper's work: large frames, by the orders in its mailbox.

use std::sync::Arc;

use lasthop_fabric::bounds::HELP_FRAMES_MAX;
use lasthop_fabric::{HelpStep, RingId, Visited};
use lasthop_ring::AdaptivePoll;

use crate::clock::now_ns;
use crate::helper_finder::ViewFinder;
use crate::worker::Worker;

impl Worker {
    /// Visits a ring. Receivers of large frames that are shared with a helper are signalled after each frame if the settings say
    /// so, else after the visit.
    pub(crate) fn visit_signalling(&mut self, ring: RingId, now: u64) -> Visited {
        let Self { fabric, signals, fds, scheduling, pool, .. } = self;
        fabric.visit_in_turn_signalling(ring, now, &mut |fabric| {
            if pool.helpers().signals_each_frame() {
                signals.send(fabric, fds, scheduling);
            }
        })
    }

    /// Serves receive rings where packets wait; signals as [`Self::visit_signalling`] does.
    pub(crate) fn drain_waiting(&mut self) -> bool {
        let Self { fabric, signals, fds, scheduling, pool, .. } = self;
        let is_early = pool.helpers().signals_each_frame();
        fabric.drain_waiting_signalling(&mut |fabric| {
            if is_early {
                signals.send(fabric, fds, scheduling);
            }
        })
    }

    /// Begins to share large frames with helpers if the view and the policies allow it, else ends that.
    pub(crate) fn share_or_not(&mut self) {
        self.fabric.end_offload();
        let helpers = self.pool.helpers();
        let may_share = !helpers.is_empty() && !helpers.is_one(self.number());
        if let Some(view) = self.scheduling.offload_view().filter(|_| may_share) {
            let bytes_min = helpers.offload().bytes_min();
            let (pool, counts) = (Arc::clone(&self.pool), Arc::clone(&self.offload_counts));
            let movement = self.scheduling.movement.clone();
            self.fabric.begin_offload(bytes_min, Box::new(ViewFinder { view, pool, counts, movement }));
        }
    }

    /// Copies large frames by the orders in its mailbox; returns whether there were any.
    pub(crate) fn help(&mut self, now: u64, adaptive_poll: &mut AdaptivePoll) -> bool {
        if !self.fabric.has_orders() {
            return false;
        }
        self.helping.begin(now);
        let mut has_left = false;
        for number in 0..=HELP_FRAMES_MAX {
            // The last step takes no frame, so that none is left in this helper's hands.
            let looked_ns = now_ns(self.started);
            let is_wanted = self.scheduling.is_own_cpu_wanted();
            if !is_wanted {
                self.helping.stay(looked_ns);
            }
            let step = self.fabric.begin_help(number < HELP_FRAMES_MAX && !is_wanted);
            self.send_signals();
            if matches!(step, HelpStep::Reserved | HelpStep::Done) {
                self.helping.count_frame();
            }
            // Further orders are given up with the first one.
            if is_wanted && !has_left {
                self.give_cpu_back(looked_ns);
                has_left = true;
            }
            match step {
                HelpStep::Reserved => self.fabric.copy_help(),
                HelpStep::Done => {}
                HelpStep::Busy | HelpStep::Idle => break,
            }
        }
        adaptive_poll.found(0, now);
        true
    }

    /// Goes to sleep, since another thread waited for its CPU at `seen_ns`. No frame is in this helper's hands.
    fn give_cpu_back(&mut self, seen_ns: u64) {
        let now = now_ns(self.started);
        self.scheduling.note_return(now, self.helping.leave(seen_ns, now));
    }
}
