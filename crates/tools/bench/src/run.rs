//! Runs back ends in turns: the plan of a whole run.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lasthop_frontend::GuestOptions;
use lasthop_vhost::features;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::backend::{Backend, Setup};
use crate::guests::Guests;
use crate::process::Usage;
use crate::stock::{StockGuests, StockSetup, StockShape};
use crate::work::{Done, FIRST_FRAME_SECONDS_MAX, GuestGroup};
use crate::{BackendSpec, BenchError, Cores, Placement, Sample, TrafficKind, Workload};
use lasthop_calibrate::pin;

/// The largest frames of Ethernet links with default settings.
const PLAIN_FRAME_BYTES_MAX: u32 = 1_518;
/// Traffic before each measurement; workloads that are shorter have less.
const WARM_UP: Duration = Duration::from_millis(200);

/// How long frames may be in flight after the last traffic, on a busy machine.
const AGREES_WITHIN: Duration = Duration::from_secs(20);
/// The number of attempts, of which the least disturbed one counts, if other work takes the guests' or the back end's
/// CPU.
const ATTEMPTS: u32 = 3;
/// The largest share of time lost to other work in a measurement that counts as undisturbed.
const DISTURBED_SHARE_MAX: f64 = 0.03;

/// The back ends and workloads to measure.
#[derive(Clone, Debug)]
pub struct BenchPlan {
    /// The back ends.
    pub backends: Vec<BackendSpec>,
    /// The workloads.
    pub workloads: Vec<Workload>,
    /// Rounds of each measurement.
    pub rounds: u32,
    /// The duration of each measurement; longer where that is too short for a result.
    pub duration: Duration,
    /// The cores to use.
    pub cores: Cores,
    /// Whether peers may use huge pages.
    pub huge_pages: bool,
    /// The program `lasthop`.
    pub program: PathBuf,
    /// Set to end the run early: started processes are ended in order.
    pub stop: Arc<AtomicBool>,
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Measurements, in the order in which they were made.
    pub samples: Vec<Sample>,
    /// How back ends are configured, by name.
    pub settings: Vec<(String, String)>,
    /// The measurements that failed, and why.
    pub failures: Vec<Failure>,
}

/// A back end that failed at a workload.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The back end.
    pub backend: String,
    /// `None`: all workloads with the same guests.
    pub workload: Option<Workload>,
    /// The reason.
    pub why: String,
    /// Whether it is not installed or cannot run here.
    pub missing: bool,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.workload {
            Some(workload) => write!(f, "{}, {workload}: {}", self.backend, self.why),
            None => write!(f, "{}: {}", self.backend, self.why),
        }
    }
}

/// The progress of a run.
#[derive(Debug)]
pub enum Progress<'a> {
    /// Back ends are started for some of the workloads.
    Starting(&'a str),
    /// A measurement was made; the number is that of all that are planned.
    Sample(&'a Sample, usize),
    /// A measurement failed.
    Failure(&'a Failure),
}

/// Workloads that can share guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    guests: u16,
    ring_entries: u16,
    frame_bytes_max: u32,
    /// Whether guests take TCP segments that are still to be cut.
    tso: bool,
    /// For guests of other programs.
    stock: Option<StockShape>,
}

impl Shape {
    fn of(workload: &Workload) -> Self {
        let frame_bytes_max = match workload.frame_bytes {
            ..=PLAIN_FRAME_BYTES_MAX => PLAIN_FRAME_BYTES_MAX,
            _ if workload.uncut() => crate::workload::FRAME_BYTES_MAX,
            _ => crate::workload::UNCUT_FRAME_BYTES_MAX,
        };
        let stock = StockShape::of(workload);
        let (guests, tso) = (workload.guests(), workload.tso);
        Self { guests, ring_entries: workload.ring_entries, frame_bytes_max, tso, stock }
    }

    /// Options of guests like Linux ones on a fast path: buffers that hold a whole frame, and offloads where frames
    /// need them.
    fn guest_options(&self) -> GuestOptions {
        let uncut = self.frame_bytes_max == crate::workload::FRAME_BYTES_MAX;
        let taken = if self.tso { features::GUEST_CSUM | features::GUEST_TSO4 } else { 0 };
        let offloads = features::CSUM | features::HOST_TSO4 | taken;
        let basic = features::VERSION_1 | features::MRG_RXBUF | features::EVENT_IDX;
        let slot_bytes = if uncut { 17 * 4096 } else { (self.frame_bytes_max + 12).next_multiple_of(2048) };
        GuestOptions {
            features: basic | if uncut { offloads } else { 0 },
            ring_entries: self.ring_entries,
            tx_slot_bytes: slot_bytes,
            rx_buffer_bytes: if self.tso { slot_bytes } else { PLAIN_FRAME_BYTES_MAX.next_multiple_of(2048) },
            ..GuestOptions::default()
        }
    }
}

/// Executes the plan. The failure of one back end does not affect the others.
///
/// # Errors
/// Only failures of the whole run: no cores, no directory for sockets, [`BenchError::Interrupted`].
pub fn run(plan: &BenchPlan, tell: &mut dyn FnMut(Progress<'_>)) -> Result<Outcome, BenchError> {
    let mut shapes: Vec<Shape> = Vec::new();
    for shape in plan.workloads.iter().map(Shape::of) {
        if !shapes.contains(&shape) {
            shapes.push(shape);
        }
    }
    let mut run = Run { plan, tell, outcome: Outcome::default() };
    for shape in shapes {
        run.shape(shape)?;
    }
    Ok(run.outcome)
}

struct Run<'a> {
    plan: &'a BenchPlan,
    tell: &'a mut dyn FnMut(Progress<'_>),
    outcome: Outcome,
}

/// A back end with its guests, and the workloads at which it failed.
struct Competitor {
    backend: Backend,
    guests: Guests,
    out_of: Vec<Workload>,
}

impl Competitor {
    /// Ends the back end, and fails if a frame is not accounted for: by the back end itself, or between it and guests
    /// that count all their frames.
    fn end(mut self) -> Result<(), BenchError> {
        self.backend.thaw();
        let agreed = self.agree();
        drop(self.guests);
        self.backend.end().and(agreed)
    }

    /// Checks that the counters of the back end and of its guests agree, if both count. Frames in flight get time to
    /// arrive.
    fn agree(&mut self) -> Result<(), BenchError> {
        let start = Instant::now();
        loop {
            let (Some(guests), Some(backend)) = (self.guests.drain()?, self.backend.counted()?) else {
                return Ok(());
            };
            if guests == backend {
                return Ok(());
            }
            if start.elapsed() > AGREES_WITHIN {
                let why = format!(
                    "its guests sent {} frames and received {}, but it counted {} and {}",
                    guests.sent, guests.received, backend.sent, backend.received
                );
                return Err(BenchError::Backend { name: self.backend.name.clone(), why });
            }
        }
    }
}

impl Run<'_> {
    fn shape(&mut self, shape: Shape) -> Result<(), BenchError> {
        let workloads: Vec<Workload> =
            self.plan.workloads.iter().filter(|workload| Shape::of(workload) == shape).copied().collect();
        let directory = tempfile::Builder::new().prefix("lasthop-bench-").tempdir()?;
        let mut competitors = Vec::new();
        for (number, spec) in self.plan.backends.iter().enumerate() {
            self.check_wanted()?;
            (self.tell)(Progress::Starting(&spec.to_string()));
            let dir = directory.path().join(number.to_string());
            std::fs::create_dir(&dir)?;
            match self.competitor(spec, shape, &workloads, dir) {
                Ok(competitor) => competitors.push(competitor),
                Err(error) => self.failed(&spec.to_string(), None, &error),
            }
        }
        let result = workloads.iter().try_for_each(|workload| {
            (0..self.plan.rounds).try_for_each(|round| self.round(&mut competitors, workload, round))
        });
        for competitor in competitors {
            let name = competitor.backend.name.clone();
            competitor.end().unwrap_or_else(|error| self.failed(&name, None, &error));
        }
        result
    }

    fn check_wanted(&self) -> Result<(), BenchError> {
        if self.plan.stop.load(Ordering::Relaxed) { Err(BenchError::Interrupted) } else { Ok(()) }
    }

    fn competitor(
        &mut self,
        spec: &BackendSpec,
        shape: Shape,
        workloads: &[Workload],
        dir: PathBuf,
    ) -> Result<Competitor, BenchError> {
        let setup = Setup {
            ports: shape.guests,
            frame_bytes: workloads.iter().map(|workload| workload.frame_bytes).max().unwrap_or_default(),
            macs: workloads.iter().map(|workload| workload.macs).max().unwrap_or_default(),
            cores: self.plan.cores,
            huge_pages: self.plan.huge_pages,
            program: self.plan.program.clone(),
            stop: Arc::clone(&self.plan.stop),
            dir,
        };
        let is_for_many = |workload: &Workload| {
            matches!(workload.kind, TrafficKind::FanIn { .. } | TrafficKind::AllToAll { .. })
        };
        if spec.is_for_pairs() && workloads.iter().any(is_for_many) {
            let why = "joins ports in pairs, cannot switch between more".to_owned();
            return Err(BenchError::Missing { name: spec.to_string(), why });
        }
        if let Some(why) = shape.stock.and_then(|_| StockGuests::missing_program()) {
            return Err(BenchError::Missing { name: spec.to_string(), why });
        }
        let backend = Backend::start(spec, &setup)?;
        for setting in &backend.settings {
            self.note_setting(&backend.name, setting.clone());
        }
        backend.thaw();
        let guests = self.attach(&backend, shape, &setup.dir)?;
        backend.freeze();
        if let Some(choice) = guests.choice() {
            let (cpus, rings) = (guests.cpus(self.plan.cores.generator), shape.ring_entries);
            let setting = format!("testpmd as a guest on CPU {cpus}, rings of {rings}: {choice}");
            self.note_setting(&backend.name, setting);
        }
        Ok(Competitor { backend, guests, out_of: Vec::new() })
    }

    fn note_setting(&mut self, backend: &str, setting: String) {
        let line = (backend.to_owned(), setting);
        if !self.outcome.settings.contains(&line) {
            self.outcome.settings.push(line);
        }
    }

    /// Connects guests of a shape to a running back end.
    fn attach(&self, backend: &Backend, shape: Shape, dir: &Path) -> Result<Guests, BenchError> {
        let Some(stock) = shape.stock else {
            return Ok(Guests::Rings(GuestGroup::new(backend.guests(&shape.guest_options())?)));
        };
        let directory = dir.join("guests");
        std::fs::create_dir(&directory)?;
        let setup = StockSetup {
            sockets: backend.sockets()?,
            cores: self.plan.cores,
            directory: &directory,
            stop: &self.plan.stop,
        };
        StockGuests::start(stock, &setup).map(Guests::Stock)
    }

    /// Measures each back end once.
    fn round(
        &mut self,
        competitors: &mut [Competitor],
        workload: &Workload,
        round: u32,
    ) -> Result<(), BenchError> {
        // Each round begins with another one, so that slow changes affect all equally.
        let first = round as usize % competitors.len().max(1);
        competitors.rotate_left(first);
        let result = self.turns(competitors, workload, round);
        competitors.rotate_right(first);
        result
    }

    fn turns(
        &mut self,
        competitors: &mut [Competitor],
        workload: &Workload,
        round: u32,
    ) -> Result<(), BenchError> {
        for competitor in competitors.iter_mut().filter(|competitor| !competitor.out_of.contains(workload)) {
            self.check_wanted()?;
            match self.measure_undisturbed(competitor, workload, round) {
                Ok(sample) => {
                    let total =
                        self.plan.workloads.len() * self.plan.backends.len() * self.plan.rounds as usize;
                    (self.tell)(Progress::Sample(&sample, total));
                    self.outcome.samples.push(sample);
                }
                Err(error) => {
                    // Guests that continue by themselves would take the CPU of the others' guests.
                    let _ = competitor.guests.finish();
                    competitor.backend.freeze();
                    competitor.out_of.push(*workload);
                    self.failed(&competitor.backend.name, Some(*workload), &error);
                }
            }
        }
        Ok(())
    }

    /// Repeats a measurement a few times if the machine was busy with other work.
    fn measure_undisturbed(
        &self,
        competitor: &mut Competitor,
        workload: &Workload,
        round: u32,
    ) -> Result<Sample, BenchError> {
        let mut best = self.measure(competitor, workload, round)?;
        for _ in 1..ATTEMPTS {
            if !workload.guests_poll() || best.disturbed_share() < DISTURBED_SHARE_MAX {
                break;
            }
            let next = self.measure(competitor, workload, round)?;
            if next.disturbed_share() < best.disturbed_share() {
                best = next;
            }
        }
        Ok(best)
    }

    fn measure(
        &self,
        competitor: &mut Competitor,
        workload: &Workload,
        round: u32,
    ) -> Result<Sample, BenchError> {
        let before = self.plan.cores.distance_ns()?;
        let Competitor { backend, guests, .. } = competitor;
        backend.thaw();
        let pinned = Pinned::to(self.plan.cores.generator)?;
        let (done, usage) = self.exercise(guests, backend, workload)?;
        guests.finish()?;
        drop(pinned);
        let memory = backend.memory();
        backend.freeze();
        let core_to_core_ns = self.plan.cores.distance_ns()?.max(before);
        let wake_up_ns = workload.lets_sleep().then(|| self.plan.cores.wake_up_ns()).transpose()?;
        Ok(Sample {
            backend: backend.name.clone(),
            workload: *workload,
            round,
            core_to_core_ns,
            placement: Placement::of(core_to_core_ns),
            switch_cpu: self.plan.cores.switch,
            guest_cpus: guests.cpus(self.plan.cores.generator),
            driver: guests.choice().cloned(),
            wake_up_ns,
            seconds: done.seconds,
            generator_cpu_seconds: done.cpu_seconds,
            sent_frames: done.tally.sent,
            received_frames: done.tally.received,
            cpu_seconds: usage.map(|usage| usage.cpu_seconds),
            cpu_wait_seconds: usage.map(|usage| usage.waited_seconds),
            sleeps: usage.map(|usage| usage.sleeps),
            memory,
            round_trip: done.round_trip,
        })
    }

    /// Runs the workload and measures the back end's CPU time for it.
    fn exercise(
        &self,
        guests: &mut Guests,
        backend: &Backend,
        workload: &Workload,
    ) -> Result<(Done, Option<Usage>), BenchError> {
        let name = backend.name.as_str();
        if !guests.meet(name, workload, &self.plan.stop)? {
            self.check_wanted()?;
            let (backend, workload) = (backend.name.clone(), workload.to_string());
            return Err(BenchError::NothingPassed { backend, workload, seconds: FIRST_FRAME_SECONDS_MAX });
        }
        guests.begin(name, workload)?;
        std::thread::sleep(workload.calm());
        guests.work(name, workload, WARM_UP.min(self.plan.duration))?;
        let duration = self.plan.duration.max(workload.least_duration());
        let (before, start) = (backend.usage(), Instant::now());
        let done = guests.work(name, workload, duration)?;
        let after = backend.usage();
        // Reading the counters takes time, in which the back end continues.
        let part = done.seconds / start.elapsed().as_secs_f64();
        let usage = before.zip(after).map(|(before, after)| Usage {
            cpu_seconds: part * (after.cpu_seconds - before.cpu_seconds),
            waited_seconds: part * (after.waited_seconds - before.waited_seconds).max(0.0),
            sleeps: after.sleeps.saturating_sub(before.sleeps),
        });
        Ok((done, usage))
    }

    fn failed(&mut self, backend: &str, workload: Option<Workload>, error: &BenchError) {
        let (missing, why) = match error {
            BenchError::Missing { why, .. } => (true, why.clone()),
            other => (false, other.to_string()),
        };
        let failure = Failure { backend: backend.to_owned(), workload, why, missing };
        (self.tell)(Progress::Failure(&failure));
        self.outcome.failures.push(failure);
    }
}

/// Pins the calling thread to a CPU until it is dropped.
struct Pinned(CpuSet);

impl Pinned {
    fn to(cpu: usize) -> Result<Self, BenchError> {
        let before = sched_getaffinity(None)?;
        pin(cpu)?;
        Ok(Self(before))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // This mask was valid before.
        let _ = sched_setaffinity(None, &self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_with_the_same_guests_share_them() {
        let shape = |text: &str| Shape::of(&text.parse().expect(text));
        assert_eq!(shape("size=64"), shape("size=1500,touched,flows=1000"));
        assert_ne!(shape("size=64"), shape("size=64,ring=1024"));
        assert_ne!(shape("size=64"), shape("size=9000"));
        assert_ne!(shape("size=9000"), shape("size=65549"));
        assert_eq!(shape("testpmd=flowgen,size=64"), shape("testpmd=5tswap,size=1500"));
        assert_ne!(shape("testpmd=flowgen,size=64"), shape("stream,size=64"));
        assert_ne!(shape("testpmd=flowgen"), shape("testpmd=flowgen,mrg=off"));
        assert_ne!(shape("testpmd=flowgen"), shape("testpmd=txonly"));
        for text in ["size=64", "size=9000", "size=65549"] {
            let (shape, options) = (shape(text), shape(text).guest_options());
            assert!(options.rx_buffer_bytes >= shape.frame_bytes_max + 12, "{text}");
        }
    }
}
