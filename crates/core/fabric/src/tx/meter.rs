//! Measures the cost of access to guests' memory, by port. A front end can make any access to its memory wait, or cost
//! pages.
//!
//! A lap is the work between two calls of the meter. In one lap the memory of at most one port is touched:
//!
//! ```text
//!   visit:  None │ fetch, touch the frames: sender │ decide: None │ copy: receiver
//!   drain:  None │ (receiver │ touch a waiting frame: its sender │ copy: receiver) x waiting
//! ```

use lasthop_module_api::PortId;
use lasthop_stages::WorkStage;
use lasthop_turns::VisitMeter;

use crate::bounds::{SERVICE_METERED_BYTES_MAX, VISIT_BYTES_MAX};
use crate::reference::PacketRef;
use crate::side_table::SegmentBuffer;
use crate::tx::senders::Senders;
use crate::{Fabric, RingId};

impl Fabric {
    /// Sets the meter that is called while the fabric is metered.
    pub fn set_meter(&mut self, meter: Box<dyn VisitMeter>) {
        self.senders.metering.set_meter(meter);
    }

    /// Starts metering, or stops it if `weight` is 0. While metered, each frame is touched before it is delivered, also
    /// one that waited. This separates the cost of the sender's memory from that of the receivers'. Packets are then
    /// copied one by one, and their buffers are touched before they are written, for fewer page faults.
    pub fn set_metered(&mut self, weight: u64) {
        self.receivers.leases.is_off = weight > 0;
        self.senders.metering.set_weight(weight);
    }

    /// Bytes that a metered visit takes less than others. While packets wait it takes no more than a service delivers.
    /// Otherwise more packets would begin to wait with each visit, until they are lost although there are buffers.
    #[cold]
    pub(crate) fn spent_bytes(&self) -> u64 {
        let waits = !self.receivers.kept().is_empty();
        if waits { u64::from(VISIT_BYTES_MAX - SERVICE_METERED_BYTES_MAX) } else { 0 }
    }

    #[inline]
    pub(crate) fn lap(&mut self, port: Option<PortId>) {
        if self.senders.is_metered() {
            self.senders.tell_lap(port);
        }
    }

    /// Whether `port` rests at `now_ns` because of page faults in its memory.
    #[inline]
    pub(crate) fn is_resting(&mut self, port: PortId, now_ns: u64) -> bool {
        self.senders.metering.has_resting() && self.senders.look_at_rest(port, now_ns)
    }

    /// As [`Self::lap`], for the ring's port after a batch was fetched.
    #[inline]
    pub(crate) fn lap_fetched(&mut self, ring: RingId) {
        if self.senders.is_metered() {
            self.senders.list(&mut self.fetched, 0);
            self.touch_fetched(ring);
            self.senders.tell_lap(Some(ring.port));
        }
    }

    /// Reads a byte of each page of this visit's frames and of their ring's next used entries.
    #[cold]
    fn touch_fetched(&mut self, ring: RingId) {
        let packets = &self.fetched.packets[..self.fetched.len];
        for packet in packets {
            let Some(source) = self.senders.source(*packet) else { continue };
            let segments = source.segments(*packet, &mut self.segments).unwrap_or_default();
            segments.iter().for_each(|segment| source.map().touch(*segment));
        }
        let count = packets.len() as u16; // at most a batch
        if let Some(queue) = self.senders.queue_mut(ring) {
            queue.ring.touch_used(count);
        }
    }
}

impl Senders {
    /// Whether a meter is active.
    #[inline]
    pub(crate) fn is_metered(&self) -> bool {
        self.metering.is_on()
    }

    /// Attributes the work since the last call to the memory of `port`. If the port's home is here, it is charged for
    /// the page faults.
    #[cold]
    pub(crate) fn tell_lap(&mut self, port: Option<PortId>) {
        let ns = self.metering.lap(port);
        if ns > 0
            && let Some(sender) = port.and_then(|port| self.get_mut(port))
        {
            sender.charge.add_faults(ns);
            self.metering.begin_rest();
        }
        self.stages.mark(WorkStage::Other);
    }

    /// Whether `port` rests at `now_ns`, so that no packets are taken from it.
    #[cold]
    pub(crate) fn look_at_rest(&mut self, port: PortId, now_ns: u64) -> bool {
        let until_ns = self.get_mut(port).map_or(0, |sender| sender.charge.rest_until_ns(now_ns));
        self.metering.rest(until_ns, now_ns);
        now_ns < until_ns
    }

    /// Touches the pages of a waiting packet before it is copied to the receiver `to`.
    #[cold]
    pub(crate) fn lap_waiting(&mut self, packet: PacketRef, to: PortId, buffer: &mut SegmentBuffer) {
        self.tell_lap(Some(to));
        let Some(source) = self.source(packet) else { return };
        let segments = source.segments(packet, buffer).unwrap_or_default();
        segments.iter().for_each(|segment| source.map().touch(*segment));
        self.tell_lap(Some(packet.port()));
    }
}
