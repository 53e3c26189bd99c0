//! Finds helpers by the view of the scheduler.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use lasthop_fabric::{HelpShare, HelperFinder, LargeCopies, RingId};
use lasthop_sched::{CopyKind, HELPER_TURN_VISITS, share_of_home};

use crate::helpers::{OffloadCounts, ReceiverPlace};
use crate::movement_table::MovementTable;
use crate::scheduler_view::{SchedulerView, own_cpu};
use crate::worker_pool::{PoolMember, WorkerPool};

/// Finds helpers for one worker by the view.
pub(crate) struct ViewFinder<W> {
    pub(crate) view: Arc<dyn SchedulerView>,
    pub(crate) pool: Arc<WorkerPool<W>>,
    pub(crate) counts: Arc<OffloadCounts>,
    /// The data movement table, while that policy is used.
    pub(crate) movement: Option<Arc<MovementTable>>,
}

impl<W> ViewFinder<W> {
    /// Where the receiver is: by the queue's row, or else by the guest's first thread.
    fn receiver(&self, ring: RingId) -> ReceiverPlace {
        let first = self.view.guest_cpu(ring.port);
        let row = self.movement.as_ref().and_then(|table| table.cpus(&*self.view, ring));
        let (near, own) = row.map_or((first, first), |(near, own)| (Some(near), Some(own)));
        if near != first {
            self.counts.moved.fetch_add(1, Ordering::Relaxed);
        }
        ReceiverPlace { port: ring.port, near, own }
    }
}

impl<W: PoolMember> HelperFinder for ViewFinder<W> {
    fn find(&mut self, ring: RingId, copies: LargeCopies) -> Option<HelpShare> {
        let LargeCopies { packets, bytes, waiting, is_summed } = copies;
        let (receiver, own_cpu) = (self.receiver(ring), own_cpu());
        let kind = CopyKind { is_summed, is_far: receiver.is_far(self.view.places(), own_cpu) };
        let criteria = self.pool.helpers().offload().of_kind(kind);
        let shared = share_of_home(packets, bytes, waiting, criteria)?;
        let turn = (self.counts.shared.load(Ordering::Relaxed) / HELPER_TURN_VISITS) as u32;
        let helper = self.pool.helpers().choose(&*self.view, receiver, own_cpu, turn);
        let count = if helper.is_some() { &self.counts.shared } else { &self.counts.alone };
        count.fetch_add(1, Ordering::Relaxed);
        let helper = u8::try_from(helper?).ok()?;
        Some(HelpShare { helper, packets: shared })
    }

    fn wake(&mut self, helper: usize) {
        self.pool.mailbox(helper).wake();
    }
}
