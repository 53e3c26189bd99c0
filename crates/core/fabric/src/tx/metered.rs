//! The meter, told by those who touch the memory of senders.

use lasthop_module_api::PortId;

use crate::meter::Metering;
use crate::reference::PacketRef;
use crate::side_table::SegmentBuffer;
use crate::stages::WorkStage;
use crate::tx::senders::Senders;

impl Senders {
    /// Whether a meter is to be told of what is done.
    #[inline]
    pub(crate) fn is_metered(&self) -> bool {
        self.metering.weight > 0
    }

    /// The work since the last call was done in the memory of `port`. The time of its page faults is the port's, if its home is
    /// here.
    #[cold]
    pub(crate) fn tell_lap(&mut self, port: Option<PortId>) {
        let Metering { meter, weight, .. } = &mut self.metering;
        let ns: u64 = meter.iter_mut().map(|meter| meter.lap(port, *weight)).sum();
        if ns > 0
            && let Some(sender) = port.and_then(|port| self.get_mut(port))
        {
            sender.charge.add_faults(ns);
            self.metering.has_resting = true;
        }
        self.stages.mark(WorkStage::Other);
    }

    /// Whether nothing is to be taken from `port` at `now_ns`.
    #[cold]
    pub(crate) fn look_at_rest(&mut self, port: PortId, now_ns: u64) -> bool {
        let until_ns = self.get_mut(port).map_or(0, |sender| sender.charge.rest_until_ns(now_ns));
        self.metering.rest_until_ns = self.metering.rest_until_ns.max(until_ns);
        self.metering.has_resting = now_ns < self.metering.rest_until_ns;
        now_ns < until_ns
    }

    /// A packet that waited for the receiver `to` is about to be copied: its pages are touched before.
    #[cold]
    pub(crate) fn lap_waiting(&mut self, packet: PacketRef, to: PortId, buffer: &mut SegmentBuffer) {
        self.tell_lap(Some(to));
        let Some(source) = self.source(packet) else { return };
        let segments = source.segments(packet, buffer).unwrap_or_default();
        segments.iter().for_each(|segment| source.map().touch(*segment));
        self.tell_lap(Some(packet.port()));
    }
}
