//! Starts the driver process with the first device port, and handles its reports.

use std::time::Instant;

use log::error;

use lasthop_api::driver_orders::DriverReport;
use lasthop_device_ports::DevicePort;

use super::Outputs;
use super::port::Port;
use super::ports::Ports;
use super::source::Source;

impl Ports {
    /// Starts the driver process with the first device port. No other process is started before the supervisor ends.
    pub(super) fn need_driver(&mut self, out: &mut Outputs) {
        if !self.driver.is_last && !self.driver.process.is_up() && self.driver.process.due().is_none() {
            self.start_driver(out);
        }
    }

    pub(super) fn start_driver(&mut self, out: &mut Outputs) {
        self.driver.process.start_or_plan(&out.poller, Source::Driver.into());
        self.settle_devices(out);
    }

    /// Reads the driver process's messages; returns the last question that they answer, if any.
    pub(super) fn hear_driver(&mut self, out: &mut Outputs) -> Option<u64> {
        let reports = self.driver.process.hear(&out.poller);
        let rounds = reports.into_iter().filter_map(|(report, _)| self.on_driver_report(report, out));
        rounds.max()
    }

    fn device_port(&mut self, port: u32) -> Option<&mut DevicePort> {
        self.table.all.get_mut(&port).and_then(Port::device_mut)
    }

    fn on_driver_report(&mut self, report: DriverReport, out: &mut Outputs) -> Option<u64> {
        let now = Instant::now();
        match report {
            DriverReport::DeviceGone { port, why } => self.device_gone(port, &why, now, out),
            DriverReport::RingStopped { port, why } => {
                if self.device_port(port).is_some_and(|device| device.ring_stopped(now)) {
                    self.table.say_of_port(port, &format!("receives by system calls from now on: {why}"));
                }
                self.advance_port(port, out);
            }
            DriverReport::SwitchGone { port, why } => {
                self.table.say_of_port(port, &format!("left the switch: {why}"));
                self.device_port(port).into_iter().for_each(|device| device.left(now));
            }
            DriverReport::Refused { port, why } => {
                self.device_port(port).into_iter().for_each(DevicePort::undrive);
                self.device_gone(port, &why, now, out);
            }
            DriverReport::Stats { round, ports } => {
                for (port, counters) in ports {
                    self.device_port(port).into_iter().for_each(|device| device.counters = counters);
                }
                self.driver.is_asked = false;
                return Some(round);
            }
            DriverReport::Alive { round } => self.driver.note_life(round),
            DriverReport::Progress => self.driver.note_progress(),
            DriverReport::Sandbox(layers) => {
                self.driver.process.note_sandbox(layers);
                self.driver.note_begin();
            }
            DriverReport::Forbidden(call) => self.driver.process.note_last_words(call.to_string()),
            DriverReport::Failed { why } => self.driver.process.note_last_words(why),
        }
        None
    }

    /// Handles the end of the driver process; traffic between guests is not affected.
    pub(super) fn driver_gone(&mut self) {
        let pid = self.driver.process.pid().unwrap_or_default();
        let how = self.driver.process.reap();
        self.driver.forget_process();
        self.table.all.values_mut().filter_map(Port::device_mut).for_each(DevicePort::driver_gone);
        if !self.driver.is_last {
            let pause_ms = self.driver.process.plan().as_millis();
            error!("the driver process {pid} {how}; starting it again in {pause_ms} ms");
        }
    }
}
