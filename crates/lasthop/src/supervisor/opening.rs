//! Devices opened as their ports ask for it.

use lasthop_driver::OpenedDevice;
use lasthop_driver::open::{self, PacketOptions, TapOptions};

use crate::port::{Backend, Host, PortSpec};

/// The device of a port, and why it was opened with this back end; or what is in the way, with the remedy.
pub(super) fn open(spec: &PortSpec) -> Result<(OpenedDevice, String), String> {
    if let Some(tap) = &spec.tap {
        return self::tap(tap, spec).map(|opened| (opened, "the port is over a tap".to_owned()));
    }
    if spec.host != Host::Shared {
        return Err(format!("host={} is not there yet; leave it out", spec.host.name()));
    }
    match spec.backend {
        Backend::AfXdp => Err("backend=af_xdp is not there yet; use backend=auto".to_owned()),
        Backend::AfPacket => packet(spec).map(|opened| (opened, "asked for".to_owned())),
        Backend::Auto | Backend::Tap => {
            packet(spec).map(|opened| (opened, "any network device has it".to_owned()))
        }
    }
}

fn packet(spec: &PortSpec) -> Result<OpenedDevice, String> {
    let options =
        PacketOptions { queues: spec.queues, qdisc_bypass: spec.qdisc_bypass, ..PacketOptions::default() };
    open::packet(spec.device_name(), options).map_err(|error| error.to_string())
}

fn tap(name: &str, spec: &PortSpec) -> Result<OpenedDevice, String> {
    let options = TapOptions {
        queues: spec.queues,
        mtu_bytes: spec.mtu.map(u32::from),
        mac: spec.mac.map(|mac| mac.0),
        up: true,
    };
    open::tap(name, options).map_err(|error| error.to_string())
}
