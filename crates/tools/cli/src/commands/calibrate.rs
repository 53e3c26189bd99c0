//! `lasthop sched calibrate`: measures which CPUs share caches, and tells the switch.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use serde_json::Value;

use lasthop_api::placement::{CalibrateParams, MeasuredCaches, MeasuredDistance};
use lasthop_calibrate::{CpuPair, measure, usable_cpus};
use lasthop_runtime::fault::Fault;
use lasthop_sched::{CpuDistance, LineTime, distance, measured_places};
use lasthop_sched_view::cpu_places;

use super::ask::ApiRequest;
use super::client::ask;
use crate::show;

/// How to measure.
#[derive(Debug, Args)]
pub(super) struct CalibrateArgs {
    /// Passes over all pairs of CPUs; the median counts
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeats: u16,
    /// Hours for which the switch uses the result; then it goes by sysfs again
    #[arg(long, value_name = "HOURS", default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=8760))]
    expires: u32,
    /// Only measure and show
    #[arg(long, conflicts_with = "reset")]
    dry_run: bool,
    /// Return to the caches that sysfs tells, without measuring
    #[arg(long)]
    reset: bool,
}

impl ApiRequest {
    pub(super) fn calibrate(&self, args: &CalibrateArgs) -> Result<ExitCode, Fault> {
        if args.reset {
            let done: Value = ask(&self.dir, "sched.calibrate", &CalibrateParams { measured: None })?;
            return self.show(&done, |_| "caches are those that sysfs tells".to_owned());
        }
        let failed = |error: std::io::Error| Fault::internal("measure distances between CPUs", error);
        let cpus = usable_cpus().map_err(failed)?;
        let pairs = measure(&cpus, usize::from(args.repeats), show_progress).map_err(failed)?;
        let measured = measured_caches(&pairs, Duration::from_secs(3600 * u64::from(args.expires)));
        if !args.dry_run {
            let params = CalibrateParams { measured: Some(measured.clone()) };
            let _: Value = ask(&self.dir, "sched.calibrate", &params)?;
        }
        self.show(&measured, |measured| {
            let used = match args.dry_run {
                true => "nothing was changed".to_owned(),
                false => {
                    format!("used for {} hours; lasthop sched calibrate --reset ends that", args.expires)
                }
            };
            format!("{}{used}", show::measured(measured))
        })
    }
}

/// One line that is written over, for people who wait.
fn show_progress(done: usize, of: usize) {
    let mut out = std::io::stderr();
    if out.is_terminal() && (done.is_multiple_of(8) || done == of) {
        let end = if done == of { "\r\x1b[K" } else { "" };
        let _ = write!(out, "\rmeasured {done} of {of}{end}");
    }
}

fn measured_caches(pairs: &[CpuPair], lifetime: Duration) -> MeasuredCaches {
    let time = |pair: &CpuPair| LineTime { ends: (pair.one, pair.other), line_ns: pair.line_ns };
    let places = measured_places(&cpu_places(), &pairs.iter().map(time).collect::<Vec<_>>());
    let of = |wanted: CpuDistance, word: &str| {
        let here: Vec<&CpuPair> =
            pairs.iter().filter(|pair| distance(&places, pair.one, pair.other) == wanted).collect();
        let median = |value: fn(&CpuPair) -> u64| {
            let mut values: Vec<u64> = here.iter().map(|pair| value(pair)).collect();
            values.sort_unstable();
            values.get(values.len() / 2).copied()
        };
        Some(MeasuredDistance {
            distance: word.to_owned(),
            pairs: here.len() as u64,
            line_ns: median(|pair| pair.line_ns)?,
            copy_mb_per_s: median(|pair| pair.copy_mb_per_s)?,
        })
    };
    let words = [
        (CpuDistance::Group, "group"),
        (CpuDistance::Llc, "llc"),
        (CpuDistance::Node, "node"),
        (CpuDistance::Far, "far"),
    ];
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    MeasuredCaches {
        distances: words.into_iter().filter_map(|(wanted, word)| of(wanted, word)).collect(),
        places: places.iter().map(|place| place.numbers()).collect(),
        measured_s: now.as_secs(),
        expires_s: now.saturating_add(lifetime).as_secs(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_summed_up_by_what_is_shared() {
        let pair = |other, line_ns, copy_mb_per_s| CpuPair { one: 0, other, line_ns, copy_mb_per_s };
        let count = cpu_places().len();
        let pairs: Vec<CpuPair> = (1..count).map(|other| pair(other, 60 + other as u64, 9000)).collect();
        let measured = measured_caches(&pairs, Duration::from_secs(60));
        assert_eq!((measured.places.len(), measured.expires_s - measured.measured_s), (count, 60));
        let near = measured.distances.iter().find(|distance| distance.distance == "llc");
        let near_pairs = pairs.iter().filter(|pair| pair.line_ns <= lasthop_sched::LLC_NS_MAX).count();
        assert_eq!(near.map_or(0, |near| near.pairs), near_pairs as u64);
        assert!(measured.distances.iter().all(|distance| distance.copy_mb_per_s == 9000));
    }
}
