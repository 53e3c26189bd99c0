//! Scenarios: a machine, an architecture, guests on CPUs as the papers pin them, and their conversations.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, ensure};
use lasthop_fabric::bounds::WORKERS_MAX;
use lasthop_sched::{CpuPlace, distance};

use crate::flow::{Flow, Talk};
use crate::frame::{PAYLOAD_BYTES_MAX, SEGMENT_PAYLOAD_BYTES};
use crate::model::Model;
use crate::random::Random;
use crate::sim::{Architecture, Choices, RunResult, Simulation};
use crate::switch::Switch;

/// Guests of a scenario: two for each CPU of the largest machine.
pub(crate) const GUESTS_MAX: u16 = 512;
/// Bytes that a sender of a stream has under way. Linux grows it; a fixed one keeps runs comparable.
pub(crate) const WINDOW_BYTES: u64 = 256 << 10;
/// The most virtual time of a run.
pub(crate) const RUN_NS_MAX: u64 = 60_000_000_000;
/// Guests begin within this time of each other.
const STAGGER_NS: u64 = 50_000;
/// The longest nap of a guest.
const NAP_US_MAX: u32 = 1_000_000;
/// The short requests beside streams, and the least pause behind each response.
const BESIDE_PAYLOAD_BYTES: u32 = 64;
const BESIDE_PAUSE_NS: u64 = 20_000;
/// Xen's driver domain (Hyper-Switch, 5.2.1): two vCPUs for one pair, else eight.
const DRIVER_CPUS: [usize; 2] = [2, 8];

/// The conversations of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// Streams between pairs, in one direction.
    Pairs(u16),
    /// Streams from each guest to each other one.
    AllToAll(u16),
    /// Streams of this many guests to one other.
    FanIn(u16),
    /// Request and response between two guests.
    Echo,
    /// Streams between pairs, and request and response of short packets between two further guests.
    Beside(u16),
    /// As fast as rings take it, between pairs of cards of one guest that polls: `lasthop bench`.
    BareStream(u16),
    /// As `BareStream`, from this many cards to one other.
    BareFanIn(u16),
    /// Request and response between two cards of one guest that polls, with a pause in us behind each: `lasthop bench`.
    BareEcho(u16),
}

/// A pattern and the payload of its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LabWork {
    pub(crate) pattern: Pattern,
    pub(crate) payload_bytes: u32,
    /// A guest that polls sleeps for this time between two looks at its rings; 0: it does not.
    pub(crate) nap_us: u32,
    /// The guests take no offloads: streams are TCP frames that the switch cuts.
    pub(crate) is_cut: bool,
    /// The guests take no checksums: streams are TCP frames that the switch sums, whole.
    pub(crate) is_summed: bool,
}

impl LabWork {
    /// Whether the switch may have frames to cut.
    pub(crate) fn can_be_cut(self) -> bool {
        self.is_stream() && self.payload_bytes > SEGMENT_PAYLOAD_BYTES
    }

    fn can_nap(self) -> bool {
        matches!(self.pattern, Pattern::BareStream(_) | Pattern::BareFanIn(_))
    }

    /// Whether guests send one way.
    pub(crate) fn is_stream(self) -> bool {
        !matches!(self.pattern, Pattern::Echo | Pattern::BareEcho(_))
    }

    /// A pattern of guests that do not nap.
    pub(crate) const fn new(pattern: Pattern, payload_bytes: u32) -> Self {
        Self { pattern, payload_bytes, nap_us: 0, is_cut: false, is_summed: false }
    }
}

impl fmt::Display for LabWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pattern {
            Pattern::Pairs(count) => write!(f, "pairs={count}")?,
            Pattern::AllToAll(count) => write!(f, "all-to-all={count}")?,
            Pattern::FanIn(count) => write!(f, "fan-in={count}")?,
            Pattern::Beside(count) => write!(f, "beside={count}")?,
            Pattern::BareFanIn(count) => write!(f, "bare-fan-in={count}")?,
            Pattern::Echo => write!(f, "echo")?,
            Pattern::BareStream(count) => write!(f, "bare-stream={count}")?,
            Pattern::BareEcho(pause_us) => write!(f, "bare-echo={pause_us}")?,
        }
        write!(f, ",payload={}", self.payload_bytes)?;
        if self.nap_us > 0 {
            write!(f, ",nap-us={}", self.nap_us)?;
        }
        f.write_str(if self.is_cut { ",tso=off" } else { "" })?;
        f.write_str(if self.is_summed { ",csum=off" } else { "" })
    }
}

impl FromStr for LabWork {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let help = "write pairs=N, all-to-all=N, fan-in=N, beside=N, echo, bare-stream=N, bare-fan-in=N or bare-echo=PAUSE_US, and payload=BYTES, nap-us=N, tso=off or csum=off behind commas";
        let (pattern, rest) = text.split_once(',').unwrap_or((text, "payload=65483"));
        let (name, count) = pattern.split_once('=').unwrap_or((pattern, "1"));
        let count: u16 = count.parse().map_err(|_| format!("{count} is not a number of guests; {help}"))?;
        if name != "bare-echo" && (count == 0 || count > GUESTS_MAX / 2) {
            return Err(format!("{pattern} has {count} guests or pairs; choose 1 to {}", GUESTS_MAX / 2));
        }
        let pattern = match name {
            "pairs" => Pattern::Pairs(count),
            "all-to-all" => Pattern::AllToAll(count.max(2)),
            "fan-in" => Pattern::FanIn(count),
            "beside" => Pattern::Beside(count),
            "bare-fan-in" => Pattern::BareFanIn(count),
            "echo" => Pattern::Echo,
            "bare-stream" => Pattern::BareStream(count),
            "bare-echo" => Pattern::BareEcho(count),
            _ => return Err(format!("there is no workload {name}; {help}")),
        };
        let mut work = Self::new(pattern, PAYLOAD_BYTES_MAX);
        for part in rest.split(',') {
            if part == "tso=off" {
                work.is_cut = true;
                continue;
            }
            if part == "csum=off" {
                work.is_summed = true;
                continue;
            }
            match part.split_once('=').map(|(key, value)| (key, value.parse::<u32>().ok())) {
                Some(("nap-us", Some(nap_us))) if work.can_nap() && nap_us <= NAP_US_MAX => {
                    work.nap_us = nap_us
                }
                Some(("payload", Some(bytes))) if (1..=PAYLOAD_BYTES_MAX).contains(&bytes) => {
                    work.payload_bytes = bytes;
                }
                Some(("nap-us", _)) => {
                    return Err(format!(
                        "{part} does not fit; nap-us=0 to nap-us={NAP_US_MAX} goes with bare-stream and bare-fan-in"
                    ));
                }
                _ => {
                    return Err(format!(
                        "{part} is no payload; choose payload=1 to payload={PAYLOAD_BYTES_MAX}"
                    ));
                }
            }
        }
        if work.is_cut && !work.can_be_cut() {
            return Err(format!("tso=off goes with streams of a payload above {SEGMENT_PAYLOAD_BYTES}"));
        }
        if work.is_summed && (work.is_cut || !work.is_stream()) {
            return Err(
                "csum=off goes with streams, and not with tso=off, which has no checksums either".to_owned()
            );
        }
        Ok(work)
    }
}

/// CPUs of each node, in the order in which they are taken: one of each group before the others, as the paper pins
/// (5.2.1, "Pairwise Scalability Experiments").
struct Placer {
    nodes: Vec<Vec<usize>>,
    taken: Vec<usize>,
}

impl Placer {
    fn new(places: &[CpuPlace]) -> Self {
        let count = places.iter().map(|place| usize::from(place.node) + 1).max().unwrap_or(1);
        let mut nodes = vec![Vec::new(); count];
        for (cpu, place) in places.iter().enumerate() {
            let within = places[..cpu].iter().filter(|other| other.group == place.group).count();
            nodes[usize::from(place.node)].push((within, cpu));
        }
        let nodes: Vec<Vec<usize>> = nodes
            .into_iter()
            .map(|mut cpus: Vec<(usize, usize)>| {
                cpus.sort_unstable();
                cpus.into_iter().map(|(_, cpu)| cpu).collect()
            })
            .collect();
        Self { taken: vec![0; nodes.len()], nodes }
    }

    /// The next CPU of a node; after the last one the first again.
    fn take(&mut self, node: usize) -> usize {
        let node = node % self.nodes.len();
        let cpus = &self.nodes[node];
        let cpu = cpus[self.taken[node] % cpus.len()];
        self.taken[node] += 1;
        cpu
    }
}

/// The CPUs of guests and of workers of the architecture `lasthop`, in place of those that the papers pin.
#[derive(Clone, Debug, Default)]
pub(crate) struct LabPlaces {
    pub(crate) guests: Vec<usize>,
    pub(crate) workers: Vec<usize>,
}

/// A run to be made.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) model: Model,
    pub(crate) architecture: Architecture,
    pub(crate) choices: Choices,
    pub(crate) work: LabWork,
    pub(crate) window_bytes: u64,
    /// Workers of the architecture `lasthop`.
    pub(crate) workers: usize,
    /// CPUs with a helper of the architecture `lasthop`; all without a worker, if there are fewer.
    pub(crate) helpers: usize,
    /// Where guests and workers are; `None`: as the papers pin them.
    pub(crate) places: Option<LabPlaces>,
    pub(crate) seed: u64,
    pub(crate) warm_up_ns: u64,
    pub(crate) measured_ns: u64,
}

impl Scenario {
    /// A scenario with the usual window, choices and times.
    pub(crate) fn new(model: &Model, architecture: Architecture, work: LabWork) -> Self {
        Self {
            model: model.clone(),
            architecture,
            choices: Choices::default(),
            work,
            window_bytes: WINDOW_BYTES,
            workers: 1,
            helpers: 0,
            places: None,
            seed: 1,
            warm_up_ns: 2_000_000,
            measured_ns: 20_000_000,
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// If it does not fit, if memory is missing, or if a frame was reordered or lost without a reason.
    pub(crate) fn run(&self) -> Result<RunResult> {
        let is_plain = self.work.is_cut || self.work.is_summed;
        let total_ns = self.warm_up_ns.saturating_add(self.measured_ns);
        ensure!(
            self.measured_ns > 0 && total_ns <= RUN_NS_MAX,
            "a run of {total_ns} ns was asked for; choose up to {RUN_NS_MAX} ns, warm-up included"
        );
        ensure!(
            !is_plain || self.architecture == Architecture::Lasthop,
            "tso=off and csum=off go with the architecture lasthop; these costs are its own"
        );
        let (guests, nics) = self.guests_and_nics();
        let workers = if self.architecture == Architecture::Lasthop { self.workers } else { 1 };
        let helpers = self.helper_cpus(guests);
        let switch = Switch::new(nics, workers, helpers.len(), is_plain)?;
        let mut simulation =
            Simulation::new(&self.model, self.architecture, self.choices, switch, workers, &helpers);
        let mut placer = Placer::new(&self.model.places());
        let drivers = self.add_drivers(&mut simulation, &mut placer);
        let mut cpus: Vec<usize> = (0..guests).map(|guest| placer.take(self.node_of(guest))).collect();
        if guests == 1 {
            cpus[0] = 0;
        }
        if let Some(places) = &self.places {
            cpus.clone_from(&places.guests);
        }
        self.add_backends(&mut simulation, &mut placer, guests);
        let nics_each = usize::from(nics / guests);
        for (guest, &cpu) in cpus.iter().enumerate() {
            let backends: Vec<usize> =
                (0..nics_each).map(|nic| self.backend_of(guest * nics_each + nic, drivers)).collect();
            simulation.add_guest(cpu, &backends, guests == 1, 1000 * u64::from(self.work.nap_us));
        }
        self.add_flows(&mut simulation, nics);
        simulation.stagger(&mut Random::new(self.seed), STAGGER_NS);
        simulation.run(self.warm_up_ns, self.measured_ns)
    }

    /// Number of guests, and of cards.
    pub(crate) fn guests_and_nics(&self) -> (u16, u16) {
        match self.work.pattern {
            Pattern::Pairs(pairs) => (2 * pairs, 2 * pairs),
            Pattern::Beside(pairs) => (2 * pairs + 2, 2 * pairs + 2),
            Pattern::FanIn(senders) => (senders + 1, senders + 1),
            Pattern::BareFanIn(senders) => (1, senders + 1),
            Pattern::AllToAll(guests) => (guests, guests),
            Pattern::Echo => (2, 2),
            Pattern::BareStream(pairs) => (1, 2 * pairs),
            Pattern::BareEcho(_) => (1, 2),
        }
    }

    /// CPUs of helpers: all without a worker, those without a guest first, and near guests first.
    fn helper_cpus(&self, guests: u16) -> Vec<usize> {
        if self.architecture != Architecture::Lasthop || self.helpers == 0 {
            return Vec::new();
        }
        let places = self.model.places();
        let mut placer = Placer::new(&places);
        let mut guest_cpus: Vec<usize> = (0..guests).map(|guest| placer.take(self.node_of(guest))).collect();
        let mut worker_cpus: Vec<usize> = (0..self.workers).map(|worker| placer.take(worker)).collect();
        if guests == 1 {
            (guest_cpus, worker_cpus) = (vec![0], (1..=self.workers).collect());
        }
        let mut cpus: Vec<usize> = (0..places.len()).filter(|cpu| !worker_cpus.contains(cpu)).collect();
        let key = |cpu: &usize| {
            let near = guest_cpus.iter().map(|guest| distance(&places, *guest, *cpu)).min();
            (guest_cpus.contains(cpu), near, *cpu)
        };
        cpus.sort_by_key(key);
        cpus.truncate(self.helpers.min(WORKERS_MAX - self.workers));
        cpus
    }

    /// The node of a guest: pairs stay together.
    fn node_of(&self, guest: u16) -> usize {
        usize::from(match self.work.pattern {
            Pattern::AllToAll(_) | Pattern::FanIn(_) => guest,
            _ => guest / 2,
        })
    }

    /// Xen's driver domain takes its CPUs first: two of each node.
    fn add_drivers(&self, simulation: &mut Simulation, placer: &mut Placer) -> usize {
        if self.architecture != Architecture::Xen {
            return 0;
        }
        let is_single = matches!(self.work.pattern, Pattern::Pairs(1) | Pattern::Echo);
        let count = DRIVER_CPUS[usize::from(!is_single)];
        for driver in 0..count {
            simulation.add_backend(placer.take(driver / 2));
        }
        count
    }

    /// Workers, or a vhost-net thread for each card, take CPUs after the guests.
    fn add_backends(&self, simulation: &mut Simulation, placer: &mut Placer, guests: u16) {
        match self.architecture {
            Architecture::Lasthop => {
                for worker in 0..self.workers {
                    let usual = || if guests == 1 { 1 + worker } else { placer.take(worker) };
                    let cpu = self.places.as_ref().map_or_else(usual, |places| places.workers[worker]);
                    simulation.add_backend(cpu);
                }
            }
            Architecture::Kvm => {
                (0..guests).for_each(|guest| simulation.add_backend(placer.take(self.node_of(guest))));
            }
            Architecture::Xen | Architecture::HyperSwitch => {}
        }
    }

    /// The backend thread of a card. Xen's are of the guest's node, in turn.
    fn backend_of(&self, nic: usize, drivers: usize) -> usize {
        match self.architecture {
            Architecture::Lasthop => nic % self.workers,
            Architecture::Kvm => nic,
            Architecture::Xen => {
                let node = self.node_of(nic as u16);
                let turn = if matches!(self.work.pattern, Pattern::AllToAll(_)) { nic / 4 } else { nic };
                (2 * node + turn % 2) % drivers
            }
            Architecture::HyperSwitch => usize::MAX,
        }
    }

    fn add_flows(&self, simulation: &mut Simulation, nics: u16) {
        let stream = Talk::Stream { window_bytes: self.window_bytes };
        let pairs = |count: u16| (0..count).map(|pair| [2 * pair, 2 * pair + 1]).collect::<Vec<_>>();
        let (ends, talk) = match self.work.pattern {
            Pattern::Pairs(count) => (pairs(count), stream),
            Pattern::BareStream(count) => (pairs(count), Talk::Flood),
            Pattern::Beside(count) => (pairs(count), stream),
            Pattern::FanIn(senders) => ((1..=senders).map(|from| [from, 0]).collect(), stream),
            Pattern::BareFanIn(senders) => ((1..=senders).map(|from| [from, 0]).collect(), Talk::Flood),
            Pattern::Echo => (pairs(1), Talk::Echo { pause_ns: 0, jitter_ns: 0 }),
            Pattern::BareEcho(pause_us) => {
                (pairs(1), Talk::Echo { pause_ns: 1000 * u64::from(pause_us), jitter_ns: 0 })
            }
            Pattern::AllToAll(_) => {
                let others = |from| (0..nics).filter(move |to| *to != from).map(move |to| [from, to]);
                ((0..nics).flat_map(others).collect(), stream)
            }
        };
        for (number, ends) in (0..).zip(ends) {
            let mut flow = Flow::new(number, ends, talk, self.work.payload_bytes);
            (flow.is_cut, flow.is_summed) = (self.work.is_cut, self.work.is_summed);
            simulation.add_flow(flow);
        }
        if let Pattern::Beside(count) = self.work.pattern {
            let ends = [2 * count, 2 * count + 1];
            let echo = Talk::Echo { pause_ns: BESIDE_PAUSE_NS, jitter_ns: BESIDE_PAUSE_NS };
            simulation.add_flow(Flow::new(u32::from(count), ends, echo, BESIDE_PAYLOAD_BYTES));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(architecture: Architecture, work: &str, seed: u64) -> RunResult {
        let model = Model::load("opteron").unwrap();
        let scenario = Scenario::new(&model, architecture, work.parse().unwrap());
        Scenario { seed, measured_ns: 2_000_000, ..scenario }.run().unwrap()
    }

    #[test]
    fn the_same_seed_gives_the_same_bits_and_another_one_others() {
        for (architecture, _) in Architecture::ALL {
            let [first, second, other] =
                [7, 7, 8].map(|seed| run(architecture, "pairs=3,payload=9000", seed));
            assert_eq!((first.hash, first.received), (second.hash, second.received), "{architecture:?}");
            assert_ne!(first.hash, other.hash, "{architecture:?}");
        }
    }

    #[test]
    fn each_architecture_moves_packets_of_each_pattern() {
        for (architecture, _) in Architecture::ALL {
            for work in ["pairs=1,payload=64", "pairs=16", "all-to-all=9,payload=1448", "echo,payload=1"] {
                let result = run(architecture, work, 1);
                assert!(result.received.packets > 10, "{architecture:?} {work}: {result:?}");
                assert_eq!(result.drops.total(), 0, "{architecture:?} {work}");
                assert_eq!(result.frames.skipped, 0);
            }
        }
    }

    #[test]
    fn guests_take_one_cpu_of_each_module_first() {
        let mut placer = Placer::new(&Model::load("opteron").unwrap().places());
        let taken: Vec<usize> = (0..9).map(|_| placer.take(1)).collect();
        assert_eq!(taken, [8, 10, 12, 14, 9, 11, 13, 15, 8]);
    }

    #[test]
    fn workloads_are_read_as_they_are_written() {
        for text in [
            "pairs=16,payload=1",
            "all-to-all=30,payload=65483",
            "echo,payload=16384",
            "bare-stream=4,payload=12",
            "bare-echo=0,payload=12",
            "fan-in=4,payload=65483",
            "beside=2,payload=65483",
            "bare-fan-in=4,payload=64948,nap-us=500",
            "pairs=1,payload=65483,tso=off",
        ] {
            assert_eq!(text.parse::<LabWork>().unwrap().to_string(), text);
        }
        for (text, words) in [
            ("pairs=0", "choose 1 to 256"),
            ("pears=1", "no workload pears"),
            ("echo,payload=99999", "choose payload=1 to payload=65483"),
            ("echo,size=1", "no payload"),
            ("pairs=x", "not a number"),
            ("pairs=1,nap-us=5", "goes with bare-stream"),
            ("pairs=1,payload=1448,tso=off", "a payload above 1448"),
            ("echo,tso=off", "goes with streams"),
        ] {
            let error = text.parse::<LabWork>().unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
