//! The methods "port.list" and "port.show": ports with the switch's facts, and for devices those of kernel and driver
//! process.

use lasthop_api::leases::LeaseReport;
use lasthop_api::port::PortBackend;
use lasthop_api::report::{
    DeviceCounters, DeviceStatus, DriverFacts, PortFilter, PortReport, PortStatus, PortStatusList,
    StatsReport,
};
use lasthop_device_ports::DevicePort;
use lasthop_netdev::links::Links;
use lasthop_runtime::clock::now_ns;
use lasthop_runtime::fault::{Fault, Kind};

use super::port::Port;
use super::reports::Reports;
use super::warnings::WarningContext;

/// The switch's word for a port with running rings.
const STATE_RUNNING: &str = "running";
/// A vhost-user port's state without a switch process, or if that does not answer.
const STATE_DOWN: &str = "no answer from the switch process";

impl Reports<'_> {
    /// The ports that a filter selects, by name; vhost-user ports without the part of `port.show`.
    pub(super) fn list_ports(&self, filter: PortFilter, stats: &StatsReport) -> PortStatusList {
        let warnings = WarningContext::new(self.ports.all.values(), stats);
        let listed = self.ports.all.values().filter(|port| filter.takes(&port.spec));
        let mut ports: Vec<_> = listed.map(|port| self.describe(port, &warnings)).collect();
        ports.sort_by(|one, other| one.name.cmp(&other.name));
        for port in &mut ports {
            if let Some(guest) = &mut port.guest {
                guest.rings.clear();
                port.features.clear();
            }
        }
        PortStatusList { ports }
    }

    pub(super) fn describe_port(&self, number: u32, stats: &StatsReport) -> Result<PortStatus, Fault> {
        let warnings = WarningContext::new(self.ports.all.values(), stats);
        let port = self.ports.all.get(&number).map(|port| self.describe(port, &warnings));
        port.ok_or_else(|| Fault::new(Kind::NoSuchVnic, "the port was deleted meanwhile"))
    }

    pub(super) fn describe(&self, port: &Port, warnings: &WarningContext<'_>) -> PortStatus {
        match port.device() {
            Some(device) => self.describe_device(port, device, warnings),
            None => describe_guest(port, warnings),
        }
    }

    fn describe_device(&self, port: &Port, device: &DevicePort, warnings: &WarningContext<'_>) -> PortStatus {
        let inside = warnings.inside(port).cloned();
        let (state, why) = self.state_of(port, device, inside.as_ref());
        let facts = device.facts();
        PortStatus {
            name: port.spec.name().to_string(),
            settings: port.spec.clone(),
            requested: device.is_requested,
            state: state.to_owned(),
            why,
            features: inside.as_ref().map(|inside| inside.features.clone()).unwrap_or_default(),
            warnings: warnings.warnings(port),
            leases: leases(port),
            guest: None,
            device: Some(DeviceStatus {
                device: port.spec.device_name().to_owned(),
                backend: facts.map(|facts| facts.backend),
                backend_why: device.choice().map(str::to_owned),
                mtu: device.mtu_bytes(),
                mac: facts.map(|facts| lasthop_module_api::Mac(facts.mac).to_string()),
                has_link: device.has_link(),
                is_of_bridge: device.is_of_bridge(),
                driver: self.driver_facts(),
                counters: DeviceCounters::from(&device.counters),
                inside,
            }),
        }
    }

    pub(super) fn driver_facts(&self) -> DriverFacts {
        let process = &self.driver.process;
        DriverFacts {
            pid: process.pid(),
            restarts: process.restarts(),
            last_end: process.last_end(),
            deaf: self.driver.deafness(),
        }
    }

    /// The state of a port over a device, and the obstacle.
    pub(super) fn state_of(
        &self,
        port: &Port,
        device: &DevicePort,
        inside: Option<&PortReport>,
    ) -> (&'static str, Option<String>) {
        let name = port.spec.device_name();
        let trouble = || device.trouble().map(str::to_owned);
        let is_complete = self.ports.links.as_ref().is_some_and(Links::is_complete);
        // A connected back end may still be refused.
        let runs = inside.is_some_and(|inside| inside.state == STATE_RUNNING);
        let is_tunnel = matches!(port.spec.backend, PortBackend::Tunnel(_));
        let is_missing = device.seen.is_none() && port.spec.tap().is_none() && !is_tunnel;
        match () {
            () if !port.is_known() => ("switch restarting", None),
            () if is_missing && is_complete => ("no device", Some(no_device(name))),
            () if device.is_internal() && device.seen.as_ref().is_some_and(|seen| !seen.is_up) => {
                ("down", None)
            }
            () if device.seen.as_ref().is_some_and(|seen| !seen.is_up) => {
                ("down", Some(format!("{name} is set down; set it up: ip link set {name} up")))
            }
            () if !self.driver.process.is_up() => ("driver restarting", trouble()),
            () if device.facts().is_none() => ("not open", trouble()),
            () if !device.is_driven || !port.is_attached() || !runs => ("joining", trouble()),
            () if device.is_elsewhere() => {
                ("up", Some(format!("{name} was moved to another network namespace")))
            }
            () if device.has_link() || is_tunnel => ("up", trouble()),
            () => ("no carrier", trouble()),
        }
    }
}

fn describe_guest(port: &Port, warnings: &WarningContext<'_>) -> PortStatus {
    let inside = warnings.inside(port);
    let state = inside.map_or(STATE_DOWN, |inside| inside.state.as_str());
    let mut status = PortStatus::of_guest(&port.spec, port.path.clone(), state);
    status.warnings = warnings.warnings(port);
    status.leases = leases(port);
    if let Some(guest) = &mut status.guest {
        guest.uplinks_down = port.is_cut;
        guest.last_refusal = port.last_refusal().map(str::to_owned);
        guest.rings = inside.map(|inside| inside.rings.clone()).unwrap_or_default();
    }
    status.features = inside.map(|inside| inside.features.clone()).unwrap_or_default();
    status
}

fn leases(port: &Port) -> Vec<LeaseReport> {
    port.leases().map(|leases| leases.report(now_ns())).unwrap_or_default()
}

fn no_device(name: &str) -> String {
    format!(
        "there is no device \"{name}\" in the switch's network namespace; the port comes up when there is one \
         (see which there are: ip link)"
    )
}
