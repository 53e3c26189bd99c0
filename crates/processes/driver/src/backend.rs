//! Selects the back end of a device.

use std::os::fd::OwnedFd;

use lasthop_frontend::VnicPair;

use crate::packet::{self, PacketQueue};
use crate::tap::TapQueue;
use crate::udp::{self, UdpQueue};
use crate::xdp::XdpQueue;
use crate::{DriverError, Needs, Queue};
use lasthop_device::{Backend, DeviceFacts};

/// The properties of the vNIC that a device's back end needs.
pub(crate) fn needs(facts: &DeviceFacts) -> Result<Needs, DriverError> {
    match facts.backend {
        Backend::AfPacket | Backend::Tap => Ok(packet::NEEDS),
        Backend::Udp | Backend::Raw => Ok(udp::needs(facts)),
        Backend::AfXdp => Ok(XdpQueue::needs(facts)?),
    }
}

/// The back end of queue `number` of a device, for a queue pair of the vNIC.
pub(crate) fn queue(
    facts: &DeviceFacts,
    number: u16,
    fd: OwnedFd,
    pair: &VnicPair,
) -> Result<Box<dyn Queue>, DriverError> {
    Ok(match facts.backend {
        Backend::AfPacket => Box::new(PacketQueue::new(fd, facts.header_bytes, pair)?),
        Backend::Tap => Box::new(TapQueue::new(fd, pair)?),
        Backend::AfXdp => Box::new(XdpQueue::new(facts, number, fd)?),
        Backend::Udp | Backend::Raw => {
            let tunnel = facts.tunnel.ok_or_else(|| DriverError::NoTunnel(facts.name.clone()))?;
            Box::new(UdpQueue::new(fd, facts.features, tunnel, pair)?)
        }
    })
}
