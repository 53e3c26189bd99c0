//! The switch's state for the service manager: one line, as `systemctl status` shows it.

use std::time::Instant;

use lasthop_runtime::notify::{Manager, Phase};

use super::Supervisor;
use super::reports::Reports;
use super::stage::Stage;

impl Supervisor {
    /// Reports changes to the service manager, if there is one.
    pub(super) fn tell(&self, manager: &mut Manager) {
        if manager.is_there() {
            manager.tell(self.phase(), self.status_text(), Instant::now());
        }
    }

    fn phase(&self) -> Phase {
        match self.stage {
            Stage::Starting => Phase::Starting,
            Stage::Serving => Phase::Serving,
            Stage::Ending { .. } | Stage::Leaving { .. } | Stage::Over(_) => Phase::Ending,
        }
    }

    fn status_text(&self) -> String {
        match self.stage {
            Stage::Starting => String::new(),
            Stage::Serving if self.switch.process.is_up() => self.reports().health_text(),
            Stage::Serving => {
                let how = self.switch.process.last_end().map(|end| end.why).unwrap_or_default();
                format!("the switch process {how}; it is started again")
            }
            Stage::Ending { .. } | Stage::Leaving { .. } | Stage::Over(_) => "guests are let go".to_owned(),
        }
    }
}

impl Reports<'_> {
    pub(super) fn health_text(&self) -> String {
        let attached = self.ports.all.values().filter(|port| port.is_attached()).count();
        let text = format!("{}; {attached} attached", self.sizes_text());
        match (self.switch.process.restarts(), self.switch.process.last_end()) {
            (times @ 1.., Some(end)) => {
                format!(
                    "{text}; the switch process was started again {times} time{}, the last one {}",
                    if times == 1 { "" } else { "s" },
                    end.why
                )
            }
            _ => text,
        }
    }
}
