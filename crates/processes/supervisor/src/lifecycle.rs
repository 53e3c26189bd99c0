//! The switch process's start and end, and the supervisor's own.

use std::time::{Duration, Instant};

use lasthop_api::orders::Order;
use lasthop_api::rundir;
use lasthop_children::SliceBoost;
use lasthop_runtime::fault::{Fault, Kind};
use lasthop_runtime::log::say;
use lasthop_runtime::sandbox::Layer;

use super::Supervisor;
use super::controller::ControllerProcess;
use super::driver::Driver;
use super::lifetime_counters::final_counters_text;
use super::port::Port;
use super::question::OrderPurpose;
use super::sessions::SessionVersions;
use super::source::Source;
use super::stage::Stage;

/// How long the switch may take to let its guests go, or to come to rest: less than service managers wait for us.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// How long a killed switch process may take to end, when the supervisor ends, too.
const DEATH_PATIENCE: Duration = Duration::from_secs(5);

/// Pause before a switch that could not come to rest is asked again.
const REST_PAUSE: Duration = Duration::from_millis(20);

impl Supervisor {
    /// Starts a switch process and tells it of all switches and ports.
    pub(super) fn start_switch(&mut self) -> Result<(), Fault> {
        self.switch.process.start(&self.poller, Source::Switch.into())?;
        self.deposit_head();
        self.tell_everything();
        Ok(())
    }

    /// Tells a fresh switch process of all switches and ports, and hands guests over that another one had.
    pub(super) fn tell_everything(&mut self) {
        self.switches.replay(&mut self.switch);
        let ports: Vec<u32> = self.ports.all.keys().copied().collect();
        ports.into_iter().for_each(|port| self.tell_of_port(port, false, None));
        self.switches.restore_entries(&mut self.switch);
        self.tell_of_guests(&SessionVersions::new());
    }

    /// Tells a switch process that knows switches and ports of all guests, and hands them over. Some it knows, as they were.
    pub(super) fn tell_of_guests(&mut self, known: &SessionVersions) {
        self.datapaths.restore(&mut self.switch, &mut self.store);
        self.sessions.hand_over(known, &mut self.ports, &mut self.switch, &mut self.store);
        // Before the answer that says that the switch runs: it has its controller then.
        self.settle_controller();
        // Its answer comes after all the others.
        self.switch.order(Order::Stats, OrderPurpose::Started, None);
    }

    /// The pause after a switch's death is over.
    pub(super) fn restart_switch(&mut self) {
        if let Err(fault) = self.start_switch() {
            self.switch.process.retry(&fault);
        }
    }

    /// The switch has all its ports.
    pub(super) fn started(&mut self) {
        let pid = self.switch.process.current().map_or(0, |switch| switch.pid());
        self.slice_boost = None;
        self.switch.note_begin();
        if matches!(self.stage, Stage::Starting) {
            self.stage = Stage::Serving;
            say!("switch is running with {}, in {}", self.reports().sizes_text(), self.dir.display());
            if self.ports.all.is_empty() {
                say!("add a vnic with: lasthop vnic add NAME{}", rundir::option(&self.dir));
            }
        } else {
            say!("the switch process is running again, as process {pid}");
        }
        self.upgraded();
        // Requests to them while there was no switch process.
        self.heed_placeholders(|_| true);
        // A successor is a child that is in no list yet.
        if self.upgrade.is_none() {
            let own = [self.switch.process.pid(), self.driver.process.pid(), self.controller.process.pid()];
            self.reaper.reap_orphans(&own);
        }
    }

    /// The switch has given up the rights that it could, and continues with the guests of another one.
    pub(super) fn sandboxed(&mut self, layers: Vec<Layer>) {
        self.switch.process.note_sandbox(layers);
        // Not before: the process that takes memory apart in the end, which it started by then, is not urgent.
        if !self.sessions.saved.is_empty() {
            self.slice_boost = Some(SliceBoost::begin(self.switch.process.pid()));
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
        let pid = self.switch.process.current().map_or(0, |switch| switch.pid());
        // First: the predecessor's threads have to be there.
        self.slice_boost = None;
        let how = self.switch.process.bury();
        if self.stage.is_leaving() {
            return self.left();
        }
        self.datapath_clients.end_all(&self.poller);
        self.switch.note_life();
        self.upgrade_failed();
        let counters = self.counters.close_books(&mut self.store);
        self.sessions.judge(&mut self.ports, &mut self.store);
        self.datapaths.judge(&self.switch, &mut self.store);
        self.ports.down(&self.sessions, &self.poller);
        match self.stage {
            Stage::Starting => {
                self.fail_start(Fault::new(Kind::Internal, format!("the switch process {how}")))
            }
            Stage::Serving => {
                let pause_ms = self.switch.process.plan().as_millis();
                let what = final_counters_text(&counters);
                say!(Error: "the switch process {pid} {how}; {what}; starting it again in {pause_ms} ms");
            }
            Stage::Ending { .. } => self.stage = Stage::Over(Ok(())),
            Stage::Leaving { .. } | Stage::Over(_) => {}
        }
        self.fail_waiting();
    }

    /// The user wants an end: no more guests and questions; the switch lets its guests go.
    pub(super) fn begin_end(&mut self) {
        match self.stage {
            Stage::Ending { .. } => return self.end_by_force(),
            Stage::Leaving { .. } => return self.leave(),
            _ if self.store.is_on() => return self.begin_to_leave(),
            _ => {}
        }
        say!("ending");
        let is_starting = matches!(self.stage, Stage::Starting);
        self.clients.close();
        self.datapath_clients.close();
        self.ports.all.clear();
        self.sessions.saved.clear();
        self.driver = Driver::new(&self.settings, &self.reaper);
        self.controller = ControllerProcess::new(&self.settings, &self.reaper);
        // One that starts has no guest yet to let go, and would only be late.
        if is_starting {
            self.switch.process.bury();
        }
        if self.switch.process.is_up() {
            self.stage = Stage::Ending { until: Instant::now() + END_PATIENCE };
            self.switch.order(Order::End, OrderPurpose::Ended, None);
        } else {
            self.stage = Stage::Over(Ok(()));
        }
    }

    /// The service manager asks for an end, and keeps everything for the next supervisor, if there is one: no connection is closed.
    /// If it does not, it closes everything.
    fn begin_to_leave(&mut self) {
        say!("ending; the service manager keeps the state for the next one");
        self.refuse_upgrade("the switch was asked to end");
        self.datapath_clients.close();
        self.controller = ControllerProcess::new(&self.settings, &self.reaper);
        self.stage = Stage::Leaving { until: Instant::now() + END_PATIENCE, retry: None };
        if self.switch.process.is_up() {
            self.switch.order(Order::Rest, OrderPurpose::Rested, None);
        } else {
            self.leave();
        }
    }

    /// The switch has come to rest. Or a front end is in the middle of a message, and the switch is asked again soon.
    pub(super) fn rested_to_leave(&mut self, result: Result<(), Fault>) {
        match (result, &mut self.stage) {
            (Err(_), Stage::Leaving { retry, .. }) => *retry = Some(Instant::now() + REST_PAUSE),
            _ => self.leave(),
        }
    }

    /// Leaves everything as it is to the next supervisor, once the switch process has ended.
    fn leave(&mut self) {
        // Not before the switch rests: packets for its devices would wait for it, count as not taken, and be taken once more.
        self.driver = Driver::new(&self.settings, &self.reaper);
        if !self.switch.process.is_up() {
            return self.left();
        }
        self.switch.process.silence(&self.poller);
        self.stage = Stage::Leaving { until: Instant::now() + DEATH_PATIENCE, retry: None };
    }

    /// The switch process has ended, or does not: then the next supervisor sees to that.
    fn left(&mut self) {
        self.switch.process.bury();
        // Counters that it told of and that were not read yet would be added to themselves.
        drop(self.switch.take_unanswered());
        self.counters.close_books(&mut self.store);
        self.deposit_all();
        self.clients.leave_socket();
        self.ports.all.values_mut().for_each(Port::leave);
        self.stage = Stage::Over(Ok(()));
    }

    /// A client has waited for long enough.
    pub(super) fn end_on_time(&mut self, now: Instant) {
        match &mut self.stage {
            Stage::Leaving { until, retry } if now < *until => {
                *retry = None;
                self.switch.order(Order::Rest, OrderPurpose::Rested, None);
            }
            Stage::Leaving { .. } if self.switch.process.is_silent() => self.left(),
            Stage::Leaving { .. } => self.leave(),
            _ => self.end_by_force(),
        }
    }

    /// The switch did not end in time, or the user is in a hurry.
    pub(super) fn end_by_force(&mut self) {
        say!(Error: "the switch process did not end by itself and is killed");
        self.switch.process.bury();
        self.stage = Stage::Over(Ok(()));
    }

    /// On the way out: no process is left that could end.
    pub(super) fn end_all(&mut self) {
        self.upgrade = None;
        self.switch.process.bury();
        self.driver = Driver::new(&self.settings, &self.reaper);
        self.controller = ControllerProcess::new(&self.settings, &self.reaper);
        self.reaper.await_all(DEATH_PATIENCE);
    }
}
