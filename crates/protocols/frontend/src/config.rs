//! The device's configuration space.

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
