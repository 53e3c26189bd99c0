//! Receive queues of a guest's flows (virtio 1.2, 5.1.6.5.6: automatic receive steering).
//!
//! The home of a transmit ring notes from which queue the guest sends a flow. The worker that delivers a packet of the flow to the guest finds
//! that, and moves the flow once its present queue is drained ([`FlowQueues`] keeps the order).

use lasthop_module_api::Header;
use lasthop_sync::FlowQueues;
use lasthop_wire::flow_hash;

/// Of how many packets of a large visit one is noted: a flow has many, and each costs a hash.
const NOTED_STEP: usize = 16;

/// The receive queues of the flows of one port's guest. All workers share them.
#[derive(Debug)]
pub(crate) struct Steering {
    /// Secret, so that no sender can choose which flows share a place.
    flow_key: u64,
    pub(crate) flows: FlowQueues,
}

impl Steering {
    pub(crate) fn new(flow_key: u64) -> Self {
        Self { flow_key, flows: FlowQueues::default() }
    }

    /// Notes some packets of a visit, which the guest sent from `queue`; others than at the last `count` packets.
    pub(crate) fn note(&self, headers: &[Header], queue: u16, count: u64) {
        let first = (count as usize / headers.len().max(1)) % NOTED_STEP.min(headers.len()).max(1);
        for header in headers.iter().skip(first).step_by(NOTED_STEP) {
            self.flows.note_sent(flow_hash(header.bytes(), self.flow_key), queue);
        }
    }
}
