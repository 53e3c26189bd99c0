use std::sync::Arc;

use lasthop_foreign::ForeignFd;
use lasthop_guestmem::{MemoryMap, Word};
use lasthop_ring::DeviceRing;
use serde::{Deserialize, Serialize};

use crate::{MEMORY_BYTES_MAX_DEFAULT, features};

/// The device that a session controls: one port of the switch.
///
/// The session calls it from one thread. It stops a ring before memory changes, before features change, before the ring
/// is started again, and when the session ends.
pub trait Device {
    /// The offer to the front end; the session asks once, when it connects.
    fn offer(&self) -> Offer;

    /// Whether the operator has the link up; asked when the front end connects.
    /// [`Session::set_link`](crate::Session::set_link) reports later changes.
    fn is_link_up(&self) -> bool {
        true
    }

    /// Largest total size of the front end's memory regions, in bytes; asked whenever it sends some.
    fn memory_bytes_max(&self) -> u64 {
        MEMORY_BYTES_MAX_DEFAULT
    }

    /// The virtio features in use from now on, at each SET_FEATURES; 0 at a reset. Without
    /// [`PROTOCOL_FEATURES`](features::PROTOCOL_FEATURES), which is the session's own. No ring runs if they changed.
    fn set_features(&mut self, features: u64);

    /// Sets the acknowledged protocol features. No ring runs.
    fn set_protocol_features(&mut self, _features: u64) {}

    /// Sets the guest's memory. No ring runs.
    fn set_memory(&mut self, map: Arc<MemoryMap>);

    /// Starts a ring.
    ///
    /// # Errors
    /// A sentence for users; the ring is not started then.
    fn start_ring(&mut self, index: u16, start: RingStart) -> Result<(), String>;

    /// Stops a running ring and drops its [`RingStart`]. Returns the position of the next available head, also if the
    /// ring has stopped by itself. `None`: the position is not known, and the session tells the front end none.
    fn stop_ring(&mut self, index: u16) -> Option<u16>;

    /// Enables or disables a running ring. Packets of a disabled transmit ring are dropped; a disabled receive ring
    /// gets none.
    fn set_ring_enabled(&mut self, index: u16, enabled: bool);

    /// Replaces the eventfd by which a running ring signals the driver; `None` if the driver polls.
    fn set_ring_call(&mut self, index: u16, call: Option<ForeignFd>);

    /// The MTU of the link in bytes, 68 to 65535.
    fn set_mtu(&mut self, mtu: u16);
}

/// The features and configuration that a device offers to a front end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Virtio features, see [`features`].
    pub features: u64,
    /// Pairs of a receive and a transmit ring; with [`CTRL_VQ`](features::CTRL_VQ) one control ring follows those
    /// that the driver can use: the first one only, unless it negotiated [`MQ`](features::MQ) (virtio 1.2, 5.1.2).
    pub queue_pairs: u16,
    /// MAC address for the guest.
    pub mac: Option<[u8; 6]>,
    /// MTU in bytes for the guest.
    pub mtu: Option<u16>,
    /// Private protocol features beside those that every session offers.
    pub private: u64,
}

impl Offer {
    /// Rings, control ring included.
    #[must_use]
    pub fn rings(&self) -> u16 {
        let control = u16::from(self.features & features::CTRL_VQ != 0);
        self.queue_pairs.saturating_mul(2).saturating_add(control)
    }

    /// The configuration space (virtio 1.2, 5.1.4) up to the MTU: MAC address, link status, queue pairs, MTU.
    #[must_use]
    pub fn config(&self, link_up: bool) -> [u8; 12] {
        let mut config = [0; 12];
        config[..6].copy_from_slice(&self.mac.unwrap_or_default());
        // VIRTIO_NET_S_LINK_UP is the lowest bit.
        config[6..8].copy_from_slice(&u16::from(link_up).to_le_bytes());
        config[8..10].copy_from_slice(&self.queue_pairs.to_le_bytes());
        config[10..].copy_from_slice(&self.mtu.unwrap_or_default().to_le_bytes());
        config
    }
}

/// A ring's memory and descriptors at its start.
#[derive(Debug)]
pub struct RingStart {
    /// The ring, at the position where it continues.
    pub ring: DeviceRing,
    /// Eventfd that the driver kicks; `None`: the device polls. Set non-blocking, but the front end shares that flag.
    pub kick: Option<ForeignFd>,
    /// Eventfd to signal the driver; `None`: the driver polls. Set non-blocking, but the front end shares that flag.
    pub call: Option<ForeignFd>,
    /// Whether it starts enabled.
    pub enabled: bool,
    /// The ring ran in another process, which died: the chains that it had fetched are marked, kicks and calls may be
    /// lost.
    pub is_taken_over: bool,
    /// Word for the number of queue pairs that the guest requests through its control queue; 0 if it requested none.
    /// `None`: the number is not kept.
    pub granted: Option<Word>,
}
