//! Finds helpers by the view of the scheduler.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use lasthop_fabric::{HelpShare, HelperFinder, LargeCopies, RingId};
use lasthop_sched::{HELPER_TURN_VISITS, share_of_home};

use crate::helpers::OffloadCounts;
use crate::movement::MovementTable;
use crate::scheduling::{SchedulerView, own_cpu};
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
    /// The CPU of the receiver: that of the queue's row, or else that of the guest's first thread.
    fn near(&self, ring: RingId) -> Option<u16> {
        let first = self.view.guest_cpu(ring.port);
        let Some(cpu) = self.movement.as_ref().and_then(|table| table.cpu(&*self.view, ring)) else {
            return first;
        };
        if first != Some(cpu) {
            self.counts.moved.fetch_add(1, Ordering::Relaxed);
        }
        Some(cpu)
    }
}

impl<W: PoolMember> HelperFinder for ViewFinder<W> {
    fn find(&mut self, ring: RingId, copies: LargeCopies) -> Option<HelpShare> {
        let LargeCopies { packets, bytes, waiting } = copies;
        let shared = share_of_home(packets, bytes, waiting, self.pool.helpers().offload())?;
        let turn = (self.counts.shared.load(Ordering::Relaxed) / HELPER_TURN_VISITS) as u32;
        let near = self.near(ring);
        let helper = self.pool.helpers().choose(&*self.view, (ring.port, near), own_cpu(), turn);
        let count = if helper.is_some() { &self.counts.shared } else { &self.counts.alone };
        count.fetch_add(1, Ordering::Relaxed);
        let helper = u8::try_from(helper?).ok()?;
        Some(HelpShare { helper, packets: shared })
    }

    fn wake(&mut self, helper: usize) {
        self.pool.mailbox(helper).wake();
    }
}
