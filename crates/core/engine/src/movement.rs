//! Workers and the data movement table: updates by deliveries, and the report of all rows.

use std::cell::LazyCell;
use std::sync::{Arc, Mutex, PoisonError};

use lasthop_fabric::RingId;
use lasthop_fabric::bounds::QUEUE_PAIRS_MAX;
use lasthop_module_api::{PORTS_MAX, PortId};
use lasthop_sched::{Modes, Policy};

use crate::movement_table::{Delivery, MovementTable, REPORTED_ROWS_MAX, ReportedRow, reported};
use crate::scheduler_view::{SchedulerView, own_cpu};
use crate::worker::Worker;
use crate::{Engine, EngineError};

impl Worker {
    /// Updates the rows of the queues that the last visit delivered to.
    #[inline(never)] // a visit without the policy pays one branch
    pub(crate) fn note_delivery(&mut self, now_ns: u64) {
        let Some((port, queues)) = self.fabric.last_destination() else { return };
        let open = self.fabric.open_queues(port).count_ones();
        let to = Delivery { port, queues, open, writer: own_cpu(), now_ns };
        self.scheduling.note_delivery(&to);
    }

    /// The open receive queues of the guests in the view, as bits.
    fn seen_queues(&self, view: &dyn SchedulerView) -> Vec<(PortId, u64)> {
        let ports = (0..PORTS_MAX).map(|number| PortId(number as u16));
        let seen = ports.filter(|port| view.vcpus(*port).count > 0);
        seen.map(|port| (port, self.fabric.open_queues(port))).collect()
    }
}

/// The rows of queues, with the present states of their vCPUs.
fn reported_rows(
    view: &dyn SchedulerView,
    table: Option<&MovementTable>,
    queues: &[(PortId, u64)],
    now_ns: u64,
) -> Vec<ReportedRow> {
    let rows = |(port, open): &(PortId, u64)| {
        let (port, open) = (*port, *open);
        let last_ran = LazyCell::new(move || view.last_vcpu(port));
        let is_open = (0..QUEUE_PAIRS_MAX).filter(move |queue| open & 1 << queue != 0);
        is_open.filter_map(move |queue| {
            let ring = RingId { port, queue };
            reported(view, table, (ring, open.count_ones() as usize), &|| *last_ran, now_ns)
        })
    };
    queues.iter().flat_map(rows).take(REPORTED_ROWS_MAX).collect()
}

/// The table of a switch, from view to view.
#[derive(Debug, Default)]
pub(crate) struct Movement(Mutex<Option<Arc<MovementTable>>>);

impl Movement {
    /// The table for `view`; `None` without one, or if the policy is off.
    pub(crate) fn follow(
        &self,
        view: Option<&Arc<dyn SchedulerView>>,
        modes: &Modes,
    ) -> Option<Arc<MovementTable>> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let view = view.filter(|_| modes.is_used(Policy::Movement));
        *table = view.map(|view| Arc::new(MovementTable::new(&**view, table.as_deref())));
        table.clone()
    }
}

impl Engine {
    /// Whether the policy movement is used, and the rows of the data movement table, by port and queue;
    /// [`REPORTED_ROWS_MAX`] at most. Without a view there are none.
    ///
    /// # Errors
    /// [`EngineError::NoAnswer`].
    pub fn movement_rows(&self) -> Result<(bool, Vec<ReportedRow>), EngineError> {
        let now_ns = self.now_ns();
        // The worker tells only its state: the search for threads would keep packets waiting.
        let seen = self.pool.call(0, |worker| {
            let view = worker.scheduling.shared_view()?;
            let queues = worker.seen_queues(&*view);
            Some((view, worker.scheduling.movement.clone(), queues))
        })?;
        let Some((view, table, queues)) = seen else { return Ok((false, Vec::new())) };
        Ok((table.is_some(), reported_rows(&*view, table.as_deref(), &queues, now_ns)))
    }
}
