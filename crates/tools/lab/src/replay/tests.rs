//! A trace of a real switch, changed copies of it, and random traces.

use std::path::{Path, PathBuf};

use lasthop_api::sched::{DecisionInputsLine, DecisionLine, GuestThreadCounts, RepetitionsLine, SchedTrace};
use lasthop_sched::{Mode, Policy};
use proptest::prelude::*;

use super::settings::OtherSettings;
use super::trace_file::{Recorded, parse};
use super::verdict::{Verdict, judge};
use super::{ReplayOptions, polling, signal_sums, tables};

/// `bench/decision-trace` made it.
const RECORDED: &str = include_str!("../../traces/two-guests.json");

fn recorded(change: impl Fn(&mut DecisionLine)) -> Vec<Recorded> {
    let mut trace: SchedTrace = serde_json::from_str(RECORDED).expect("a trace");
    trace.decisions.iter_mut().for_each(change);
    parse(&serde_json::to_vec(&trace).expect("JSON")).expect("a trace")
}

fn unexplained(trace: &[Recorded]) -> usize {
    tables(trace, &OtherSettings::default(), "").1
}

fn count(trace: &[Recorded], verdict: Verdict) -> usize {
    trace.iter().filter(|line| judge(line) == verdict).count()
}

#[test]
fn each_decision_of_a_real_switch_is_explained_by_its_inputs() {
    let trace = recorded(|_| ());
    assert_eq!(count(&trace, Verdict::Same), trace.len());
    let policies: std::collections::BTreeSet<_> =
        trace.iter().map(|line| line.word.names().0.name()).collect();
    assert!(policies.len() >= 3, "{policies:?}");
}

#[test]
fn a_trace_without_inputs_is_possible() {
    let trace = recorded(|line| (line.inputs, line.repetitions) = (None, None));
    assert_eq!(count(&trace, Verdict::Possible), trace.len());
    let (text, _) = tables(&trace, &OtherSettings::default(), "");
    assert!(text.contains("without inputs, left out"), "{text}");
}

/// The recorded file, and a copy in which a guest sleeps that the worker is said to have yielded to.
#[test]
fn a_changed_copy_fails_and_is_named() {
    let options = |file: PathBuf| ReplayOptions { file, hysteresis_us: None, policies: Vec::new() };
    let original = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/two-guests.json");
    options(original).execute().expect("each decision is explained");
    let mut trace: SchedTrace = serde_json::from_str(RECORDED).expect("a trace");
    let changed = trace.decisions.iter_mut().find(|line| line.decision == "yield").expect("a yield");
    changed.guest = Some(GuestThreadCounts { sleeping: 4, ..GuestThreadCounts::default() });
    let copy = std::env::temp_dir().join(format!("lasthop-lab-replay-{}.json", std::process::id()));
    std::fs::write(&copy, serde_json::to_vec(&trace).expect("JSON")).expect("a file");
    let done = options(copy.clone()).execute();
    std::fs::remove_file(&copy).expect("the file");
    let said = done.expect_err("a decision that is not explained").to_string();
    assert!(said.contains("do not explain 1 of 100") && said.contains(&*copy.to_string_lossy()), "{said}");
}

#[test]
fn other_settings_are_policies_of_a_replay() {
    let settings = |text: &str| {
        let policies = vec![text.to_owned()];
        ReplayOptions { file: PathBuf::new(), hysteresis_us: Some(7), policies }.settings()
    };
    let off = settings("look=off").expect("a policy");
    assert!(off.is_off(Policy::Look) && !off.is_off(Policy::Yield) && off.max_ns == Some(7000));
    assert!(!settings("look=on").expect("a policy").is_off(Policy::Look));
    for (text, remedy) in
        [("movement=on", "gathering"), ("shares=steal", "notify"), ("look=perhaps", "on, off or auto")]
    {
        let said = format!("{:#}", settings(text).expect_err(text));
        assert!(said.contains(remedy), "{text}: {said}");
    }
}

#[test]
fn decisions_of_gathering_are_replayed() {
    let with = |decision: &str, load, saturated_ns, idle| {
        let change = |line: &mut DecisionLine| {
            (line.policy, line.decision, line.times) = ("gathering".to_owned(), decision.to_owned(), 3);
            (line.guest, line.repetitions) = (None, None);
            line.inputs = Some(DecisionInputsLine {
                load_percent: Some(load),
                saturated_ns: Some(saturated_ns),
                idle_cpus: Some(idle),
                ..DecisionInputsLine::default()
            });
        };
        recorded(change).remove(0)
    };
    let mut off = OtherSettings::default();
    off.changed.push(Policy::Gathering);
    off.modes.set(Policy::Gathering, Mode::Off);
    let right =
        [("held", 70, 0, 0, 3), ("apart", 70, 0, 1, 0), ("early", 50, 0, 2, 3), ("late", 95, u64::MAX, 0, 0)];
    for (decision, load, saturated_ns, idle, differing) in right {
        let line = with(decision, load, saturated_ns, idle);
        assert_eq!(judge(&line), Verdict::Same, "{decision}");
        assert_eq!(off.differing(&line).expect("inputs").most, differing, "{decision}");
        assert_eq!(OtherSettings::default().differing(&line).expect("inputs").most, 0);
    }
    for (decision, load, saturated_ns, idle) in
        [("held", 70, 0, 1), ("apart", 70, 0, 0), ("early", 50, 0, 1), ("late", 95, 0, 0)]
    {
        assert_eq!(judge(&with(decision, load, saturated_ns, idle)), Verdict::Unexplained, "{decision}");
    }
}

type Change = fn(&mut DecisionLine);

/// Each of these changes is one that the functions do not explain.
#[test]
fn changed_decisions_are_found() {
    let changes: [(&str, Change); 4] = [
        ("poll beyond the hysteresis", |line| {
            if let Some(inputs) = line.inputs.as_mut().filter(|_| line.decision == "poll") {
                inputs.idle_ns = inputs.max_ns;
            }
        }),
        ("poll of a guest that sleeps", |line| {
            if let Some(guest) = line.guest.as_mut().filter(|_| line.decision == "poll" && line.times == 1) {
                *guest = GuestThreadCounts { sleeping: 1, ..GuestThreadCounts::default() };
                line.inputs = line.inputs.map(|inputs| DecisionInputsLine {
                    is_posted: Some(false),
                    idle_ns: Some(50_000),
                    learned_ns: Some(0),
                    ..inputs
                });
            }
        }),
        ("sleep instead of poll", |line| {
            if line.decision == "poll" {
                line.decision = "sleep".to_owned();
            }
        }),
        ("yield to a guest that does not wait", |line| {
            if line.decision == "poll" {
                line.decision = "yield".to_owned();
            }
        }),
    ];
    for (name, change) in changes {
        assert!(unexplained(&recorded(change)) > 0, "{name}");
    }
}

#[test]
fn a_policy_that_is_off_decides_nothing() {
    let mut settings = OtherSettings::default();
    settings.changed.push(Policy::Notify);
    settings.modes.set(Policy::Notify, Mode::Off);
    let of = |trace: &[Recorded], settings: &OtherSettings| signal_sums(trace, settings).receive;
    let later = |line: &mut DecisionLine| {
        (line.policy, line.decision, line.times) = ("notify".to_owned(), "later".to_owned(), 3);
        line.repetitions = Some(RepetitionsLine { starts: 1, ..RepetitionsLine::default() });
    };
    let trace = recorded(later);
    let lines = trace.len() as u64;
    let sums = of(&trace, &settings);
    assert_eq!((sums.recorded.most, sums.other.least), (lines, 3 * lines), "two of three were joined");
    assert_eq!(of(&trace, &OtherSettings::default()).other, sums.recorded);
}

fn inputs() -> impl Strategy<Value = DecisionInputsLine> {
    let ns = || prop::option::of(prop_oneof![0..300_000_u64, any::<u64>()]);
    let flag = prop::option::of(any::<bool>());
    (
        ns(),
        ns(),
        ns(),
        ns(),
        ns(),
        ns(),
        (flag.clone(), flag.clone(), flag.clone(), flag, prop::option::of(any::<u32>())),
    )
        .prop_map(|(one, two, three, four, five, six, flags)| DecisionInputsLine {
            idle_ns: one,
            learned_ns: two,
            max_ns: three,
            is_posted: flags.0,
            waiting: flags.4,
            offered_ago_ns: four,
            offer_taken: flags.1,
            signalled_ago_ns: five,
            first_ago_ns: six,
            has_progressed: flags.2,
            is_full: flags.3,
            visited_ago_ns: one,
            worked_ago_ns: two,
            load_percent: three,
            saturated_ns: four,
            idle_cpus: one.map(|ns| (ns % 3) as u16),
        })
}

fn line() -> impl Strategy<Value = DecisionLine> {
    let words = super::trace_file::tests::words();
    let sums = (any::<u64>(), any::<u64>(), any::<u64>(), 0..1_000_000_u64).prop_map(
        |(starts, idle_last_ns, idle_max_ns, idle_sum_ns)| RepetitionsLine {
            starts,
            idle_last_ns,
            idle_max_ns,
            idle_sum_ns,
        },
    );
    let guest = (
        0..60_u16,
        0..60_u16,
        0..60_u16,
        0..60_u16,
        prop::option::of(any::<u64>()),
        prop::option::of(any::<bool>()),
    )
        .prop_map(|(running, waiting_here, sleeping, unseen, slept_ns, may_halt_poll)| {
            GuestThreadCounts {
                running,
                waiting_here,
                waiting_elsewhere: 0,
                sleeping,
                unseen: unseen / 50,
                slept_ns,
                may_halt_poll,
            }
        });
    let times = prop_oneof![4 => 1..100_u64, 1 => 1..=u64::MAX];
    let (guest, inputs, sums) = (prop::option::of(guest), prop::option::of(inputs()), prop::option::of(sums));
    let vnic = prop::option::of(prop::sample::select(vec!["vm1", "vm2"]));
    (
        0..3_usize,
        0..1_000_000_u64,
        0..1_000_000_u64,
        times,
        prop::sample::select(words),
        vnic,
        (guest, inputs, sums),
    )
        .prop_map(
            |(worker, ago_us, for_us, times, (policy, decision), vnic, (guest, inputs, repetitions))| {
                DecisionLine {
                    worker,
                    ago_us,
                    for_us,
                    times,
                    policy,
                    decision,
                    vnic: vnic.map(str::to_owned),
                    guest,
                    cpu_return: None,
                    inputs,
                    repetitions,
                }
            },
        )
}

proptest! {
    /// No trace, true or not, makes the replay fail, and what it prints is bounded.
    #[test]
    fn random_traces_are_replayed(
        decisions in prop::collection::vec(line(), 1..80),
        hysteresis_us in prop::option::of(0..1_000_000_u64),
        off in prop::sample::subsequence(super::REPLAYED.to_vec(), 0..=6),
    ) {
        let count = decisions.len();
        let text = serde_json::to_vec(&SchedTrace { decisions }).expect("JSON");
        let trace = parse(&text).expect("a trace");
        let max_ns = hysteresis_us.map(|us| 1000 * us);
        let settings = OtherSettings { max_ns, changed: off, ..OtherSettings::default() };
        let (text, unexplained) = tables(&trace, &settings, "other settings");
        prop_assert!(unexplained <= count && text.len() < 16_384, "{} bytes", text.len());
        for line in &trace {
            let differing = settings.differing(line).unwrap_or_default();
            prop_assert!(differing.least <= differing.most && differing.most <= line.times, "{line:?}: {differing}");
        }
        for (worker, polled) in polling::polled(&trace, &settings).0 {
            prop_assert!(polled.other.least <= polled.other.most, "worker {worker}: {}", polled.other);
        }
    }

    /// With the recorded settings nothing differs.
    #[test]
    fn the_recorded_settings_change_nothing(decisions in prop::collection::vec(line(), 1..20)) {
        let text = serde_json::to_vec(&SchedTrace { decisions }).expect("JSON");
        let settings = OtherSettings::default();
        for line in parse(&text).expect("a trace") {
            prop_assert_eq!(settings.differing(&line).unwrap_or_default().most, 0);
        }
    }

    #[test]
    fn any_bytes_are_a_trace_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(parse(&bytes).is_err(), "no random bytes are a trace with decisions");
    }
}
