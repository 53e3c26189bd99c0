//! The view of the scheduler and the modes of the policies, as they change for all workers.

use std::sync::Arc;

use lasthop_sched::Modes;

use crate::decision_trace::TracedDecision;
use crate::events::Event;
use crate::movement_table::MovementTable;
use crate::scheduler_view::SchedulerView;
use crate::worker::Worker;
use crate::{Engine, EngineError, clock};

impl Worker {
    /// Decides by this view from now on, as far as `modes` enables it.
    pub(crate) fn set_scheduler_view(
        &mut self,
        view: Option<Arc<dyn SchedulerView>>,
        modes: Modes,
        movement: Option<Arc<MovementTable>>,
    ) {
        let number = self.number();
        if let Some(events) = self.scheduling.sleep_events(number) {
            self.events.forget(events);
        }
        self.scheduling.set(view, modes);
        self.scheduling.movement = movement;
        self.share_or_not();
        if let Some(events) = self.scheduling.sleep_events(number) {
            // The kernel has no memory for it: timers are the bound.
            let _ = self.events.listen(events, Event::Sleeper);
        }
        self.timers.note_event();
    }
}

impl Engine {
    /// Has workers poll and yield by `view`, as far as `modes` enables it; `None` removes the view.
    ///
    /// # Errors
    /// [`EngineError::NoAnswer`]: that worker does so when it runs its tasks.
    pub fn set_scheduler_view(
        &self,
        view: Option<Arc<dyn SchedulerView>>,
        modes: Modes,
    ) -> Result<(), EngineError> {
        let movement = self.movement.follow(view.as_ref(), &modes);
        let set = move |worker: &mut Worker| {
            worker.set_scheduler_view(view.clone(), modes, movement.clone());
        };
        self.pool.call_all(set).map(drop)
    }

    /// Each worker's last decisions by the view, oldest first, and the time on their clock.
    ///
    /// # Errors
    /// [`EngineError::NoAnswer`].
    pub fn decisions(&self) -> Result<(u64, Vec<Vec<TracedDecision>>), EngineError> {
        let decisions = self.pool.call_all(|worker| worker.scheduling.traced())?;
        Ok((clock::now_ns(self.started), decisions))
    }
}
