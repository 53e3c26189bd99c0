//! The ports: made, removed, and their connections handed to the switch.

use std::time::Instant;

use serde_json::Value;

use lasthop_api::port::PortSpec;
use lasthop_api::report::{HUNG_UP, StatsReport, VnicReport};
use lasthop_api::vnic::VnicSpec;
use lasthop_fd_store::RecordKey;
use lasthop_runtime::fault::{Fault, Kind};
use lasthop_runtime::log::{Level, limited_line, say, say_of_others};

use super::Supervisor;
use super::port::Port;
use super::port_table::PortTable;
use super::question::{Asker, OrderPurpose, to_json};
use super::sessions::Sessions;
use lasthop_runtime::poller::Poller;

/// The state of a vnic that was just made.
const STATE_NEW: &str = "waiting for guest";

impl PortTable {
    /// The switch is gone, and all connections with it that nothing is kept of.
    pub(super) fn down(&mut self, sessions: &Sessions, poller: &Poller) {
        let lost = self.all.iter_mut().filter(|(number, _)| !sessions.saved.contains_key(number));
        lost.for_each(|(_, port)| port.down());
        let numbers: Vec<u32> = self.all.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.watch_port(number, poller));
    }
}

impl Supervisor {
    /// Makes a port's socket. The switch does not know the port yet.
    pub(super) fn open_port(&mut self, spec: VnicSpec) -> Result<u32, Fault> {
        self.switches.check_switch_of(&spec)?;
        self.ports.check_beside(&spec)?;
        let port = Port::open(spec, &self.dir)?;
        let number = self.ports.add(port);
        self.store.is_late(RecordKey::Port(number));
        self.ports.make_placeholder(number, &self.switches, &self.poller);
        Ok(number)
    }

    /// Makes a device port. The switch does not know it yet.
    pub(super) fn open_device_port(&mut self, spec: PortSpec) -> Result<u32, Fault> {
        self.switches.check_switch_of(&spec.vnic())?;
        self.ports.check_device(&spec)?;
        self.enter_device_port(Port::over_device(spec, &self.dir))
    }

    /// Makes a device port that was checked.
    pub(super) fn enter_device_port(&mut self, port: Port) -> Result<u32, Fault> {
        self.ports.watch_links(&self.poller)?;
        let number = self.ports.add(port);
        self.store.is_late(RecordKey::Port(number));
        self.see_device(number);
        Ok(number)
    }

    /// Tells the switch of a port, which is new to everybody or to this switch process.
    pub(super) fn tell_of_port(&mut self, number: u32, is_new: bool, asker: Option<Asker>) {
        let name = self.ports.all.get(&number).map(|port| port.spec.name.to_string()).unwrap_or_default();
        let book = self.counters.book(number, &name, &mut self.store);
        let Some(order) = self.ports.note_told(number) else { return };
        let what = OrderPurpose::Added { port: number, is_new };
        self.switch.order_with(order, book.into_iter().map(Into::into).collect(), what, asker);
    }

    /// The switch has taken a port, or has not. A new port that it refuses is gone as if it never was.
    pub(super) fn added(
        &mut self,
        number: u32,
        is_new: bool,
        result: Result<(), Fault>,
    ) -> Result<Value, Fault> {
        let Some(port) = self.ports.all.get_mut(&number) else {
            return Err(Fault::new(Kind::NoSuchVnic, "the vnic was deleted while it was being added"));
        };
        match result {
            Ok(()) => {
                port.confirm();
                if !port.is_attached() {
                    say!("{} {}: {}", port.kind_word(), port.spec.name, port.invitation());
                }
                let report = VnicReport::new(&port.spec, port.path.clone(), STATE_NEW);
                let is_device = port.device().is_some();
                self.ports.is_tracking_late = true;
                self.advance_port(number);
                if is_device {
                    self.reports().describe_port(number, &StatsReport::default())
                } else {
                    to_json(&report)
                }
            }
            Err(fault) => {
                let is_requested = port.is_requested();
                if is_requested {
                    self.deny_again(number, &fault);
                }
                if is_new || is_requested {
                    self.forget_port(number);
                }
                Err(fault)
            }
        }
    }

    /// Lets a port take its next steps, and hands over a connection that results.
    pub(super) fn advance_port(&mut self, number: u32) {
        let Some(port) = self.ports.all.get_mut(&number) else { return };
        let now = Instant::now();
        if port.device().is_some() {
            return self.settle_device(number, now);
        }
        if let Some(fd) = port.advance(now) {
            let attachment = self.sessions.next_attachment();
            port.attached(attachment, now);
            port.meet(&fd);
            let name = port.spec.name.to_string();
            say_of_others!("vnic {name}: a guest is connected");
            let fds = self.sessions.provide(number, attachment, fd, &self.ports, &mut self.store);
            self.switch.attach(name, attachment, fds);
        }
        self.ports.watch_port(number, &self.poller);
    }

    /// A connection is over, says the switch.
    pub(super) fn detached(&mut self, name: &str, attachment: u64, why: &str) {
        let Ok(number) = self.ports.find(name) else { return };
        if self.ports.all.get_mut(&number).is_some_and(|port| port.detached(attachment, Instant::now())) {
            if self.ports.all.get(&number).is_some_and(|port| port.device().is_none()) {
                let level = if why == HUNG_UP { Level::Info } else { Level::Warning };
                limited_line(level, format_args!("vnic {name}: its guest is gone: {why}"));
            }
            self.sessions.saved.remove(&number);
            self.store.is_late(RecordKey::Port(number));
            if let Some(port) = self.ports.all.get_mut(&number) {
                port.end(why);
            }
            self.advance_port(number);
        }
    }

    /// Takes a port away, from the driver process, too.
    pub(super) fn forget_port(&mut self, number: u32) {
        let Some(port) = self.ports.all.remove(&number) else { return };
        self.sessions.saved.remove(&number);
        self.counters.by_port.remove(&number);
        self.store.is_late(RecordKey::Port(number));
        if port.device().is_some_and(|device| device.is_driven) {
            self.driver.detach(number);
        }
        self.ports.is_tracking_late = true;
    }
}
