//! Guests of another program: DPDK's testpmd on virtio-user ports, which takes the path of a real DPDK guest.
//!
//! **Purpose.** A stock driver chooses its path by the features that a back end offers. The bench's own guests do not,
//! so their figures alone do not represent those of users.
//!
//! **Contract.** Both ports belong to one testpmd. Its forwarding thread has the generator's CPU for itself. One exception is
//! `txonly`: a process that sends and a process that only receives, on a third CPU where there is one. After each measurement
//! the rings are emptied, so frames of one never appear in another.
//!
//! ```text
//!   testpmd ── port 0 (virtio-user) ── vhost-user ──┐
//!           └─ port 1 (virtio-user) ── vhost-user ──┴─ back end
//! ```

mod counters;
mod driver;
mod testpmd;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::process::Usage;
use crate::work::{Done, FIRST_FRAME_SECONDS_MAX, Tally};
use crate::workload::{StockTraffic, TrafficKind, Workload};
use crate::{BenchError, Cores, SocketRole};

pub use driver::DriverChoice;

use testpmd::{Port, Start, Testpmd};

/// Frames that testpmd moves in a burst, which is its default.
const BURST: u16 = 32;
/// The shortest time for emptying rings.
const DRAIN: Duration = Duration::from_millis(50);
/// Buffers for frames of Ethernet's usual size, as testpmd has by default, and for larger ones.
const PLAIN_MBUF_BYTES: u32 = 2_176;
const JUMBO_MBUF_BYTES: u32 = 9_344;

/// The part of a workload that is fixed when guests start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StockShape {
    ring_entries: u16,
    mergeable: bool,
    in_order: bool,
    packed: bool,
    flows: u32,
    jumbo: bool,
    /// Whether each port has its own process.
    apart: bool,
}

impl StockShape {
    /// The shape of a workload with stock guests.
    pub(crate) fn of(workload: &Workload) -> Option<Self> {
        let TrafficKind::Stock(traffic) = workload.kind else { return None };
        Some(Self {
            ring_entries: workload.ring_entries,
            mergeable: workload.mergeable,
            in_order: workload.in_order,
            packed: workload.packed,
            flows: workload.flows,
            jumbo: workload.frame_bytes > 1_518,
            apart: traffic == StockTraffic::TxOnly,
        })
    }
}

/// The requirements of stock guests for a start.
#[derive(Debug)]
pub(crate) struct StockSetup<'a> {
    /// The sockets of ports 0 and 1, and which side listens.
    pub(crate) sockets: Vec<(PathBuf, SocketRole)>,
    pub(crate) cores: Cores,
    /// An existing directory for their files.
    pub(crate) directory: &'a Path,
    pub(crate) stop: &'a Arc<AtomicBool>,
}

/// Guests at the two ports of one back end.
#[derive(Debug)]
pub(crate) struct StockGuests {
    /// One process with both ports, or the sender and the receiver.
    processes: Vec<Testpmd>,
    /// The CPUs of their forwarding threads.
    cpus: Vec<usize>,
    choice: Option<DriverChoice>,
}

impl StockGuests {
    /// Starts the guests and waits until the back end has set up their rings.
    pub(crate) fn start(shape: StockShape, setup: &StockSetup<'_>) -> Result<Self, BenchError> {
        let ports: Vec<Port> = (0..)
            .zip(&setup.sockets)
            .map(|(number, (socket, role))| Port { number, socket: socket.clone(), role: *role })
            .collect();
        let groups = if shape.apart { ports.chunks(1) } else { ports.chunks(2) };
        let cpus = if shape.apart {
            vec![setup.cores.generator, setup.cores.spare()?]
        } else {
            vec![setup.cores.generator]
        };
        let start = |(ports, cpu): (&[Port], &usize)| {
            Testpmd::start(&Start {
                ports: ports.to_vec(),
                cpu: *cpu,
                ring_entries: shape.ring_entries,
                mergeable: shape.mergeable,
                in_order: shape.in_order,
                packed: shape.packed,
                flows: shape.flows,
                mbuf_bytes: if shape.jumbo { JUMBO_MBUF_BYTES } else { PLAIN_MBUF_BYTES },
                directory: setup.directory,
                stop: setup.stop,
            })
        };
        let processes = groups.zip(&cpus).map(start).collect::<Result<Vec<_>, _>>()?;
        let choice = processes.first().and_then(|process| DriverChoice::of_log(&process.log()));
        Ok(Self { processes, cpus, choice })
    }

    /// Why stock guests cannot run on this machine.
    pub(crate) fn missing_program() -> Option<String> {
        testpmd::missing_program()
    }

    /// The choices of their driver with this back end, if its log tells.
    pub(crate) fn choice(&self) -> Option<&DriverChoice> {
        self.choice.as_ref()
    }

    /// CPUs of the threads that send and receive, as in `0`; `0+0` means two processes that share one.
    pub(crate) fn cpus(&self) -> String {
        self.cpus.iter().map(ToString::to_string).collect::<Vec<_>>().join("+")
    }

    /// Waits until frames pass both ways, then empties the rings. Returns false if none passed in time.
    pub(crate) fn meet(&mut self) -> Result<bool, BenchError> {
        let start = Instant::now();
        let before = self.counters()?;
        self.each(|process| {
            process.say(&format!("set burst {BURST}"))?;
            process.ask("set fwd flowgen", "Set flowgen")?;
            process.ask("start", "packet forwarding - ports=")
        })?;
        let mut have_met = false;
        while !have_met && start.elapsed().as_secs() < FIRST_FRAME_SECONDS_MAX {
            std::thread::sleep(Duration::from_millis(50));
            have_met = self.counters()?.iter().zip(&before).all(|(now, then)| now.received > then.received);
        }
        self.finish()?;
        Ok(have_met)
    }

    /// Begins the traffic of a workload.
    pub(crate) fn begin(&mut self, workload: &Workload) -> Result<(), BenchError> {
        let TrafficKind::Stock(traffic) = workload.kind else { return Ok(()) };
        let burst = if traffic == StockTraffic::RoundTrip { 1 } else { BURST };
        // As many frames circulate as one ring has entries, half of them from each side, so none is lost.
        let first = match traffic {
            StockTraffic::FiveTupleSwap | StockTraffic::MacSwap => (workload.ring_entries / 2 / BURST).max(1),
            StockTraffic::RoundTrip => 1,
            StockTraffic::FlowGen | StockTraffic::TxOnly => 0,
        };
        let start = if first > 0 { format!("start tx_first {first}") } else { "start".to_owned() };
        // The receiver starts first.
        for (index, process) in self.processes.iter_mut().enumerate().rev() {
            let mode = traffic.mode(index);
            process.say(&format!("set burst {burst}"))?;
            process.say(&format!("set txpkts {}", workload.frame_bytes))?;
            process.ask(&format!("set fwd {mode}"), &format!("Set {mode}"))?;
            process.ask(&start, "packet forwarding - ports=")?;
        }
        Ok(())
    }

    /// Counts frames for a while.
    pub(crate) fn work(&mut self, duration: Duration) -> Result<Done, BenchError> {
        let usage = self.usage();
        let (start, before) = (Instant::now(), self.counters()?);
        std::thread::sleep(duration);
        let (after, elapsed) = (self.counters()?, start.elapsed().as_secs_f64());
        let cpu_seconds = self.usage().cpu_seconds - usage.cpu_seconds;
        let sum = |field: fn(&counters::PortCounters) -> u64| {
            let total = |ports: &[counters::PortCounters]| ports.iter().map(field).sum::<u64>();
            total(&after).saturating_sub(total(&before))
        };
        let (sent, received) = (sum(|port| port.sent), sum(|port| port.received));
        // The rate by testpmd's clock, which it reads together with the counters.
        let pps: u64 = after.iter().map(|port| port.received_pps).sum();
        let seconds = if pps > 0 && received > 0 { received as f64 / pps as f64 } else { elapsed };
        let busy = cpu_seconds * seconds / elapsed / self.threads() as f64;
        Ok(Done { tally: Tally { sent, received }, seconds, cpu_seconds: busy, round_trip: None })
    }

    /// Stops the traffic and empties the rings.
    pub(crate) fn finish(&mut self) -> Result<(), BenchError> {
        self.each(|process| process.ask("stop", "Done."))?;
        self.drain().map(drop)
    }

    /// Empties the rings while there is no traffic. Returns the frames that guests sent and received since they started.
    pub(crate) fn drain(&mut self) -> Result<Tally, BenchError> {
        self.each(|process| {
            process.ask("set fwd rxonly", "Set rxonly")?;
            process.ask("start", "packet forwarding - ports=")
        })?;
        let start = Instant::now();
        let mut seen = self.counters()?;
        loop {
            std::thread::sleep(DRAIN);
            let now = self.counters()?;
            let is_empty = now.iter().zip(&seen).all(|(now, seen)| now.received == seen.received);
            seen = now;
            if is_empty || start.elapsed().as_secs() > FIRST_FRAME_SECONDS_MAX {
                break;
            }
        }
        self.each(|process| process.ask("stop", "Done."))?;
        let total = |field: fn(&counters::PortCounters) -> u64| seen.iter().map(field).sum();
        Ok(Tally { sent: total(|port| port.sent), received: total(|port| port.received) })
    }

    /// CPUs that their threads can use at once.
    fn threads(&self) -> usize {
        let mut cpus = self.cpus.clone();
        cpus.dedup();
        cpus.len()
    }

    fn usage(&self) -> Usage {
        self.processes.iter().map(Testpmd::usage).fold(Usage::default(), |sum, one| Usage {
            cpu_seconds: sum.cpu_seconds + one.cpu_seconds,
            waited_seconds: sum.waited_seconds + one.waited_seconds,
            sleeps: sum.sleeps + one.sleeps,
        })
    }

    /// The counters of both ports.
    fn counters(&mut self) -> Result<Vec<counters::PortCounters>, BenchError> {
        let all = self.processes.iter_mut().map(Testpmd::counters).collect::<Result<Vec<_>, _>>()?;
        Ok(all.concat())
    }

    fn each(
        &mut self,
        mut act: impl FnMut(&mut Testpmd) -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        self.processes.iter_mut().try_for_each(&mut act)
    }
}
