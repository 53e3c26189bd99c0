use serde::Serialize;

use crate::DriverChoice;
use crate::workload::{Metric, TrafficKind, Workload};

/// The distance of the switch's core and the generator's. On shared virtual machines this changes from minute to minute
/// and affects every figure, so only samples of one placement are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// A cache line moves within [`Self::NEAR_NS_MAX`].
    Near,
    /// It takes longer.
    Far,
}

impl Placement {
    /// The longest time in ns to move a cache line between cores that count as near: cores that share a last-level
    /// cache are 30 to 70 ns apart, others 200 to 400.
    pub const NEAR_NS_MAX: f64 = 110.0;

    /// The placement that a distance belongs to.
    #[must_use]
    pub fn of(core_to_core_ns: f64) -> Self {
        if core_to_core_ns <= Self::NEAR_NS_MAX { Self::Near } else { Self::Far }
    }
}

/// Memory of a back end's processes, in kB as /proc/PID/status has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryUse {
    /// Anonymous memory.
    pub rss_anon_kb: u64,
    /// Programs and libraries.
    pub rss_file_kb: u64,
    /// Shared memory: guest memory that was mapped and touched.
    pub rss_shmem_kb: u64,
    /// Page tables.
    pub vm_pte_kb: u64,
    /// Huge pages, private and shared (HugetlbPages).
    pub huge_kb: u64,
}

/// The times of round trips, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RoundTrip {
    /// Number of round trips.
    pub count: u64,
    /// The median.
    pub p50_ns: u64,
    /// The 90th percentile.
    pub p90_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The 99.9th percentile.
    pub p999_ns: u64,
    /// The maximum.
    pub max_ns: u64,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// The back end.
    pub backend: String,
    /// The workload.
    pub workload: Workload,
    /// Number of the round, from 0. Back ends take turns in each round.
    pub round: u32,
    /// The time in ns to move a cache line from core to core, one way: the worse of the probes before and after.
    pub core_to_core_ns: f64,
    /// Its placement.
    pub placement: Placement,
    /// The CPU of the back end's data path.
    pub switch_cpu: usize,
    /// CPUs of the threads that send and receive, as in `0`; `0+0` means two processes that share one.
    pub guest_cpus: String,
    /// The features that the driver of stock guests agreed on with the back end.
    pub driver: Option<DriverChoice>,
    /// The time of a bare wake-up at that time in ns ([`crate::Cores::wake_up_ns`]); for workloads with long pauses.
    pub wake_up_ns: Option<f64>,
    /// The duration.
    pub seconds: f64,
    /// CPU time of the guests' thread: equal to the duration, unless other work took its CPU or guests slept.
    pub generator_cpu_seconds: f64,
    /// Frames that guests sent.
    pub sent_frames: u64,
    /// Frames of other guests that guests received.
    pub received_frames: u64,
    /// CPU time of all the back end's threads; `None` for a back end whose process is unknown.
    pub cpu_seconds: Option<f64>,
    /// Total time for which its threads were runnable without a CPU.
    pub cpu_wait_seconds: Option<f64>,
    /// How often its threads gave up the CPU voluntarily.
    pub sleeps: Option<u64>,
    /// Its memory at the end of the measurement.
    pub memory: Option<MemoryUse>,
    /// Set for round trips.
    pub round_trip: Option<RoundTrip>,
}

impl Sample {
    /// Frames received in a second.
    #[must_use]
    pub fn pps(&self) -> f64 {
        self.received_frames as f64 / self.seconds
    }

    /// Share of its CPU that the guests' thread got, 0 to 1.
    #[must_use]
    pub fn generator_share(&self) -> f64 {
        self.generator_cpu_seconds / self.seconds
    }

    /// Share of the time that other work took from the guests or the back end, 0 to 1.
    #[must_use]
    pub fn disturbed_share(&self) -> f64 {
        let of_backend = self.cpu_wait_seconds.unwrap_or_default() / self.seconds;
        (1.0 - self.generator_share()).max(of_backend)
    }

    /// CPU of the back end in percent of a core.
    #[must_use]
    pub fn cpu_percent(&self) -> Option<f64> {
        self.cpu_seconds.map(|cpu| 100.0 * cpu / self.seconds)
    }

    /// Percent of the sent frames that did not arrive; 0 if none was sent.
    #[must_use]
    pub fn loss_percent(&self) -> f64 {
        let lost = self.sent_frames.saturating_sub(self.received_frames);
        if lost == 0 { 0.0 } else { 100.0 * lost as f64 / self.sent_frames as f64 }
    }

    /// The value of the workload's [`Metric`]; `None` if it could not be measured.
    #[must_use]
    pub fn value(&self) -> Option<f64> {
        match self.workload.metric() {
            Metric::Mpps => Some(self.pps() / 1e6),
            Metric::Gbps => Some(self.pps() * f64::from(self.workload.frame_bytes) * 8.0 / 1e9),
            // Two frames circulate, and each is received twice in a round.
            Metric::Micros if matches!(self.workload.kind, TrafficKind::Stock(_)) => {
                (self.received_frames > 0).then(|| 4e6 / self.pps())
            }
            Metric::Micros => self.round_trip.map(|trip| trip.p50_ns as f64 / 1e3),
            Metric::CpuPercent => self.cpu_percent(),
        }
    }
}
