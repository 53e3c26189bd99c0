//! The CPU time that the switch and its neighbours take.

use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::param::clock_ticks_per_second;
use rustix::thread::Pid;
use rustix::time::{ClockId, clock_gettime};

use lasthop_rig::ProcessStat;
use lasthop_rig::victims::Victims;

/// Shares of a CPU.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CpuShares {
    /// Share of all processes of the switch.
    pub(super) switch: f64,
    /// Share of attackers or neighbours: all threads of this process except that of the victims.
    pub(super) others: f64,
}

/// Measures CPU time since its start.
pub(super) struct CpuMeter {
    switch: Vec<u32>,
    victims: Pid,
    /// The start time, and the CPU times then.
    before: OnceLock<(Instant, [Duration; 3])>,
}

impl CpuMeter {
    /// Called by the thread of the victims.
    pub(super) fn new(victims: &Victims) -> Self {
        let mut switch = victims.switch.children();
        switch.push(victims.switch.pid());
        Self { switch, victims: rustix::thread::gettid(), before: OnceLock::new() }
    }

    pub(super) fn begin(&self) {
        let _ = self.before.set((Instant::now(), self.times()));
    }

    /// None before it has begun.
    pub(super) fn shares(&self) -> CpuShares {
        let Some((start, before)) = self.before.get() else { return CpuShares::default() };
        let (wall, times) = (start.elapsed().as_secs_f64(), self.times());
        let share = |number: usize| (times[number].saturating_sub(before[number])).as_secs_f64() / wall;
        CpuShares { switch: share(0), others: (share(1) - share(2)).max(0.0) }
    }

    /// CPU time of the switch, of this process, and of the victims.
    fn times(&self) -> [Duration; 3] {
        let process = Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default();
        let victims = cpu_time(Path::new(&format!("/proc/self/task/{}", self.victims)));
        [self.switch_time(), process, victims]
    }

    fn switch_time(&self) -> Duration {
        self.switch.iter().map(|pid| cpu_time(Path::new(&format!("/proc/{pid}")))).sum()
    }
}

/// From a process's directory in /proc, in ticks of mostly 10 ms.
fn cpu_time(directory: &Path) -> Duration {
    let ticks = ProcessStat::read(directory).map_or(0, |stat| stat.cpu_ticks);
    Duration::from_millis(1000 * ticks / clock_ticks_per_second())
}
