//! Device ports: watches and opens their devices, passes them to the driver process, and makes connections.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use log::{info, warn};
use rustix::io::Errno;

use lasthop_api::driver_orders::DriverOrder;
use lasthop_api::port::TapBackend;
use lasthop_device_ports::opening;
use lasthop_netdev::links::Links;
use lasthop_runtime::clock::earlier;
use lasthop_runtime::fault::Fault;
use lasthop_runtime::poller::{Interest, Poller};

use super::Outputs;
use super::port::Port;
use super::port_table::PortTable;
use super::ports::Ports;
use super::source::Source;
use super::switch_table::SwitchTable;

impl PortTable {
    /// Starts to receive the kernel's messages about network devices.
    pub(super) fn watch_links(&mut self, poller: &Poller) -> Result<(), Fault> {
        if self.links.is_none() {
            let links = Links::open()?;
            poller.add(&links, Source::Links.into(), Interest::READ)?;
            self.links = Some(links);
        }
        Ok(())
    }
}

impl Ports {
    /// Reads the kernel's messages about devices.
    pub(super) fn hear_links(&mut self, switches: &SwitchTable, out: &mut Outputs) {
        let Some(links) = &mut self.table.links else { return };
        let heard = links.receive();
        let is_concerned =
            |port: &Port| port.device().is_some() && heard.names.contains(port.spec.device_name());
        let concerned: Vec<u32> =
            self.table.all.iter().filter(|(_, port)| is_concerned(port)).map(|(number, _)| *number).collect();
        for number in concerned {
            self.see_device(number);
            self.advance_port(number, out);
            self.look_for_device(number, out);
        }
        self.table.look_for_placeholders(&heard.names, switches, &mut out.switch_process, &out.poller);
        self.heed_placeholders(|name| heard.names.contains(name), out);
        heard.limited.iter().for_each(|limited| self.table.heed_limit(limited));
        for (request, errno) in heard.done {
            self.on_done(request, errno);
        }
        self.table.is_tracking_late = true;
    }

    /// Passes the known state of a port's device to the port.
    pub(super) fn see_device(&mut self, number: u32) {
        let (Some(port), Some(links)) = (self.table.all.get_mut(&number), &self.table.links) else { return };
        let own_name = port.spec.device_name().to_owned();
        let Some(device) = port.device_mut() else { return };
        let seen = links.find(&own_name).cloned();
        let name = device.facts().and_then(|facts| links.name_of(facts.index));
        let is_other = name.is_some_and(|name| name != own_name);
        let is_renamed = is_other && !device.is_internal();
        device.see(seen.as_ref(), Instant::now());
        if is_renamed && device.is_driven {
            // Otherwise it would continue under its new name, which the port's configuration does not have.
            device.undrive();
            self.driver.detach(number);
        }
    }

    /// Handles the kernel's reply to a request for a port.
    fn on_done(&mut self, request: u32, errno: Option<i32>) {
        let Some((number, what)) = self.driver.requests.remove(&request) else { return };
        if let Some(errno) = errno {
            let error = Errno::from_raw_os_error(errno);
            self.table.trouble(number, format!("the kernel did not {what}: {error}"));
        }
    }

    /// Does all possible steps of all device ports.
    pub(super) fn settle_devices(&mut self, out: &mut Outputs) {
        let devices = self.table.all.iter().filter(|(_, port)| port.device().is_some());
        let numbers: Vec<u32> = devices.map(|(number, _)| *number).collect();
        numbers.into_iter().for_each(|number| self.advance_port(number, out));
    }

    /// Opens a port's device if possible, and makes missing connections.
    pub(super) fn settle_device(&mut self, number: u32, now: Instant, out: &mut Outputs) {
        if !self.table.all.get(&number).is_some_and(Port::is_known) {
            return;
        }
        self.need_driver(out);
        if self.driver.process.is_up() {
            self.open_device(number, now, out);
            self.join_device(number, now, out);
        }
    }

    fn open_device(&mut self, number: u32, now: Instant, out: &mut Outputs) {
        let Some(port) = self.table.all.get_mut(&number) else { return };
        let spec = port.spec.clone();
        let name = spec.name();
        let Some(device) = port.device_mut().filter(|device| device.wants_opening(now)) else { return };
        if device.is_internal() {
            return device.renew();
        }
        let opened = if device.is_requested {
            opening::requested(&spec, self.table.tunnels.gro)
        } else {
            opening::open(&spec, self.table.tunnels.gro)
        };
        match opened {
            Ok(opening) => {
                let facts = &opening.device.facts;
                let (index, backend) = (facts.index, facts.backend.name());
                info!(limited = true, port:% = name; "port {name}: {} is open, by {backend}: {}", facts.name, opening.why);
                device.open(opening, now);
                self.table.tell_of_device(number, &mut out.switch_process);
                self.give_addresses(number, index);
                self.free_host_of(number, now, out);
            }
            Err(why) => {
                if device.failed(&why, now) {
                    warn!(limited = true, port:% = name; "port {name}: {why}");
                }
            }
        }
    }

    /// After a tap was made for the host in place of another port's device, opens that device again.
    fn free_host_of(&mut self, number: u32, now: Instant, out: &mut Outputs) {
        let tap = self.table.all.get(&number).and_then(|port| port.spec.tap());
        let Some(tap) = tap.map(|backend| backend.tap.clone()) else { return };
        let ports = self.table.all.iter_mut();
        let hosts = ports.filter(|(_, port)| port.spec.host_tap().as_ref() == Some(&tap));
        let hosts = hosts.filter_map(|(number, port)| Some((*number, port.device_mut()?)));
        let numbers: Vec<u32> = hosts.map(|(number, device)| device.is_wanted_again(number, now)).collect();
        numbers.into_iter().for_each(|number| self.advance_port(number, out));
    }

    /// Gives a tap its addresses; the replies come later.
    fn give_addresses(&mut self, number: u32, index: u32) {
        let tap = self.table.all.get(&number).and_then(|port| port.spec.tap());
        let Some((TapBackend { tap: name, address }, links)) = tap.zip(self.table.links.as_mut()) else {
            return;
        };
        let mut asked = Vec::new();
        for prefix in address {
            let added = links.add_address(index, prefix.address, prefix.len_bits);
            asked.push((added, format!("give {name} the address {prefix}")));
        }
        for (request, what) in asked {
            match request {
                Ok(request) => drop(self.driver.requests.insert(request, (number, what))),
                Err(error) => self.table.trouble(number, format!("cannot {what}: {error}")),
            }
        }
    }

    /// Gives the driver process the missing descriptors of a port, and a connection to the switch.
    fn join_device(&mut self, number: u32, now: Instant, out: &mut Outputs) {
        let Some(port) = self.table.all.get_mut(&number) else { return };
        let (may_join, is_attached) = (port.may_join(now), port.is_attached());
        let Some(device) = port.device_mut() else { return };
        match device.is_driven {
            // The switch reports the end of the connection; then another one is made.
            true if is_attached && device.is_stale(now) => {
                device.undrive();
                device.lost(now);
                self.driver.detach(number);
            }
            true if is_attached && device.has_unsent() => self.replace_device(number),
            true if may_join => {
                self.connect(number, now, |port| DriverOrder::ReplaceSwitch { port }, Vec::new(), out);
            }
            false if may_join => {
                let Some((facts, fds)) = device.take_unsent() else { return };
                self.connect(number, now, |port| DriverOrder::Attach { port, facts }, fds, out);
            }
            _ => {}
        }
    }

    fn replace_device(&mut self, port: u32) {
        let device = self.table.all.get_mut(&port).and_then(Port::device_mut);
        let Some((facts, fds)) = device.and_then(|device| device.take_unsent()) else { return };
        let fds = fds.into_iter().map(Into::into).collect();
        self.driver.send(&DriverOrder::ReplaceDevice { port, facts }, fds);
    }

    /// Connects the switch and the driver process, which gets its end together with `fds`.
    fn connect(
        &mut self,
        number: u32,
        now: Instant,
        order: impl FnOnce(u32) -> DriverOrder,
        mut fds: Vec<OwnedFd>,
        out: &mut Outputs,
    ) {
        let (ours, theirs) = match UnixStream::pair() {
            Ok(pair) => pair,
            Err(error) => {
                let _ = self.table.all.get_mut(&number).map(|port| port.postpone(now));
                return self.device_gone(number, &format!("cannot make a connection: {error}"), now, out);
            }
        };
        let Some(port) = self.table.all.get_mut(&number) else { return };
        let attachment = self.sessions.next_attachment();
        port.attached(attachment, now);
        if let Some(device) = port.device_mut() {
            device.joined();
        }
        let name = port.spec.common.name.to_string();
        fds.push(theirs.into());
        self.driver.send(&order(number), fds.into_iter().map(Into::into).collect());
        let fds = self.sessions.provide(number, attachment, ours.into(), &self.table, &mut out.store);
        out.switch_process.attach(name, attachment, fds);
    }

    /// Handles a device that failed, or that the driver process cannot serve; it is opened again.
    pub(super) fn device_gone(&mut self, number: u32, why: &str, now: Instant, out: &mut Outputs) {
        self.table.trouble(number, why.to_owned());
        if let Some(device) = self.table.all.get_mut(&number).and_then(Port::device_mut) {
            device.lost(now);
        }
        self.look_for_tap(number, out);
        self.advance_port(number, out);
    }

    /// When device ports, or clients that request them, have work without an event.
    pub(super) fn devices_due(&self) -> Option<Instant> {
        let ports = self.table.all.values().filter(|_| self.driver.process.is_up());
        ports.map(Port::device_due).fold(self.driver.due(), earlier)
    }

    pub(super) fn devices_on_time(&mut self, now: Instant, out: &mut Outputs) {
        if self.driver.process.due().is_some_and(|due| due <= now) {
            self.start_driver(out);
        }
        let is_due = |port: &Port| port.device_due().is_some_and(|due| due <= now);
        let due: Vec<u32> =
            self.table.all.iter().filter(|(_, port)| is_due(port)).map(|(number, _)| *number).collect();
        due.into_iter().for_each(|number| self.advance_port(number, out));
    }
}
