//! The only chain of a ring, taken without the passes and arrays that a batch has.

use lasthop_module_api::{Header, PortId};
use lasthop_ring::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Descriptor};
use lasthop_wire::vnet::HEADER_BYTES;

use crate::RingId;
use crate::reference::PacketRef;
use crate::stages::{Stages, WorkStage};
use crate::tx::chain::{Chain, read_place};
use crate::tx::sender::{Fetched, Sender};
use crate::tx::senders::Senders;
use crate::tx::tx_queue::TxQueue;

impl Senders {
    /// As [`Self::fetch`], for a ring with one chain, a usual one with a valid frame. False: there is no such chain, and nothing has changed.
    // A function of its own: it has the registers to itself.
    #[inline(never)]
    pub(crate) fn fetch_lone(&mut self, ring: RingId, fetched: &mut Fetched) -> bool {
        let Some(sender) = self.slots.get_mut(ring.port.index()).and_then(Option::as_deref_mut) else {
            return false;
        };
        let is_usual = ring.port != PortId::INTERNAL && self.board.discards(ring.port, ring.queue).is_none();
        is_usual && sender.fetch_lone(ring, fetched, self.worker, &self.stages)
    }
}

impl Sender {
    #[inline(always)]
    fn fetch_lone(&mut self, ring: RingId, fetched: &mut Fetched, home: u8, stages: &Stages) -> bool {
        let Some(Some(queue)) = self.queues.get_mut(usize::from(ring.queue)) else { return false };
        if queue.ring.pending() != Ok(1) || !queue.is_ready() || queue.postponement.is_due() {
            return false;
        }
        if self.capabilities.sent_header_bytes != HEADER_BYTES {
            return false;
        }
        let header = &mut fetched.headers[0];
        let Some(chain) = queue.read_lone(&self.map, header, stages) else { return false };
        queue.ring.set_mark(chain.head, 1);
        queue.ring.take_marked(&[chain.head]);
        queue.blocked = false;
        self.charge.begin_visit();
        self.charge.taken(1);
        self.counters.rx_packets += 1;
        self.counters.rx_bytes += u64::from(chain.bytes) - HEADER_BYTES as u64;
        self.counters.rx_gso_packets += u64::from(header.offload.is_gso());
        fetched.name = PacketRef { port: ring.port.0, queue: ring.queue, head: 0, home, epoch: self.epoch };
        fetched.chains[0] = chain;
        fetched.hashes.clear();
        (fetched.len, fetched.is_listed, fetched.more) = (1, false, false);
        true
    }
}

impl TxQueue {
    /// Reads the next chain and its headers, if it is a usual one that is not under way, with a valid frame.
    #[inline(always)]
    fn read_lone(
        &mut self,
        map: &lasthop_guestmem::MemoryMap,
        header: &mut Header,
        stages: &Stages,
    ) -> Option<Chain> {
        let head = self.ring.head(0).ok()?;
        let Descriptor { addr, len, flags, .. } = self.ring.descriptor(head);
        let is_usual = flags & (DESC_NEXT | DESC_INDIRECT | DESC_WRITE) == 0 && len > 0;
        if !is_usual || self.ring.mark(head) > 0 {
            return None;
        }
        let mut window = map.window(self.hint);
        let (first, place) = window.locate(addr, len)?;
        self.hint = window.hint();
        stages.mark(WorkStage::Fetch);
        read_place(place, header).ok()?;
        Some(Chain { head, whole: true, bytes: len, first })
    }
}
