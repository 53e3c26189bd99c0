use super::{OFFERED, STREAM, busy, far, received, took};
use crate::report::{Cell, Comparison, Role, Spread};
use crate::sample::{Placement, Sample};

fn cell(samples: &[Sample], backend: &str) -> Cell {
    Comparison::of(samples, "lasthop").rows[0].cell(backend).expect("a cell").clone()
}

fn spread(samples: &[Sample], backend: &str) -> Spread {
    cell(samples, backend).value.expect("a value")
}

fn streams(backend: &str, frames: &[u64]) -> Vec<Sample> {
    (0..).zip(frames).map(|(round, &frames)| received(backend, STREAM, round, frames)).collect()
}

#[test]
fn the_median_of_an_odd_number_is_the_middle_one() {
    let samples = streams("lasthop", &[9_000_000, 1_000_000, 2_000_000]);
    let expected = Spread { median: 2.0, min: 1.0, max: 9.0, samples: 3 };
    assert_eq!(spread(&samples, "lasthop"), expected);
    assert_eq!(expected.percent(), 350.0);
}

#[test]
fn the_median_of_an_even_number_is_between_the_two_in_the_middle() {
    let samples = streams("lasthop", &[9_000_000, 1_000_000, 2_000_000, 4_000_000]);
    assert_eq!(spread(&samples, "lasthop").median, 3.0);
}

#[test]
fn values_that_are_no_numbers_do_not_count() {
    let mut samples = streams("lasthop", &[1_000_000, 2_000_000]);
    samples[0].seconds = 0.0;
    assert_eq!(spread(&samples, "lasthop"), Spread { median: 2.0, min: 2.0, max: 2.0, samples: 1 });
}

#[test]
fn only_the_placement_that_serves_the_poorest_back_end_best_is_used() {
    let mut samples = streams("lasthop", &[1_000_000; 5]);
    samples.extend(streams("testpmd", &[1_000_000]));
    samples.extend(streams("lasthop", &[3_000_000; 2]).into_iter().map(far));
    samples.extend(streams("testpmd", &[2_000_000; 3]).into_iter().map(far));
    let row = &Comparison::of(&samples, "lasthop").rows[0];
    assert_eq!((row.placement, row.samples_left_out), (Placement::Far, 6));
    assert_eq!(row.core_to_core_ns.expect("distances").min, 300.0);
    assert_eq!(spread(&samples, "lasthop"), Spread { median: 3.0, min: 3.0, max: 3.0, samples: 2 });
    assert_eq!(spread(&samples, "testpmd").samples, 3);
}

#[test]
fn near_is_preferred_if_both_placements_serve_alike() {
    let mut samples: Vec<Sample> = streams("lasthop", &[1_000_000; 2]).into_iter().map(far).collect();
    samples.extend(streams("lasthop", &[2_000_000; 2]));
    let row = &Comparison::of(&samples, "lasthop").rows[0];
    assert_eq!((row.placement, row.samples_left_out), (Placement::Near, 2));
}

#[test]
fn back_ends_of_different_placements_are_never_compared() {
    let mut samples = streams("lasthop", &[2_000_000]);
    samples.extend(streams("testpmd", &[1_000_000]).into_iter().map(far));
    let peer = cell(&samples, "testpmd");
    assert_eq!((peer.value, peer.ratio), (None, None));
    assert!(cell(&samples, "lasthop").value.is_some());
}

#[test]
fn a_back_end_without_values_does_not_choose_the_placement() {
    let mut samples: Vec<Sample> =
        (0..2).map(|round| far(busy(received("lasthop", OFFERED, round, 1_000_000), 0.5))).collect();
    samples.push(received("testpmd", OFFERED, 0, 1_000_000));
    assert_eq!(Comparison::of(&samples, "lasthop").rows[0].placement, Placement::Far);
    assert_eq!(cell(&samples, "testpmd").value, None);
}

#[test]
fn ratios_by_round_pair_samples_of_the_same_round() {
    let mut samples = streams("testpmd", &[1_000_000, 2_000_000, 4_000_000]);
    samples.extend(streams("lasthop", &[2_000_000, 2_000_000, 12_000_000]));
    samples.swap(4, 5);
    samples.push(received("testpmd", STREAM, 3, 90_000_000));
    let ratio = cell(&samples, "testpmd").ratio.expect("a ratio");
    assert_eq!(ratio.of_medians, 2.0 / 3.0);
    assert_eq!(ratio.by_round, Some(Spread { median: 2.0, min: 1.0, max: 3.0, samples: 3 }));
    assert_eq!(cell(&samples, "lasthop").ratio, None);
}

#[test]
fn a_ratio_without_common_rounds_has_no_range() {
    let samples = [received("lasthop", STREAM, 0, 3_000_000), received("testpmd", STREAM, 1, 2_000_000)];
    let ratio = cell(&samples, "testpmd").ratio.expect("a ratio");
    assert_eq!((ratio.of_medians, ratio.by_round), (1.5, None));
}

#[test]
fn a_ratio_above_one_means_a_better_reference_for_times_too() {
    let samples = [took("lasthop", 0, 2_000), took("testpmd", 0, 5_000)];
    let ratio = cell(&samples, "testpmd").ratio.expect("a ratio");
    assert_eq!(ratio.of_medians, 2.5);
    assert_eq!(ratio.by_round.expect("a round").max, 2.5);
}

#[test]
fn nothing_is_a_multiple_of_zero() {
    let samples =
        [busy(received("lasthop", OFFERED, 0, 1), 0.0), busy(received("testpmd", OFFERED, 0, 1), 1.0)];
    assert_eq!(cell(&samples, "testpmd").ratio, None);
}

#[test]
fn half_of_what_the_generator_reaches_is_the_most_that_is_believed() {
    let mut samples = streams("lasthop", &[5_000_001]);
    samples.extend(streams("testpmd", &[5_000_000]));
    assert!(!cell(&samples, "lasthop").generator_limited);
    samples.extend(streams("null", &[10_000_000]));
    assert!(cell(&samples, "lasthop").generator_limited);
    assert!(!cell(&samples, "testpmd").generator_limited);
    assert!(!cell(&samples, "null").generator_limited);
}

#[test]
fn times_are_not_limited_by_the_generator() {
    let samples = [took("lasthop", 0, 2_000), took("null", 0, 1_000)];
    assert!(!cell(&samples, "lasthop").generator_limited);
}

#[test]
fn a_load_that_did_not_arrive_is_marked() {
    let offered = |frames| cell(&[busy(received("lasthop", OFFERED, 0, frames), 0.5)], "lasthop");
    assert!(offered(989_999).short_of_offered);
    assert!(!offered(990_000).short_of_offered);
    assert!(!cell(&streams("lasthop", &[1]), "lasthop").short_of_offered);
}

#[test]
fn percentiles_are_medians_of_the_samples() {
    let samples = [took("lasthop", 0, 2_000), took("lasthop", 1, 9_000), took("lasthop", 2, 4_000)];
    let trip = cell(&samples, "lasthop").round_trip.expect("round trips");
    assert_eq!((trip.count, trip.p50_ns, trip.p999_ns, trip.max_ns), (3000, 4_000, 36_000, 400_000));
}

#[test]
fn the_reference_comes_first_and_ceilings_last() {
    let names = ["null", "limit", "testpmd", "lasthop-dummy", "lasthopper", "lasthop"];
    let samples: Vec<Sample> = names.iter().map(|name| received(name, STREAM, 0, 1)).collect();
    let comparison = Comparison::of(&samples, "lasthop");
    assert_eq!(comparison.backends, ["lasthop", "lasthop-dummy", "testpmd", "lasthopper", "null", "limit"]);
    let roles: Vec<Role> = comparison.rows[0].cells.iter().map(|cell| cell.role).collect();
    use Role::{Ceiling, Peer, Reference, Variant};
    assert_eq!(roles, [Reference, Variant, Peer, Peer, Ceiling, Ceiling]);
    assert_eq!(Comparison::of(&samples, "null").backends[0], "null");
}
