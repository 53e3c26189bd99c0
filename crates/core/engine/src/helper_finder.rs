//! Finds helpers by the view of the scheduler.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use lasthop_fabric::{HelpShare, HelperFinder, LargeCopies};
use lasthop_module_api::PortId;
use lasthop_sched::{PendingCopies, offload};

use crate::helpers::OffloadCounts;
use crate::scheduling::{SchedulerView, own_cpu};
use crate::worker_pool::{PoolMember, WorkerPool};

/// Finds helpers for one worker by the view.
pub(crate) struct ViewFinder<W> {
    pub(crate) view: Arc<dyn SchedulerView>,
    pub(crate) pool: Arc<WorkerPool<W>>,
    pub(crate) counts: Arc<OffloadCounts>,
}

/// Visits after which a port's frames may go to another helper.
const TURN_VISITS: u64 = 1024;

impl<W: PoolMember> HelperFinder for ViewFinder<W> {
    fn find(&mut self, port: PortId, copies: LargeCopies) -> Option<HelpShare> {
        let LargeCopies { packets, bytes, waiting } = copies;
        let criteria = self.pool.helpers().offload();
        // The first frame that either of the two copies is published at once, so a receiver that sleeps is woken early
        // without further measures.
        let pending = PendingCopies { packets, bytes, is_receiver_blocked: false };
        let room = criteria.helper_packets_max.saturating_sub(waiting);
        let shares = offload(&pending, room, criteria);
        if shares.helper < 2 {
            return None;
        }
        let turn = (self.counts.shared.load(Ordering::Relaxed) / TURN_VISITS) as u32;
        let helper = self.pool.helpers().choose(&*self.view, port, own_cpu(), turn);
        let count = if helper.is_some() { &self.counts.shared } else { &self.counts.alone };
        count.fetch_add(1, Ordering::Relaxed);
        let helper = u8::try_from(helper?).ok()?;
        Some(HelpShare { helper, packets: shares.helper })
    }

    fn wake(&mut self, helper: usize) {
        self.pool.mailbox(helper).wake();
    }
}
