//! The vhost-user handshake of a front end: features, the device's configuration, queues, memory, rings.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use lasthop_ring::{RingAddresses, RingFormat, wire_position};
use lasthop_vhost::features::{self, protocol};
use lasthop_vhost::front::FrontEnd;
use lasthop_vhost::message::RingAddressMessage;
use lasthop_wire::vnet::{HEADER_BYTES, HEADER_BYTES_LEGACY};
use lasthop_wire::{hash, tunnel};

use crate::GuestError;
use crate::memory::{Memory, region_message};
use crate::notifications::RingEventFds;
use crate::options::FeatureRequest;

/// ACKNOWLEDGE, DRIVER, DRIVER_OK, FEATURES_OK (virtio 1.2, 2.1).
const STATUS_RUNNING: u8 = 0x0f;

/// The negotiated features.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Agreement {
    /// Virtio features.
    pub(crate) features: u64,
    /// Protocol features; 0 if the back end knows none.
    pub(crate) protocol: u64,
    /// Whether the back end has protocol features: rings then start disabled.
    pub(crate) has_protocol: bool,
    /// The configuration space; zeroes without the CONFIG protocol feature.
    pub(crate) config: DeviceConfig,
}

impl Agreement {
    pub(crate) fn has(&self, feature: u64) -> bool {
        self.features & feature != 0
    }

    /// The format of all rings.
    pub(crate) fn ring_format(&self) -> RingFormat {
        if self.has(features::RING_PACKED) { RingFormat::Packed } else { RingFormat::Split }
    }

    /// Sets the virtio features, and the bit that enables protocol features.
    pub(crate) fn set_features(&self, front: &mut FrontEnd) -> Result<(), GuestError> {
        let protocol_bit = if self.has_protocol { features::PROTOCOL_FEATURES } else { 0 };
        Ok(front.set_features(self.features | protocol_bit)?)
    }

    /// Length of the virtio-net header of sent packets: with their hash, if negotiated.
    pub(crate) fn sent_header_bytes(&self) -> usize {
        let tells_hashes = self.protocol & protocol::PACKET_HASH != 0 && self.header_bytes() == HEADER_BYTES;
        if tells_hashes { hash::HEADER_BYTES } else { self.header_bytes() }
    }

    /// Bytes of the virtio-net header (virtio 1.2, 5.1.6.1).
    pub(crate) fn header_bytes(&self) -> usize {
        let long = self.has(features::VERSION_1 | features::MRG_RXBUF);
        let has_tunnel = self.protocol & protocol::TUNNEL != 0;
        match long {
            true if has_tunnel => tunnel::HEADER_BYTES,
            true => HEADER_BYTES,
            false => HEADER_BYTES_LEGACY,
        }
    }
}

/// Negotiates features.
pub(crate) fn negotiate(front: &mut FrontEnd, request: FeatureRequest) -> Result<Agreement, GuestError> {
    let offered = front.get_features()?;
    let mut agreement = Agreement {
        features: offered & request.features & !features::PROTOCOL_FEATURES,
        has_protocol: offered & features::PROTOCOL_FEATURES != 0,
        ..Agreement::default()
    };
    if agreement.has_protocol {
        agreement.protocol = front.get_protocol_features()? & request.protocol;
        front.set_protocol_features(agreement.protocol)?;
    }
    check_queues(front, request.queue_pairs, agreement.protocol)?;
    agreement.set_features(front)?;
    agreement.config = read_config(front, agreement.protocol)?;
    Ok(agreement)
}

/// GET_QUEUE_NUM counts rings, or for some back ends queue pairs: refuses only a number that is too small for both.
fn check_queues(front: &mut FrontEnd, wanted: u16, protocol: u64) -> Result<(), GuestError> {
    let offered = if protocol & protocol::MQ != 0 { front.get_queue_num()? } else { 1 };
    if offered < u64::from(wanted) { Err(GuestError::TooFewQueues { offered, wanted }) } else { Ok(()) }
}

fn read_config(front: &mut FrontEnd, protocol: u64) -> Result<DeviceConfig, GuestError> {
    if protocol & protocol::CONFIG == 0 {
        return Ok(DeviceConfig::default());
    }
    let bytes = front.get_config(DeviceConfig::BYTES)?;
    let bytes = <[u8; DeviceConfig::BYTES]>::try_from(bytes);
    Ok(bytes.map_or_else(|_| DeviceConfig::default(), |bytes| DeviceConfig::parse(&bytes)))
}

/// Shares ranges of memory, as one table.
pub(crate) fn share_memory(
    front: &mut FrontEnd,
    memory: &Memory,
    ranges: &[Range<u64>],
) -> Result<(), GuestError> {
    let regions: Vec<_> = ranges.iter().map(region_message).collect();
    let fds: Vec<BorrowedFd<'_>> = regions.iter().map(|_| memory.file.as_fd()).collect();
    Ok(front.set_mem_table(&regions, &fds)?)
}

/// A ring's parameters for the back end.
pub(crate) struct RingSetup<'a> {
    pub(crate) index: u16,
    pub(crate) entries: u16,
    pub(crate) base: u16,
    pub(crate) format: RingFormat,
    pub(crate) addresses: RingAddresses,
    pub(crate) eventfds: &'a RingEventFds,
}

/// Starts a ring; it stays disabled if there are protocol features.
pub(crate) fn start_ring(front: &mut FrontEnd, ring: &RingSetup<'_>) -> Result<(), GuestError> {
    front.set_vring_num(ring.index, ring.entries)?;
    let base = match ring.format {
        RingFormat::Split => ring.base,
        RingFormat::Packed => wire_position(ring.base, ring.entries),
    };
    front.set_vring_base(ring.index, base)?;
    front.set_vring_addr(RingAddressMessage {
        index: u32::from(ring.index),
        flags: 0,
        descriptors: ring.addresses.descriptors,
        used: ring.addresses.used,
        available: ring.addresses.available,
        log: 0,
    })?;
    front.set_vring_call(ring.index, Some(ring.eventfds.call_fd()))?;
    Ok(front.set_vring_kick(ring.index, Some(ring.eventfds.kick_fd()))?)
}

/// Enables the first `count` rings, and reports that the driver runs.
pub(crate) fn enable_rings(
    front: &mut FrontEnd,
    agreement: &Agreement,
    count: u16,
) -> Result<(), GuestError> {
    if agreement.has_protocol {
        (0..count).try_for_each(|index| front.set_vring_enable(index, true))?;
    }
    if agreement.protocol & protocol::STATUS != 0 {
        front.set_status(STATUS_RUNNING)?;
    }
    Ok(())
}

/// The first fields of the device's configuration space (virtio 1.2, 5.1.4), little endian.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceConfig {
    /// The guest's address, valid with VIRTIO_NET_F_MAC.
    pub mac: [u8; 6],
    /// Bit 0: the link is up; valid with VIRTIO_NET_F_STATUS.
    pub status: u16,
    /// Number of queue pairs, valid with VIRTIO_NET_F_MQ.
    pub queue_pairs: u16,
    /// MTU in bytes, valid with VIRTIO_NET_F_MTU.
    pub mtu: u16,
}

impl DeviceConfig {
    /// Bytes of these fields.
    pub const BYTES: usize = 12;

    /// Reads the fields.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Self {
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let [a, b, c, d, e, f, ..] = *bytes;
        Self { mac: [a, b, c, d, e, f], status: half(6), queue_pairs: half(8), mtu: half(10) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_little_endian_in_order() {
        let config = DeviceConfig::parse(&[2, 3, 4, 5, 6, 7, 1, 0, 4, 1, 0xdc, 5]);
        let expected = DeviceConfig { mac: [2, 3, 4, 5, 6, 7], status: 1, queue_pairs: 0x104, mtu: 1500 };
        assert_eq!(config, expected);
    }
}
