//! The running profile: a thread waits for its end, or its client's, and writes the report.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lasthop_engine::{
    EngineProfile, PortTicks, RoundTime, RunningProfile, StageProfile, StageTicks, WorkStage,
};
use lasthop_foreign::{ForeignFd, discard};
use lasthop_module_api::PortId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, send, shutdown};

use lasthop_api::profile::{ProfileReport, ProfiledPort, ProfiledWorker, StageCost};
use lasthop_runtime::fault::Fault;

/// How often a profile checks whether it has to end.
const TICK: Duration = Duration::from_millis(20);
/// How long the report waits for a client that reads nothing.
const PATIENCE: Duration = Duration::from_secs(2);

/// The client's request and the reply to it.
#[derive(Debug)]
pub(super) struct ProfileTerms {
    /// Names of the ports.
    pub(super) names: BTreeMap<PortId, String>,
    pub(super) every: u32,
    pub(super) duration: Duration,
    /// Sent at once.
    pub(super) greeting: Vec<u8>,
}

/// The running profile, if there is one. Dropping it ends the profile.
#[derive(Default)]
pub(super) struct Profiles(Option<Running>);

struct Running {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Profiles {
    /// Runs `profile` until its time is over or its client is gone. The last profile has ended.
    pub(super) fn begin(
        &mut self,
        profile: RunningProfile,
        client: ForeignFd,
        terms: ProfileTerms,
    ) -> Result<(), Fault> {
        self.0 = None;
        let stop = Arc::new(AtomicBool::new(false));
        let watch = ProfileWatch { client, stop: Arc::clone(&stop) };
        let thread = std::thread::Builder::new()
            .name("profile".to_owned())
            .spawn(move || watch.run(profile, &terms))
            .map_err(|error| Fault::internal("start a thread for the profile", error))?;
        self.0 = Some(Running { stop, thread: Some(thread) });
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The client of a profile.
struct ProfileWatch {
    client: ForeignFd,
    stop: Arc<AtomicBool>,
}

impl Drop for ProfileWatch {
    /// Shuts the connection down, so that the client sees the end: the supervisor has a copy of it.
    fn drop(&mut self) {
        let _ = shutdown(&self.client, Shutdown::Both);
    }
}

impl ProfileWatch {
    fn run(self, profile: RunningProfile, terms: &ProfileTerms) {
        let until = Instant::now() + terms.duration;
        if !self.write(&terms.greeting) {
            return; // the profile ends with it
        }
        while Instant::now() < until {
            if self.stop.load(Ordering::Relaxed) || self.is_gone() {
                return;
            }
        }
        let Ok(results) = profile.finish() else { return };
        let report = report(&results, terms);
        // This cannot fail: keys are strings, and the output is memory.
        let mut line = serde_json::to_vec(&report).unwrap_or_default();
        line.push(b'\n');
        self.write(&line);
    }

    /// Waits for a tick; returns whether the client is gone, or wants no more.
    fn is_gone(&self) -> bool {
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
        let mut polled = [PollFd::new(&self.client, PollFlags::IN)];
        if poll(&mut polled, Some(&timeout)).is_err() {
            return false;
        }
        let events = polled[0].revents();
        if events.intersects(PollFlags::HUP | PollFlags::ERR) {
            return true;
        }
        // The client has nothing to send: this is the end of its stream, or to be ignored.
        let mut ignored = [0; 512];
        let mut heard =
            || discard(self.client.as_fd(), &mut ignored, RecvFlags::DONTWAIT, self.client.origin());
        events.contains(PollFlags::IN) && matches!(heard(), Ok((0, _) | (_, true)))
    }

    /// Writes all bytes; returns false if the client is gone, or reads nothing.
    fn write(&self, bytes: &[u8]) -> bool {
        let (mut sent, until) = (0, Instant::now() + PATIENCE);
        while sent < bytes.len() {
            match send(&self.client, &bytes[sent..], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if Instant::now() < until && !self.stop.load(Ordering::Relaxed) => {
                    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
                    let _ = poll(&mut [PollFd::new(&self.client, PollFlags::OUT)], Some(&timeout));
                }
                Err(_) => return false,
            }
        }
        true
    }
}

fn report(results: &EngineProfile, terms: &ProfileTerms) -> ProfileReport {
    let seconds = results.ns as f64 / 1e9;
    let cycles_per_second = results.ticks as f64 / seconds;
    let numbered = || results.workers.iter().enumerate();
    let ports = numbered().flat_map(|(worker, stages)| {
        stages.ports.iter().map(move |(id, port)| of_port(worker, *id, port, &terms.names))
    });
    ProfileReport {
        seconds,
        clock: if results.is_time_stamp { "tsc" } else { "monotonic" }.to_owned(),
        cycles_per_second,
        every: terms.every,
        ports: ports.collect(),
        workers: numbered()
            .map(|(worker, stages)| of_worker(worker, stages, terms.every, cycles_per_second))
            .collect(),
    }
}

fn of_worker(worker: usize, stages: &StageProfile, every: u32, cycles_per_second: f64) -> ProfiledWorker {
    let mean = |time: RoundTime| time.time as f64 / time.rounds as f64;
    let around = mean(stages.around);
    let accounted = mean(stages.within) / (around / 1e9 * cycles_per_second) * 100.0;
    // Two rounds of `every` have marks.
    let cost = (mean(stages.marked) / around - 1.0) * 2.0 / f64::from(every.max(2)) * 100.0;
    let finite = |percent: f64| percent.is_finite().then_some(percent);
    ProfiledWorker {
        worker,
        rounds: stages.rounds,
        sampled_rounds: stages.sampled,
        interrupted: stages.interrupted,
        sampled_cycles: stages.outside,
        asleep_cycles: stages.asleep,
        cycles: costs(&stages.own),
        accounted_percent: finite(accounted),
        cost_percent: finite(cost),
    }
}

fn of_port(worker: usize, id: PortId, port: &PortTicks, names: &BTreeMap<PortId, String>) -> ProfiledPort {
    ProfiledPort {
        port: names.get(&id).cloned().unwrap_or_else(|| format!("port {id}")),
        worker,
        sampled_visits: port.visits,
        sampled_packets: port.packets,
        cycles: costs(&port.ticks),
    }
}

fn costs(ticks: &StageTicks) -> Vec<StageCost> {
    let named = WorkStage::ALL.iter().zip(ticks);
    named.map(|(stage, cycles)| StageCost { stage: stage.name().to_owned(), cycles: *cycles }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_ports_and_compares_rounds_in_one_unit() {
        let port = PortTicks { visits: 2, packets: 8, ticks: [3; 12] };
        let stages = StageProfile {
            ports: vec![(PortId(1), port.clone()), (PortId(9), port)],
            around: RoundTime { rounds: 100, time: 100_000 },
            within: RoundTime { rounds: 10, time: 19_600 },
            marked: RoundTime { rounds: 20, time: 27_000 },
            ..StageProfile::default()
        };
        let results = EngineProfile {
            ns: 1_000_000_000,
            ticks: 2_000_000_000,
            is_time_stamp: true,
            workers: vec![stages],
        };
        let names = BTreeMap::from([(PortId(1), "vm1".to_owned())]);
        let terms = ProfileTerms { names, every: 7, duration: Duration::ZERO, greeting: Vec::new() };
        let report = report(&results, &terms);
        assert_eq!(report.workers[0].accounted_percent.map(f64::round), Some(98.0));
        assert_eq!(report.workers[0].cost_percent.map(f64::round), Some(10.0), "35 % of two rounds in seven");
        let ports: Vec<&str> = report.ports.iter().map(|port| port.port.as_str()).collect();
        assert_eq!(ports, ["vm1", "port 9"]);
        assert_eq!(report.ports[0].cycles[5], StageCost { stage: "copy".to_owned(), cycles: 3 });
    }

    #[test]
    fn a_worker_without_packets_accounts_for_nothing() {
        let worker = of_worker(0, &StageProfile::default(), 256, 1e9);
        assert_eq!((worker.accounted_percent, worker.cost_percent), (None, None));
    }
}
