//! The ports: made, removed, and their connections handed to the switch.

use std::time::Instant;

use lasthop_verdict::PORTS_MAX;
use serde_json::Value;

use lasthop_api::names;
use lasthop_api::orders::Order;
use lasthop_api::port::{self, PortSpec};
use lasthop_api::report::{HUNG_UP, StatsReport, VnicReport};
use lasthop_api::vnic::VnicSpec;
use lasthop_runtime::fault::{Fault, Kind};
use lasthop_runtime::log::{Level, limited_line, say, say_of_others};
use lasthop_runtime::poller::Interest;

use super::Supervisor;
use super::port::Port;
use super::question::{Asker, OrderPurpose, to_json};
use super::source::Source;
use super::store::Key;

/// Vnics of a switch; one port is its own.
const VNICS_MAX: usize = PORTS_MAX - 1;
/// The state of a vnic that was just made.
const STATE_NEW: &str = "waiting for guest";

impl Supervisor {
    /// Makes a port's socket. The switch does not know the port yet.
    pub(super) fn open_port(&mut self, spec: VnicSpec) -> Result<u32, Fault> {
        self.check_switch_of(&spec)?;
        self.check_beside(&spec)?;
        let port = Port::open(spec, &self.dir)?;
        self.next_port += 1;
        self.ports.insert(self.next_port, port);
        self.store.is_late(Key::Port(self.next_port));
        self.make_placeholder(self.next_port);
        Ok(self.next_port)
    }

    /// Makes a device port. The switch does not know it yet.
    pub(super) fn open_device_port(&mut self, spec: PortSpec) -> Result<u32, Fault> {
        self.check_switch_of(&spec.vnic())?;
        self.check_device(&spec)?;
        self.enter_device_port(Port::over_device(spec, &self.dir))
    }

    /// Refuses a device port that cannot be beside the others.
    pub(super) fn check_device(&self, spec: &PortSpec) -> Result<(), Fault> {
        self.check_beside(&spec.vnic())?;
        let devices = self.ports.values().filter_map(Port::device);
        port::check_beside(spec, devices.map(|device| &device.spec))
    }

    /// Makes a device port that was checked.
    pub(super) fn enter_device_port(&mut self, port: Port) -> Result<u32, Fault> {
        self.watch_links()?;
        self.next_port += 1;
        self.ports.insert(self.next_port, port);
        self.store.is_late(Key::Port(self.next_port));
        self.see_device(self.next_port);
        Ok(self.next_port)
    }

    fn check_beside(&self, spec: &VnicSpec) -> Result<(), Fault> {
        if self.ports.len() >= VNICS_MAX {
            let why = format!("there are {VNICS_MAX} vnics, and that is the limit; delete one first");
            return Err(Fault::new(Kind::Limit, why));
        }
        let path = spec.socket_in(&self.dir);
        for port in self.ports.values() {
            let name = &port.spec.name;
            if *name == spec.name {
                let kind = port.kind_word();
                let why =
                    format!("there is a {kind} \"{name}\" already; delete it first, or choose another name");
                return Err(Fault::new(Kind::NameTaken, why));
            }
            if port.path == path {
                let path = path.display();
                return Err(Fault::socket(format!(
                    "the socket \"{path}\" is that of vnic \"{name}\"; use another path"
                )));
            }
        }
        Ok(())
    }

    /// Tells the switch of a port, which is new to everybody or to this switch process.
    pub(super) fn tell_of_port(&mut self, number: u32, is_new: bool, asker: Option<Asker>) {
        let book = self.book(number);
        let Some(order) = self.note_told(number) else { return };
        let what = OrderPurpose::Added { port: number, is_new };
        self.order_with(order, book.into_iter().map(Into::into).collect(), what, asker);
    }

    /// The order that tells a switch process of a port, which is told now.
    pub(super) fn note_told(&mut self, number: u32) -> Option<Order> {
        let port = self.ports.get_mut(&number)?;
        let told = port.as_told(&port.spec);
        if let Some(device) = port.device_mut() {
            device.told = told.device;
        }
        Some(Order::AddPort(told))
    }

    /// The number of the port with this name.
    pub(super) fn find(&self, name: &str) -> Result<u32, Fault> {
        self.number_of(name).ok_or_else(|| self.no_such("vnic", name))
    }

    fn number_of(&self, name: &str) -> Option<u32> {
        let found = self.ports.iter().find(|(_, port)| port.spec.name.as_str() == name);
        found.map(|(number, _)| *number)
    }

    /// As `find`, for methods on a vnic and not on a device port.
    pub(super) fn find_vnic(&self, name: &str) -> Result<u32, Fault> {
        self.find_kind(name, false)
    }

    /// As `find`, for methods on a device port.
    pub(super) fn find_device_port(&self, name: &str) -> Result<u32, Fault> {
        self.find_kind(name, true)
    }

    fn find_kind(&self, name: &str, is_device: bool) -> Result<u32, Fault> {
        let wanted = if is_device { "port" } else { "vnic" };
        let number = self.number_of(name).ok_or_else(|| self.no_such(wanted, name))?;
        match self.ports.get(&number) {
            Some(port) if port.device().is_some() != is_device => {
                let kind = port.kind_word();
                let why =
                    format!("\"{name}\" is a {kind}; use: lasthop {kind} show {name}, {kind} del {name}");
                Err(Fault::new(Kind::NoSuchVnic, why))
            }
            _ => Ok(number),
        }
    }

    fn no_such(&self, kind: &str, name: &str) -> Fault {
        let hint = names::hint(name, self.ports.values().map(|port| port.spec.name.as_str()));
        let remedy = match (hint.is_empty(), self.ports.values().any(|port| port.device().is_some())) {
            (true, false) => "; see the list: lasthop vnic list",
            (true, true) => "; see the lists: lasthop vnic list, lasthop port list",
            (false, _) => hint.as_str(),
        };
        Fault::new(Kind::NoSuchVnic, format!("there is no {kind} \"{name}\"{remedy}"))
    }

    /// The switch has taken a port, or has not. A new port that it refuses is gone as if it never was.
    pub(super) fn added(
        &mut self,
        number: u32,
        is_new: bool,
        result: Result<(), Fault>,
    ) -> Result<Value, Fault> {
        let Some(port) = self.ports.get_mut(&number) else {
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
                self.tracking_is_late = true;
                self.advance_port(number);
                if is_device { self.describe_port(number, &StatsReport::default()) } else { to_json(&report) }
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
        let Some(port) = self.ports.get_mut(&number) else { return };
        let now = Instant::now();
        if port.device().is_some() {
            return self.settle_device(number, now);
        }
        if let Some(fd) = port.advance(now) {
            self.next_attachment += 1;
            let attachment = self.next_attachment;
            port.attached(attachment, now);
            port.meet(&fd);
            let name = port.spec.name.to_string();
            say_of_others!("vnic {name}: a guest is connected");
            let fds = self.provide(number, attachment, fd);
            self.attach(name, attachment, fds);
        }
        self.watch_port(number);
    }

    /// Watches a port's socket while connections may be taken from it.
    fn watch_port(&mut self, number: u32) {
        let Some(port) = self.ports.get_mut(&number) else { return };
        let Some(listener) = port.listener() else { return };
        let is_watched = match (port.may_accept(), port.is_watched) {
            (true, false) => {
                let added = self.poller.add(listener, Source::Listener(number).into(), Interest::READ);
                added
                    .inspect_err(|fault| say!(Warning: "vnic {}: {fault}; add it anew", port.spec.name))
                    .is_ok()
            }
            (false, true) => {
                self.poller.remove(listener);
                false
            }
            (_, unchanged) => unchanged,
        };
        port.is_watched = is_watched;
    }

    /// A connection is over, says the switch.
    pub(super) fn detached(&mut self, name: &str, attachment: u64, why: &str) {
        let Ok(number) = self.find(name) else { return };
        if self.ports.get_mut(&number).is_some_and(|port| port.detached(attachment, Instant::now())) {
            if self.ports.get(&number).is_some_and(|port| port.device().is_none()) {
                let level = if why == HUNG_UP { Level::Info } else { Level::Warning };
                limited_line(level, format_args!("vnic {name}: its guest is gone: {why}"));
            }
            self.saved_sessions.remove(&number);
            self.store.is_late(Key::Port(number));
            if let Some(port) = self.ports.get_mut(&number) {
                port.end(why);
            }
            self.advance_port(number);
        }
    }

    /// A front end was refused something, says the switch.
    pub(super) fn refused(&mut self, name: &str, why: String) {
        let Ok(number) = self.find(name) else { return };
        say_of_others!(Warning: "vnic {name}: {why}");
        if let Some(port) = self.ports.get_mut(&number) {
            port.refused(why);
        }
    }

    /// Takes a port away, from the driver process, too.
    pub(super) fn forget_port(&mut self, number: u32) {
        let Some(port) = self.ports.remove(&number) else { return };
        self.saved_sessions.remove(&number);
        self.counters.remove(&number);
        self.store.is_late(Key::Port(number));
        if port.device().is_some_and(|device| device.is_driven) {
            self.detach_from_driver(number);
        }
        self.tracking_is_late = true;
    }

    /// The switch is gone, and all connections with it that nothing is kept of.
    pub(super) fn ports_down(&mut self) {
        let lost = self.ports.iter_mut().filter(|(number, _)| !self.saved_sessions.contains_key(number));
        lost.for_each(|(_, port)| port.down());
        let numbers: Vec<u32> = self.ports.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.watch_port(number));
    }
}
