//! Opens devices for their ports.

use lasthop_device::{OpenedDevice, TunnelFacts};
use lasthop_netdev::{Coalescing, OpenError, PortClaim, TapOptions, Uplink, UplinkOptions};

use lasthop_module_api::Mac;

use lasthop_api::mac;
use lasthop_api::port::{BackendChoice, DeviceBackend, HostAccess, PortBackend, PortSpec};
use lasthop_api::settings::TunnelGro;

/// The first bytes of a generated address: locally administered (IEEE 802-2014, 8.4).
const LOCAL: [u8; 3] = [0x02, 0x6c, 0x68];

/// The open device of a port.
#[derive(Debug)]
pub struct Opening {
    /// The device.
    pub device: OpenedDevice,
    /// The reason for this back end.
    pub why: String,
    /// `None` for a tap.
    pub uplink: Option<Uplink>,
}

/// Opens the device of a port.
///
/// # Errors
/// A sentence with the obstacle and the remedy.
pub fn open(spec: &PortSpec, gro: TunnelGro) -> Result<Opening, String> {
    let opened = match &spec.backend {
        PortBackend::Tap(backend) => tap(&backend.tap, spec),
        PortBackend::Device(backend) => uplink(backend, spec),
        PortBackend::Tunnel(facts) => tunnel(spec.device_name(), *facts, gro, PortClaim::Alone),
        PortBackend::VhostUser(_) => return Err("a vhost-user port has no device".to_owned()),
    };
    opened.map_err(|error| error.to_string())
}

fn uplink(device: &DeviceBackend, spec: &PortSpec) -> Result<Opening, OpenError> {
    let backend = match device.io {
        BackendChoice::AfPacket => Some(lasthop_device::Backend::AfPacket),
        BackendChoice::AfXdp => Some(lasthop_device::Backend::AfXdp),
        BackendChoice::Auto | BackendChoice::Tap | BackendChoice::VhostUser => None,
    };
    let host = match device.host {
        HostAccess::Shared => lasthop_device::Host::Shared,
        HostAccess::Off => lasthop_device::Host::Off,
        HostAccess::Port => lasthop_device::Host::Port,
    };
    let options = UplinkOptions {
        backend,
        host,
        queues: spec.common.queues,
        qdisc_bypass: device.qdisc_bypass,
        packet_ring: device.packet_ring,
    };
    let mut uplink = Uplink::open(spec.device_name(), options)?;
    let (device, why) = (uplink.sockets()?, uplink.reason().to_owned());
    Ok(Opening { device, why, uplink: Some(uplink) })
}

/// Makes the tap of an internal port; the controller that requested it configures it and sets it up.
///
/// # Errors
/// Errors of the kernel.
pub fn internal(name: &str) -> Result<Opening, OpenError> {
    let device = lasthop_netdev::tap(name, TapOptions { up: false, ..TapOptions::default() })?;
    Ok(Opening { device, why: "a controller asked for an internal port".to_owned(), uplink: None })
}

/// Makes the tunnel port that a controller requested.
///
/// # Errors
/// Errors of the kernel.
pub fn tunnel(
    name: &str,
    facts: TunnelFacts,
    gro: TunnelGro,
    claim: PortClaim,
) -> Result<Opening, OpenError> {
    let coalescing = match gro {
        TunnelGro::Auto => Coalescing::Wanted,
        TunnelGro::Off => Coalescing::Off,
    };
    let device = lasthop_netdev::tunnel(name, facts, coalescing, claim)?;
    let mut why = "a controller asked for tunnels".to_owned();
    if facts.kind.socket().is_udp() && !lasthop_netdev::coalesces(&device.facts) {
        why += match gro {
            TunnelGro::Auto => {
                "; packets are not joined on receipt, since this kernel has no UDP_GRO (Linux 5.0)"
            }
            TunnelGro::Off => "; packets are not joined on receipt (tunnel-gro = \"off\")",
        };
    }
    Ok(Opening { device, why, uplink: None })
}

/// Opens a device that a controller requested. Detaches it from the host's stack if this kernel can do that, as with
/// the kernel's datapath.
///
/// # Errors
/// As [`open`].
pub fn requested(spec: &PortSpec, gro: TunnelGro) -> Result<Opening, String> {
    let mut alone = spec.clone();
    if let PortBackend::Device(device) = &mut alone.backend {
        device.host = HostAccess::Off;
    }
    let why_shared = match open(&alone, gro) {
        Ok(opening) => return Ok(opening),
        Err(why) => why,
    };
    let mut opening = open(spec, gro)?;
    opening.why += &format!("; the host's stack gets the device's frames, too: {why_shared}");
    Ok(opening)
}

/// The address of a tap without a configured one: the same after each start, and different on each host, like udev's.
/// `None` if the host has no machine id (machine-id(5)): then the kernel chooses an address.
fn mac_of(name: &str) -> Option<Mac> {
    let machine = std::fs::read("/etc/machine-id").ok()?;
    let machine = machine.trim_ascii();
    let is_named = machine.len() == 32 && machine.iter().all(u8::is_ascii_hexdigit);
    is_named.then(|| mac::made_from(LOCAL, &[machine, b"\n", name.as_bytes()].concat()))
}

fn tap(name: &str, spec: &PortSpec) -> Result<Opening, OpenError> {
    let options = TapOptions {
        queues: spec.common.queues,
        mtu_bytes: spec.common.mtu.map(u32::from),
        mac: spec.common.policy.mac.or_else(|| mac_of(name)).map(|mac| mac.0),
        up: true,
    };
    let device = lasthop_netdev::tap(name, options)?;
    Ok(Opening { device, why: "the port is over a tap".to_owned(), uplink: None })
}
