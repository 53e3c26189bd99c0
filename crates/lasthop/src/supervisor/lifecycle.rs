//! The switch process's start and end, and the supervisor's own.

use std::time::{Duration, Instant};

use crate::fault::{Fault, Kind};
use crate::log::say;
use crate::orders::Order;
use crate::rundir;
use crate::sandbox::{self, Layer};

use super::Supervisor;
use super::controller::Plane;
use super::driver::Driver;
use super::orders::What;
use super::source::Source;

/// How long the switch may take to let its guests go.
const END_PATIENCE: Duration = Duration::from_secs(3);

/// How far the supervisor is.
#[derive(Debug)]
pub(super) enum Stage {
    /// The first switch gets its ports; what goes wrong is for the user, at once.
    Starting,
    /// What goes wrong is tried again.
    Serving,
    /// The switch was told to end.
    Ending { until: Instant },
    /// The loop is to be left.
    Over(Result<(), Fault>),
}

impl Stage {
    pub(super) fn due(&self) -> Option<Instant> {
        match self {
            Self::Ending { until } => Some(*until),
            Self::Starting | Self::Serving | Self::Over(_) => None,
        }
    }
}

impl Supervisor {
    /// Starts a switch process and tells it of all switches and ports.
    pub(super) fn start_switch(&mut self) -> Result<(), Fault> {
        self.lives.start(&self.poller, Source::Switch.into())?;
        self.tell_everything();
        Ok(())
    }

    /// Tells a fresh switch process of all switches and ports, and hands guests over that another one had.
    pub(super) fn tell_everything(&mut self) {
        self.replay_switches();
        let ports: Vec<u32> = self.ports.keys().copied().collect();
        ports.into_iter().for_each(|port| self.tell_of_port(port, false, None));
        self.restore_entries();
        self.hand_over();
        // Its answer comes after all the others.
        self.order(Order::Stats, What::Started, None);
    }

    /// The pause after a switch's death is over.
    pub(super) fn restart_switch(&mut self) {
        if let Err(fault) = self.start_switch() {
            self.lives.bury();
            let pause_ms = self.lives.plan().as_millis();
            say!("{fault}; trying again in {pause_ms} ms");
        }
    }

    /// The switch has all its ports.
    pub(super) fn started(&mut self) {
        let pid = self.lives.current().map_or(0, |switch| switch.pid());
        if matches!(self.stage, Stage::Starting) {
            self.stage = Stage::Serving;
            say!("switch is running with {}, in {}", self.sizes_text(), self.dir.display());
            if self.ports.is_empty() {
                say!("add a vnic with: lasthop vnic add NAME{}", rundir::option(&self.dir));
            }
        } else {
            say!("the switch process is running again, as process {pid}");
        }
        self.upgraded();
    }

    /// The switch has given up what it could.
    pub(super) fn sandboxed(&mut self, layers: Vec<Layer>) {
        // Those that are started again have the same.
        if matches!(self.stage, Stage::Starting) {
            say!("sandbox of the switch process: {}", sandbox::summary(&layers));
        }
        if let Some(switch) = self.lives.current() {
            switch.sandbox = Some(layers);
        }
    }

    /// The user has to change something before the switch can start.
    pub(super) fn fail_start(&mut self, fault: Fault) {
        if matches!(self.stage, Stage::Starting) {
            self.stage = Stage::Over(Err(fault));
        }
    }

    /// The switch process is no more.
    pub(super) fn switch_gone(&mut self) {
        let pid = self.lives.current().map_or(0, |switch| switch.pid());
        let how = self.lives.bury();
        self.upgrade_failed();
        self.close_books();
        self.judge_estates();
        self.ports_down();
        match self.stage {
            Stage::Starting => {
                self.fail_start(Fault::new(Kind::Internal, format!("the switch process {how}")))
            }
            Stage::Serving => {
                let pause_ms = self.lives.plan().as_millis();
                say!("the switch process {pid} {how}; starting it again in {pause_ms} ms");
            }
            Stage::Ending { .. } => self.stage = Stage::Over(Ok(())),
            Stage::Over(_) => {}
        }
        self.fail_waiting();
    }

    /// The user wants an end: no more guests and questions; the switch lets its guests go.
    pub(super) fn begin_end(&mut self) {
        if matches!(self.stage, Stage::Ending { .. }) {
            return self.end_by_force();
        }
        say!("ending");
        self.control = None;
        self.entrance = None;
        self.ports.clear();
        self.estates.clear();
        self.driver = Driver::new(&self.settings);
        self.plane = Plane::new(&self.settings);
        if self.lives.is_up() {
            self.stage = Stage::Ending { until: Instant::now() + END_PATIENCE };
            self.order(Order::End, What::Ended, None);
        } else {
            self.stage = Stage::Over(Ok(()));
        }
    }

    /// The switch did not end in time, or the user is in a hurry.
    pub(super) fn end_by_force(&mut self) {
        say!("the switch process did not end by itself and is killed");
        self.lives.bury();
        self.stage = Stage::Over(Ok(()));
    }
}
