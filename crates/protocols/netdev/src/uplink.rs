//! Opens a device as an uplink, and chooses its back end.

use super::netlink::{self, Interface};
use super::{Gate, OpenError, PacketOptions, XdpDevice, packet};
use lasthop_device::XDP_MTU_BYTES_MAX as MTU_BYTES_MAX;
use lasthop_device::{Backend, DeviceFacts, Host, OpenedDevice, XdpFacts};

/// How to open an uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UplinkOptions {
    /// The back end, [`Backend::AfPacket`] or [`Backend::AfXdp`]; `None` to choose it by the device and the other
    /// options.
    pub backend: Option<Backend>,
    /// Number of queues.
    pub queues: u16,
    /// The host's access to the device.
    pub host: Host,
    /// See [`PacketOptions::qdisc_bypass`].
    pub qdisc_bypass: bool,
    /// See [`PacketOptions::ring`].
    pub packet_ring: bool,
}

impl Default for UplinkOptions {
    fn default() -> Self {
        Self { backend: None, queues: 1, host: Host::default(), qdisc_bypass: false, packet_ring: true }
    }
}

/// A device as an uplink. Changes to the device are undone when this is dropped, or when its process ends. It outlives
/// driver processes.
///
/// ```text
///   Uplink ──sockets()──> descriptors for the driver process; fresh ones for the next driver process
///     └ gate, XDP program: they separate the host's stack even while no process has the descriptors
/// ```
#[derive(Debug)]
pub struct Uplink {
    name: String,
    facts: DeviceFacts,
    reason: String,
    packet: PacketOptions,
    xdp: Option<XdpDevice>,
    _gate: Option<Gate>,
    /// Packet sockets of the first inspection of the device, for the first caller: closing many of them takes the
    /// kernel half a second.
    first: Option<OpenedDevice>,
}

impl Uplink {
    /// Opens the device of the given name in this network namespace. With [`Host::Port`] the tap with the name from
    /// [`host_tap`] must exist, as another port: it is the host's.
    ///
    /// # Errors
    /// [`OpenError`]; nothing is left behind.
    pub fn open(name: &str, options: UplinkOptions) -> Result<Self, OpenError> {
        // The XDP program first, since that fails most often.
        let (xdp, reason) = choose(name, options)?;
        let gate = Gate::of(options.host, name)?;
        let packet_options = PacketOptions {
            queues: options.queues,
            qdisc_bypass: options.qdisc_bypass,
            ring: options.packet_ring,
            mark: gate.as_ref().map(Gate::mark),
            ..PacketOptions::default()
        };
        let (facts, first) = match &xdp {
            Some(device) => (device.facts().clone(), None),
            None => packet(name, packet_options).map(|opened| (opened.facts.clone(), Some(opened)))?,
        };
        Ok(Self { name: name.to_owned(), facts, reason, packet: packet_options, xdp, _gate: gate, first })
    }

    /// The facts about the device.
    #[must_use]
    pub fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    /// The reason for its back end, as one sentence without a full stop.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Gives its packet sockets no rings from now on.
    pub fn stop_rings(&mut self) {
        self.packet.ring = false;
        self.first = None;
    }

    /// Descriptors for a driver process. Earlier ones must have been closed; those of packet sockets may get the same frames until then.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn sockets(&mut self) -> Result<OpenedDevice, OpenError> {
        match (&self.xdp, self.first.take()) {
            (Some(device), _) => Ok(device.sockets()?),
            (None, Some(opened)) => Ok(opened),
            (None, None) => packet(&self.name, self.packet),
        }
    }
}

/// The XDP device, if it is used, and the reason.
fn choose(name: &str, options: UplinkOptions) -> Result<(Option<XdpDevice>, String), OpenError> {
    match options.backend {
        Some(Backend::AfXdp) => {
            let device = XdpDevice::attach(name, options.queues, options.host)?;
            let reason = told(device.facts().xdp.unwrap_or_default());
            Ok((Some(device), reason))
        }
        Some(_) => Ok((None, "it was asked for".to_owned())),
        None => Ok(probe(name, options)),
    }
}

/// Describes requested XDP sockets.
fn told(xdp: XdpFacts) -> String {
    let runs = if xdp.native { "the device's driver" } else { "the stack, behind a copy (generic XDP)," };
    let tags = if xdp.partial_checksums {
        "; VLAN tags that its other end leaves to hardware are lost: ethtool -K there txvlan off"
    } else {
        ""
    };
    format!("it was asked for; {runs} runs the XDP program{tags}")
}

/// Chooses for a device and its use: XDP sockets where the driver supports them fully, otherwise packet sockets.
fn probe(name: &str, options: UplinkOptions) -> (Option<XdpDevice>, String) {
    let Ok(interface) = netlink::interface(name) else {
        return (None, "nothing is known of the device".to_owned());
    };
    let zero_copy = netlink::has_zero_copy(interface.index);
    let channels = netlink::channels(interface.index);
    if let Some(reason) = against_xdp(&interface, options, zero_copy, channels) {
        return (None, reason);
    }
    match XdpDevice::attach(name, options.queues, options.host) {
        Ok(device) if device.facts().xdp.is_some_and(|xdp| xdp.native) => (
            Some(device),
            format!("the driver of {name} reads and writes frames where the switch does, without a copy"),
        ),
        Ok(_) => (None, format!("the driver of {name} does not run XDP programs")),
        Err(error) => (None, error.to_string()),
    }
}

fn against_xdp(
    interface: &Interface,
    options: UplinkOptions,
    zero_copy: bool,
    channels: u32,
) -> Option<String> {
    let Interface { name, mtu_bytes, .. } = interface;
    let UplinkOptions { queues, host, .. } = options;
    if !zero_copy {
        // Measured: docs/user/uplinks.md.
        Some(format!(
            "the driver of {name} has no zero copy for XDP sockets, and packet sockets pass TCP's segments of 64 KiB whole"
        ))
    } else if host == Host::Shared {
        Some(
            "host = \"shared\", and XDP sockets would take frames before the host's stack sees them"
                .to_owned(),
        )
    } else if *mtu_bytes > MTU_BYTES_MAX {
        Some(format!("the MTU of {name} is {mtu_bytes}, and XDP sockets here take {MTU_BYTES_MAX} at most"))
    } else if channels != u32::from(queues) {
        Some(format!(
            "{name} receives with {channels} queues and the port has {queues}; queues = {channels} would allow XDP sockets"
        ))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xdp_sockets_are_for_devices_that_take_part() {
        let interface = Interface {
            name: "eth1".to_owned(),
            index: 7,
            mtu_bytes: 1500,
            mac: [0; 6],
            kind: String::new(),
            xdp_program: None,
        };
        let off = UplinkOptions { host: Host::Off, ..UplinkOptions::default() };
        let told = |interface: &Interface, options, zero_copy, channels| {
            against_xdp(interface, options, zero_copy, channels).unwrap_or_default()
        };
        assert_eq!(told(&interface, off, true, 1), "");
        assert!(told(&interface, off, false, 1).contains("no zero copy"));
        assert!(told(&interface, UplinkOptions::default(), true, 1).contains("host = \"shared\""));
        assert!(told(&interface, off, true, 8).contains("queues = 8 would allow"));
        let jumbo = Interface { mtu_bytes: 9000, ..interface };
        assert!(told(&jumbo, off, true, 1).contains("9000"));
    }
}
