//! Workers and the data movement table: updates by deliveries, and the report of all rows.

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

    /// The rows of all guests in the view, with the present states of their vCPUs.
    fn reported_rows(&self, view: &dyn SchedulerView, now_ns: u64) -> Vec<ReportedRow> {
        let queues = |number: usize| {
            let port = PortId(number as u16);
            let open = if view.vcpus(port).count > 0 { self.fabric.open_queues(port) } else { 0 };
            (0..QUEUE_PAIRS_MAX)
                .filter(move |queue| open & 1 << queue != 0)
                .map(move |queue| (RingId { port, queue }, open.count_ones() as usize))
        };
        let table = self.scheduling.movement.as_deref();
        let all = (0..PORTS_MAX).flat_map(queues);
        all.filter_map(|(ring, open)| reported(view, table, (ring, open), now_ns))
            .take(REPORTED_ROWS_MAX)
            .collect()
    }
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
        self.pool.call(0, move |worker| match worker.scheduling.shared_view() {
            Some(view) => (worker.scheduling.movement.is_some(), worker.reported_rows(&*view, now_ns)),
            None => (false, Vec::new()),
        })
    }
}
