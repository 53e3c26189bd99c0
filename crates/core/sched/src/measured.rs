//! Caches that CPUs share, by the measured time of a cache line from one to the other.
//!
//! ```text
//!   ns      0 ── 20 ──────── gap, or 110 ────────── gap ──────────────
//!           one L2 group │ one last-level cache │ one node │ nothing shared
//! ```

use crate::place::CpuPlace;

/// CPUs whose cache lines need at most this time share a second-level cache: threads of one core take 5 to 15 ns.
pub const GROUP_NS_MAX: u64 = 20;
/// CPUs whose cache lines need longer share no last-level cache: those in one take 20 to 80 ns, others 75 to 400. Where the machine's
/// own times have a gap below this, the gap decides.
pub const LLC_NS_MAX: u64 = 110;
/// A gap between times within a last-level cache and beyond, in percent.
const LLC_GAP_PERCENT: u64 = 160;
/// Among CPUs without a common cache those of one node are nearer than others by at least this factor, in percent.
const NODE_GAP_PERCENT: u64 = 140;

/// The time of a cache line between two CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineTime {
    /// The CPUs, by number.
    pub ends: (usize, usize),
    /// Time from one to the other.
    pub line_ns: u64,
}

/// The place of each CPU by measured times. `known` has the places as sysfs tells them: CPUs without a measurement share with
/// each other what sysfs says. CPUs share a cache if times say so, directly or by way of a third one.
#[must_use]
pub fn measured_places(known: &[CpuPlace], times: &[LineTime]) -> Vec<CpuPlace> {
    let is_known = |time: &&LineTime| time.ends.0.max(time.ends.1) < known.len();
    let times: Vec<LineTime> = times.iter().filter(is_known).copied().collect();
    let mut is_measured = vec![false; known.len()];
    times
        .iter()
        .for_each(|time| [time.ends.0, time.ends.1].into_iter().for_each(|cpu| is_measured[cpu] = true));
    let groups = firsts(known.len(), &times, GROUP_NS_MAX);
    let llc_ns_max = llc_ns_max(&times);
    let llcs = firsts(known.len(), &times, llc_ns_max);
    let nodes = firsts(known.len(), &times, node_ns_max(&times, llc_ns_max));
    // Numbers of others are their first one without a measurement, which no measured CPU has.
    let first_like = |number: fn(&CpuPlace) -> u16, cpu: usize| {
        let is_like = |other: &usize| !is_measured[*other] && number(&known[*other]) == number(&known[cpu]);
        (0..known.len()).find(is_like).map_or(u16::MAX, |first| first as u16)
    };
    let place = |cpu: usize| match is_measured[cpu] {
        true => CpuPlace { group: groups[cpu], llc: llcs[cpu], node: nodes[cpu] },
        false => CpuPlace {
            group: first_like(|place| place.group, cpu),
            llc: first_like(|place| place.llc, cpu),
            node: first_like(|place| place.node, cpu),
        },
    };
    (0..known.len()).map(place).collect()
}

/// The longest time within a last-level cache: up to the first gap behind second-level caches.
fn llc_ns_max(times: &[LineTime]) -> u64 {
    let mut beyond: Vec<u64> =
        times.iter().map(|time| time.line_ns).filter(|ns| *ns > GROUP_NS_MAX).collect();
    beyond.sort_unstable();
    let first = beyond.windows(2).find(|pair| gap_percent(pair) >= LLC_GAP_PERCENT).map(|pair| pair[0]);
    first.filter(|ns| *ns <= LLC_NS_MAX).unwrap_or(LLC_NS_MAX)
}

/// The longest time within a node: up to the largest gap among CPUs without a common cache, if it is large enough to be one.
fn node_ns_max(times: &[LineTime], llc_ns_max: u64) -> u64 {
    let mut far: Vec<u64> = times.iter().map(|time| time.line_ns).filter(|ns| *ns > llc_ns_max).collect();
    far.sort_unstable();
    let widest = far.windows(2).max_by_key(|pair| gap_percent(pair));
    match widest {
        Some(pair) if gap_percent(pair) >= NODE_GAP_PERCENT => pair[0],
        _ => u64::MAX,
    }
}

/// The second of two ascending times, in percent of the first.
fn gap_percent(pair: &[u64]) -> u64 {
    pair[1].saturating_mul(100) / pair[0].max(1)
}

/// For each CPU the first one that it is connected with by times of at most `max_ns`.
fn firsts(count: usize, times: &[LineTime], max_ns: u64) -> Vec<u16> {
    let mut first: Vec<u16> = (0..count).map(|cpu| u16::try_from(cpu).unwrap_or(u16::MAX)).collect();
    for time in times.iter().filter(|time| time.line_ns <= max_ns) {
        let (one, other) = (first[time.ends.0], first[time.ends.1]);
        let (low, high) = (one.min(other), one.max(other));
        first.iter_mut().filter(|number| **number == high).for_each(|number| *number = low);
    }
    first
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn unknown(count: u16) -> Vec<CpuPlace> {
        (0..count).map(|cpu| CpuPlace { group: cpu, llc: 0, node: 0 }).collect()
    }

    fn times(count: usize, ns: impl Fn(usize, usize) -> u64) -> Vec<LineTime> {
        let of = |one: usize| (one + 1..count).map(move |other| (one, other));
        let time = |ends: (usize, usize)| LineTime { ends, line_ns: ns(ends.0, ends.1) };
        (0..count).flat_map(of).map(time).collect()
    }

    #[test]
    fn caches_and_nodes_are_found_by_distance() {
        // Two nodes of two caches of two cores with two threads each.
        let ns = |one: usize, other: usize| match one ^ other {
            1 => 9,
            2..=3 => 48,
            4..=7 => 150,
            _ => 260,
        };
        let places = measured_places(&unknown(16), &times(16, ns));
        let place = |cpu: u16| CpuPlace { group: cpu / 2 * 2, llc: cpu / 4 * 4, node: cpu / 8 * 8 };
        assert_eq!(places, (0..16).map(place).collect::<Vec<_>>());
    }

    #[test]
    fn two_cpus_of_a_virtual_machine_are_near_or_far_whatever_sysfs_says() {
        let near = measured_places(&unknown(2), &times(2, |_, _| 52));
        assert_eq!((near[0].llc, near[1].llc, near[0].group, near[1].group), (0, 0, 0, 1));
        let far = measured_places(&unknown(2), &times(2, |_, _| 240));
        assert_eq!((far[0].llc, far[1].llc, far[0].node, far[1].node), (0, 1, 0, 0));
    }

    #[test]
    fn a_gap_of_the_machine_s_own_separates_caches_that_are_near() {
        // Two chiplets of one package.
        let ns = |one: usize, other: usize| if one / 4 == other / 4 { 24 } else { 80 };
        let places = measured_places(&unknown(8), &times(8, ns));
        assert_eq!((places[3].llc, places[4].llc, places[7].node), (0, 4, 0));
    }

    #[test]
    fn cpus_without_a_measurement_share_what_sysfs_says() {
        let place = |group, llc, node| CpuPlace { group, llc, node };
        let known = [place(0, 0, 0), place(1, 1, 1), place(2, 1, 1)];
        let beyond = [LineTime { ends: (0, 9), line_ns: 1 }];
        assert_eq!(measured_places(&known, &beyond), known);
        let some = [LineTime { ends: (0, 1), line_ns: 30 }];
        let places = measured_places(&known, &some);
        assert_eq!(
            places,
            [place(0, 0, 0), place(1, 0, 0), place(2, 2, 2)],
            "CPU 2 shares nothing with measured ones"
        );
    }

    proptest! {
        #[test]
        fn what_shares_a_nearer_cache_shares_the_farther_one(values in proptest::collection::vec(1_u64..500, 28)) {
            let all = times(8, |_, _| 0);
            let measured: Vec<_> = all.iter().zip(&values).map(|(time, ns)| LineTime { line_ns: *ns, ..*time }).collect();
            let places = measured_places(&unknown(8), &measured);
            for (one, other) in all.iter().map(|time| time.ends) {
                let (one, other) = (places[one], places[other]);
                prop_assert!(one.group != other.group || one.llc == other.llc);
                prop_assert!(one.llc != other.llc || one.node == other.node);
            }
        }
    }
}
