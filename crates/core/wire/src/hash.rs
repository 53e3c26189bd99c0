//! A packet's hash from its sender, for example from a network card's receive side scaling. It travels behind
//! the virtio-net header, laid out as virtio's hash report (virtio 1.2, 5.1.6), but from driver to device.
//!
//! ```text
//!   virtio-net header (12)   | value (4) | covers (2) | function (1) | key (1) |  frame ...     numbers little endian
//! ```
//!
//! It is an untrusted hint: packets of one flow may have different hashes, two flows the same, and a sender may send
//! any value. It may select where a lookup starts, never its result.

use crate::vnet;

/// Bytes of the hash behind the virtio-net header.
pub const HASH_BYTES: usize = 8;
/// Bytes of the virtio-net header with a hash (`struct virtio_net_hdr_v1_hash`).
pub const HEADER_BYTES: usize = vnet::HEADER_BYTES + HASH_BYTES;

/// Covers nothing: there is no hash (`VIRTIO_NET_HASH_REPORT_NONE`).
pub const COVERS_NONE: u16 = 0;

/// The function is unknown; equal packets of one sender have equal hashes.
pub const FUNCTION_UNKNOWN: u8 = 0;

/// A packet's hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketHash {
    /// The hash.
    pub value: u32,
    /// The fields of the packet that it covers, by virtio's numbers (`VIRTIO_NET_HASH_REPORT_*`): 2 is TCP over IPv4.
    pub covers: u16,
    /// The hash function: 1 is Toeplitz, as of receive side scaling (virtio 1.2, 5.1.6.4.3).
    pub function: u8,
    /// The key of the function, by a number that the sender chose. Hashes with different keys cannot be compared.
    pub key: u8,
}

impl PacketHash {
    /// No hash.
    pub const NONE: Self = Self { value: 0, covers: COVERS_NONE, function: FUNCTION_UNKNOWN, key: 0 };

    /// Reads the hash behind the virtio-net header.
    #[inline]
    #[must_use]
    pub fn parse(bytes: &[u8; HASH_BYTES]) -> Self {
        let [a, b, c, d, e, f, function, key] = *bytes;
        let (value, covers) = (u32::from_le_bytes([a, b, c, d]), u16::from_le_bytes([e, f]));
        Self { value, covers, function, key }
    }

    /// The bytes of the hash behind the virtio-net header.
    #[must_use]
    pub fn emit(&self) -> [u8; HASH_BYTES] {
        let ([a, b, c, d], [e, f]) = (self.value.to_le_bytes(), self.covers.to_le_bytes());
        [a, b, c, d, e, f, self.function, self.key]
    }

    /// Whether there is a hash.
    #[inline]
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.covers != COVERS_NONE
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fields_are_where_virtio_has_them() {
        let hash = PacketHash { value: 0x0403_0201, covers: 2, function: 1, key: 9 };
        assert_eq!(hash.emit(), [1, 2, 3, 4, 2, 0, 1, 9]);
        assert!(hash.is_known() && !PacketHash::default().is_known());
        assert_eq!(HEADER_BYTES, 20);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_hash(bytes in any::<[u8; HASH_BYTES]>()) {
            prop_assert_eq!(PacketHash::parse(&bytes).emit(), bytes);
        }
    }
}
