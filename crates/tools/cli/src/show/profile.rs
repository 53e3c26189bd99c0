//! A profile as text.

use lasthop_api::profile::{ProfileReport, ProfiledPort, ProfiledWorker, StageCost};

use super::table::Table;
use crate::usage::{ProcessUsage, ProfileAnswer};

/// Number of stages in a port's line.
const DEAREST: usize = 3;
/// Number of ports that are shown, those with most packets first. `--json` has all.
const PORTS_MAX: usize = 32;
/// Number of threads of a process that are shown, and the smallest share of the time that has a line.
const THREADS_MAX: usize = 8;
const THREAD_SHARE_MIN: f64 = 0.005;

/// All tables.
pub(crate) fn profile(answer: &ProfileAnswer) -> String {
    let report = &answer.stages;
    let parts = [
        head(report),
        stages(report),
        ports(report),
        workers(report),
        processes(&answer.processes, report.seconds),
        counters(answer),
    ];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")
}

/// Instructions and cache misses of the switch's own processes, or why there are none.
fn counters(answer: &ProfileAnswer) -> String {
    if let Some(why) = &answer.uncounted {
        return format!("instructions, cache misses: {why}\n");
    }
    let mut table = Table::new(&["PROCESS", ">INSTRUCTIONS/S", ">CACHE MISSES/S"]);
    let mut is_empty = true;
    for process in &answer.processes {
        if let (Some(instructions), Some(misses)) = (process.instructions, process.cache_misses) {
            let each_second = |count: u64| format!("{:.0}", count as f64 / answer.stages.seconds);
            table.row([process.process.clone(), each_second(instructions), each_second(misses)]);
            is_empty = false;
        }
    }
    if is_empty { String::new() } else { table.text() }
}

fn head(report: &ProfileReport) -> String {
    let unit = match report.clock.as_str() {
        "tsc" => format!("cycles of {:.2} GHz (time stamp counter)", report.cycles_per_second / 1e9),
        _ => "ns in place of cycles (there is no steady time stamp counter)".to_owned(),
    };
    format!("{:.1} s, one round of {} sampled; {unit}\n", report.seconds, report.every)
}

/// The sum of all ports, by stage.
fn stages(report: &ProfileReport) -> String {
    let packets = packets(&report.ports);
    if packets == 0 {
        return "no packets in the sampled rounds; sample longer, or more of them: --for, --every\n"
            .to_owned();
    }
    let sum = sum(report.ports.iter().map(|port| &port.cycles));
    let all: u64 = sum.iter().map(|cost| cost.cycles).sum();
    let mut table = Table::new(&["STAGE", ">CYCLES/PACKET", ">NS/PACKET", ">SHARE"]);
    let mut row = |name: &str, cycles: u64| {
        let each = cycles as f64 / packets as f64;
        let ns = each / report.cycles_per_second * 1e9;
        let share = 100.0 * cycles as f64 / all.max(1) as f64;
        table.row([name.to_owned(), format!("{each:.1}"), format!("{ns:.1}"), format!("{share:.1} %")]);
    };
    sum.iter().filter(|cost| cost.cycles > 0).for_each(|cost| row(&cost.stage, cost.cycles));
    row("all", all);
    table.text()
}

fn ports(report: &ProfileReport) -> String {
    let mut sorted: Vec<&ProfiledPort> = report.ports.iter().collect();
    sorted.sort_by_key(|port| std::cmp::Reverse(port.sampled_packets));
    let mut table = Table::new(&["FROM", ">ON", ">VISITS", ">PACKETS", ">CYCLES", "DEAREST STAGES"]);
    for port in sorted.iter().take(PORTS_MAX) {
        let packets = port.sampled_packets.max(1) as f64;
        let all: u64 = port.cycles.iter().map(|cost| cost.cycles).sum();
        table.row([
            port.port.clone(),
            port.worker.to_string(),
            port.sampled_visits.to_string(),
            format!("{:.1}", packets / port.sampled_visits.max(1) as f64),
            format!("{:.0}", all as f64 / packets),
            dearest(&port.cycles, packets),
        ]);
    }
    let left = sorted.len().saturating_sub(PORTS_MAX);
    let rest = if left > 0 { format!("{left} more ports: --json\n") } else { String::new() };
    if sorted.is_empty() { String::new() } else { table.text() + &rest }
}

fn dearest(costs: &[StageCost], packets: f64) -> String {
    let mut sorted: Vec<&StageCost> = costs.iter().filter(|cost| cost.cycles > 0).collect();
    sorted.sort_by_key(|cost| std::cmp::Reverse(cost.cycles));
    let each = |cost: &&StageCost| format!("{} {:.0}", cost.stage, cost.cycles as f64 / packets);
    sorted.iter().take(DEAREST).map(each).collect::<Vec<_>>().join(", ")
}

/// How workers spend their time, and whether the stages add up to all of it.
fn workers(report: &ProfileReport) -> String {
    let mut table = Table::new(&[
        "WORKER",
        ">ROUNDS",
        ">PACKETS",
        ">POLL",
        ">KICK",
        ">CONTROL",
        ">OTHER",
        ">ASLEEP",
        ">ACCOUNTED",
    ]);
    for worker in &report.workers {
        let of_ports = report.ports.iter().filter(|port| port.worker == worker.worker);
        let packets: u64 = of_ports.flat_map(|port| &port.cycles).map(|cost| cost.cycles).sum();
        table.row(shares(worker, packets));
    }
    let costs = report.workers.iter().filter_map(|worker| worker.cost_percent);
    let cost = costs.reduce(f64::max).map(|percent| {
        let percent = percent.max(0.0);
        format!("The profile itself took {percent:.1} % of a busy worker's time at most.\n")
    });
    table.text() + &cost.unwrap_or_default()
}

fn shares(worker: &ProfiledWorker, packets: u64) -> [String; 9] {
    let own: u64 = worker.cycles.iter().map(|cost| cost.cycles).sum();
    let all = (own + packets + worker.asleep_cycles).max(1) as f64;
    let percent = |cycles: u64| format!("{:.1} %", 100.0 * cycles as f64 / all);
    let named = |names: &[&str]| {
        let costs = worker.cycles.iter().filter(|cost| names.contains(&cost.stage.as_str()));
        costs.map(|cost| cost.cycles).sum::<u64>()
    };
    let [poll, kick, control] = [["poll"], ["kick"], ["control"]].map(|names| named(&names));
    [
        worker.worker.to_string(),
        worker.rounds.to_string(),
        percent(packets),
        percent(poll),
        percent(kick),
        percent(control),
        percent(own - poll - kick - control),
        percent(worker.asleep_cycles),
        worker.accounted_percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.0} %")),
    ]
}

fn processes(processes: &[ProcessUsage], seconds: f64) -> String {
    let mut table = Table::new(&["PROCESS", ">PID", "THREAD", ">USER", ">KERNEL"]);
    let percent = |time_s: f64| format!("{:.1} %", 100.0 * time_s / seconds);
    for process in processes {
        let all = [process.process.clone(), process.pid.to_string(), String::new()];
        table.row(all.into_iter().chain([process.user_s, process.kernel_s].map(percent)));
        let mut threads: Vec<_> = process.threads.iter().collect();
        threads.retain(|thread| thread.user_s + thread.kernel_s >= THREAD_SHARE_MIN * seconds);
        threads.sort_by(|one, other| (other.user_s + other.kernel_s).total_cmp(&(one.user_s + one.kernel_s)));
        for thread in threads.iter().take(THREADS_MAX).filter(|_| process.threads.len() > 1) {
            let one = [String::new(), thread.id.to_string(), thread.thread.clone()];
            table.row(one.into_iter().chain([thread.user_s, thread.kernel_s].map(percent)));
        }
    }
    if processes.is_empty() { String::new() } else { table.text() }
}

/// Sampled packets of all.
pub(super) fn packets(ports: &[ProfiledPort]) -> u64 {
    ports.iter().map(|port| port.sampled_packets).sum()
}

/// Sums by stage, in the order of the first.
fn sum<'a>(all: impl Iterator<Item = &'a Vec<StageCost>>) -> Vec<StageCost> {
    let mut sums: Vec<StageCost> = Vec::new();
    for cost in all.flatten() {
        match sums.iter_mut().find(|sum| sum.stage == cost.stage) {
            Some(sum) => sum.cycles += cost.cycles,
            None => sums.push(cost.clone()),
        }
    }
    sums
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn report() -> ProfileReport {
        let costs = |costs: &[(&str, u64)]| {
            let cost =
                |(stage, cycles): &(&str, u64)| StageCost { stage: (*stage).to_owned(), cycles: *cycles };
            costs.iter().map(cost).collect::<Vec<_>>()
        };
        let port = |name: &str, packets, cycles| ProfiledPort {
            port: name.to_owned(),
            worker: 0,
            sampled_visits: 10,
            sampled_packets: packets,
            cycles,
        };
        ProfileReport {
            seconds: 5.0,
            clock: "tsc".to_owned(),
            cycles_per_second: 2.5e9,
            every: 256,
            workers: vec![ProfiledWorker {
                rounds: 4000,
                sampled_rounds: 16,
                asleep_cycles: 0,
                cycles: costs(&[("kick", 500), ("poll", 4500), ("other", 0)]),
                accounted_percent: Some(98.4),
                cost_percent: Some(0.62),
                ..ProfiledWorker::default()
            }],
            ports: vec![
                port("vm1", 100, costs(&[("fetch", 1000), ("copy", 3000), ("signal", 0)])),
                port("a-vnic-with-15-", 100, costs(&[("fetch", 600), ("copy", 400), ("signal", 0)])),
            ],
        }
    }

    fn answer() -> ProfileAnswer {
        let processes = vec![ProcessUsage {
            process: "switch".to_owned(),
            pid: 4_000_000,
            user_s: 4.5,
            kernel_s: 0.5,
            instructions: None,
            cache_misses: None,
            threads: Vec::new(),
        }];
        let uncounted = Some("this machine has no counters of them".to_owned());
        ProfileAnswer { stages: report(), processes, uncounted }
    }

    #[test]
    fn stages_are_shown_by_packet_and_as_shares_within_80_columns() {
        let text = profile(&answer());
        let line = |start: &str| text.lines().find(|line| line.starts_with(start)).expect("a line");
        let words = |start: &str| line(start).split_whitespace().collect::<Vec<_>>();
        assert_eq!(words("copy"), ["copy", "17.0", "6.8", "68.0", "%"]);
        assert_eq!(words("all"), ["all", "25.0", "10.0", "100.0", "%"]);
        assert!(line("vm1").ends_with("copy 30, fetch 10"), "{text}");
        assert_eq!(words("0")[..6], ["0", "4000", "50.0", "%", "45.0", "%"]);
        assert!(line("0").ends_with("98 %") && line("switch").contains("90.0 %"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("itself took 0.6 % of"), "{text}");
        assert!(!text.contains("signal"), "a stage that took no time");
        assert_eq!(text.matches("no counters").count(), 1, "{text}");
    }

    #[test]
    fn a_profile_without_packets_says_so() {
        let stages = ProfileReport { ports: Vec::new(), seconds: 1.0, ..ProfileReport::default() };
        let text = profile(&ProfileAnswer { stages, processes: Vec::new(), uncounted: None });
        assert!(text.contains("no packets") && text.contains("--every"), "{text}");
    }
}
