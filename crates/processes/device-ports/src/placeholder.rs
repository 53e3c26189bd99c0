//! Placeholders: network devices that represent vnics, for external controllers.
//!
//! Open vSwitch looks for a network device of a port's name before it asks its datapath for the port. So a vnic of a
//! switch with an external controller has a tap of its name, which passes no packets: no process reads it, and packets
//! of the host's stack to it are lost. It shows the guest's address, its MTU, and whether it has a link. The supervisor
//! owns it, so it is removed with the vnic, and outlives switch processes.
//!
//! Open vSwitch's `mtu_request` sets the MTU of that tap, and so the vnic's; a guest learns it when it attaches.

use std::os::fd::{AsFd, OwnedFd};

use lasthop_netdev::{OpenError, TapOptions, TrafficLimits};
use log::warn;
use rustix::io::Errno;

use lasthop_api::orders::HostDevice;
use lasthop_api::port::PortCommon;

/// The MTU of a guest without one of its own, in bytes (Ethernet).
pub const MTU_USUAL: u16 = 1500;

/// A vnic's placeholder.
#[derive(Debug)]
pub struct Placeholder {
    tap: OwnedFd,
    index: u32,
    /// Its last link state; `None` before the first.
    has_link: Option<bool>,
    /// Limits that were set on it.
    pub limits: TrafficLimits,
}

impl Placeholder {
    /// Makes the tap of a vnic.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn make(port: &PortCommon) -> Result<Self, OpenError> {
        let options = TapOptions {
            mtu_bytes: port.mtu.map(u32::from),
            mac: port.policy.mac.map(|mac| mac.0),
            ..TapOptions::default()
        };
        let device = lasthop_netdev::tap(port.name.as_str(), options)?;
        let index = device.facts.index;
        let tap =
            device.descriptors.into_iter().next().ok_or_else(|| OpenError::Busy(port.name.to_string()))?;
        Ok(Self { tap, index, has_link: None, limits: TrafficLimits::default() })
    }

    /// The tap as programs on the host find it.
    pub fn host_device(&self) -> HostDevice {
        HostDevice { index: self.index, namespace: None }
    }

    /// Whether the tap was deleted.
    pub fn is_gone(&self) -> bool {
        lasthop_netdev::tap_namespace_id(self.tap.as_fd()) == Err(Errno::BADFD)
    }

    /// Updates the tap to the vnic's address, and to its MTU if `is_mtu_other`: otherwise the tap's MTU may be a new
    /// request.
    pub fn follow(&self, port: &PortCommon, is_mtu_other: bool) {
        self.set_address(port);
        if is_mtu_other {
            self.set_mtu(port);
        }
    }

    fn set_mtu(&self, port: &PortCommon) {
        if self.mtu_bytes(port).is_some_and(|mtu| mtu != mtu_of(port))
            && let Err(error) = lasthop_netdev::set_mtu(port.name.as_str(), mtu_of(port))
        {
            warn!(limited = true, port:% = port.name; "port {}: its tap keeps its MTU: {error}", port.name);
        }
    }

    /// The tap's MTU; `None` if it was renamed or moved.
    pub fn mtu_bytes(&self, port: &PortCommon) -> Option<u32> {
        lasthop_netdev::mtu_bytes(port.name.as_str(), self.index)
    }

    fn set_address(&self, port: &PortCommon) {
        if let Some(mac) = port.policy.mac
            && let Err(error) = lasthop_netdev::set_address(port.name.as_str(), mac.0)
        {
            warn!(limited = true, port:% = port.name; "port {}: its tap keeps its address: {error}", port.name);
        }
    }

    /// Shows whether the vnic has a link.
    pub fn set_link(&mut self, has_link: bool) {
        if self.has_link != Some(has_link) {
            // This fails if the tap was deleted, which the kernel also reports.
            let _ = lasthop_netdev::set_carrier(self.tap.as_fd(), has_link);
            self.has_link = Some(has_link);
        }
    }
}

/// MTU in bytes; a vnic without a configured one has the usual one.
pub fn mtu_of(port: &PortCommon) -> u32 {
    port.mtu.unwrap_or(MTU_USUAL).into()
}
