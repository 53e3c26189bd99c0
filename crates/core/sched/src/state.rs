//! The state of the host's scheduler, as values.

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
