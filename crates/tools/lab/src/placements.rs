//! The product's placement next to none: threads on random CPUs, and those that it moves on a CPU of their last-level cache.

use anyhow::{Result, ensure};
use lasthop_sched::{BATCHES_PER_SLICE, BatchFlow, CpuPlace, GatheredThread, SLICE_NS, gather};

use crate::console::Progress;
use crate::model::Model;
use crate::random::Random;
use crate::scenario::{LabPlaces, LabWork, Pattern, Scenario};
use crate::sim::{Architecture, RunResult};

/// The workloads of the table, if none is given.
pub(crate) const WORKS: [&str; 6] = [
    "echo,payload=64",
    "pairs=1,payload=64",
    "pairs=1,payload=1448",
    "pairs=1,payload=65483",
    "fan-in=4,payload=1448",
    "fan-in=4,payload=65483",
];

/// Which threads may be moved.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MovedKind {
    Own,
    OwnAndGuests,
}

/// Runs each workload from random places, with the mode `own` and with `guests`. Returns gains as a table in Markdown.
///
/// # Errors
/// If a run fails.
pub(crate) fn table(model: &Model, works: &[LabWork], rounds: u64) -> Result<String> {
    let mut text = "| workload | random places | `own` | `guests` | threads near the worker: random, own, guests |\n|---|---:|---:|---:|---:|\n".to_owned();
    let mut progress = Progress::new(works.len());
    for &work in works {
        let (mut random, mut own, mut guests) = (Gains::default(), Gains::default(), Gains::default());
        for seed in 1..=rounds {
            let scenario = Scenario { seed, ..Scenario::new(model, Architecture::Lasthop, work) };
            let before = random_places(&scenario)?;
            let run =
                |places: &LabPlaces| Scenario { places: Some(places.clone()), ..scenario.clone() }.run();
            let first = run(&before)?;
            random.note(&model.places(), &before, rate(&first), &first);
            for (kind, gains) in [(MovedKind::Own, &mut own), (MovedKind::OwnAndGuests, &mut guests)] {
                let places = moved(&model.places(), work, &before, &first, kind);
                gains.note(&model.places(), &places, rate(&first), &run(&places)?);
            }
        }
        let median = median(random.rates.clone());
        text += &format!(
            "| `{work}` | {median:.1} {} | {} | {} | {:.0} %, {:.0} %, {:.0} % |\n",
            if random.has_transactions { "k/s" } else { "Gbit/s" },
            own.shown(),
            guests.shown(),
            random.near_percent(),
            own.near_percent(),
            guests.near_percent(),
        );
        progress.step(&work.to_string());
    }
    Ok(text)
}

/// Results of one mode.
#[derive(Default)]
struct Gains {
    rates: Vec<f64>,
    ratios: Vec<f64>,
    near: usize,
    all: usize,
    has_transactions: bool,
}

impl Gains {
    fn note(&mut self, cpus: &[CpuPlace], places: &LabPlaces, before: f64, result: &RunResult) {
        self.rates.push(rate(result));
        self.ratios.push(rate(result) / before);
        self.has_transactions |= result.transactions_per_s() > 0.0;
        let worker = cpus[places.workers[0]].llc;
        self.near += places.guests.iter().filter(|cpu| cpus[**cpu].llc == worker).count();
        self.all += places.guests.len();
    }

    /// Median, least and greatest ratio to the random places of the same round.
    fn shown(&self) -> String {
        let least = self.ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let greatest = self.ratios.iter().copied().fold(0.0, f64::max);
        format!("{:.2} ({least:.2} to {greatest:.2})", median(self.ratios.clone()))
    }

    fn near_percent(&self) -> f64 {
        100.0 * self.near as f64 / self.all.max(1) as f64
    }
}

/// Thousand transactions a second where there are some, else Gbit/s.
fn rate(result: &RunResult) -> f64 {
    match result.transactions_per_s() {
        transactions if transactions > 0.0 => transactions / 1000.0,
        _ => result.gbit_per_s(),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Each thread on another CPU.
fn random_places(scenario: &Scenario) -> Result<LabPlaces> {
    let (count, guests) = (scenario.model.places().len(), usize::from(scenario.guests_and_nics().0));
    ensure!(guests + scenario.workers <= count, "{} needs a CPU for each thread", scenario.work);
    let (mut cpus, mut random) = ((0..count).collect::<Vec<_>>(), Random::new(scenario.seed));
    let mut take = |count: usize| -> Vec<usize> {
        (0..count).map(|_| cpus.swap_remove(random.below(cpus.len() as u64) as usize)).collect()
    };
    Ok(LabPlaces { guests: take(guests), workers: take(scenario.workers) })
}

/// The places after a decision by the batches of a run: a moved thread takes a free CPU of its cache.
fn moved(
    cpus: &[CpuPlace],
    work: LabWork,
    before: &LabPlaces,
    result: &RunResult,
    kind: MovedKind,
) -> LabPlaces {
    let worker = |cpu: &usize| GatheredThread { cpu: *cpu, ..GatheredThread::default() };
    let guest = |cpu: &usize| GatheredThread {
        cpu: *cpu,
        is_fixed: kind == MovedKind::Own,
        is_busy: true,
        domain: None,
    };
    let mut threads: Vec<GatheredThread> =
        before.workers.iter().map(worker).chain(before.guests.iter().map(guest)).collect();
    let first = before.workers.len();
    let batches = batches_of_guests(work, result, before.guests.len());
    let flow = |(guest, batches)| BatchFlow { ends: (guest % first, first + guest), batches };
    let flows: Vec<BatchFlow> = batches.into_iter().enumerate().map(flow).collect();
    gather(cpus, &mut threads, &flows, BATCHES_PER_SLICE, |_, _| true);
    let mut taken: Vec<usize> =
        threads.iter().filter(|thread| is_home(cpus, thread)).map(|thread| thread.cpu).collect();
    for thread in threads.iter_mut().filter(|thread| !is_home(cpus, thread)) {
        let free = (0..cpus.len()).find(|cpu| Some(cpus[*cpu].llc) == thread.domain && !taken.contains(cpu));
        thread.cpu = free.unwrap_or(thread.cpu);
        taken.push(thread.cpu);
    }
    let (workers, guests) = threads.split_at(first);
    let cpus = |threads: &[GatheredThread]| threads.iter().map(|thread| thread.cpu).collect();
    LabPlaces { guests: cpus(guests), workers: cpus(workers) }
}

/// Batches of each guest in a slice. A receiver of several senders has those of all.
fn batches_of_guests(work: LabWork, result: &RunResult, guests: usize) -> Vec<u64> {
    let all = result.visits.saturating_mul(SLICE_NS) / result.measured_ns.max(1);
    let is_receiver = |guest: usize| matches!(work.pattern, Pattern::FanIn(_)) && guest == 0;
    let each = all / (guests as u64).max(1);
    (0..guests).map(|guest| if is_receiver(guest) { all } else { each }).collect()
}

/// Whether a thread may stay on its CPU.
fn is_home(cpus: &[CpuPlace], thread: &GatheredThread) -> bool {
    thread.domain.is_none_or(|domain| cpus[thread.cpu].llc == domain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_are_brought_together_are_near_and_no_two_share_a_cpu() {
        let model = Model::load("epyc").unwrap();
        let scenario = Scenario {
            seed: 3,
            ..Scenario::new(&model, Architecture::Lasthop, "pairs=1,payload=1448".parse().unwrap())
        };
        let before = random_places(&scenario).unwrap();
        let result = Scenario { places: Some(before.clone()), ..scenario.clone() }.run().unwrap();
        let places = moved(&model.places(), scenario.work, &before, &result, MovedKind::OwnAndGuests);
        let cpus = model.places();
        let worker = cpus[places.workers[0]].llc;
        assert!(places.guests.iter().all(|cpu| cpus[*cpu].llc == worker), "{places:?}");
        let mut all = [places.guests.clone(), places.workers.clone()].concat();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 3, "{places:?}");
        let own = moved(&cpus, scenario.work, &before, &result, MovedKind::Own);
        assert_eq!(own.guests, before.guests, "guests stay");
        let again = Scenario { places: Some(places), ..scenario }.run().unwrap();
        assert!(again.gbit_per_s() >= result.gbit_per_s(), "{} {}", again.gbit_per_s(), result.gbit_per_s());
    }
}
