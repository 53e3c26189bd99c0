use serde_json::{Value, json};

use super::{STREAM, busy, campaign, far, received, took};
use crate::DriverChoice;
use crate::report::{self, Comparison};
use crate::sample::Sample;

fn table(samples: &[Sample]) -> String {
    report::table(&Comparison::of(samples, "lasthop"))
}

fn markdown(samples: &[Sample]) -> String {
    report::markdown(&Comparison::of(samples, "lasthop"))
}

/// The names of all values within a JSON object, including nested objects.
fn leaves(value: &Value) -> Vec<String> {
    let fields = value.as_object().expect("an object").iter();
    fields
        .flat_map(|(name, value)| if value.is_object() { leaves(value) } else { vec![name.clone()] })
        .collect()
}

#[test]
fn a_table_of_six_back_ends_fits_a_terminal() {
    let mut samples = campaign();
    samples.retain(|sample| sample.backend != "ovs-flow");
    for sample in samples.iter_mut().filter(|sample| sample.backend != "lasthop") {
        sample.backend = format!("{:x<13}-and-more", sample.backend);
    }
    let text = table(&samples);
    let longest = text.lines().map(|line| line.chars().count()).max().expect("lines");
    assert!(longest <= 120, "{longest} characters:\n{text}");
}

#[test]
fn a_table_has_values_ratios_placement_and_marks() {
    let mut samples =
        vec![received("lasthop", STREAM, 0, 6_000_000), received("testpmd", STREAM, 0, 4_000_000)];
    samples.extend([received("lasthop", STREAM, 1, 6_600_000), received("testpmd", STREAM, 1, 3_960_000)]);
    samples.extend([received("null", STREAM, 0, 10_000_000), far(received("testpmd", STREAM, 2, 1))]);
    let text = table(&samples);
    for part in
        ["6.30 ±5%*", "3.98 ±1%\n", "1.58×", "1.50–1.67", "near 50 ns, 1 far left out", "* limited by the"]
    {
        assert!(text.replace("  ", "\n").contains(part), "{part:?} is missing in\n{text}");
    }
    assert!(text.contains("Packets received, Mpps: more is better"), "{text}");
    assert!(!text.contains('†'), "{text}");
}

#[test]
fn a_row_says_what_a_bare_wake_up_took() {
    let samples = [40_000.0, 52_000.0, 50_000.0]
        .map(|ns| Sample { wake_up_ns: Some(ns), ..received("lasthop", STREAM, 0, 1) });
    assert!(table(&samples).contains("bare wake-up 50.0 µs"), "{}", table(&samples));
    assert!(!table(&[received("lasthop", STREAM, 0, 1)]).contains("wake-up"));
}

#[test]
fn markdown_has_as_many_cells_in_every_line_of_a_table() {
    let mut samples = campaign();
    samples.push(received("a|b", STREAM, 0, 1));
    let text = markdown(&samples);
    assert!(text.contains("a\\|b") && text.contains("**13.8"), "{text}");
    for table in text.split("\n\n").filter(|part| part.starts_with('|')) {
        let cells = |line: &str| line.replace("\\|", "").matches('|').count();
        let head = cells(table.lines().next().expect("a head"));
        assert!(table.lines().all(|line| cells(line) == head), "{table}");
    }
}

#[test]
fn every_line_has_every_column() {
    let samples = [busy(received("lasthop", STREAM, 0, 5), 0.25), took("a\tb\nc", 1, 1_000)];
    let text = report::tsv(&samples);
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(lines.len(), 3);
    assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{text}");
    assert_eq!(report::tsv(&[]).trim_end().split('\t').collect::<Vec<_>>(), lines[0]);
    let field = |line: usize, name| lines[line][lines[0].iter().position(|head| *head == name).expect(name)];
    assert_eq!((field(1, "cpu_seconds"), field(1, "cpu_percent"), field(1, "huge_kb")), ("0.25", "25", "5"));
    assert_eq!((field(1, "rtt_p50_ns"), field(1, "core_to_core_ns"), field(1, "unit")), ("", "50", "Mpps"));
    assert_eq!((field(2, "backend"), field(2, "rtt_p999_ns"), field(2, "value")), ("a b c", "9000", "1"));
}

#[test]
fn every_field_of_a_sample_has_a_column() {
    let text = report::tsv(&[]);
    let heads: Vec<&str> = text.trim_end().split('\t').collect();
    let sample = Sample { driver: Some(DriverChoice::default()), ..busy(took("lasthop", 0, 1_000), 1.0) };
    for field in leaves(&serde_json::to_value(&sample).expect("a sample has a form in JSON")) {
        let of_round_trip = format!("rtt_{field}");
        assert!(
            heads.contains(&field.as_str()) || heads.contains(&of_round_trip.as_str()),
            "{field} is missing"
        );
    }
}

#[test]
fn json_has_settings_samples_and_comparison() {
    let samples = [received("lasthop", STREAM, 0, 3_000_000), received("testpmd", STREAM, 0, 2_000_000)];
    let text = report::json(&json!({ "seconds": 5 }), &samples, "lasthop");
    let run: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(run["settings"]["seconds"], 5);
    assert_eq!(run["samples"][1]["workload"], "stream,size=64,ring=256");
    let row = &run["comparison"][0];
    assert_eq!((&row["unit"], &row["placement"]), (&json!("Mpps"), &json!("near")));
    assert_eq!(row["cells"][1]["ratio"]["of_medians"], 1.5);
    assert_eq!(row["cells"][1]["role"], "peer");
}

#[test]
fn nothing_measured_is_said_in_a_sentence() {
    assert_eq!(table(&[]), "Nothing was measured.\n");
    assert_eq!(markdown(&[]), "Nothing was measured.\n");
    assert!(report::json(&Value::Null, &[], "lasthop").contains("\"samples\": []"));
}

#[test]
fn figures_have_three_digits() {
    use crate::report::figures::figure;
    let cases = [
        (0.0, "0.00"),
        (0.0123, "0.012"),
        (0.9999, "1.00"),
        (9.999, "10.0"),
        (99.96, "100"),
        (1234.5, "1234"),
    ];
    for (value, text) in cases {
        assert_eq!(figure(value), text, "{value}");
    }
}

#[test]
fn captions_tell_workloads_apart() {
    use crate::report::caption::{details, headline};
    let words = |text: &str| {
        let workload = text.parse().expect("a workload");
        format!("{} ({})", headline(&workload), details(&workload).join(", "))
    };
    assert_eq!(words("stream,size=64"), "One way, 64-byte frames ()");
    assert_eq!(
        words("pairs=4,both,flows=1000,ring=512"),
        "4 pairs both ways, 64-byte frames (1k flows, rings of 512)"
    );
    assert_eq!(words("rtt,sleep,pause-us=1000"), "Round trip, guests asleep, 64-byte frames (one each 1ms)");
    assert_eq!(words("offered=1500000,macs=1234"), "1.5M packets/s offered, 64-byte frames (1234 addresses)");
    assert_eq!(words("idle=100"), "100 silent guests ()");
}
