//! Which of a guest's receive queues a packet goes to: that of its flow's hash, or where the flow was moved.

use arrayvec::ArrayVec;
use lasthop_module_api::{BATCH_PACKETS_MAX, PortId};
use lasthop_sync::FlowPlace;
use lasthop_wire::flow_hash;

use crate::RingId;
use crate::reference::PacketCopy;
use crate::rx::receiver::Receivers;
use crate::rx::service::Tools;
use crate::steering::Steering;

impl Receivers {
    /// The receive queue of each of the copies, which go to a guest with several `open` ones, as bits. At most one flow is moved: the
    /// search for drained queues costs claims.
    pub(crate) fn queues_of(
        &mut self,
        (port, open): (PortId, u64),
        copies: &[PacketCopy<'_>],
        tools: &mut Tools<'_>,
        now_ns: u64,
    ) -> ArrayVec<u16, BATCH_PACKETS_MAX> {
        let steering = self.get_mut(port).and_then(|receiver| receiver.steering.take());
        let (mut may_move, count) = (true, open.count_ones());
        let home = |flow: u32| {
            let ahead = (0..flow % count).fold(open, |bits, _| bits & (bits - 1));
            ahead.trailing_zeros() as u16
        };
        let queue_of = |copy: &PacketCopy<'_>| {
            let flow = flow_hash(copy.header.bytes(), self.flow_key);
            let Some(Steering { flows, .. }) = steering.as_deref() else { return home(flow) };
            if let Some(queue) = flows.at_rest(flow, || home(flow), open, now_ns) {
                return queue;
            }
            let place = flows.place(flow, (home(flow), open), now_ns);
            let tried = place.wanted.filter(|_| std::mem::take(&mut may_move));
            let wanted =
                tried.filter(|_| self.may_leave(port, &place, tools) && flows.change(&place, now_ns));
            tools.senders.handoffs.steered += u64::from(wanted.is_some());
            wanted.unwrap_or(place.queue)
        };
        let queues = copies.iter().map(queue_of).collect();
        if let Some(receiver) = self.get_mut(port) {
            receiver.steering = steering;
        }
        queues
    }

    /// Whether no packet of the flow at this place, nor of a displaced one, is in a queue of the guest.
    #[cold]
    fn may_leave(&mut self, port: PortId, place: &FlowPlace, tools: &mut Tools<'_>) -> bool {
        let mut is_drained = |queue| {
            let ring = RingId { port, queue };
            self.with_claim(ring, tools, |service| service.claim.is_clear() && service.claim.is_drained())
                .unwrap_or(false)
        };
        is_drained(place.queue) && place.displaced().is_none_or(is_drained)
    }
}
