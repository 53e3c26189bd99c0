use roxmltree::{Document, Node};

use super::{OFFERED, STREAM, campaign, received, took};
use crate::report::canvas::{PART_GAP_PX, width_em};
use crate::report::scale::{Linear, Logarithmic};
use crate::report::{Comparison, Heading, svg, svg_round_trips};
use crate::sample::Sample;

const HEADING: Heading<'static> = Heading {
    title: "Packets between two virtual machines <&>",
    machine: "4 cores of a shared virtual machine, AMD EPYC 7B13, Linux 6.12, no huge pages, three rounds of five seconds, \
              measured in turns on 21 November",
};

fn pictures(samples: &[Sample]) -> [String; 2] {
    let comparison = Comparison::of(samples, "lasthop");
    [svg(&comparison, &HEADING), svg_round_trips(&comparison, &HEADING)]
}

/// Left, top, right, bottom.
type Area = [f64; 4];

fn number(node: Node, name: &str) -> f64 {
    node.attribute(name).expect(name).parse().expect(name)
}

fn area(text: Node) -> Area {
    let (x, y, size) = (number(text, "x"), number(text, "y"), number(text, "font-size"));
    let words: String = text.descendants().filter(Node::is_text).filter_map(|node| node.text()).collect();
    let parts = text.children().filter(|node| node.has_tag_name("tspan")).count();
    let width = width_em(&words) * size + parts as f64 * PART_GAP_PX;
    let left = if text.attribute("text-anchor") == Some("end") { x - width } else { x };
    [left, y - 0.75 * size, left + width, y + 0.2 * size]
}

/// Checks that texts are within the picture and do not overlap.
fn check_texts(picture: &str) {
    let document = Document::parse(picture).expect("well-formed XML");
    let size = ["width", "height"].map(|name| number(document.root_element(), name));
    let texts: Vec<Node> = document.descendants().filter(|node| node.has_tag_name("text")).collect();
    for (index, text) in texts.iter().enumerate() {
        let [left, top, right, bottom] = area(*text);
        let inside = left >= 0.0 && top >= 0.0 && right <= size[0] && bottom <= size[1];
        assert!(inside, "{:?} runs out of the picture", text.text());
        for other in &texts[..index] {
            let there = area(*other);
            let apart = left >= there[2] || there[0] >= right || top >= there[3] || there[1] >= bottom;
            assert!(apart, "{:?} stands on {:?}", text.text(), other.text());
        }
    }
}

#[test]
fn pictures_are_well_formed_and_name_every_back_end() {
    let [bars, percentiles] = pictures(&campaign());
    for picture in [&bars, &percentiles] {
        check_texts(picture);
        assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
        for name in ["lasthop", "lasthop-dummy", "testpmd", "ovs-normal", "ovs-flow"] {
            assert!(picture.contains(&format!(">{name}</text>")), "{name} is missing");
        }
    }
    for part in [">limit</text>", ">null</text>", "13.8 Mpps", ">1.37×</tspan>", "&lt;&amp;&gt;", "p99 "] {
        assert!(bars.contains(part), "{part} is missing");
    }
}

#[test]
fn the_longest_bar_is_the_best_and_the_reference_is_coloured() {
    let samples = [received("testpmd", STREAM, 0, 2_000_000), received("lasthop", STREAM, 0, 4_000_000)];
    let [picture, _] = pictures(&samples);
    let document = Document::parse(&picture).expect("well-formed XML");
    let bar = |fill| {
        let bars = document.descendants().filter(|node| node.attribute("fill") == Some(fill));
        bars.map(|node| number(node, "width")).reduce(f64::max).expect(fill)
    };
    let (reference, peer) = (bar("#1769d2"), bar("#c2c9d2"));
    assert!((reference / peer - 2.0).abs() < 0.01, "{reference} and {peer}");
}

#[test]
fn long_names_are_cut_before_they_touch_anything() {
    let name = "a-back-end-with-quite-a-long-name-that-nobody-would-want-to-read";
    let mut samples = campaign();
    samples.extend([received(name, STREAM, 0, 9_000_000), took(name, 0, 1_000_000)]);
    pictures(&samples).iter().for_each(|picture| check_texts(picture));
}

#[test]
fn values_that_are_missing_or_zero_are_drawn_as_such() {
    let mut samples = vec![received("lasthop", STREAM, 0, 0), received("testpmd", OFFERED, 0, 1)];
    samples.push(took("lasthop", 0, 0));
    let [bars, percentiles] = pictures(&samples);
    for picture in [&bars, &percentiles] {
        check_texts(picture);
        assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
    }
    assert!(bars.contains("not measured") && bars.contains("0.00 Mpps"), "{bars}");
}

#[test]
fn nothing_measured_is_said_in_the_picture() {
    let [bars, percentiles] = pictures(&[]);
    check_texts(&bars);
    assert!(bars.contains("Nothing was measured."));
    assert!(percentiles.contains("No round trips were measured."));
}

#[test]
fn a_straight_scale_starts_at_zero_and_cuts_what_is_beyond() {
    let scale = Linear { max: 10.0, length_px: 200.0 };
    assert_eq!([0.0, 5.0, 10.0, 11.0].map(|value| scale.at(value)), [0.0, 100.0, 200.0, 200.0]);
    assert!(scale.cuts(10.1) && !scale.cuts(10.0));
    assert_eq!(Linear { max: 0.0, length_px: 200.0 }.at(1.0), 0.0);
}

#[test]
fn a_logarithmic_scale_begins_and_ends_with_a_tick() {
    let scale = Logarithmic::around(3.0, 40.0, 100.0);
    assert_eq!(scale.ticks(), [2.0, 5.0, 10.0, 20.0, 50.0]);
    assert_eq!([2.0, 10.0, 50.0].map(|value| scale.at(value).round()), [0.0, 50.0, 100.0]);
    assert_eq!(Logarithmic::around(1.0, 20_000.0, 100.0).ticks(), [1.0, 10.0, 100.0, 1_000.0, 10_000.0]);
}
