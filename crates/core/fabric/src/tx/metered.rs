//! Reports work in senders' memory to the meter.

use lasthop_module_api::PortId;

use crate::meter::Metering;
use crate::reference::PacketRef;
use crate::side_table::SegmentBuffer;
use crate::stages::WorkStage;
use crate::tx::senders::Senders;

impl Senders {
    /// Whether a meter is active.
    #[inline]
    pub(crate) fn is_metered(&self) -> bool {
        self.metering.weight > 0
    }

    /// Attributes the work since the last call to the memory of `port`. If the port's home is here, it is charged for
    /// the page faults.
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

    /// Whether `port` rests at `now_ns`, so that no packets are taken from it.
    #[cold]
    pub(crate) fn look_at_rest(&mut self, port: PortId, now_ns: u64) -> bool {
        let until_ns = self.get_mut(port).map_or(0, |sender| sender.charge.rest_until_ns(now_ns));
        self.metering.rest_until_ns = self.metering.rest_until_ns.max(until_ns);
        self.metering.has_resting = now_ns < self.metering.rest_until_ns;
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
