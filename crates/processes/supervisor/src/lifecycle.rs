//! The switch process's start and end, and the supervisor's own; ends of the other inner processes. An end is noticed by
//! an event, or by checks of a killed process. Its last messages are handled first.

use std::time::{Duration, Instant};

use lasthop_api::orders::Order;
use lasthop_api::rundir;
use lasthop_children::RunningChild;
use lasthop_port_counters::final_counters_text;
use lasthop_runtime::clock::earlier;
use lasthop_runtime::fault::{Fault, Kind};
use log::{error, info};

use super::controller::ControllerProcess;
use super::driver::Driver;
use super::port::Port;
use super::question::{ControllerAnswer, OrderPurpose};
use super::sessions::SessionVersions;
use super::source::Source;
use super::stage::Stage;
use super::standby::ReadyStandby;
use super::upgrade::Upgrades;
use super::{Outputs, Supervisor};

/// How often the channel of a process that has ended is read: its socket has no room for more. Another process may have
/// that end of the channel, and send on.
const LAST_READS_MAX: usize = 16;

/// How long the switch may take to release its guests, or to come to rest: less than service managers wait for us.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// How long a killed switch process may take to end when the supervisor ends.
const DEATH_PATIENCE: Duration = Duration::from_secs(5);

/// Pause before a switch that could not come to rest is asked again.
const REST_PAUSE: Duration = Duration::from_millis(20);

impl Supervisor {
    /// Starts a switch process, and passes all switches, ports, and the guests of an earlier process to it.
    pub(super) fn start_switch(&mut self) -> Result<(), Fault> {
        self.out.switch_process.process.start(&self.out.poller, Source::Switch.into())?;
        self.deposit_head();
        self.switches.replay(&mut self.out.switch_process);
        let ports: Vec<u32> = self.ports.table.all.keys().copied().collect();
        ports.into_iter().for_each(|port| self.ports.tell_of_port(port, false, None, &mut self.out));
        self.switches.restore_entries(&mut self.out.switch_process);
        self.tell_of_guests(&SessionVersions::new());
        Ok(())
    }

    /// Passes all guests to a switch process that has switches and ports. It knows the sessions in `known`.
    pub(super) fn tell_of_guests(&mut self, known: &SessionVersions) {
        self.datapaths.restore(&mut self.out.switch_process, &mut self.out.store);
        self.ports.sessions.hand_over(
            known,
            &mut self.ports.table,
            &mut self.out.switch_process,
            &mut self.out.store,
        );
        // Before the reply that says that the switch runs, so that it has its controller then.
        self.settle_controller();
        // Its reply comes after all others.
        self.out.switch_process.order(Order::Stats, OrderPurpose::Started, None);
    }

    /// Passes guests that waited for room for their descriptors.
    pub(super) fn hand_over_waiting(&mut self, now: Instant) {
        let is_there = self.out.switch_process.process.is_up() && !self.upgrades.is_handed_over();
        let serves = is_there && matches!(self.stage, Stage::Starting | Stage::Serving);
        let Outputs { switch_process, store, .. } = &mut self.out;
        self.ports.sessions.hand_over_waiting((serves, now), &mut self.ports.table, switch_process, store);
    }

    /// Starts the controller process if it is needed, and updates its configuration and its connections to the switch
    /// process.
    pub(super) fn settle_controller(&mut self) {
        let is_handed_over = self.upgrades.is_handed_over();
        if !matches!(self.stage, Stage::Starting | Stage::Serving) || is_handed_over {
            return;
        }
        let Outputs { switch_process, poller, .. } = &mut self.out;
        self.controller.settle(&self.switches, &self.ports.table, switch_process, poller);
    }

    /// Does the controller process's work that is due.
    pub(super) fn controller_on_time(&mut self, now: Instant) {
        self.controller.on_time(now, &self.out.switch_process, &self.out.poller);
        if self.answer_controller_clients(0, now, ControllerAnswer::default()) {
            self.controller.suspect();
        }
        self.controller.end_if_hung(now, &self.out.poller);
    }

    /// Handles the reply that the switch has all its ports.
    pub(super) fn started(&mut self) {
        let pid = self.out.switch_process.process.current().map_or(0, |switch| switch.pid());
        self.out.switch_process.end_boost();
        self.out.switch_process.note_begin();
        if matches!(self.stage, Stage::Starting) {
            self.stage = Stage::Serving;
            info!("switch is running with {}, in {}", self.reports().sizes_text(), self.dir.display());
            if self.ports.table.all.is_empty() {
                info!(
                    "add a port with: lasthop port add NAME,backend=vhost-user{}",
                    rundir::option(&self.dir)
                );
            }
        } else {
            info!("the switch process is running again, as process {pid}");
        }
        self.upgraded();
        if let Some(refused) = self.standby.take_refused() {
            self.ports.taken(refused.into_iter().collect(), &mut self.out);
        }
        // MTU requests that came while there was no switch process.
        self.ports.heed_placeholders(|_| true, &mut self.out);
        // A successor is a child that is not listed yet.
        if !self.upgrades.is_under_way() {
            let own = [
                self.out.switch_process.process.pid(),
                self.ports.driver.process.pid(),
                self.controller.process.pid(),
                self.standby.pid(),
            ];
            self.reaper.reap_orphans(&own);
        }
    }

    /// Ends the start with a fault that the user has to correct.
    pub(super) fn fail_start(&mut self, fault: Fault) {
        if matches!(self.stage, Stage::Starting) {
            self.stage = Stage::Over(Err(fault));
        }
    }

    /// Handles the end of the switch process.
    pub(super) fn switch_process_gone(&mut self) {
        let pid = self.out.switch_process.process.current().map_or(0, |switch| switch.pid());
        // First, since the old process's threads must still exist.
        self.out.switch_process.end_boost();
        let how = self.out.switch_process.process.reap();
        if self.stage.is_leaving() {
            return self.left();
        }
        self.datapath_clients.end_all(&self.out.poller);
        self.out.switch_process.note_life();
        let failed = self.upgrades.fail(&mut self.ports, &mut self.out);
        self.clients.answer_any(failed);
        let standby = match self.stage {
            // One that dies soon after its start is started after a pause.
            Stage::Serving if !self.out.switch_process.process.is_hasty() => {
                self.standby.take(&mut self.ports, &self.switches)
            }
            _ => None,
        };
        if standby.is_none() {
            self.standby.end(&mut self.ports);
        }
        let counters = self.ports.counters.collect_counters(&mut self.out.store);
        self.ports.sessions.keep_survivors(&mut self.ports.table, &mut self.out.store);
        self.datapaths.forget_if_fatal(&self.out.switch_process, &mut self.out.store);
        self.ports.table.down(&self.ports.sessions, &self.out.poller);
        match self.stage {
            Stage::Starting => {
                self.fail_start(Fault::new(Kind::Internal, format!("the switch process {how}")))
            }
            Stage::Serving => {
                let next = match &standby {
                    Some(standby) => format!("process {} continues", standby.process.pid()),
                    None => format!(
                        "starting it again in {} ms",
                        self.out.switch_process.process.plan().as_millis()
                    ),
                };
                error!("the switch process {pid} {how}; {}; {next}", final_counters_text(&counters));
            }
            Stage::Ending { .. } => self.stage = Stage::Over(Ok(())),
            Stage::Leaving { .. } | Stage::Over(_) => {}
        }
        self.fail_waiting();
        standby.into_iter().for_each(|standby| self.promote(standby));
    }

    /// Has the stand-by continue with the guests of a process that has ended.
    fn promote(&mut self, ReadyStandby { process, setup }: ReadyStandby) {
        self.out.switch_process.process.promote(process);
        self.out.switch_process.boost_slices(None);
        self.deposit_head();
        self.tell_of_guests(&setup.known);
        self.ports.note_introduced(&mut self.out);
        self.standby.note_continued(setup.refused);
    }

    /// Begins to end: accepts no more guests and questions, and has the switch release its guests.
    pub(super) fn begin_end(&mut self) {
        match self.stage {
            Stage::Ending { .. } => return self.end_by_force(),
            Stage::Leaving { .. } => return self.leave(),
            _ if self.out.store.is_on() => return self.begin_to_leave(),
            _ => {}
        }
        info!("ending");
        let is_starting = matches!(self.stage, Stage::Starting);
        self.clients.close();
        self.datapath_clients.close();
        self.ports.table.all.clear();
        self.ports.sessions.saved.clear();
        self.ports.driver = Driver::retired(&self.settings, &self.reaper);
        self.controller = ControllerProcess::new(&self.settings, &self.reaper);
        // A starting process has no guests to release, and would delay the end.
        if is_starting {
            self.out.switch_process.process.reap();
        }
        if self.out.switch_process.process.is_up() {
            self.stage = Stage::Ending { until: Instant::now() + END_PATIENCE };
            self.out.switch_process.order(Order::End, OrderPurpose::Ended, None);
        } else {
            self.stage = Stage::Over(Ok(()));
        }
    }

    /// Begins to end while the service manager keeps everything for a next supervisor: no connection is closed. Without
    /// a next supervisor the manager closes everything.
    fn begin_to_leave(&mut self) {
        info!("ending; the service manager keeps the state for the next one");
        let refused = self.upgrades.refuse("the switch was asked to end", &mut self.ports, &mut self.out);
        self.clients.answer_any(refused);
        self.ports.driver.is_last = true;
        self.datapath_clients.close();
        self.controller = ControllerProcess::new(&self.settings, &self.reaper);
        self.stage = Stage::Leaving { until: Instant::now() + END_PATIENCE, retry: None };
        if self.out.switch_process.process.is_up() {
            self.out.switch_process.order(Order::Rest, OrderPurpose::Rested, None);
        } else {
            self.leave();
        }
    }

    /// Handles the switch's reply to the order to rest. If a front end is in the middle of a message, the switch is
    /// asked again soon.
    pub(super) fn rested_to_leave(&mut self, result: Result<(), Fault>) {
        match (result, &mut self.stage) {
            (Err(_), Stage::Leaving { retry, .. }) => *retry = Some(Instant::now() + REST_PAUSE),
            _ => self.leave(),
        }
    }

    /// Leaves everything to the next supervisor, once the switch process has ended.
    fn leave(&mut self) {
        // Only once the switch rests: otherwise packets for its devices would stay pending, count as not delivered, and
        // be fetched again.
        self.ports.driver = Driver::retired(&self.settings, &self.reaper);
        if !self.out.switch_process.process.is_up() {
            return self.left();
        }
        self.out.switch_process.process.silence(&self.out.poller);
        self.stage = Stage::Leaving { until: Instant::now() + DEATH_PATIENCE, retry: None };
    }

    /// Handles the end of the switch process; if it does not end, the next supervisor handles that.
    fn left(&mut self) {
        self.out.switch_process.process.reap();
        // Otherwise counters in replies that were not read yet would be counted twice.
        drop(self.out.switch_process.take_unanswered());
        self.ports.counters.collect_counters(&mut self.out.store);
        self.deposit_all();
        self.clients.leave_socket();
        self.ports.table.all.values_mut().for_each(Port::leave);
        self.stage = Stage::Over(Ok(()));
    }

    /// Handles a wait that took too long.
    pub(super) fn end_on_time(&mut self, now: Instant) {
        match &mut self.stage {
            Stage::Leaving { until, retry } if now < *until => {
                *retry = None;
                self.out.switch_process.order(Order::Rest, OrderPurpose::Rested, None);
            }
            Stage::Leaving { .. } if self.out.switch_process.process.is_silent() => self.left(),
            Stage::Leaving { .. } => self.leave(),
            _ => self.end_by_force(),
        }
    }

    /// Kills the switch process: it did not end in time, or the user asked twice.
    pub(super) fn end_by_force(&mut self) {
        error!("the switch process did not end by itself and is killed");
        self.out.switch_process.process.reap();
        self.stage = Stage::Over(Ok(()));
    }

    /// Ends all processes before the supervisor ends.
    pub(super) fn end_all(&mut self) {
        self.upgrades = Upgrades::default();
        self.standby.end(&mut self.ports);
        self.out.switch_process.process.reap();
        self.ports.driver = Driver::retired(&self.settings, &self.reaper);
        self.controller = ControllerProcess::new(&self.settings, &self.reaper);
        self.reaper.await_all(DEATH_PATIENCE);
        self.placement.end();
        self.shares.end();
    }
}

impl Supervisor {
    /// When to call [`Self::look_for_ends`] without an event.
    pub(super) fn ends_due(&self) -> Option<Instant> {
        let inner = [
            self.out.switch_process.process.end_due(),
            self.ports.driver.process.end_due(),
            self.controller.process.end_due(),
        ];
        inner.into_iter().chain([self.upgrades.end_due(), self.reaper.due()]).fold(None, earlier)
    }

    /// Handles processes that have ended or are stuck.
    pub(super) fn look_for_ends(&mut self, now: Instant) {
        self.reaper.hear();
        if self.out.switch_process.process.is_over(now) {
            let life = self.out.switch_process.process.starts();
            for _ in 0..LAST_READS_MAX {
                if self.out.switch_process.process.is_silent()
                    || self.out.switch_process.process.starts() != life
                {
                    break;
                }
                self.hear();
            }
            // Not if its last messages have replaced the process.
            if self.out.switch_process.process.starts() == life {
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
