//! Costs of access to guests' memory, by port. A front end can make any access to its memory wait, or cost pages.

use lasthop_module_api::PortId;

use crate::stages::WorkStage;
use crate::{Fabric, RingId};

/// Told whenever a fabric that is metered has been at one port's memory.
pub trait VisitMeter: Send {
    /// The work since the last call was done in the memory of `port`; `None`: in no port's. It stands for `weight` times as
    /// much.
    fn lap(&mut self, port: Option<PortId>, weight: u64);
}

/// A meter, and its arguments.
#[derive(Default)]
pub(crate) struct Metering {
    meter: Option<Box<dyn VisitMeter>>,
    /// 0: it is told nothing.
    weight: u64,
}

impl Fabric {
    /// Sets the meter that is called while the fabric is metered.
    pub fn set_meter(&mut self, meter: Box<dyn VisitMeter>) {
        self.metering.meter = Some(meter);
    }

    /// Starts metering, or stops it if `weight` is 0. While metered, each frame is touched before it is
    /// delivered. So the cost of its sender's memory is told apart from that of its receivers, and packets
    /// are copied one by one.
    pub fn set_metered(&mut self, weight: u64) {
        self.receivers.leases.set_off(weight > 0);
        self.metering.weight = weight;
    }

    #[inline]
    pub(crate) fn lap(&mut self, port: Option<PortId>) {
        if self.metering.weight > 0 {
            self.tell_lap(port);
        }
    }

    #[cold]
    fn tell_lap(&mut self, port: Option<PortId>) {
        let Metering { meter, weight } = &mut self.metering;
        meter.iter_mut().for_each(|meter| meter.lap(port, *weight));
        self.mark(WorkStage::Other);
    }

    /// As [`Self::lap`] of a ring's port, after a batch was fetched from it.
    #[inline]
    pub(crate) fn lap_fetched(&mut self, ring: RingId) {
        if self.metering.weight > 0 {
            self.touch_fetched(ring);
            self.tell_lap(Some(ring.port));
        }
    }

    /// Reads a byte of each page that the frames of this visit and their ring's next used entries are in.
    #[cold]
    fn touch_fetched(&mut self, ring: RingId) {
        let packets = &self.fetched.packets[..self.fetched.len];
        for packet in packets {
            let Some(source) = self.senders.source(*packet) else { continue };
            let segments = source.segments(*packet, &mut self.segments).unwrap_or_default();
            segments.iter().for_each(|segment| source.map().touch(*segment));
        }
        let count = packets.len() as u16; // a batch at most
        if let Some(queue) = self.senders.queue_mut(ring) {
            queue.ring.touch_used(count);
        }
    }
}
