//! Ports without a configuration: a datapath's controller requests a device by its name.
//!
//! ```text
//!   switch process ── Wanted ──> does it exist, or can it be made? ──no──> Denied
//!                                  │ yes
//!                  <── AddPort ────┘   a device port as any other: opened, driven, kept over deaths of both processes
//!                  ── Released ──> RemovePort: a tap that was made is removed
//!                  <── RemovePort   the device is gone, and the port is removed from its datapath
//! ```

use std::time::Instant;

use lasthop_device_ports::DevicePort;
use lasthop_device_ports::opening::{self, Opening};
use lasthop_netdev::{OpenError, ethernet_device};
use log::warn;
use rustix::io::Errno;

use lasthop_api::device_patterns::DevicePatterns;
use lasthop_api::orders::{Order, WantedDevice, WantedKind};
use lasthop_api::port::{DeviceBackend, Name, PortBackend, PortCommon, PortSpec, TapBackend, check_device};
use lasthop_api::switches::SwitchSpec;
use lasthop_runtime::fault::{Fault, Kind};

use super::Outputs;
use super::port::Port;
use super::port_table::PortTable;
use super::ports::Ports;
use super::question::OrderPurpose;
use super::switch_process::SwitchProcess;
use super::switch_table::SwitchTable;

/// Largest number of requested devices: each costs descriptors and a port of the driver process; a datapath of Open
/// vSwitch has some ten.
const REQUESTED_MAX: usize = 256;

/// Why there is no port.
#[derive(Debug)]
struct Denial {
    errno: Errno,
    why: String,
}

impl Denial {
    fn tell(self, name: String, switch: &str, process: &mut SwitchProcess) {
        warn!(limited = true; "switch {switch}: no port {name} for its controller: {}", self.why);
        process.tell(Order::Denied { name, errno: self.errno.raw_os_error() });
    }
}

/// The devices that controllers may use as ports.
pub(super) struct AllowedDevices<'a> {
    /// The operator's patterns; without patterns all or none.
    pub(super) patterns: Option<&'a DevicePatterns>,
    pub(super) switches: &'a SwitchTable,
}

impl AllowedDevices<'_> {
    /// Does not trust the switch process's word for a controller's request: there must be a switch that permits it, and
    /// the operator must allow the device.
    fn check(&self, name: &str) -> Result<(), Denial> {
        let is_allowed = match self.patterns {
            Some(devices) => devices.allow(name),
            None => self.switches.all.iter().any(SwitchSpec::has_outside_controller),
        };
        if is_allowed {
            return Ok(());
        }
        let why = "no switch has controller=external, or datapath-devices does not name it";
        Err(Denial { errno: Errno::PERM, why: why.to_owned() })
    }
}

impl From<OpenError> for Denial {
    fn from(error: OpenError) -> Self {
        Self { errno: error.errno(), why: error.to_string() }
    }
}

impl From<Fault> for Denial {
    fn from(fault: Fault) -> Self {
        let errno = match fault.kind {
            Kind::NameTaken => Errno::EXIST,
            Kind::Limit => Errno::NOSPC,
            _ => Errno::BUSY,
        };
        Self { errno, why: fault.message }
    }
}

impl PortTable {
    /// Removes a tap at once: it would exist until all have closed it, which takes the driver process a while, and a
    /// controller may need the name.
    pub(super) fn remove_tap(&mut self, number: u32) {
        let device =
            self.all.get(&number).and_then(Port::device).filter(|device| DevicePort::is_internal(device));
        let Some((device, links)) = device.zip(self.links.as_mut()) else { return };
        if let Some(host) = device.host_device().filter(|host| host.namespace.is_none()) {
            // It may be gone already, which is the aim.
            let _ = links.remove(host.index);
        }
    }

    /// Passes the host's facts of a port's device to the switch if they have changed.
    pub(super) fn tell_of_device(&mut self, number: u32, switch: &mut SwitchProcess) {
        let Some(port) = self.all.get_mut(&number) else { return };
        let name = port.spec.common.name.to_string();
        let Some(device) = port.device_mut() else { return };
        let host = device.host_device();
        if std::mem::replace(&mut device.told, host) != host {
            switch.tell(Order::HostDevice { name, device: host });
        }
    }
}

impl Ports {
    /// Handles a controller's request for a device.
    pub(super) fn device_wanted(
        &mut self,
        wanted: WantedDevice,
        allowed: &AllowedDevices<'_>,
        out: &mut Outputs,
    ) {
        if let Err(denial) = self.add_wanted(&wanted, allowed, out) {
            denial.tell(wanted.name, &wanted.switch, &mut out.switch_process);
        }
    }

    /// Handles the switch process's refusal of a port that it requested.
    pub(super) fn deny_again(&mut self, number: u32, fault: &Fault, out: &mut Outputs) {
        let Some(port) = self.table.all.get(&number) else { return };
        let (name, switch) = (port.spec.common.name.to_string(), port.spec.common.switch.to_string());
        Denial { errno: Errno::BUSY, why: fault.message.clone() }.tell(
            name,
            &switch,
            &mut out.switch_process,
        );
    }

    fn add_wanted(
        &mut self,
        wanted: &WantedDevice,
        allowed: &AllowedDevices<'_>,
        out: &mut Outputs,
    ) -> Result<(), Denial> {
        let spec = spec_of(wanted)?;
        allowed.check(&wanted.name)?;
        if self.table.all.values().filter(|port| port.is_requested()).count() >= REQUESTED_MAX {
            let why = format!("controllers have {REQUESTED_MAX} devices already");
            return Err(Denial { errno: Errno::NOSPC, why });
        }
        self.table.check_beside(&spec)?;
        let opening = match wanted.kind {
            WantedKind::Internal => Some(make(&wanted.name)?),
            WantedKind::Tunnel(facts) => {
                let tunnels = &self.table.tunnels;
                let claim = tunnels.claim(facts.port, Instant::now());
                Some(opening::tunnel(&wanted.name, facts, tunnels.gro, claim)?)
            }
            WantedKind::Netdev => {
                ethernet_device(&wanted.name)?;
                None
            }
        };
        let number = self.enter(Port::on_request(spec, &self.table.dir)?, out)?;
        if let (Some(opening), Some(port)) = (opening, self.table.all.get_mut(&number)) {
            let _ = port.device_mut().map(|device| device.open(opening, Instant::now()));
        }
        self.tell_of_port(number, true, None, out);
        Ok(())
    }

    /// Releases a device that no controller needs any more.
    pub(super) fn device_released(&mut self, name: &str, out: &mut Outputs) {
        let Ok(number) = self.table.find(name) else { return };
        if self.table.all.get(&number).is_some_and(Port::is_requested) {
            self.table.remove_tap(number);
            self.forget_port(number, out);
            out.switch_process.order(
                Order::RemovePort { name: name.to_owned() },
                OrderPurpose::Restored,
                None,
            );
        }
    }

    /// Checks after a device's failure whether an internal port's tap still exists, in any namespace.
    pub(super) fn look_for_tap(&mut self, number: u32, out: &mut Outputs) {
        if self.table.all.get(&number).and_then(Port::device).is_some_and(DevicePort::is_internal) {
            self.look_for_device(number, out);
        }
    }

    /// Handles news of a device: a requested one may be gone.
    pub(super) fn look_for_device(&mut self, number: u32, out: &mut Outputs) {
        let Some(device) = self.table.all.get_mut(&number).and_then(Port::device_mut) else { return };
        let is_there = match device.is_requested {
            true if device.is_internal() => device.look_for_tap(),
            true => device.seen.is_some(),
            false => true,
        };
        if is_there {
            self.table.tell_of_device(number, &mut out.switch_process);
        } else {
            self.device_ended(number, out);
        }
    }

    /// Removes a requested port whose device is gone.
    fn device_ended(&mut self, number: u32, out: &mut Outputs) {
        let Some(port) = self.table.all.get(&number) else { return };
        let name = port.spec.common.name.to_string();
        warn!(limited = true, port:% = name; "port {name}: removed, since its device, which a controller had requested, is gone");
        self.forget_port(number, out);
        out.switch_process.order(Order::RemovePort { name }, OrderPurpose::Restored, None);
    }
}

fn spec_of(wanted: &WantedDevice) -> Result<PortSpec, Denial> {
    let unfit = |fault: Fault| Denial { errno: Errno::INVAL, why: fault.message };
    let name: Name = wanted.name.parse().map_err(unfit)?;
    let switch = wanted.switch.parse().map_err(unfit)?;
    check_device(name.as_str()).map_err(unfit)?;
    let backend = match wanted.kind {
        WantedKind::Internal => {
            PortBackend::Tap(TapBackend { tap: wanted.name.clone(), address: Vec::new() })
        }
        WantedKind::Tunnel(facts) => PortBackend::Tunnel(facts),
        // The controller decides which packets pass between which ports.
        WantedKind::Netdev => {
            PortBackend::Device(DeviceBackend { uplink: false, ..DeviceBackend::default() })
        }
    };
    let common = PortCommon { switch, ..PortCommon::named(name) };
    Ok(PortSpec { common, backend, made_by: None })
}

/// Makes a tap, if no device has the name.
fn make(name: &str) -> Result<Opening, Denial> {
    if ethernet_device(name).is_ok() {
        let why = format!("there is a device {name} already; delete it, or choose another name");
        return Err(Denial { errno: Errno::EXIST, why });
    }
    Ok(opening::internal(name)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(name: &str, kind: WantedKind) -> WantedDevice {
        WantedDevice { name: name.to_owned(), kind, switch: "ovs-system".to_owned() }
    }

    #[test]
    fn a_wanted_device_is_a_port_of_its_name() {
        let spec = |kind| spec_of(&wanted("ovs-p0", kind)).expect("a port");
        let (netdev, internal) = (spec(WantedKind::Netdev), spec(WantedKind::Internal));
        assert_eq!((netdev.device_name(), netdev.tap().is_some()), ("ovs-p0", false));
        assert_eq!((internal.device_name(), internal.tap().is_some()), ("ovs-p0", true));
        assert_eq!(internal.common.switch.as_str(), "ovs-system");
    }

    #[test]
    fn names_that_cannot_be_ports_are_invalid() {
        for name in ["", "a b", "internal", "sixteen-bytes-xx"] {
            let denial = spec_of(&wanted(name, WantedKind::Internal)).expect_err(name);
            assert_eq!(denial.errno, Errno::INVAL, "{name}");
        }
    }

    #[test]
    fn without_a_device_there_is_no_port() {
        assert_eq!(Denial::from(OpenError::NoDevice("eth9".to_owned())).errno, Errno::NODEV);
        let taken = Denial::from(Fault::new(Kind::NameTaken, "there is one"));
        assert_eq!(taken.errno, Errno::EXIST);
    }
}
