//! Which threads share a last-level cache, by affinity; and the distances between CPUs that this depends on.
//!
//! **Purpose.** A worker, a thread of the driver process and a guest's vCPU that pass many batches to each other are brought
//! into one last-level cache ([`lasthop_sched::gather`]; Liao and Bhuyan, 4.2). With the mode `own` only Lasthop's threads
//! move, to the guests; with `guests` also the guests' vCPUs.
//!
//! **Contract.** A thread gets a part of the CPUs that it was allowed before, and all of them back when it works less, when
//! the mode changes, and at the end. A change by somebody else (`taskset`, `virsh vcpupin`) wins: it is its allowed
//! CPUs from then on. Guests' threads outlive a supervisor that is killed, so their CPUs of before are in a file of
//! the run directory, from which the next one restores them.
//!
//! **Not checked.** Names of threads, which their process chooses: only threads of our own processes and of each guest's front
//! end are considered, so a process harms only itself.
//!
//! **Threading.** All of it belongs to the supervisor's thread. A decision reads some lines of /proc for each thread, once a second.
//!
//! ```text
//!   counters of ports ──batches──┐
//!   /proc: threads, CPUs ────────┼──> gather ──> MovedThreads ──sched_setaffinity(2)──> threads
//!   Caches: sysfs, or measured ──┘                    └──> RUNDIR/placement (guests' threads)
//! ```
#![forbid(unsafe_code)]

mod bounds;
mod caches;
mod crowd;
mod files;
mod moved;
mod watched_guest;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use lasthop_api::placement::{
    CachesReport, MeasuredCaches, PlacementBatches, PlacementMode, PlacementReport,
};
use lasthop_runtime::fault::Fault;
use lasthop_sched::{CpuPlace, SLICE_NS, gather};
use log::info;

pub use watched_guest::{AttachedGuest, WatchedGuest};

use bounds::PERIOD;
use caches::Caches;
use crowd::Crowd;
use moved::MovedThreads;

/// A port whose packets decide about places.
#[derive(Clone, Debug)]
pub struct PlacedPort {
    /// Its number.
    pub number: u32,
    /// Its guest; a device port is served by threads of the driver process.
    pub guest: AttachedGuest,
    /// Batches that each worker passed to it or took from it since the counters began.
    pub batches: Vec<u64>,
}

/// Lasthop's processes with threads that move packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct PacketProcesses {
    /// The switch process: its workers.
    pub switch: Option<u32>,
    /// The driver process: its I/O threads.
    pub driver: Option<u32>,
}

/// The places of threads, for the supervisor.
#[derive(Debug)]
pub struct ThreadPlacement {
    mode: PlacementMode,
    threshold: u64,
    caches: Caches,
    crowd: Crowd,
    moved: MovedThreads,
    /// Batches by port and worker at the last decision, and its time.
    last: Option<(Instant, BTreeMap<u32, Vec<u64>>)>,
    next: Option<Instant>,
    decisions: u64,
}

impl ThreadPlacement {
    /// The places of threads for the run directory `dir`. Guests' threads that an earlier supervisor left are given back their CPUs.
    pub fn new(dir: &Path, mode: PlacementMode, threshold: PlacementBatches) -> Self {
        let mut moved = MovedThreads::new(PathBuf::from("/proc"), dir.join("placement"));
        moved.restore_left();
        let mut placement = Self {
            mode: PlacementMode::Off,
            threshold: threshold.0.into(),
            caches: Caches::new(dir.join("caches")),
            crowd: Crowd::new(PathBuf::from("/proc")),
            moved,
            last: None,
            next: None,
            decisions: 0,
        };
        placement.set(mode);
        placement
    }

    /// The mode, if it is not the default.
    pub fn setting(&self) -> Option<PlacementMode> {
        Some(self.mode).filter(|mode| *mode != PlacementMode::Off)
    }

    /// The threshold, if it is not the default.
    pub fn threshold(&self) -> Option<PlacementBatches> {
        let threshold = u32::try_from(self.threshold).ok().map(PlacementBatches);
        threshold.filter(|threshold| *threshold != PlacementBatches::default())
    }

    /// Changes the mode. With `off` all threads get their CPUs back at once, with `own` the guests' do.
    pub fn set(&mut self, mode: PlacementMode) {
        self.mode = mode;
        if mode != PlacementMode::Guests {
            self.moved.restore(|moved| moved.is_guest || mode == PlacementMode::Off);
        }
        self.last = None;
        self.next = (mode != PlacementMode::Off).then(Instant::now);
    }

    /// When the next decision is due.
    pub fn due(&self) -> Option<Instant> {
        self.next
    }

    /// The caches of each CPU, for decisions of the switch process: measured ones, or those of sysfs.
    pub fn cpu_places(&mut self) -> &[CpuPlace] {
        self.caches.places()
    }

    /// Replaces the caches by measured ones, or returns to those of sysfs.
    ///
    /// # Errors
    /// One sentence that names a CPU that this machine does not have, or the file that cannot be written.
    pub fn measure(&mut self, measured: Option<MeasuredCaches>) -> Result<(), Fault> {
        self.caches.measure(measured)
    }

    /// Decides if that is due, by the batches since the last time, and moves threads.
    pub fn tend(
        &mut self,
        processes: PacketProcesses,
        ports: impl FnOnce() -> Vec<PlacedPort>,
        now: Instant,
    ) {
        if self.next.is_none_or(|next| now < next) {
            return;
        }
        self.next = Some(now + PERIOD);
        self.caches.expire();
        if self.caches.is_one() {
            // Nothing to decide, but threads that were moved by earlier caches.
            self.moved.restore(|_| true);
            self.last = None;
            return;
        }
        let ports = ports();
        let counts = ports.iter().map(|port| (port.number, port.batches.clone())).collect();
        let Some((then, before)) = self.last.replace((now, counts)) else { return };
        let slices = now.saturating_duration_since(then).as_nanos().div_ceil(u128::from(SLICE_NS)).max(1);
        let per_slice = |number: u32, worker: usize, count: u64| {
            let earlier = before.get(&number).and_then(|batches| batches.get(worker)).copied();
            // A new switch process counts anew.
            let grown = earlier.map_or(0, |earlier| count.saturating_sub(earlier));
            u64::try_from(u128::from(grown) / slices).unwrap_or(u64::MAX)
        };
        let busy: Vec<(PlacedPort, Vec<u64>)> = ports
            .into_iter()
            .map(|port| {
                let batches = port.batches.iter().enumerate();
                let batches = batches.map(|(worker, count)| per_slice(port.number, worker, *count)).collect();
                (port, batches)
            })
            .filter(|(_, batches): &(_, Vec<u64>)| {
                batches.iter().any(|batches| *batches > self.threshold / 2)
            })
            .collect();
        self.decide(processes, &busy, now);
    }

    fn decide(&mut self, processes: PacketProcesses, busy: &[(PlacedPort, Vec<u64>)], now: Instant) {
        self.decisions += 1;
        self.crowd.look(processes, busy, now);
        let moves_guests = self.mode == PlacementMode::Guests;
        // First, since it forgets what others have changed.
        let allowed: Vec<_> = self.crowd.threads.iter().map(|found| self.moved.allowed(found)).collect();
        let found = self.crowd.threads.iter();
        let mut threads: Vec<_> = found.map(|found| self.moved.gathered(found, moves_guests)).collect();
        let may_run =
            |thread: usize, cpu: usize| allowed[thread].as_ref().is_some_and(|cpus| cpus.0.contains(&cpu));
        gather(self.caches.places(), &mut threads, &self.crowd.flows(), self.threshold, may_run);
        let domains: Vec<Option<u16>> = threads.iter().map(|thread| thread.domain).collect();
        let moved = self.moved.apply(&self.crowd.threads, &allowed, &domains, self.caches.places());
        if moved > 0 {
            info!(limited = true, moved:% = moved; "placement: {moved} threads have another last-level cache; lasthop sched show tells which");
        }
    }

    /// The present places. `name` tells the names of ports.
    pub fn report(&self, name: impl Fn(u32) -> Option<String>) -> PlacementReport {
        let unknown = self.crowd.unknown().filter(|_| self.mode != PlacementMode::Off);
        let unknown = unknown.and_then(|(port, why)| Some(format!("{}: {why}", name(port)?)));
        let one = "all CPUs share one last-level cache; lasthop sched calibrate measures whether they do";
        let why = (self.mode != PlacementMode::Off && self.caches.is_one()).then(|| one.to_owned());
        PlacementReport {
            mode: self.mode,
            batches: self.threshold,
            why: why.or_else(|| self.moved.why.clone()).or(unknown),
            decisions: self.decisions,
            moves: self.moved.moves,
            threads: self.moved.report(name),
        }
    }

    /// The caches, and where they are from.
    pub fn caches(&self) -> CachesReport {
        self.caches.report()
    }

    /// Gives all threads their CPUs back, and removes the files.
    pub fn end(&mut self) {
        self.set(PlacementMode::Off);
        self.caches.remove();
    }
}
