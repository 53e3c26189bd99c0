//! The state of the host's scheduler, as values, and the threads of a guest in it, seen from one CPU.

/// The numbers of threads of one guest in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuestView {
    /// Threads that run on another CPU.
    pub running: u16,
    /// Threads that wait for another CPU.
    pub waiting_elsewhere: u16,
    /// Threads that wait for this CPU.
    pub waiting_here: u16,
    /// Threads that sleep.
    pub blocked: u16,
    /// Threads that the view does not show.
    pub unknown: u16,
    /// The time since the last of the sleeping threads went to sleep, in ns; 0 if none sleeps.
    pub blocked_for_ns: u64,
    /// A thread that runs may halt-poll (KVM): its vCPU sleeps, and its thread waits for an interrupt for some time before
    /// it does. No event marks the start of that, so such a guest is never known to work.
    pub may_halt_poll: bool,
}

impl GuestView {
    /// Counts threads with these states (`None`: not in the view) as seen from a thread on CPU `own_cpu`.
    #[must_use]
    pub fn new(own_cpu: u16, threads: impl IntoIterator<Item = Option<ThreadState>>) -> Self {
        let mut guest = Self::default();
        for thread in threads {
            guest.add(own_cpu, thread);
        }
        guest
    }

    fn add(&mut self, own_cpu: u16, thread: Option<ThreadState>) {
        let Some(thread) = thread else {
            self.unknown = self.unknown.saturating_add(1);
            return;
        };
        let count = match thread.activity {
            Activity::Blocked => {
                let is_first = self.blocked == 0;
                self.blocked_for_ns =
                    if is_first { thread.for_ns } else { self.blocked_for_ns.min(thread.for_ns) };
                &mut self.blocked
            }
            // The calling thread has this CPU, so the state is outdated.
            _ if thread.cpu == own_cpu => &mut self.waiting_here,
            Activity::Running => &mut self.running,
            Activity::Runnable => &mut self.waiting_elsewhere,
        };
        *count = count.saturating_add(1);
    }

    /// Whether the view shows all threads, and there is at least one.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.unknown == 0 && self.running + self.waiting_elsewhere + self.waiting_here + self.blocked > 0
    }

    /// Whether all threads run, and none of them may halt-poll.
    #[must_use]
    pub fn is_working(&self) -> bool {
        self.is_known()
            && !self.may_halt_poll
            && self.blocked + self.waiting_elsewhere + self.waiting_here == 0
    }

    /// Whether all threads sleep.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.is_known() && self.running + self.waiting_elsewhere + self.waiting_here == 0
    }
}

/// The activity of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// It has a CPU.
    Running,
    /// It waits for a CPU.
    Runnable,
    /// It sleeps.
    Blocked,
}

/// A thread at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadState {
    /// Its activity.
    pub activity: Activity,
    /// The CPU that it has, waits for, or had last.
    pub cpu: u16,
    /// For how long it has been in this state, in ns.
    pub for_ns: u64,
}

/// The occupant of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occupant {
    /// No thread.
    Idle {
        /// For how long, in ns.
        for_ns: u64,
    },
    /// The thread of this number, in the PID namespace of the host.
    Thread(u32),
}

/// A CPU at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuState {
    /// Its occupant.
    pub occupant: Occupant,
    /// Number of threads that wait for it. An estimate, which may be wrong until the CPU is idle next.
    pub waiting: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(activity: Activity, cpu: u16, for_ns: u64) -> Option<ThreadState> {
        Some(ThreadState { activity, cpu, for_ns })
    }

    #[test]
    fn threads_are_counted_by_what_they_do_and_where() {
        let guest = GuestView::new(
            1,
            [
                thread(Activity::Running, 0, 5),
                thread(Activity::Running, 1, 5),
                thread(Activity::Runnable, 1, 5),
                thread(Activity::Runnable, 0, 5),
                thread(Activity::Blocked, 1, 700),
                thread(Activity::Blocked, 0, 300),
            ],
        );
        let expected = GuestView {
            running: 1,
            waiting_elsewhere: 1,
            waiting_here: 2,
            blocked: 2,
            unknown: 0,
            blocked_for_ns: 300,
            may_halt_poll: false,
        };
        assert_eq!(guest, expected);
        assert!(guest.is_known() && !guest.is_blocked());
    }

    #[test]
    fn a_guest_with_a_thread_that_is_not_seen_is_not_known() {
        let guest = GuestView::new(0, [thread(Activity::Blocked, 0, 1), None]);
        assert!(!guest.is_known() && !guest.is_blocked());
        assert!(!GuestView::new(0, []).is_known(), "nor one without threads");
        assert!(GuestView::new(0, [thread(Activity::Blocked, 0, 1)]).is_blocked());
    }

    #[test]
    fn a_guest_works_if_all_its_threads_run_and_none_may_halt_poll() {
        let of = |threads: &[(Activity, u16)]| {
            GuestView::new(0, threads.iter().map(|(activity, cpu)| thread(*activity, *cpu, 1)))
        };
        let works = of(&[(Activity::Running, 1), (Activity::Running, 2)]);
        assert!(works.is_working() && !GuestView { may_halt_poll: true, ..works }.is_working());
        for other in [(Activity::Blocked, 1), (Activity::Runnable, 1), (Activity::Running, 0)] {
            assert!(!of(&[(Activity::Running, 1), other]).is_working(), "{other:?}");
        }
        assert!(!GuestView { unknown: 1, ..works }.is_working() && !of(&[]).is_working());
    }
}
