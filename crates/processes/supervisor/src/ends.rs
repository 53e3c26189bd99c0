//! Ends of inner processes: heard of by events, and by looks at those that were killed. Their last words come first.

use std::time::Instant;

use lasthop_children::RunningChild;
use lasthop_runtime::clock::earlier;

use super::Supervisor;
use super::upgrade::Upgrade;

/// Times that the channel of a process that has ended is read: more than its socket has room for. Another process may have its end of
/// the channel and go on.
const LAST_READS_MAX: usize = 16;

impl Supervisor {
    /// When [`Self::look_for_ends`] is to be called without an event.
    pub(super) fn ends_due(&self) -> Option<Instant> {
        let successor = match &self.upgrade {
            Some(Upgrade::Asking { successor, .. } | Upgrade::Resting { successor, .. }) => {
                successor.end_due()
            }
            _ => None,
        };
        let inner =
            [self.switch.process.end_due(), self.driver.process.end_due(), self.controller.process.end_due()];
        inner.into_iter().chain([successor, self.reaper.due()]).fold(None, earlier)
    }

    /// Goes on without processes that have ended, or are stuck.
    pub(super) fn look_for_ends(&mut self, now: Instant) {
        self.reaper.hear();
        if self.switch.process.is_over(now) {
            let life = self.switch.process.starts();
            for _ in 0..LAST_READS_MAX {
                if self.switch.process.is_silent() || self.switch.process.starts() != life {
                    break;
                }
                self.hear();
            }
            // Not if its last messages have put another process in its place.
            if self.switch.process.starts() == life {
                self.switch_gone();
            }
        }
        if self.driver.process.is_over(now) {
            self.hear_driver();
            self.driver_gone();
        }
        if self.controller.process.is_over(now) {
            self.hear_controller();
            self.controller_gone();
        }
        if self
            .upgrade
            .as_mut()
            .and_then(Upgrade::successor)
            .is_some_and(|successor| RunningChild::is_over(successor, now))
        {
            self.successor_gone();
        }
        self.reaper.tend(now);
    }
}
