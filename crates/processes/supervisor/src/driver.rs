//! The driver process: orders to it, and the handling of its reports.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lasthop_netdev::lift_memory_lock;

use lasthop_api::driver_orders::{DriverOrder, DriverReport};
use lasthop_api::settings::SwitchSettings;
use lasthop_children::{ChildRole, Reaper, RestartingChild};
use lasthop_runtime::log::say;

use super::Supervisor;
use super::pending_questions::PendingQuestions;
use super::port::Port;
use super::question::Asker;
use super::source::Source;

/// How long counters of the driver process are waited for: one that is stopped must not keep its ports from being shown, and
/// one that waits for a CPU is not to be left out.
const COUNTERS_PATIENCE: Duration = Duration::from_secs(2);

/// The driver process, and the clients that wait for it.
#[derive(Debug)]
pub(super) struct Driver {
    pub(super) process: RestartingChild<DriverOrder, DriverReport>,
    /// The last question is not answered yet.
    is_asked: bool,
    pending: PendingQuestions<CountersPurpose>,
    /// Requests to the kernel on behalf of ports, and their purposes.
    pub(super) requests: BTreeMap<u32, (u32, String)>,
}

/// The purpose that the counters of device ports are fetched for.
#[derive(Debug)]
pub(super) enum CountersPurpose {
    /// To be shown, of one port or all.
    Ports { name: Option<String> },
    /// The method "doctor", for one vnic or port, or all.
    Doctor { name: Option<String> },
}

impl Driver {
    pub(super) fn new(settings: &SwitchSettings, reaper: &Reaper) -> Self {
        Self {
            process: RestartingChild::new(ChildRole::driver(settings), reaper),
            is_asked: false,
            pending: PendingQuestions::new(COUNTERS_PATIENCE),
            requests: BTreeMap::new(),
        }
    }

    /// The time at which a client has waited for long enough, or the process is to be started.
    pub(super) fn due(&self) -> Option<Instant> {
        self.pending.due().into_iter().chain(self.process.due()).min()
    }

    /// Lets the process forget a port.
    pub(super) fn detach(&mut self, port: u32) {
        self.process.send(&DriverOrder::Detach { port }, Vec::new());
    }
}

impl Supervisor {
    /// Starts the driver process with the first device port. On the way out its end is no reason for another one.
    pub(super) fn need_driver(&mut self) {
        if !self.stage.is_leaving() && !self.driver.process.is_up() && self.driver.process.due().is_none() {
            self.start_driver();
        }
    }

    pub(super) fn start_driver(&mut self) {
        // If this fails, the driver process itself reports the missing memory later.
        let _ = lift_memory_lock();
        self.driver.process.start_or_plan(&self.poller, Source::Driver.into());
        self.settle_devices();
    }

    /// Takes the driver process's messages.
    pub(super) fn hear_driver(&mut self) {
        let reports = self.driver.process.hear(&self.poller);
        reports.into_iter().for_each(|(report, _)| self.on_driver_report(report));
    }

    fn on_driver_report(&mut self, report: DriverReport) {
        let now = Instant::now();
        match report {
            DriverReport::DeviceGone { port, why } => self.device_gone(port, &why, now),
            DriverReport::SwitchGone { port, why } => {
                self.ports.say_of_port(port, &format!("left the switch: {why}"));
                if let Some(device) = self.ports.all.get_mut(&port).and_then(Port::device_mut) {
                    device.left(now);
                }
            }
            DriverReport::Refused { port, why } => {
                if let Some(device) = self.ports.all.get_mut(&port).and_then(Port::device_mut) {
                    device.undrive();
                }
                self.device_gone(port, &why, now);
            }
            DriverReport::Stats { round, ports } => {
                for (port, counters) in ports {
                    if let Some(device) = self.ports.all.get_mut(&port).and_then(Port::device_mut) {
                        device.counters = counters;
                    }
                }
                self.driver.is_asked = false;
                self.answer_pending(round, now);
            }
            DriverReport::Sandbox(layers) => self.driver.process.note_sandbox(layers),
            DriverReport::Forbidden(call) => self.driver.process.note_last_words(call.to_string()),
            DriverReport::Failed { why } => self.driver.process.note_last_words(why),
        }
    }

    /// The driver process is no more; guests go on among themselves.
    pub(super) fn driver_gone(&mut self) {
        let pid = self.driver.process.pid().unwrap_or_default();
        let how = self.driver.process.bury();
        self.driver.is_asked = false;
        self.ports
            .all
            .values_mut()
            .filter_map(Port::device_mut)
            .for_each(super::device::DevicePort::driver_gone);
        if !self.stage.is_last() {
            let pause_ms = self.driver.process.plan().as_millis();
            say!(Error: "the driver process {pid} {how}; starting it again in {pause_ms} ms");
        }
        self.answer_pending(u64::MAX, Instant::now());
    }

    /// Continues with a request when counters are fresh, or do not come in time.
    pub(super) fn ask_driver(&mut self, wanted: CountersPurpose, asker: &Asker) {
        // One question at a time: those that a driver process does not answer must not pile up.
        if !self.driver.is_asked {
            let round = self.driver.pending.next_round();
            self.driver.is_asked = self.driver.process.is_up();
            self.driver.process.send(&DriverOrder::Stats { round }, Vec::new());
        }
        self.driver.pending.wait(wanted, asker);
        if !self.driver.process.is_up() {
            self.answer_pending(u64::MAX, Instant::now());
        }
    }

    /// Continues with those requests whose counters, of up to this round, have come, or that have waited for long enough.
    pub(super) fn answer_pending(&mut self, round: u64, now: Instant) {
        for (wanted, asker) in self.driver.pending.take_ready(round, now) {
            let answer = match wanted {
                CountersPurpose::Ports { name } => self.show_ports(name, &asker),
                CountersPurpose::Doctor { name } => self.examine(name, &asker),
            };
            if let Some(answer) = answer.transpose() {
                self.clients.answer(asker, answer);
            }
        }
    }
}
