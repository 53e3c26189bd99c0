//! References to packets in their senders' memory, and the outcomes of their delivery.

use lasthop_module_api::{DropReason, Header, PortId};

use crate::RingId;
use crate::bounds::WAITING_NS_MAX;

/// A packet that is still in its sender's memory. It is valid while the sender's slot says so. The reference has no
/// count of its own; only the home worker changes the slot's count of pending copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PacketRef {
    /// The source; `PortId::INTERNAL` for the switch's own ring.
    pub(crate) port: u16,
    /// Transmit queue of the port; see [`PacketRef::ring`].
    pub(crate) queue: u16,
    /// Head of the chain.
    pub(crate) head: u16,
    /// The home worker of the transmit queue.
    pub(crate) home: u8,
    /// Epoch of the memory map under which the chain was checked.
    pub(crate) epoch: u32,
}

/// A bit in the queue number: the packet is detached, and `head` is its slot.
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

    /// Whether its bytes are in the switch's own memory and its chain is completed.
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
    /// The first undelivered segment of a frame that is segmented in software.
    pub(crate) next_segment: u32,
    /// The time at which it is dropped.
    pub(crate) deadline_ns: u64,
    /// Its deliveries that were not reported to its home yet.
    pub(crate) delivered: Delivered,
}

impl Waiting {
    /// The waiting copy.
    pub(crate) fn copy(&self) -> PacketCopy<'_> {
        let Self { packet, ref header, truncate_len_bytes, .. } = *self;
        PacketCopy { packet, header, truncate_len_bytes, image: 0 }
    }
}

/// A reference on its way back to its home worker. Only the home completes chains and counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Return {
    pub(crate) packet: PacketRef,
    /// The receive ring at which it waited.
    pub(crate) to: RingId,
    /// `Wait`: the device quiesces before the packet could be delivered, and no part of it was delivered. If this is
    /// the only copy, the successor takes the chain again.
    pub(crate) outcome: Outcome,
    pub(crate) delivered: Delivered,
}

/// The outcome of one attempt to deliver one copy of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The whole packet is in the receiver's ring.
    Done,
    /// There are no buffers for the rest.
    Wait,
    /// The rest was dropped.
    Drop(DropReason),
    /// The packet was flooded and no receiving port had a running guest. It does not count as lost.
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

    /// Whether it was dropped because its receiver is slow.
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
