//! Counters, and whether they add up.

use lasthop_api::report::{DropCounts, PortReport, StatsReport, WorkerReport};

use super::fold::for_screen;
use super::rates::Sorted;
use super::table::Table;

/// Name of the port that the switch itself sends from.
const INTERNAL: &str = "internal";

/// All counters as a table, followed by the drops.
pub(crate) fn stats(stats: &StatsReport) -> String {
    // The switch's own port is shown once it has been used.
    let is_used = |port: &&PortReport| port.name != INTERNAL || port.taken_in() + port.tx_packets > 0;
    let ports: Vec<&PortReport> = stats.ports.iter().filter(is_used).collect();
    if ports.is_empty() {
        return "no vnics; make one with: lasthop port add NAME,backend=vhost-user".to_owned();
    }
    let headings = [
        "VNIC",
        "STATE",
        ">FROM GUEST",
        ">BYTES",
        ">GSO",
        ">TO GUEST",
        ">BYTES",
        ">GSO",
        ">WAITING",
        ">DROPPED",
    ];
    let mut table = Table::new(&headings);
    for port in &ports {
        table.row(counters(port));
    }
    // Packets that needed one more copy.
    let detached = |port: &PortReport| match port.detached {
        0 => String::new(),
        count => format!("{} detached: {count} packets that waited\n", port.name),
    };
    let lines: String = ports.iter().map(|port| drop_lines(port) + &detached(port)).collect();
    table.text() + &for_screen(&(lines + &stats.workers.iter().map(age_line).collect::<String>()))
}

impl Sorted for PortReport {
    fn name(&self) -> &str {
        &self.name
    }

    fn moved(&self) -> f64 {
        (self.rx_bytes + self.tx_bytes) as f64 + self.lost()
    }

    fn lost(&self) -> f64 {
        dropped(self) as f64
    }
}

/// Packets that were dropped coming from the guest or going to it.
fn dropped(port: &PortReport) -> u64 {
    port.dropped() + port.tx_drops.values().sum::<u64>()
}

/// A line about a worker that did not answer.
fn age_line(worker: &WorkerReport) -> String {
    let line = |age_ms| {
        format!(
            "worker {} does not answer; its counters were saved {age_ms} ms ago, states of its rings may be older\n",
            worker.index
        )
    };
    worker.age_ms.map(line).unwrap_or_default()
}

/// The load of workers between two reads, in percent of a CPU, and their counts since they started.
pub(crate) fn workers(before: &StatsReport, stats: &StatsReport) -> String {
    // With numbers of five characters they fit 80 columns.
    let headings = [
        "ID", ">BUSY", ">ON", ">SLEEPS", ">POLLS", ">CROWD", ">SCARCE", ">VISITS", ">BATCH", ">CONT",
        ">LEFT", ">LEASED", ">BACK", ">WAKES",
    ];
    let mut table = Table::new(&headings);
    for worker in &stats.workers {
        let numbers = [
            worker.thread as u64,
            worker.sleeps,
            worker.polls,
            worker.crowded,
            worker.scarce,
            worker.visits,
            worker.batches,
            worker.contended,
            worker.left,
            worker.leased,
            worker.returned,
            worker.wakes,
        ];
        let numbers = numbers.map(|number| number.to_string());
        let passed_ms = stats.time_ms.saturating_sub(before.time_ms);
        let earlier = before.workers.iter().find(|earlier| earlier.index == worker.index);
        let busy = earlier.and_then(|earlier| busy(earlier, worker, passed_ms));
        let busy = busy.map_or_else(|| "?".to_owned(), |percent| format!("{percent}%"));
        table.row([worker.index.to_string(), busy].into_iter().chain(numbers));
    }
    table.text()
}

/// Percent of the time in which the worker's own thread had a CPU.
fn busy(before: &WorkerReport, now: &WorkerReport, passed_ms: u64) -> Option<u64> {
    let ran_ns = now.cpu_ns?.checked_sub(before.cpu_ns?)?;
    (ran_ns / 10_000).checked_div(passed_ms).map(|percent| percent.min(100))
}

fn counters(port: &PortReport) -> Vec<String> {
    let numbers = [
        port.rx_packets,
        port.rx_bytes,
        port.rx_gso_packets,
        port.tx_packets,
        port.tx_bytes,
        port.tx_gso_packets,
        port.waiting,
        dropped(port),
    ];
    [port.name.clone(), port.state.clone()]
        .into_iter()
        .chain(numbers.map(|number| number.to_string()))
        .collect()
}

fn drop_lines(port: &PortReport) -> String {
    let line = |direction: &str, drops: &DropCounts| match drops.is_empty() {
        true => String::new(),
        false => format!("{} dropped {direction} guest: {}\n", port.name, reasons(drops)),
    };
    line("from", &port.rx_drops) + &line("to", &port.tx_drops)
}

/// The most frequent reason first.
fn reasons(drops: &DropCounts) -> String {
    let mut drops: Vec<_> = drops.iter().collect();
    drops.sort_by_key(|(reason, count)| (std::cmp::Reverse(**count), reason.as_str()));
    drops.iter().map(|(reason, count)| format!("{reason} {count}")).collect::<Vec<_>>().join(", ")
}

/// One line with the sums if every port's packets are accounted for; otherwise the ports whose packets are not.
pub(crate) fn conservation(stats: &StatsReport) -> Result<String, String> {
    let broken: Vec<String> = stats.ports.iter().filter(|port| !port.conserved).map(broken_line).collect();
    if !broken.is_empty() {
        return Err(format!("packets are not conserved: {}", broken.join("; ")));
    }
    let sum = |value: fn(&PortReport) -> u64| stats.ports.iter().map(value).sum::<u64>();
    // A packet that returned from the control plane was delivered to it before: it counts once.
    let returned = sum(|port| port.injected.min(port.upcalls));
    Ok(format!(
        "conserved: {} packets in, {} delivered, {} dropped, {} flooded to none, {} waiting",
        sum(PortReport::taken_in) - returned,
        sum(|port| port.forwarded) - returned,
        sum(PortReport::dropped),
        sum(|port| port.flooded_to_none),
        sum(|port| port.waiting),
    ))
}

fn broken_line(port: &PortReport) -> String {
    format!(
        "\"{}\" took in {} packets, and {} were delivered, {} dropped, {} flooded to none, {} wait",
        port.name,
        port.taken_in(),
        port.forwarded,
        port.dropped(),
        port.flooded_to_none,
        port.waiting
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::Sort;

    fn port(name: &str, rx_packets: u64, forwarded: u64, conserved: bool) -> PortReport {
        let drops = |reasons: &[(&str, u64)]| {
            reasons.iter().map(|(reason, count)| ((*reason).into(), *count)).collect()
        };
        PortReport {
            name: name.into(),
            state: "running".into(),
            rx_packets,
            forwarded,
            rx_drops: drops(&[("no_destination", 2), ("too_short", 30)]),
            tx_drops: drops(&[("rx_timeout", 1)]),
            conserved,
            ..PortReport::default()
        }
    }

    #[test]
    fn counters_and_reasons_are_shown() {
        let text = stats(&StatsReport {
            ports: vec![port("vm1", 132, 100, true)],
            workers: vec![],
            ..StatsReport::default()
        });
        let mut lines = text.lines();
        assert!(lines.next().is_some_and(|line| line.starts_with("VNIC  STATE    FROM GUEST")), "{text}");
        let row: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
        assert_eq!(row, ["vm1", "running", "132", "0", "0", "0", "0", "0", "0", "33"]);
        assert_eq!(lines.next(), Some("vm1 dropped from guest: too_short 30, no_destination 2"));
        assert_eq!(lines.next(), Some("vm1 dropped to guest: rx_timeout 1"));
        assert_eq!(lines.next(), None);
    }

    #[test]
    fn ports_are_sorted_by_what_they_move_or_lose_and_then_by_name() {
        let port = |name: &str, rx_bytes, drops: u64| PortReport {
            name: name.into(),
            rx_bytes,
            tx_drops: [("rx_timeout".to_owned(), drops)].into(),
            ..PortReport::default()
        };
        let sorted = |sort: Sort| {
            let mut ports = [port("c", 5, 9), port("b", 900, 0), port("a", 5, 9), port("d", 0, 50)];
            ports.sort_by(|one, other| sort.compare(one, other));
            ports.map(|port| port.name).concat()
        };
        assert_eq!([Sort::Name, Sort::Rate, Sort::Drops].map(sorted), ["abcd", "bdac", "dacb"]);
    }

    #[test]
    fn a_worker_that_does_not_answer_is_named() {
        let late = WorkerReport { index: 1, age_ms: Some(70), ..WorkerReport::default() };
        let text = stats(&StatsReport {
            ports: vec![port("vm1", 132, 100, true)],
            workers: vec![WorkerReport::default(), late],
            ..StatsReport::default()
        });
        let line =
            "worker 1 does not answer; its counters were saved 70 ms ago, states of its rings may be older";
        assert_eq!(text.lines().last(), Some(line));
        assert_eq!(text.matches("does not answer").count(), 1);
    }

    #[test]
    fn workers_have_a_line_each() {
        let worker = |index| WorkerReport {
            index,
            sleeps: 4,
            crowded: 7,
            scarce: 2,
            contended: 12,
            wakes: 3,
            ..WorkerReport::default()
        };
        let look = |time_ms, cpu_ns| {
            let ran = |index| WorkerReport { cpu_ns: Some(cpu_ns * index as u64), ..worker(index) };
            StatsReport { time_ms, workers: vec![ran(0), ran(1)], ..StatsReport::default() }
        };
        let text = workers(&look(1000, 7_000_000), &look(1500, 207_000_000));
        let row: Vec<&str> = text.lines().nth(2).unwrap_or_default().split_whitespace().collect();
        assert_eq!(row, ["1", "40%", "0", "4", "0", "7", "2", "0", "0", "12", "0", "0", "0", "3"]);
        assert_eq!(text.lines().count(), 3);
    }

    #[test]
    fn the_check_sums_up_or_names_the_port() {
        let good = StatsReport {
            ports: vec![port("a", 132, 100, true), port("b", 32, 0, true)],
            workers: vec![],
            ..StatsReport::default()
        };
        assert_eq!(
            conservation(&good).as_deref(),
            Ok("conserved: 164 packets in, 100 delivered, 64 dropped, 0 flooded to none, 0 waiting")
        );
        let bad = StatsReport {
            ports: vec![port("a", 132, 100, true), port("b", 40, 0, false)],
            workers: vec![],
            ..StatsReport::default()
        };
        let message = conservation(&bad).expect_err("not conserved");
        assert!(message.contains("\"b\" took in 40") && !message.contains("\"a\""), "{message}");
    }
}
