//! The methods "port.list" and "port.show": device ports with the facts of kernel, driver process and switch.

use serde_json::Value;

use lasthop_api::report::{
    DeviceCounters, DevicePortList, DevicePortReport, DriverFacts, PortReport, StatsReport,
};
use lasthop_netdev::links::Links;
use lasthop_runtime::fault::{Fault, Kind};

use super::device::DevicePort;
use super::port::Port;
use super::question::to_json;
use super::reports::Reports;
use super::warnings::WarningContext;

/// The switch's word for a port whose rings run.
const STATE_RUNNING: &str = "running";

impl Reports<'_> {
    /// One device port, or a list of all.
    pub(super) fn describe_ports(&self, name: Option<&str>, stats: &StatsReport) -> Result<Value, Fault> {
        if let Some(name) = name {
            return self.describe_port(self.ports.find_device_port(name)?, stats);
        }
        to_json(&DevicePortList { ports: self.device_ports(stats) })
    }

    /// All device ports, by name.
    pub(super) fn device_ports(&self, stats: &StatsReport) -> Vec<DevicePortReport> {
        let warnings = WarningContext::new(self.ports.all.values(), stats);
        let mut ports: Vec<_> =
            self.ports.all.values().filter_map(|port| self.describe_device(port, &warnings)).collect();
        ports.sort_by(|one, other| one.name.cmp(&other.name));
        ports
    }

    pub(super) fn describe_port(&self, number: u32, stats: &StatsReport) -> Result<Value, Fault> {
        let warnings = WarningContext::new(self.ports.all.values(), stats);
        let report = self.ports.all.get(&number).and_then(|port| self.describe_device(port, &warnings));
        let gone = || Fault::new(Kind::NoSuchVnic, "the port was deleted meanwhile");
        to_json(&report.ok_or_else(gone)?)
    }

    pub(super) fn describe_device(
        &self,
        port: &Port,
        warnings: &WarningContext<'_>,
    ) -> Option<DevicePortReport> {
        let device = port.device()?;
        let inside = warnings.inside(port).cloned();
        let (state, why) = self.state_of(port, device, inside.as_ref());
        let facts = device.facts();
        Some(DevicePortReport {
            name: port.spec.name.to_string(),
            settings: device.spec.clone(),
            requested: device.is_requested,
            device: device.spec.device_name().to_owned(),
            state: state.to_owned(),
            why,
            backend: facts.map(|facts| facts.backend),
            backend_why: device.choice().map(str::to_owned),
            mtu: device.mtu_bytes(),
            mac: facts.map(|facts| lasthop_module_api::Mac(facts.mac).to_string()),
            has_link: device.has_link(),
            is_of_bridge: device.is_of_bridge(),
            features: inside.as_ref().map(|inside| inside.features.clone()).unwrap_or_default(),
            driver: self.driver_facts(),
            counters: DeviceCounters::from(&device.counters),
            inside,
            warnings: warnings.warnings(port),
        })
    }

    pub(super) fn driver_facts(&self) -> DriverFacts {
        let process = &self.driver.process;
        DriverFacts { pid: process.pid(), restarts: process.restarts(), last_end: process.last_end() }
    }

    /// The progress of a device port, and the obstacle.
    pub(super) fn state_of(
        &self,
        port: &Port,
        device: &DevicePort,
        inside: Option<&PortReport>,
    ) -> (&'static str, Option<String>) {
        let name = device.spec.device_name();
        let trouble = || device.trouble().map(str::to_owned);
        let is_complete = self.ports.links.as_ref().is_some_and(Links::is_complete);
        // A connected back end may still be refused.
        let runs = inside.is_some_and(|inside| inside.state == STATE_RUNNING);
        let is_missing = device.seen.is_none() && !device.spec.is_tap();
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
            () if device.has_link() => ("up", trouble()),
            () => ("no carrier", trouble()),
        }
    }
}

fn no_device(name: &str) -> String {
    format!(
        "there is no device \"{name}\" in the switch's network namespace; the port comes up when there is one \
         (see which there are: ip link)"
    )
}
