//! Helpers: threads that copy large frames for workers on CPUs that are idle (Hyper-Switch, 3.4).
//!
//! ```text
//!   worker: a visit with large frames ──> view: which CPU is idle, near the receiver? ──> order to its helper
//!   helper: sleeps ──order──> copies frame by frame ── somebody wants its CPU? ──> gives its order up
//! ```
//!
//! Each helper is pinned to a CPU of its own. It has a fabric and a mailbox as a worker has, and is home to no ring.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use lasthop_module_api::PortId;
use lasthop_sched::{
    CpuDistance, CpuPlace, CpuState, Occupant, OffloadCriteria, PlaceCriteria, distance, place, spread,
};

use crate::decision_trace::CpuReturn;
use crate::scheduler_view::SchedulerView;

/// The helpers of a switch.
#[derive(Clone, Debug, Default)]
pub struct HelperSettings {
    /// The CPUs of helpers, one helper each; empty: there are none.
    pub cpus: Vec<usize>,
    /// Which copies they share.
    pub offload: OffloadCriteria,
    /// On which CPUs.
    pub place: PlaceCriteria,
    /// Whether a home signals the receiver after each frame that it shares, instead of after its visit.
    pub signals_each_frame: bool,
}

/// All helpers, for workers that look for one.
#[derive(Debug)]
pub(crate) struct Helpers {
    /// The number of the first one among all workers; its seat is the first.
    first: usize,
    settings: HelperSettings,
    /// The thread of each helper; 0 before it runs.
    threads: Vec<AtomicU32>,
}

impl Helpers {
    /// Helpers with the numbers from `first` on.
    pub(crate) fn new(first: usize, settings: &HelperSettings) -> Self {
        let threads = settings.cpus.iter().map(|_| AtomicU32::new(0)).collect();
        Self { first, settings: settings.clone(), threads }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.threads.is_empty()
    }

    /// Number of workers that are no helpers.
    pub(crate) fn workers(&self) -> usize {
        self.first
    }

    /// Whether worker `number` is a helper.
    pub(crate) fn is_one(&self, number: usize) -> bool {
        number >= self.first
    }

    /// The CPU of worker `number`, if it is a helper.
    pub(crate) fn cpu_of(&self, number: usize) -> Option<usize> {
        self.settings.cpus.get(number.checked_sub(self.first)?).copied()
    }

    pub(crate) fn offload(&self) -> OffloadCriteria {
        self.settings.offload
    }

    /// Whether receivers are signalled after each shared frame.
    pub(crate) fn signals_each_frame(&self) -> bool {
        self.settings.signals_each_frame
    }

    /// Notes that the calling thread serves helper `number`.
    pub(crate) fn sit(&self, number: usize) {
        let seat = number.checked_sub(self.first).and_then(|seat| self.threads.get(seat));
        let thread = rustix::thread::Pid::as_raw(Some(rustix::thread::gettid())).cast_unsigned();
        seat.into_iter().for_each(|seat| seat.store(thread, Ordering::Relaxed));
    }

    /// The helper for large frames to a receiver, by the view: one whose CPU is idle, as near to the receiver as possible,
    /// and not on its own CPU. `own_cpu` stands for the receiver's CPU if that is not known. `turn` spreads ports.
    pub(crate) fn choose(
        &self,
        view: &dyn SchedulerView,
        receiver: ReceiverPlace,
        own_cpu: u16,
        turn: u32,
    ) -> Option<usize> {
        let places = view.places();
        let seat_at = |cpu: usize| self.settings.cpus.iter().position(|at| *at == cpu);
        let is_idle = |cpu: usize| {
            let state = u16::try_from(cpu).ok().and_then(|cpu| view.cpu(cpu));
            let is_receiver_s = receiver.own.is_some_and(|own| usize::from(own) == cpu);
            state.is_some_and(|state| self.is_idle(&state)) && cpu != usize::from(own_cpu) && !is_receiver_s
        };
        let near = usize::from(receiver.near.unwrap_or(own_cpu));
        let turn = spread(receiver.port.0, turn);
        let cpu = place(places, |cpu| seat_at(cpu).is_some(), is_idle, near, turn, self.settings.place)?;
        seat_at(cpu).map(|seat| self.first + seat)
    }

    /// Whether no thread but a helper has the CPU or waits for it.
    pub(crate) fn is_idle(&self, state: &CpuState) -> bool {
        let is_free = match state.occupant {
            Occupant::Idle { .. } => true,
            Occupant::Thread(number) => {
                self.threads.iter().any(|seat| seat.load(Ordering::Relaxed) == number)
            }
        };
        is_free && state.waiting == 0
    }
}

/// Where a receiver of large frames is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiverPlace {
    pub(crate) port: PortId,
    /// The CPU near which a helper is sought, if one is known.
    pub(crate) near: Option<u16>,
    /// The CPU of its thread, which no helper takes.
    pub(crate) own: Option<u16>,
}

impl ReceiverPlace {
    /// Whether the receiver's CPU is known, and shares no last-level cache with `own_cpu`, which copies.
    pub(crate) fn is_far(self, places: &[CpuPlace], own_cpu: u16) -> bool {
        let is_known = |cpu: u16| usize::from(cpu) < places.len();
        self.near.is_some_and(|near| {
            is_known(near)
                && is_known(own_cpu)
                && distance(places, usize::from(own_cpu), usize::from(near)) > CpuDistance::Llc
        })
    }
}

/// How often a worker had large frames.
#[derive(Debug, Default)]
pub(crate) struct OffloadCounts {
    /// Visits that shared them with a helper.
    pub(crate) shared: AtomicU64,
    /// Visits for which no helper's CPU was idle.
    pub(crate) alone: AtomicU64,
    /// Visits for which one was sought near another CPU than that of the guest's first thread.
    pub(crate) moved: AtomicU64,
}

impl OffloadCounts {
    /// Visits that shared, those that did not, and those for which the data movement table decided.
    pub(crate) fn read(&self) -> [u64; 3] {
        [&self.shared, &self.alone, &self.moved].map(|count| count.load(Ordering::Relaxed))
    }
}

/// A helper's state between two orders.
#[derive(Debug, Default)]
pub(crate) struct Helping {
    /// Polls its mailbox; otherwise it sleeps until it is woken.
    is_awake: bool,
    /// Time of the last frame or order.
    helped_ns: u64,
    /// Time of the last look that showed no thread waiting for its CPU, or of the order.
    free_ns: u64,
    /// Frames taken since then.
    frames: u32,
}

impl Helping {
    /// Notes an order.
    pub(crate) fn begin(&mut self, now: u64) {
        (self.is_awake, self.helped_ns) = (true, now);
        (self.free_ns, self.frames) = (now, 0);
    }

    /// Notes a look at `now` that showed no thread waiting for its CPU.
    pub(crate) fn stay(&mut self, now: u64) {
        (self.free_ns, self.frames) = (now, 0);
    }

    /// Counts a frame that it took.
    pub(crate) fn count_frame(&mut self) {
        self.frames += 1;
    }

    /// Sleeps from `now` on, after a look at `seen_ns` that showed a waiting thread.
    pub(crate) fn leave(&mut self, seen_ns: u64, now: u64) -> CpuReturn {
        self.is_awake = false;
        CpuReturn {
            frames: self.frames,
            unseen_ns: seen_ns.saturating_sub(self.free_ns),
            leaving_ns: now.saturating_sub(seen_ns),
        }
    }

    pub(crate) fn is_awake(&self) -> bool {
        self.is_awake
    }

    /// Sleeps unless there was an order within the last `look_ns`.
    pub(crate) fn rest(&mut self, now: u64, look_ns: u64) {
        self.is_awake &= now.saturating_sub(self.helped_ns) < look_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_is_far_if_it_is_known_to_be() {
        let places: Vec<CpuPlace> =
            (0..4).map(|cpu| CpuPlace { group: cpu, llc: cpu / 2, node: 0 }).collect();
        let at = |near| ReceiverPlace { port: PortId(1), near, own: None };
        let is_far = [None, Some(0), Some(1), Some(2), Some(9)].map(|near| at(near).is_far(&places, 0));
        assert_eq!(is_far, [false, false, false, true, false]);
        assert!(!at(Some(2)).is_far(&places, 9) && !at(Some(2)).is_far(&[], 0), "nothing is known of it");
    }
}
