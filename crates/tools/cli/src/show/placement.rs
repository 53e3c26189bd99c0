//! The caches of the machine, and threads that were placed in them.

use std::time::{SystemTime, UNIX_EPOCH};

use lasthop_api::placement::{CachesReport, MeasuredCaches};
use lasthop_api::sched::SchedReport;

use super::table::Table;

/// The caches that decisions use, the mode, and each placed thread.
pub(crate) fn placement(report: &SchedReport) -> String {
    let placement = &report.placement;
    let mode = placement.mode.as_str();
    let mut text = caches(&report.caches);
    text += &match &placement.why {
        Some(why) => format!("placement: {mode}, not in effect: {why}\n"),
        None => format!("placement: {mode}\n"),
    };
    if placement.decisions > 0 {
        let (batches, moves) = (placement.batches, placement.moves);
        text += &format!("threads with more than {batches} batches in 30 ms share a cache; {moves} moves\n");
    }
    if placement.threads.is_empty() {
        return text;
    }
    let mut threads = Table::new(&["THREAD", ">TID", "VNIC", "CPUS", "OF"]);
    for thread in &placement.threads {
        let vnic = thread.vnic.clone().unwrap_or_else(|| "-".to_owned());
        threads.row([
            thread.name.clone(),
            thread.tid.to_string(),
            vnic,
            thread.cpus.clone(),
            thread.own_cpus.clone(),
        ]);
    }
    text + &threads.text()
}

fn caches(report: &CachesReport) -> String {
    let CachesReport { cpus, groups, llcs, nodes, measured } = report;
    let source = match measured {
        Some(measured) => format!("measured, for {} h more", hours_left(measured, SystemTime::now())),
        None => "from sysfs".to_owned(),
    };
    format!("caches: {cpus} CPUs, {groups} L2 groups, {llcs} last-level caches, {nodes} nodes ({source})\n")
}

/// A measurement, as a table.
pub(crate) fn measured(measured: &MeasuredCaches) -> String {
    let mut table = Table::new(&["SHARED", ">PAIRS", ">CACHE LINE, ns", ">COPY, MB/s"]);
    for distance in &measured.distances {
        let shared = match distance.distance.as_str() {
            "group" => "L2",
            "llc" => "last-level cache",
            "node" => "node",
            _ => "nothing",
        };
        let numbers =
            [distance.pairs, distance.line_ns, distance.copy_mb_per_s].map(|number| number.to_string());
        table.row(std::iter::once(shared.to_owned()).chain(numbers));
    }
    table.text()
}

/// Hours until it expires, the present one included.
fn hours_left(measured: &MeasuredCaches, now: SystemTime) -> u64 {
    let now_s = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    measured.expires_s.saturating_sub(now_s).div_ceil(3600)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lasthop_api::placement::{MeasuredDistance, PlacedThreadReport, PlacementMode, PlacementReport};

    use super::*;

    #[test]
    fn a_placed_thread_and_a_measurement_are_shown() {
        let measured = MeasuredCaches {
            places: vec![(0, 0, 0), (1, 1, 0)],
            measured_s: 0,
            expires_s: 7200,
            distances: vec![MeasuredDistance {
                distance: "node".to_owned(),
                pairs: 1,
                line_ns: 240,
                copy_mb_per_s: 3000,
            }],
        };
        assert_eq!(
            [0, 1, 3601, 9999].map(|s| hours_left(&measured, UNIX_EPOCH + Duration::from_secs(s))),
            [2, 2, 1, 0]
        );
        let table = super::measured(&measured);
        let row: Vec<&str> = table.lines().last().expect("a row").split_whitespace().collect();
        assert_eq!(row, ["node", "1", "240", "3000"]);
        let thread = PlacedThreadReport {
            name: "CPU 0/KVM".to_owned(),
            tid: 4711,
            vnic: Some("vm1".to_owned()),
            cpus: "0-3".to_owned(),
            own_cpus: "0-7".to_owned(),
        };
        let report = SchedReport {
            placement: PlacementReport {
                mode: PlacementMode::Guests,
                batches: 150,
                decisions: 1,
                moves: 1,
                threads: vec![thread],
                why: None,
            },
            caches: CachesReport { cpus: 8, groups: 8, llcs: 2, nodes: 1, measured: None },
            ..SchedReport::default()
        };
        let text = placement(&report);
        assert!(text.contains("8 CPUs, 8 L2 groups, 2 last-level caches, 1 nodes (from sysfs)"), "{text}");
        assert!(text.contains("CPU 0/KVM") && text.lines().all(|line| line.len() <= 80), "{text}");
    }
}
