//! The ports with their sockets, devices and connections.
//!
//! ```text
//!   Ports: this file, `change`, `placeholders`, `devices`, `driver`, `requested`
//!     PortTable   Sessions   PortCounterTable   Driver
//! ```

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use log::{Level, info, log};
use serde_json::Value;

use lasthop_api::orders::{Answer, Order};
use lasthop_api::port::PortSpec;
use lasthop_api::report::HUNG_UP;
use lasthop_api::settings::TunnelGro;
use lasthop_device_ports::DevicePort;
use lasthop_fd_store::RecordKey;
use lasthop_listeners::{Caller, check_absolute};
use lasthop_placement::{AttachedGuest, PlacedPort};
use lasthop_port_counters::PortCounterTable;
use lasthop_runtime::fault::{Fault, Kind};
use lasthop_runtime::poller::{Interest, Poller};

use super::Outputs;
use super::driver::Driver;
use super::port::Port;
use super::port_table::PortTable;
use super::question::{OrderPurpose, switch_process_down};
use super::scheduler::attached_guest;
use super::sessions::Sessions;
use super::source::Source;
use super::switch_table::SwitchTable;

/// All ports, their sessions and counters, and the driver process for those over devices.
#[derive(Debug)]
pub(super) struct Ports {
    pub(super) table: PortTable,
    pub(super) sessions: Sessions,
    pub(super) counters: PortCounterTable,
    pub(super) driver: Driver,
}

impl PortTable {
    /// Notes the end of the switch process, and of all connections without a saved session.
    pub(super) fn down(&mut self, sessions: &Sessions, poller: &Poller) {
        let lost = self.all.iter_mut().filter(|(number, _)| !sessions.saved.contains_key(number));
        lost.for_each(|(_, port)| port.down());
        let numbers: Vec<u32> = self.all.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.watch_port(number, poller));
    }
}

impl Ports {
    /// Starts without ports and without a driver process.
    pub(super) fn new(dir: &Path, driver: Driver, tunnel_gro: TunnelGro) -> Self {
        let (sessions, counters) = (Sessions::default(), PortCounterTable::default());
        Self { table: PortTable::new(dir, tunnel_gro), sessions, counters, driver }
    }

    /// The attached ports, with batches of each of the first `workers` workers. `driver` is the driver process.
    pub(super) fn placed(&self, workers: usize, driver: Option<u32>) -> Vec<PlacedPort> {
        let placed = |(number, port): (&u32, &Port)| {
            let is_device = port.device().is_some();
            let guest = if is_device { AttachedGuest::device(driver) } else { attached_guest(port) };
            let batches = self.counters.by_port.get(number)?.batches(workers);
            Some(PlacedPort { number: *number, guest, batches })
        };
        self.table.all.iter().filter(|(_, port)| port.is_attached()).filter_map(placed).collect()
    }

    /// Adds a port. The reply comes when the switch has it.
    pub(super) fn add(
        &mut self,
        spec: PortSpec,
        caller: &Caller,
        switches: &SwitchTable,
        out: &mut Outputs,
    ) -> Result<(), Fault> {
        check_absolute(&spec)?;
        if !out.switch_process.process.is_up() {
            return Err(switch_process_down());
        }
        let number = self.open(spec, switches, out)?;
        self.tell_of_port(number, true, Some(caller.clone()), out);
        Ok(())
    }

    /// Makes a port's socket, or finds its device. The switch does not have the port yet.
    pub(super) fn open(
        &mut self,
        spec: PortSpec,
        switches: &SwitchTable,
        out: &mut Outputs,
    ) -> Result<u32, Fault> {
        switches.check_switch_of(&spec)?;
        self.table.check_beside(&spec)?;
        let port = Port::open(spec, &self.table.dir)?;
        let number = self.enter(port, out)?;
        self.table.make_placeholder(number, switches, &out.poller);
        Ok(number)
    }

    /// Adds a checked port.
    pub(super) fn enter(&mut self, port: Port, out: &mut Outputs) -> Result<u32, Fault> {
        if port.device().is_some() {
            self.table.watch_links(&out.poller)?;
        }
        let number = self.table.add(port);
        out.store.is_late(RecordKey::Port(number));
        self.see_device(number);
        Ok(number)
    }

    /// Sends the switch a port, which is new or unknown to this switch process.
    pub(super) fn tell_of_port(
        &mut self,
        number: u32,
        is_new: bool,
        caller: Option<Caller>,
        out: &mut Outputs,
    ) {
        let name =
            self.table.all.get(&number).map(|port| port.spec.common.name.to_string()).unwrap_or_default();
        let memory = self.counters.memory(number, &name, &mut out.store);
        let Some(order) = self.table.note_told(number) else { return };
        let what = OrderPurpose::Added { port: number, is_new };
        out.switch_process.order_with(order, memory.into_iter().map(Into::into).collect(), what, caller);
    }

    /// Handles the switch's reply about a port. A refused new port is removed.
    pub(super) fn added(
        &mut self,
        number: u32,
        is_new: bool,
        result: Result<(), Fault>,
        out: &mut Outputs,
    ) -> Result<(), Fault> {
        let Some(port) = self.table.all.get_mut(&number) else {
            return Err(Fault::new(Kind::NoSuchVnic, "the port was deleted while it was being added"));
        };
        match result {
            Ok(()) => {
                port.confirm();
                if !port.is_attached() {
                    info!(port:% = port.spec.common.name; "port {}: {}", port.spec.common.name, port.invitation());
                }
                self.table.is_tracking_late = true;
                self.advance_port(number, out);
                Ok(())
            }
            Err(fault) => {
                let is_requested = port.is_requested();
                if is_requested {
                    self.deny_again(number, &fault, out);
                }
                if is_new || is_requested {
                    self.forget_port(number, out);
                }
                Err(fault)
            }
        }
    }

    /// Takes a port's next steps, and passes on a connection that results.
    pub(super) fn advance_port(&mut self, number: u32, out: &mut Outputs) {
        let Some(port) = self.table.all.get_mut(&number) else { return };
        let now = Instant::now();
        if port.device().is_some() {
            return self.settle_device(number, now, out);
        }
        if let Some(fd) = port.advance(now) {
            let attachment = self.sessions.next_attachment();
            port.attached(attachment, now);
            port.meet(&fd);
            let name = port.spec.common.name.to_string();
            info!(limited = true, port:% = name; "port {name}: a guest is connected");
            let fds = self.sessions.provide(number, attachment, fd, &self.table, &mut out.store);
            out.switch_process.attach(name, attachment, fds);
        }
        self.table.watch_port(number, &out.poller);
    }

    /// Handles the switch's report that a connection has ended.
    pub(super) fn detached(&mut self, name: &str, attachment: u64, why: &str, out: &mut Outputs) {
        let Ok(number) = self.table.find(name) else { return };
        if self.table.all.get_mut(&number).is_some_and(|port| port.detached(attachment, Instant::now())) {
            if self.table.all.get(&number).is_some_and(|port| port.device().is_none()) {
                let level = if why == HUNG_UP { Level::Info } else { Level::Warn };
                log!(level, limited = true, port = name; "port {name}: its guest is gone: {why}");
            }
            self.sessions.saved.remove(&number);
            out.store.is_late(RecordKey::Port(number));
            if let Some(port) = self.table.all.get_mut(&number) {
                port.end(why);
            }
            self.advance_port(number, out);
        }
    }

    /// Removes a port, also from the driver process.
    pub(super) fn forget_port(&mut self, number: u32, out: &mut Outputs) {
        let Some(port) = self.table.all.remove(&number) else { return };
        if let Some(udp_port) = port.device().and_then(DevicePort::release_udp_port) {
            self.table.tunnels.note_released(udp_port, Instant::now());
        }
        self.sessions.saved.remove(&number);
        self.counters.by_port.remove(&number);
        out.store.is_late(RecordKey::Port(number));
        if port.device().is_some_and(|device| device.is_driven) {
            self.driver.detach(number);
        }
        self.table.is_tracking_late = true;
    }

    /// Removes a port with its static addresses for a user, also from the switch. `None`: the reply comes later.
    pub(super) fn delete(
        &mut self,
        number: u32,
        caller: &Caller,
        switches: &mut SwitchTable,
        out: &mut Outputs,
    ) -> Option<Value> {
        let name = self.table.name_of(number).unwrap_or_default();
        self.forget_port(number, out);
        switches.forget_entries_of(&name, &mut out.store);
        if !out.switch_process.process.is_up() {
            return Some(Value::Bool(true));
        }
        out.switch_process.order(Order::RemovePort { name }, OrderPurpose::Removed, Some(caller.clone()));
        None
    }

    /// Notes that the switch process had all ports before it became that, and hears it from now on.
    pub(super) fn note_introduced(&mut self, out: &mut Outputs) {
        if let Some(process) = out.switch_process.process.current() {
            // This only fails for lack of memory; then the process is not heard, and is replaced after its deadline, or as
            // one that hangs.
            let _ = out.poller.modify(&process.channel, Source::Switch.into(), Interest::READ);
        }
        let ports: Vec<u32> = self.table.all.keys().copied().collect();
        ports.into_iter().for_each(|port| drop(self.table.note_told(port)));
    }

    /// Handles the switch's reply about prepared sessions, and which it refused.
    pub(super) fn went_on(
        &mut self,
        sessions: Vec<(u32, u64)>,
        result: Result<Answer, Fault>,
        out: &mut Outputs,
    ) -> Result<Value, Fault> {
        let Answer::WentOn { refused } = result? else { return Ok(Value::Null) };
        let mut refused: BTreeMap<u64, Fault> = refused.into_iter().collect();
        for (number, attachment) in sessions {
            let result = refused.remove(&attachment).map_or(Ok(()), Err);
            self.taken_over(number, attachment, result, out);
        }
        Ok(Value::Null)
    }

    /// Handles the switch's reply about a session to take over.
    pub(super) fn taken_over(
        &mut self,
        number: u32,
        attachment: u64,
        result: Result<(), Fault>,
        out: &mut Outputs,
    ) {
        if self.sessions.taken_over(number, attachment, result, &mut self.table, &mut out.store) {
            self.advance_port(number, out);
        }
    }
}
