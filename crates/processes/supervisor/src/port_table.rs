//! All ports, by number.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use log::warn;

use lasthop_module_api::PORTS_MAX;

use lasthop_api::capture::CaptureSpec;
use lasthop_api::names;
use lasthop_api::orders::Order;
use lasthop_api::port::{self, PortSpec};
use lasthop_api::settings::TunnelGro;
use lasthop_api::switches::SwitchName;
use lasthop_netdev::links::{Limited, Links};
use lasthop_runtime::fault::{Fault, Kind};
use lasthop_runtime::poller::{Interest, Poller};

use super::port::Port;
use super::source::Source;
use super::tunnel_ports::TunnelPorts;

/// Ports for users; one more is the switch's own.
const USER_PORTS_MAX: usize = PORTS_MAX - 1;

/// The ports, each of which has its own state (`port`).
#[derive(Debug)]
pub(super) struct PortTable {
    pub(super) all: BTreeMap<u32, Port>,
    /// `None` until there is a device port.
    pub(super) links: Option<Links>,
    /// Whether a pending change decides which ports' links depend on uplinks.
    pub(super) is_tracking_late: bool,
    next_number: u32,
    /// The run directory, which has the sockets without a configured path.
    pub(super) dir: PathBuf,
    pub(super) tunnels: TunnelPorts,
}

impl PortTable {
    /// A table without ports.
    pub(super) fn new(dir: &Path, tunnel_gro: TunnelGro) -> Self {
        Self {
            all: BTreeMap::new(),
            links: None,
            is_tracking_late: false,
            next_number: 0,
            dir: dir.to_path_buf(),
            tunnels: TunnelPorts::new(tunnel_gro),
        }
    }

    /// Adds a port; returns its number.
    pub(super) fn add(&mut self, port: Port) -> u32 {
        self.next_number += 1;
        self.all.insert(self.next_number, port);
        self.next_number
    }

    /// The name of a port.
    pub(super) fn name_of(&self, number: u32) -> Option<String> {
        self.all.get(&number).map(|port| port.spec.common.name.to_string())
    }

    /// Reserves this number and lower ones, which another supervisor used.
    pub(super) fn note_number(&mut self, number: u32) {
        self.next_number = self.next_number.max(number);
    }

    /// Refuses a port that conflicts with others.
    pub(super) fn check_beside(&self, spec: &PortSpec) -> Result<(), Fault> {
        if self.all.len() >= USER_PORTS_MAX {
            let why = format!("there are {USER_PORTS_MAX} ports, and that is the limit; delete one first");
            return Err(Fault::new(Kind::Limit, why));
        }
        let path = spec.socket_in(&self.dir);
        for port in self.all.values() {
            let name = &port.spec.common.name;
            if name == spec.name() {
                let why =
                    format!("there is a port \"{name}\" already; delete it first, or choose another name");
                return Err(Fault::new(Kind::NameTaken, why));
            }
            if port.path == path {
                let path = path.display();
                return Err(Fault::socket(format!(
                    "the socket \"{path}\" is that of port \"{name}\"; use another path"
                )));
            }
        }
        port::check_beside(spec, self.all.values().map(|port| &port.spec))
    }

    /// The order that adds a port at a switch process; notes that it was sent.
    pub(super) fn note_told(&mut self, number: u32) -> Option<Order> {
        let port = self.all.get_mut(&number)?;
        let told = port.as_told(&port.spec);
        if let Some(device) = port.device_mut() {
            device.told = told.device;
        }
        Some(Order::AddPort(told))
    }

    /// The number of the port with this name.
    pub(super) fn find(&self, name: &str) -> Result<u32, Fault> {
        let found = self.all.iter().find(|(_, port)| port.spec.common.name.as_str() == name);
        found.map(|(number, _)| *number).ok_or_else(|| self.no_such(name))
    }

    /// Like `find`, for methods `vnic.…`, which only work for vhost-user ports.
    pub(super) fn find_in_form(&self, name: &str, is_vnic_form: bool) -> Result<u32, Fault> {
        let number = self.find(name)?;
        match self.all.get(&number) {
            Some(port) if is_vnic_form && port.device().is_some() => {
                let why = format!("\"{name}\" is a port; use: lasthop port show {name}, port del {name}");
                Err(Fault::new(Kind::NoSuchVnic, why))
            }
            _ => Ok(number),
        }
    }

    /// Refuses a port that its user may not remove.
    pub(super) fn check_removable(&self, number: u32) -> Result<(), Fault> {
        match self.all.get(&number) {
            Some(port) if port.is_requested() => {
                let name = port.spec.name();
                Err(Fault::refused(format!(
                    "the port \"{name}\" is there since a controller asked for it; remove it there: ovs-vsctl del-port {name}"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Refuses the name of an unknown port.
    pub(super) fn checked(&self, name: Option<String>) -> Result<Option<String>, Fault> {
        name.as_ref().map_or(Ok(0), |name| self.find(name))?;
        Ok(name)
    }

    fn no_such(&self, name: &str) -> Fault {
        let hint = names::hint(name, self.all.values().map(|port| port.spec.common.name.as_str()));
        let remedy = if hint.is_empty() { "; see the list: lasthop port list" } else { hint.as_str() };
        Fault::new(Kind::NoSuchVnic, format!("there is no port \"{name}\"{remedy}"))
    }

    /// Watches a port's socket while connections may be accepted.
    pub(super) fn watch_port(&mut self, number: u32, poller: &Poller) {
        let Some(port) = self.all.get_mut(&number) else { return };
        let Some(listener) = port.listener() else { return };
        let is_watched = match (port.may_accept(), port.is_watched) {
            (true, false) => {
                let added = poller.add(listener, Source::Listener(number).into(), Interest::READ);
                added
                    .inspect_err(
                        |fault| warn!(port:% = port.spec.common.name; "port {}: {fault}; add it anew", port.spec.common.name),
                    )
                    .is_ok()
            }
            (false, true) => {
                poller.remove(listener);
                false
            }
            (_, unchanged) => unchanged,
        };
        port.is_watched = is_watched;
    }

    /// Handles the switch's report of a refused request of a front end.
    pub(super) fn refused(&mut self, name: &str, why: String) {
        let Ok(number) = self.find(name) else { return };
        warn!(limited = true, port:% = name; "port {name}: {why}");
        if let Some(port) = self.all.get_mut(&number) {
            port.refused(why);
        }
    }

    /// Handles the switch's report that it stopped a port's rings for a fault. A guest has to start them again. The driver
    /// process gets a new connection.
    pub(super) fn stopped(&mut self, name: &str, why: &str) {
        let Ok(number) = self.find(name) else { return };
        self.say_of_port(number, why);
        if let Some(device) = self.all.get_mut(&number).and_then(Port::device_mut) {
            device.left(Instant::now());
        }
    }

    /// Handles a limit that was set on a device, or removed.
    pub(super) fn heed_limit(&mut self, limited: &Limited) {
        let port = self.all.values_mut().find_map(|port| {
            let placeholder = port.placeholder.as_mut()?;
            let is_meant = placeholder.host_device().index == limited.index;
            is_meant.then_some((&port.spec.common.name, &mut placeholder.limits))
        });
        let Some((name, limits)) = port else { return };
        limits.take(limited.limit, limited.is_set);
        if let Some(warning) = limits.warning().filter(|_| limited.is_set) {
            warn!(limited = true, port:% = name; "port {name}: {warning}");
        }
    }

    /// Sets the placeholders' links to those of their guests.
    pub(super) fn tend_placeholders(&mut self) {
        for port in self.all.values_mut() {
            let has_link = port.has_guest_link();
            if let Some(placeholder) = &mut port.placeholder {
                placeholder.set_link(has_link);
            }
        }
    }

    pub(super) fn say_of_port(&self, number: u32, what: &str) {
        if let Some(port) = self.all.get(&number) {
            warn!(limited = true, port:% = port.spec.common.name; "port {}: {what}", port.spec.common.name);
        }
    }

    pub(super) fn trouble(&mut self, number: u32, what: String) {
        self.say_of_port(number, &what);
        if let Some(device) = self.all.get_mut(&number).and_then(Port::device_mut) {
            device.note(what);
        }
    }

    pub(super) fn vnics_of(&self, switch: &SwitchName) -> Vec<String> {
        let specs = self.all.values().map(|port| &port.spec.common).filter(|spec| spec.switch == *switch);
        let mut names: Vec<String> = specs.map(|spec| spec.name.to_string()).collect();
        names.sort();
        names
    }

    /// The port names in the order of the capture's interfaces.
    pub(super) fn interfaces(&self, spec: &CaptureSpec) -> BTreeSet<String> {
        match spec.names.is_empty() {
            true => self.all.values().map(|port| port.spec.common.name.to_string()).collect(),
            false => spec.names.iter().cloned().collect(),
        }
    }
}
