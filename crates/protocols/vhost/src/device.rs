use std::sync::Arc;

use lasthop_foreign::ForeignFd;
use lasthop_guestmem::{MemoryMap, Word};
use lasthop_ring::DeviceRing;
use serde::{Deserialize, Serialize};

use crate::{MEMORY_BYTES_MAX_DEFAULT, features};

/// The device that a session drives: one port of the switch.
///
/// The session calls it in order and from one thread. A ring that was started is stopped before memory changes, before
/// features change, before it is started again, and when the session ends.
pub trait Device {
    /// The offer to the front end; asked once, when it connects.
    fn offer(&self) -> Offer;

    /// Whether the link is up as far as the operator is concerned; asked when the front end connects. Later changes are told
    /// by [`Session::set_link`](crate::Session::set_link).
    fn is_link_up(&self) -> bool {
        true
    }

    /// Bytes that all of the front end's memory regions may have together; asked whenever it sends some.
    fn memory_bytes_max(&self) -> u64 {
        MEMORY_BYTES_MAX_DEFAULT
    }

    /// The virtio features in use from now on, at each SET_FEATURES; 0 at a reset. Without
    /// [`PROTOCOL_FEATURES`](features::PROTOCOL_FEATURES), which is the session's own. No ring runs if they changed.
    fn set_features(&mut self, features: u64);

    /// The front end has acknowledged these protocol features. Rings do not run.
    fn set_protocol_features(&mut self, _features: u64) {}

    /// The guest's memory from now on. No ring runs.
    fn set_memory(&mut self, map: Arc<MemoryMap>);

    /// Starts a ring.
    ///
    /// # Errors
    /// A sentence for users; the ring is not started then.
    fn start_ring(&mut self, index: u16, start: RingStart) -> Result<(), String>;

    /// Stops a ring and drops its [`RingStart`]. Returns the position of the next available head, or `None` if it was not
    /// running (any more).
    fn stop_ring(&mut self, index: u16) -> Option<u16>;

    /// Enables or disables a running ring. A disabled transmit ring's packets are dropped, a disabled receive ring gets
    /// none.
    fn set_ring_enabled(&mut self, index: u16, enabled: bool);

    /// Another eventfd for a running ring to signal; `None`: the driver polls.
    fn set_ring_call(&mut self, index: u16, call: Option<ForeignFd>);

    /// The MTU of the link in bytes, 68 to 65535.
    fn set_mtu(&mut self, mtu: u16);
}

/// A device's offer to a front end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Virtio features, see [`features`].
    pub features: u64,
    /// Pairs of a receive and a transmit ring; with [`CTRL_VQ`](features::CTRL_VQ) one control ring follows them.
    pub queue_pairs: u16,
    /// MAC address that the guest is to use.
    pub mac: Option<[u8; 6]>,
    /// MTU in bytes that the guest is to use.
    pub mtu: Option<u16>,
    /// Protocol features beside those that every session offers: private ones.
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

/// The memory and descriptors with which a ring starts.
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
    /// The ring was another device's, which died: chains that it had taken are marked, kicks and calls may be lost.
    pub is_taken_over: bool,
    /// Where to note how many queue pairs the guest asks its control queue for, and where it is noted how many it has; 0 is
    /// none. `None`: nothing is kept.
    pub granted: Option<Word>,
}
