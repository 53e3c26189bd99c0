//! References to packets in their senders' memory, and the outcomes of their delivery.

use lasthop_module_api::{DropReason, Header, PortId};

use crate::RingId;
use crate::bounds::WAITING_NS_MAX;

/// A packet that is still in its sender's memory. It is valid as long as the sender's slot says so: no count is kept
/// here, the slot's pending count is changed by its home worker only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PacketRef {
    /// The source; `PortId::INTERNAL` for the switch's own ring.
    pub(crate) port: u16,
    /// Transmit queue of the port; see [`PacketRef::ring`].
    pub(crate) queue: u16,
    /// Head of the chain.
    pub(crate) head: u16,
    /// The worker that the transmit queue belongs to.
    pub(crate) home: u8,
    /// Memory map under which the chain was checked.
    pub(crate) epoch: u32,
}

/// In the number of the queue: the packet is detached, and `head` is its slot.
const DETACHED: u16 = 1 << 15;

impl PacketRef {
    #[inline]
    pub(crate) fn port(self) -> PortId {
        PortId(self.port)
    }

    /// The transmit ring that it came from.
    #[inline]
    pub(crate) fn ring(self) -> RingId {
        RingId { port: self.port(), queue: self.queue & !DETACHED }
    }

    /// Whether its bytes are in the switch's own memory, and its chain was completed.
    #[inline]
    pub(crate) fn is_detached(self) -> bool {
        self.queue & DETACHED != 0
    }

    /// The same packet, detached.
    pub(crate) fn detached(self, slot: u16) -> Self {
        Self { queue: self.queue | DETACHED, head: slot, ..self }
    }
}

/// A reference that waits in a receiver's internal receive queue, with its own header image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) packet: PacketRef,
    pub(crate) header: Header,
    pub(crate) truncate_len_bytes: u32,
    /// First segment of a software-segmented frame that is not delivered yet.
    pub(crate) next_segment: u32,
    /// When it is dropped.
    pub(crate) deadline_ns: u64,
    /// Its deliveries that its home does not know yet.
    pub(crate) delivered: Delivered,
}

impl Waiting {
    /// The copy that waits.
    pub(crate) fn copy(&self) -> PacketCopy<'_> {
        let Self { packet, ref header, truncate_len_bytes, .. } = *self;
        PacketCopy { packet, header, truncate_len_bytes, image: 0 }
    }
}

/// A reference on its way back to its home worker, which alone completes chains and counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Return {
    pub(crate) packet: PacketRef,
    /// Where it waited.
    pub(crate) to: RingId,
    /// `Wait`: it would have to wait longer than the device exists, and nothing of it was delivered. Its
    /// chain has to be taken again, if this is the only copy.
    pub(crate) outcome: Outcome,
    pub(crate) delivered: Delivered,
}

/// The outcome of one attempt to deliver one copy of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All of it is in the receiver's ring.
    Done,
    /// No buffers for the rest.
    Wait,
    /// The rest is lost.
    Drop(DropReason),
    /// It was flooded, and no port that could have taken it had a running guest: nothing is lost.
    ToNone,
}

/// The attempt's outcome and how many packets it put into the ring (segments count as packets).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub(crate) outcome: Outcome,
    pub(crate) delivered: u32,
}

impl Attempt {
    pub(crate) fn dropped(reason: DropReason) -> Self {
        Self { outcome: Outcome::Drop(reason), delivered: 0 }
    }

    pub(crate) fn to_none() -> Self {
        Self { outcome: Outcome::ToNone, delivered: 0 }
    }

    /// Whether it is dropped since its receiver is slow.
    #[inline]
    pub(crate) fn is_slow(self) -> bool {
        use DropReason::{RxQueueFull, RxShare, RxStalled, RxTimeout};
        matches!(self.outcome, Outcome::Drop(RxQueueFull | RxShare | RxStalled | RxTimeout))
    }
}

/// Packets that were put into the receive rings of one port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delivered {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) gso_packets: u64,
    pub(crate) csum_completed: u64,
}

impl Delivered {
    #[inline]
    pub(crate) fn add(&mut self, more: &Self) {
        self.packets += more.packets;
        self.bytes += more.bytes;
        self.gso_packets += more.gso_packets;
        self.csum_completed += more.csum_completed;
    }
}

/// A copy of a packet on its way to a receiver.
#[derive(Clone, Copy)]
pub(crate) struct PacketCopy<'a> {
    pub(crate) packet: PacketRef,
    pub(crate) header: &'a Header,
    pub(crate) truncate_len_bytes: u32,
    /// Index of the header among the visit's.
    pub(crate) image: u16,
}

impl PacketCopy<'_> {
    pub(crate) fn waiting(&self, next_segment: u32, now_ns: u64) -> Waiting {
        Waiting {
            packet: self.packet,
            header: *self.header,
            truncate_len_bytes: self.truncate_len_bytes,
            next_segment,
            deadline_ns: now_ns + WAITING_NS_MAX,
            delivered: Delivered::default(),
        }
    }
}
