//! Options of guests, and their checks.

use lasthop_ring::RING_ENTRIES_MAX;
use lasthop_vhost::features::{self, protocol};
use lasthop_wire::vnet::HEADER_BYTES;

use crate::GuestError;

/// Queue pairs of one guest: vhost-user numbers rings in 8 bits.
pub const QUEUE_PAIRS_MAX: u16 = 128;
/// Bytes of one transmit or receive buffer: more than a 64 KiB segment with headers.
pub const SLOT_BYTES_MAX: u32 = 1 << 17;
/// Descriptors of one transmitted frame, and entries of an indirect table: Linux uses up to 19.
pub const PARTS_MAX: usize = 64;
/// Bytes of an Ethernet header: the shortest frame that a buffer must hold.
const FRAME_BYTES_MIN: u32 = 14;
/// Memory regions: as many as one vhost-user memory table takes.
const REGIONS_MAX: u16 = 8;

/// The virtio features that a [`Guest`](crate::Guest) can use, like a Linux guest. It can also use
/// [`features::IN_ORDER`], where a device that returns its chains in another order is at fault, and
/// [`features::RING_PACKED`].
pub const ALL_FEATURES: u64 = features::VERSION_1
    | features::INDIRECT_DESC
    | features::EVENT_IDX
    | features::MRG_RXBUF
    | features::CSUM
    | features::GUEST_CSUM
    | features::HOST_TSO4
    | features::HOST_TSO6
    | features::HOST_ECN
    | features::GUEST_TSO4
    | features::GUEST_TSO6
    | features::GUEST_ECN
    | features::HOST_USO
    | features::GUEST_USO4
    | features::GUEST_USO6
    | features::MQ
    | features::MTU
    | features::STATUS
    | features::MAC;

/// The features that a front end requests; those that are not offered are omitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FeatureRequest {
    /// Virtio features.
    pub(crate) features: u64,
    /// Protocol features.
    pub(crate) protocol: u64,
    /// Required number of queue pairs.
    pub(crate) queue_pairs: u16,
}

/// Options of a guest.
#[derive(Clone, Debug)]
pub struct GuestOptions {
    /// Requested virtio features; of these the offered ones are used. See [`ALL_FEATURES`].
    pub features: u64,
    /// Requested protocol features; of these the offered ones are used. Without REPLY_ACK nothing is acknowledged.
    pub protocol_features: u64,
    /// Queue pairs, 1 to [`QUEUE_PAIRS_MAX`].
    pub queue_pairs: u16,
    /// Entries of each ring, a power of two.
    pub ring_entries: u16,
    /// Bytes of a transmit buffer for one frame and its header.
    pub tx_slot_bytes: u32,
    /// Bytes of a receive buffer, including the header.
    pub rx_buffer_bytes: u32,
    /// Number of available receive buffers; all ring entries if there are fewer descriptors.
    pub rx_buffers: u16,
    /// Bytes of the first descriptors of each receive buffer; one more has the rest. Empty for one descriptor.
    pub rx_cuts: Vec<u32>,
    /// Fills receive buffers with this byte: the bytes behind a delivered frame must not change, or the frame counts as
    /// broken. `None`: such writes of the back end are not noticed.
    pub rx_guard: Option<u8>,
    /// Whether to use an indirect table for frames of several descriptors, if negotiated.
    pub indirect: bool,
    /// Number of memory regions for the back end, 1 to 8: buffers may straddle them.
    pub regions: u16,
    /// The position at which all rings start; near 65535 it soon wraps.
    pub start_position: u16,
    /// Whether to request an in-flight file (INFLIGHT_SHMFD), so that another back end can continue after this one
    /// died.
    pub inflight: bool,
    /// The guest's own address, unless the back end has one.
    pub mac: [u8; 6],
}

impl Default for GuestOptions {
    /// The options of a Linux guest on a current VMM.
    fn default() -> Self {
        Self {
            features: ALL_FEATURES,
            protocol_features: protocol::OFFERED,
            queue_pairs: 1,
            ring_entries: 256,
            tx_slot_bytes: 66_000,
            rx_buffer_bytes: 1536,
            rx_buffers: RING_ENTRIES_MAX,
            rx_cuts: Vec::new(),
            rx_guard: None,
            indirect: true,
            regions: 1,
            start_position: 0,
            inflight: false,
            mac: [0x02, 0, 0, 0, 0, 1],
        }
    }
}

impl GuestOptions {
    /// Without offloads, mergeable buffers, and other optional features.
    #[must_use]
    pub fn plain() -> Self {
        Self { features: features::VERSION_1, tx_slot_bytes: 2048, ..Self::default() }
    }

    /// The same options without the given virtio features.
    #[must_use]
    pub fn without(mut self, features: u64) -> Self {
        self.features &= !features;
        self
    }

    pub(crate) fn request(&self) -> FeatureRequest {
        let Self { features, protocol_features: protocol, queue_pairs, .. } = *self;
        FeatureRequest { features, protocol, queue_pairs }
    }

    pub(crate) fn check(&self) -> Result<(), GuestError> {
        let slot = HEADER_BYTES as u32 + FRAME_BYTES_MIN..=SLOT_BYTES_MAX;
        let wrong = if !(1..=QUEUE_PAIRS_MAX).contains(&self.queue_pairs) {
            format!("{} queue pairs, 1 to {QUEUE_PAIRS_MAX} are possible", self.queue_pairs)
        } else if !self.ring_entries.is_power_of_two() || self.ring_entries > RING_ENTRIES_MAX {
            format!(
                "rings of {} entries, a power of two up to {RING_ENTRIES_MAX} is possible",
                self.ring_entries
            )
        } else if !slot.contains(&self.tx_slot_bytes) || !slot.contains(&self.rx_buffer_bytes) {
            format!(
                "buffers of {} and {} bytes, {slot:?} is possible",
                self.tx_slot_bytes, self.rx_buffer_bytes
            )
        } else if self.rx_cuts.len() >= PARTS_MAX.min(usize::from(self.ring_entries)) {
            format!("receive buffers of {} descriptors", self.rx_cuts.len() + 1)
        } else if self.rx_cuts.iter().map(|cut| u64::from(*cut)).sum::<u64>()
            >= u64::from(self.rx_buffer_bytes)
        {
            "rx_cuts leave nothing for the last descriptor".to_owned()
        } else if !(1..=REGIONS_MAX).contains(&self.regions) {
            format!("{} memory regions, 1 to {REGIONS_MAX} are possible", self.regions)
        } else {
            return Ok(());
        };
        Err(GuestError::Options(wrong))
    }
}
