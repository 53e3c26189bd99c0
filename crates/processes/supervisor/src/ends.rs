//! Ends of inner processes: noticed by events, and by checks of killed ones. Their last messages are handled first.

use std::time::Instant;

use lasthop_children::RunningChild;
use lasthop_runtime::clock::earlier;

use super::Supervisor;
use super::question::ControllerAnswer;

/// How often the channel of a process that has ended is read: its socket has no room for more. Another process may have
/// that end of the channel, and send on.
const LAST_READS_MAX: usize = 16;

impl Supervisor {
    /// When to call [`Self::look_for_ends`] without an event.
    pub(super) fn ends_due(&self) -> Option<Instant> {
        let inner = [
            self.out.switch.process.end_due(),
            self.ports.driver.process.end_due(),
            self.controller.process.end_due(),
        ];
        inner.into_iter().chain([self.upgrades.end_due(), self.reaper.due()]).fold(None, earlier)
    }

    /// Handles processes that have ended or are stuck.
    pub(super) fn look_for_ends(&mut self, now: Instant) {
        self.reaper.hear();
        if self.out.switch.process.is_over(now) {
            let life = self.out.switch.process.starts();
            for _ in 0..LAST_READS_MAX {
                if self.out.switch.process.is_silent() || self.out.switch.process.starts() != life {
                    break;
                }
                self.hear();
            }
            // Not if its last messages have replaced the process.
            if self.out.switch.process.starts() == life {
                self.switch_process_gone();
            }
        }
        if self.ports.driver.process.is_over(now) {
            self.hear_driver();
            self.ports.driver_gone();
            self.answer_driver_clients(u64::MAX, now);
        }
        if self.controller.process.is_over(now) {
            self.hear_controller();
            self.controller.gone(self.stage.is_last());
            // No answer will come any more.
            self.answer_controller_clients(u64::MAX, now, ControllerAnswer::default());
            self.settle_controller();
        }
        if self.upgrades.successor().is_some_and(|successor| RunningChild::is_over(successor, now)) {
            let refused = self.upgrades.hear(&mut self.ports, &self.switches, &mut self.out);
            self.clients.answer_any(refused);
            let over = self.upgrades.is_over(&mut self.ports, &mut self.out);
            self.clients.answer_any(over);
        }
        self.standby.look_for_end(&mut self.ports, now);
        self.reaper.tend(now);
    }
}
