//! The data movement table: where the packets of a receive queue will be read (Liao and Bhuyan, 4.4).
//!
//! ```text
//!                     the vCPU runs, or waits for a CPU       the vCPU sleeps
//!   a delivery        destination: its CPU                    destination: the CPU that wrote; last touch: switch
//!   a look            destination: its CPU;                   no change, unless it has run since the delivery
//!                     last touch: scheduler
//! ```
//!
//! The paper has a row for each virtual machine in hardware, and a network card that writes into the cache of the
//! destination. Here the switch writes, so the copy is in the cache of the CPU that it runs on. The row tells who copies
//! best, and on which CPUs a sleeping vCPU would find its packets ([`wake_hint`]).
//!
//! **Which vCPU.** vhost-user does not tell which vCPU reads a receive queue. [`VcpuRule`] assumes it.

use crate::guest::{Activity, ThreadState};
use crate::place::CpuPlace;

/// The owner of a row: the last one that changed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastTouch {
    /// The switch wrote packets for a vCPU that slept. The paper's "NIC".
    Switch,
    /// The host's scheduler gave the vCPU a CPU, or let it wait for one. The paper's "VMM".
    Scheduler,
}

/// A row of the table: one receive queue. Without the state of its vCPU all fields are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueRow {
    /// The activity of the queue's vCPU.
    pub activity: Option<Activity>,
    /// The owner of the row.
    pub last_touch: Option<LastTouch>,
    /// The destination: the CPU near which the packets should be.
    pub cpu: Option<u16>,
}

/// The vCPU of a row ran after the switch had written packets for it while it slept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Landing {
    /// The CPU that wrote.
    pub wrote: u16,
    /// The CPU on which the vCPU ran, or waited.
    pub ran: u16,
}

impl QueueRow {
    /// Updates the row by the state of the queue's vCPU (`None`: not in the view), `since_ns` after the last delivery.
    /// Returns a landing if the scheduler has taken the row from the switch.
    pub fn observe(&mut self, vcpu: Option<ThreadState>, since_ns: u64) -> Option<Landing> {
        let Some(vcpu) = vcpu else {
            *self = Self::default();
            return None;
        };
        let was_touched = self.last_touch == Some(LastTouch::Switch);
        let has_run = vcpu.activity != Activity::Blocked || vcpu.for_ns < since_ns;
        self.activity = Some(vcpu.activity);
        if was_touched && !has_run {
            return None;
        }
        let wrote = self.cpu.filter(|_| was_touched);
        (self.last_touch, self.cpu) = (Some(LastTouch::Scheduler), Some(vcpu.cpu));
        wrote.map(|wrote| Landing { wrote, ran: vcpu.cpu })
    }

    /// Updates the row by a delivery of CPU `writer`. Otherwise as [`Self::observe`], with the state before the delivery.
    pub fn deliver(&mut self, vcpu: Option<ThreadState>, since_ns: u64, writer: u16) -> Option<Landing> {
        let landing = self.observe(vcpu, since_ns);
        if self.activity == Some(Activity::Blocked) {
            (self.last_touch, self.cpu) = (Some(LastTouch::Switch), Some(writer));
        }
        landing
    }
}

/// The threads of a guest, as a queue's vCPU is chosen among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuestVcpus {
    /// Their number; 0: the guest is not tracked.
    pub count: usize,
    /// The user named them one by one, in the order of the queues.
    pub is_ordered: bool,
}

/// Why a vCPU counts as the reader of a receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VcpuRule {
    /// The user's order: queue i is read by thread i, and from the first one again.
    Ordered,
    /// The guest has one thread.
    Only,
    /// As many vCPUs as open queues: queue i is read by vCPU i, as Linux's virtio-net sets the affinity then.
    SameNumber,
    /// Otherwise the thread that runs, or ran last.
    LastRan,
}

impl VcpuRule {
    /// The rule for a queue of a guest with `queues` open receive queues; `None` for a guest that is not tracked.
    #[must_use]
    pub fn new(vcpus: GuestVcpus, queues: usize) -> Option<Self> {
        match vcpus.count {
            0 => None,
            _ if vcpus.is_ordered => Some(Self::Ordered),
            1 => Some(Self::Only),
            count if count == queues => Some(Self::SameNumber),
            _ => Some(Self::LastRan),
        }
    }

    /// The index of the thread that reads `queue`, of `vcpus`; `last_ran` is asked where the rule needs it. `None` if no
    /// thread is known.
    pub fn vcpu(
        self,
        queue: usize,
        vcpus: GuestVcpus,
        last_ran: impl FnOnce() -> Option<usize>,
    ) -> Option<usize> {
        match self {
            Self::Ordered => queue.checked_rem(vcpus.count),
            Self::Only => Some(0),
            Self::SameNumber if queue < vcpus.count => Some(queue),
            // Queue numbers with gaps.
            Self::SameNumber | Self::LastRan => last_ran(),
        }
        .filter(|vcpu| *vcpu < vcpus.count)
    }
}

/// The index of the first thread that runs, else of the first that waits for a CPU, else of the one that slept last.
/// `None` if the view shows none.
#[must_use]
pub fn last_ran(threads: impl IntoIterator<Item = Option<ThreadState>>) -> Option<usize> {
    let rank = |thread: ThreadState| match thread.activity {
        Activity::Running => (0, 0),
        Activity::Runnable => (1, 0),
        Activity::Blocked => (2, thread.for_ns),
    };
    let ranks = threads.into_iter().enumerate().filter_map(|(index, thread)| Some((rank(thread?), index)));
    ranks.min().map(|(_, index)| index)
}

/// The CPUs on which the vCPU of a row should wake up, if it sleeps and the switch touched the row last: those that share
/// the last-level cache of the CPU that wrote, out of those where it `may_run`. `None` where that is no choice: there is
/// none, or all that it may use.
///
/// The thread must get its former mask back once it has run. Nothing acts on the hint yet: `lasthop sched show --table`
/// shows it.
pub fn wake_hint<'a>(
    row: &QueueRow,
    places: &'a [CpuPlace],
    may_run: impl Fn(usize) -> bool + 'a,
) -> Option<impl Iterator<Item = usize> + 'a> {
    let is_asleep = row.activity == Some(Activity::Blocked);
    let wrote = row.cpu.filter(|_| is_asleep && row.last_touch == Some(LastTouch::Switch))?;
    let llc = places.get(usize::from(wrote))?.llc;
    let is_near = move |cpu: usize| places[cpu].llc == llc;
    let mut usable = (0..places.len()).filter(|cpu| may_run(*cpu));
    let has_far = usable.any(|cpu| !is_near(cpu));
    drop(usable);
    let mut near = (0..places.len()).filter(move |cpu| is_near(*cpu) && may_run(*cpu)).peekable();
    (has_far && near.peek().is_some()).then_some(near)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn vcpu(activity: Activity, cpu: u16, for_ns: u64) -> Option<ThreadState> {
        Some(ThreadState { activity, cpu, for_ns })
    }

    fn row(activity: Activity, last_touch: LastTouch, cpu: u16) -> QueueRow {
        QueueRow { activity: Some(activity), last_touch: Some(last_touch), cpu: Some(cpu) }
    }

    #[test]
    fn packets_go_to_the_cpu_of_a_vcpu_that_runs_or_waits() {
        for activity in [Activity::Running, Activity::Runnable] {
            let mut queue = QueueRow::default();
            assert_eq!(queue.deliver(vcpu(activity, 3, 1), 0, 7), None);
            assert_eq!(queue, row(activity, LastTouch::Scheduler, 3));
        }
    }

    #[test]
    fn a_sleeper_s_packets_are_with_the_cpu_that_wrote_until_the_scheduler_takes_the_row() {
        let mut queue = QueueRow::default();
        queue.observe(vcpu(Activity::Blocked, 3, 500), 100);
        assert_eq!(queue, row(Activity::Blocked, LastTouch::Scheduler, 3));
        queue.deliver(vcpu(Activity::Blocked, 3, 600), 200, 7);
        let touched = row(Activity::Blocked, LastTouch::Switch, 7);
        assert_eq!(queue, touched);
        assert_eq!(
            (queue.observe(vcpu(Activity::Blocked, 3, 700), 100), queue),
            (None, touched),
            "it sleeps on"
        );
        let landing = queue.observe(vcpu(Activity::Running, 4, 50), 200);
        assert_eq!(landing, Some(Landing { wrote: 7, ran: 4 }));
        assert_eq!(queue, row(Activity::Running, LastTouch::Scheduler, 4));
        assert_eq!(queue.observe(vcpu(Activity::Running, 4, 50), 200), None, "it landed once");
    }

    #[test]
    fn a_sleeper_that_ran_since_the_delivery_has_landed() {
        let mut queue = row(Activity::Blocked, LastTouch::Switch, 7);
        let landing = queue.deliver(vcpu(Activity::Blocked, 7, 99), 100, 2);
        assert_eq!(landing, Some(Landing { wrote: 7, ran: 7 }));
        assert_eq!(queue, row(Activity::Blocked, LastTouch::Switch, 2), "and the next packets are written");
    }

    #[test]
    fn queues_have_vcpus_by_number_where_that_is_plain() {
        let vcpu = |queue, count, queues, is_ordered| {
            let vcpus = GuestVcpus { count, is_ordered };
            VcpuRule::new(vcpus, queues).map(|rule| (rule, rule.vcpu(queue, vcpus, || Some(1))))
        };
        assert_eq!(vcpu(0, 0, 1, true), None);
        assert_eq!(vcpu(3, 1, 4, false), Some((VcpuRule::Only, Some(0))));
        assert_eq!(vcpu(3, 4, 4, false), Some((VcpuRule::SameNumber, Some(3))));
        assert_eq!(vcpu(5, 4, 4, false), Some((VcpuRule::SameNumber, Some(1))), "queues 2 to 5 are open");
        assert_eq!(vcpu(0, 4, 1, false), Some((VcpuRule::LastRan, Some(1))));
        assert_eq!(vcpu(0, 4, 1, true), Some((VcpuRule::Ordered, Some(0))));
        assert_eq!(vcpu(5, 4, 8, true), Some((VcpuRule::Ordered, Some(1))));
        let vcpus = GuestVcpus { count: 2, is_ordered: false };
        assert_eq!(VcpuRule::LastRan.vcpu(0, vcpus, || Some(2)), None, "of threads that are gone");
    }

    #[test]
    fn the_thread_that_ran_last_runs_or_waits_or_slept_last() {
        let (blocked, waits, runs) = (Activity::Blocked, Activity::Runnable, Activity::Running);
        let threads = [None, vcpu(blocked, 0, 9), vcpu(blocked, 0, 5), vcpu(waits, 0, 99), vcpu(runs, 0, 99)];
        assert_eq!(
            [1, 2, 3, 4, 5].map(|count| last_ran(threads[..count].iter().copied())),
            [None, Some(1), Some(2), Some(3), Some(4)]
        );
    }

    #[test]
    fn a_hint_stays_within_the_thread_s_own_cpus() {
        let places: Vec<CpuPlace> =
            (0..8).map(|cpu| CpuPlace { group: cpu, llc: cpu / 4, node: 0 }).collect();
        let touched = row(Activity::Blocked, LastTouch::Switch, 5);
        let hint = |row: &QueueRow, places: &[CpuPlace], cpus: &[usize]| {
            wake_hint(row, places, |cpu| cpus.contains(&cpu)).map(Iterator::collect::<Vec<_>>)
        };
        assert_eq!(hint(&touched, &places, &[1, 2, 6, 7]), Some(vec![6, 7]));
        assert_eq!(hint(&touched, &places, &[1, 2]), None, "it may use none of them");
        assert_eq!(hint(&touched, &places, &[5, 6]), None, "it may use no other");
        assert_eq!(hint(&touched, &places[..4], &[1, 2]), None, "a CPU without a place");
        for other in
            [row(Activity::Running, LastTouch::Switch, 5), row(Activity::Blocked, LastTouch::Scheduler, 5)]
        {
            assert_eq!(hint(&other, &places, &[1, 6]), None, "{other:?}");
        }
    }

    fn states() -> impl Strategy<Value = Option<ThreadState>> {
        let activity = prop::sample::select(vec![Activity::Running, Activity::Runnable, Activity::Blocked]);
        prop::option::of((activity, 0..8_u16, 0..1000_u64).prop_map(|(activity, cpu, for_ns)| ThreadState {
            activity,
            cpu,
            for_ns,
        }))
    }

    proptest! {
        /// With any view, the destination is a CPU that the view named or that wrote. A row without a vCPU has none.
        #[test]
        fn a_row_invents_no_cpu(steps in prop::collection::vec((states(), 0..1000_u64, prop::option::of(100..108_u16)), 1..40)) {
            let (mut queue, mut named) = (QueueRow::default(), Vec::new());
            for (state, since_ns, writer) in steps {
                named.extend(state.map(|state| state.cpu).into_iter().chain(writer));
                let landing = match writer {
                    Some(writer) => queue.deliver(state, since_ns, writer),
                    None => queue.observe(state, since_ns),
                };
                prop_assert_eq!(queue.activity, state.map(|state| state.activity));
                prop_assert_eq!(queue.cpu.is_some(), state.is_some());
                prop_assert!(queue.cpu.is_none_or(|cpu| named.contains(&cpu)));
                if let Some(landing) = landing {
                    prop_assert!(named.contains(&landing.ran) && landing.wrote >= 100);
                }
                let is_writer_s = queue.cpu.is_some_and(|cpu| cpu >= 100);
                prop_assert_eq!(is_writer_s, queue.last_touch == Some(LastTouch::Switch));
            }
        }

        /// Any view names a thread that the guest has, or none; any hint is a part of the mask.
        #[test]
        fn choices_are_in_bounds(
            threads in prop::collection::vec(states(), 0..20), queue in 0..64_usize, queues in 0..64_usize,
            is_ordered in any::<bool>(), state in states(), mask in any::<u8>(), llcs in prop::collection::vec(0..3_u16, 0..8),
        ) {
            let vcpus = GuestVcpus { count: threads.len(), is_ordered };
            let rule = VcpuRule::new(vcpus, queues);
            let chosen = rule.and_then(|rule| rule.vcpu(queue, vcpus, || last_ran(threads.iter().copied())));
            prop_assert!(chosen.is_none_or(|index| index < threads.len()));
            let mut row = QueueRow::default();
            row.deliver(state, 0, 2);
            let places: Vec<_> = llcs.iter().map(|llc| CpuPlace { llc: *llc, ..CpuPlace::default() }).collect();
            let may_run = |cpu: usize| mask & 1 << cpu != 0;
            if let Some(mut cpus) = wake_hint(&row, &places, may_run) {
                prop_assert!(cpus.all(|cpu| may_run(cpu) && places[cpu].llc == places[2].llc));
            }
        }
    }
}
