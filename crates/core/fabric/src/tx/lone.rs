//! Takes the only chain of a ring, without the passes and arrays of a batch.

use lasthop_guestmem::{MemoryMap, Place, Segment};
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

/// The result of a visit that looks for a single chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoneFetch {
    /// The chain was taken.
    Taken,
    /// The ring is empty.
    Empty,
    /// Anything else. Nothing has changed.
    Unusual,
}

impl Senders {
    /// As [`Self::fetch`], for a ring that is empty or has one usual chain with a valid frame.
    // Not inlined, so that it has all registers.
    #[inline(never)]
    pub(crate) fn fetch_lone(&mut self, ring: RingId, fetched: &mut Fetched) -> LoneFetch {
        let sender = self.slots.get_mut(ring.port.index()).and_then(Option::as_deref_mut);
        let Some(sender) = sender.filter(|_| ring.port != PortId::INTERNAL) else {
            return LoneFetch::Unusual;
        };
        let is_discarded = || self.board.discards(ring.port, ring.queue).is_some();
        sender.fetch_lone(ring, fetched, (self.worker, is_discarded), &self.stages)
    }
}

impl Sender {
    #[inline(always)]
    fn fetch_lone(
        &mut self,
        ring: RingId,
        fetched: &mut Fetched,
        (home, is_discarded): (u8, impl FnOnce() -> bool),
        stages: &Stages,
    ) -> LoneFetch {
        let Some(Some(queue)) = self.queues.get_mut(usize::from(ring.queue)) else {
            return LoneFetch::Unusual;
        };
        if !queue.is_ready() || queue.postponement.is_due() {
            return LoneFetch::Unusual;
        }
        match queue.ring.pending() {
            Ok(0) => return LoneFetch::Empty,
            Ok(1) if !is_discarded() => {}
            _ => return LoneFetch::Unusual,
        }
        if self.capabilities.sent_header_bytes != HEADER_BYTES {
            return LoneFetch::Unusual;
        }
        let header = &mut fetched.headers[0];
        // The batch's code reads a refused frame again; the bytes read here are not used then.
        let Some(chain) = queue.read_lone(&self.map, header, stages) else {
            return LoneFetch::Unusual;
        };
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
        LoneFetch::Taken
    }
}

impl TxQueue {
    /// Reads the next chain and its headers, if it is usual, not under way, and has a valid frame.
    #[inline(always)]
    fn read_lone(&mut self, map: &MemoryMap, header: &mut Header, stages: &Stages) -> Option<Chain> {
        let head = self.ring.head(0).ok()?;
        let Descriptor { addr, len, flags, .. } = self.ring.descriptor(head);
        let is_usual = flags & (DESC_NEXT | DESC_INDIRECT | DESC_WRITE) == 0 && len > 0;
        if !is_usual || self.ring.mark(head) > 0 {
            return None;
        }
        let window = map.window(self.hint);
        let (first, place) = match window.locate_near(addr, len) {
            Some(found) => found,
            None => self.locate_elsewhere(map, (addr, len))?,
        };
        stages.mark(WorkStage::Fetch);
        read_place(place, header).ok()?;
        Some(Chain { head, whole: true, bytes: len, first })
    }

    /// Locates a buffer that is not in the region of the last one.
    #[cold]
    fn locate_elsewhere<'m>(
        &mut self,
        map: &'m MemoryMap,
        (addr, len): (u64, u32),
    ) -> Option<(Segment, Place<'m>)> {
        let mut window = map.window(self.hint);
        let found = window.locate(addr, len)?;
        self.hint = window.hint();
        Some(found)
    }
}
