//! Feature bits of virtio-net and of the vhost-user protocol, with the names that users see.

/// Defines feature bits from one list, so that a bit's constant and its name cannot differ.
macro_rules! feature_bits {
    ($names:ident: $($(#[$doc:meta])* $name:ident = $bit:literal,)*) => {
        $($(#[$doc])* pub const $name: u64 = 1 << $bit;)*
        pub(crate) const $names: &[(u64, &str)] = &[$(($name, stringify!($name)),)*];
    };
}

feature_bits! { VIRTIO_NAMES:
    /// The device completes partial checksums (virtio 1.2, 5.1.3).
    CSUM = 0,
    /// The driver takes partial checksums.
    GUEST_CSUM = 1,
    /// Offloads can be changed through the control queue.
    CTRL_GUEST_OFFLOADS = 2,
    /// The device tells its MTU.
    MTU = 3,
    /// The device has a MAC address.
    MAC = 5,
    /// The driver takes TCP/IPv4 segmentation requests.
    GUEST_TSO4 = 7,
    /// The driver takes TCP/IPv6 segmentation requests.
    GUEST_TSO6 = 8,
    /// The driver takes segmentation requests with ECN.
    GUEST_ECN = 9,
    /// The driver takes UDP fragmentation requests.
    GUEST_UFO = 10,
    /// The device takes TCP/IPv4 segmentation requests.
    HOST_TSO4 = 11,
    /// The device takes TCP/IPv6 segmentation requests.
    HOST_TSO6 = 12,
    /// The device takes segmentation requests with ECN.
    HOST_ECN = 13,
    /// The device takes UDP fragmentation requests.
    HOST_UFO = 14,
    /// A received packet may lie in several buffers.
    MRG_RXBUF = 15,
    /// The device tells its link status.
    STATUS = 16,
    /// There is a control queue.
    CTRL_VQ = 17,
    /// Receive modes can be set through the control queue.
    CTRL_RX = 18,
    /// VLAN filters can be set through the control queue.
    CTRL_VLAN = 19,
    /// Further receive modes.
    CTRL_RX_EXTRA = 20,
    /// The driver sends gratuitous packets when asked to.
    GUEST_ANNOUNCE = 21,
    /// Several queue pairs.
    MQ = 22,
    /// The MAC address can be set through the control queue.
    CTRL_MAC_ADDR = 23,
    /// The back end can log writes to guest memory.
    LOG_ALL = 26,
    /// A buffer may be in any layout of descriptors (legacy).
    ANY_LAYOUT = 27,
    /// Descriptors may point to tables of descriptors (virtio 1.2, 2.7.5.3).
    INDIRECT_DESC = 28,
    /// Notifications are suppressed by index (virtio 1.2, 2.7.7).
    EVENT_IDX = 29,
    /// Not of virtio: the vhost-user protocol has features of its own to negotiate.
    PROTOCOL_FEATURES = 30,
    /// Virtio 1.0 or later.
    VERSION_1 = 32,
    /// Memory access goes through an IOMMU.
    ACCESS_PLATFORM = 33,
    /// Packed rings (virtio 1.2, 2.8).
    RING_PACKED = 34,
    /// Buffers are used in the order in which they were made available.
    IN_ORDER = 35,
    /// The driver orders memory accesses for a hardware device.
    ORDER_PLATFORM = 36,
    /// Single root I/O virtualization.
    SR_IOV = 37,
    /// Kicks carry data.
    NOTIFICATION_DATA = 38,
    /// A single queue can be reset.
    RING_RESET = 40,
    /// The driver takes IPv4 UDP segmentation requests.
    GUEST_USO4 = 54,
    /// The driver takes IPv6 UDP segmentation requests.
    GUEST_USO6 = 55,
    /// The device takes UDP segmentation requests.
    HOST_USO = 56,
    /// The device reports hashes.
    HASH_REPORT = 57,
    /// The device needs exact header lengths.
    GUEST_HDRLEN = 59,
    /// Receive side scaling.
    RSS = 60,
    /// Coalesced segments carry their count.
    RSC_EXT = 61,
    /// The device can stand in for another with the same MAC address.
    STANDBY = 62,
    /// The device tells speed and duplex.
    SPEED_DUPLEX = 63,
}

/// Feature bits of the vhost-user protocol itself, negotiated by GET_PROTOCOL_FEATURES and SET_PROTOCOL_FEATURES.
pub mod protocol {
    feature_bits! { PROTOCOL_NAMES:
        /// More than one queue pair.
        MQ = 0,
        /// The log of writes is a shared file.
        LOG_SHMFD = 1,
        /// The back end announces a migrated guest.
        RARP = 2,
        /// Any message may ask for an acknowledgement.
        REPLY_ACK = 3,
        /// The front end tells the MTU.
        MTU = 4,
        /// The back end has a channel of its own for requests.
        BACKEND_REQ = 5,
        /// Legacy guests of the other endianness.
        CROSS_ENDIAN = 6,
        /// Symmetric encryption devices.
        CRYPTO_SESSION = 7,
        /// Guest memory may follow after migration.
        PAGEFAULT = 8,
        /// The back end serves the device's configuration space.
        CONFIG = 9,
        /// The back end may pass descriptors on its own channel.
        BACKEND_SEND_FD = 10,
        /// Kicks may go to the back end's own pages.
        HOST_NOTIFIER = 11,
        /// Buffers in flight are kept in a shared file.
        INFLIGHT_SHMFD = 12,
        /// The device can be reset.
        RESET_DEVICE = 13,
        /// Kicks and calls may be messages.
        INBAND_NOTIFICATIONS = 14,
        /// Memory regions are added and removed one by one.
        CONFIGURE_MEM_SLOTS = 15,
        /// The device status is told to the back end.
        STATUS = 16,
        /// Memory is given as Xen grants.
        XEN_MMAP = 17,
        /// Buffers shared between devices.
        SHARED_OBJECT = 18,
        /// The back end's state can be saved and loaded.
        DEVICE_STATE = 19,
        /// Private, between this switch and its own driver: a tunnel's metadata follows the virtio-net header, which
        /// then has 128 bytes in all rings (`lasthop_wire::tunnel`).
        TUNNEL = 62,
        /// Private, between this switch and its own driver: sent packets have their hash behind the virtio-net header,
        /// which then has 20 bytes in transmit rings (`lasthop_wire::hash`).
        PACKET_HASH = 63,
    }

    /// The protocol features that every session offers: exactly those that it serves. For BACKEND_REQ it keeps the
    /// channel open: User Mode Linux takes its interrupt line from there, and has none without it.
    pub const OFFERED: u64 = MQ
        | REPLY_ACK
        | MTU
        | BACKEND_REQ
        | CONFIG
        | INFLIGHT_SHMFD
        | RESET_DEVICE
        | CONFIGURE_MEM_SLOTS
        | STATUS;

    /// Like [`names`](super::names), for protocol feature bits.
    #[must_use]
    pub fn names(features: u64) -> String {
        super::join_names(features, PROTOCOL_NAMES)
    }
}

/// The names of the virtio feature bits that are set, by bit number, separated by spaces: `"CSUM GUEST_CSUM"`. A bit
/// without a name is shown as `bit41`.
#[must_use]
pub fn names(features: u64) -> String {
    join_names(features, VIRTIO_NAMES)
}

fn join_names(features: u64, table: &[(u64, &str)]) -> String {
    let set = (0..u64::BITS).filter(|bit| features & (1 << bit) != 0);
    set.map(|bit| bit_name(bit, table)).collect::<Vec<_>>().join(" ")
}

fn bit_name(bit: u32, table: &[(u64, &str)]) -> String {
    let named = table.iter().find(|(value, _)| *value == 1 << bit);
    named.map_or_else(|| format!("bit{bit}"), |(_, name)| (*name).to_owned())
}

/// The device takes TCP segmentation requests, which need checksum requests.
pub const HOST_TSO: u64 = CSUM | HOST_TSO4 | HOST_TSO6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_bit_order_and_unknown_bits_are_numbered() {
        assert_eq!(names(0), "");
        assert_eq!(names(GUEST_CSUM | CSUM | VERSION_1 | 1 << 41), "CSUM GUEST_CSUM VERSION_1 bit41");
        assert_eq!(names(PROTOCOL_FEATURES | EVENT_IDX), "EVENT_IDX PROTOCOL_FEATURES");
        assert_eq!(names(SPEED_DUPLEX), "SPEED_DUPLEX");
    }

    #[test]
    fn protocol_offer_has_the_bits_that_are_served() {
        let bits = [0, 3, 4, 5, 9, 12, 13, 15, 16];
        assert_eq!(protocol::OFFERED, bits.iter().map(|bit| 1 << bit).sum());
        assert_eq!(
            protocol::names(protocol::OFFERED),
            "MQ REPLY_ACK MTU BACKEND_REQ CONFIG INFLIGHT_SHMFD RESET_DEVICE CONFIGURE_MEM_SLOTS STATUS"
        );
    }

    #[test]
    fn no_bit_is_named_twice() {
        for table in [VIRTIO_NAMES, protocol::PROTOCOL_NAMES] {
            let union = table.iter().fold(0, |union, (bit, name)| {
                assert_eq!(union & bit, 0, "{name}");
                union | bit
            });
            assert_eq!(union.count_ones() as usize, table.len());
        }
    }
}
