//! Deliberate mistakes (docs/troubleshooting.md): the first three lines of `lasthop doctor`, or of the error, name the cause.

mod fake;
mod guests;
mod host;
mod memory;
mod outside;
mod rings;
#[path = "../support/mod.rs"]
mod support;

use lasthop_guest::{Guest, GuestOptions};
use lasthop_wire::Offload;
use support::{Answer, Switch, eventually};

const ONE: [u8; 6] = [0x02, 0, 0, 0, 0, 1];
const TWO: [u8; 6] = [0x02, 0, 0, 0, 0, 2];

/// What a person reads first.
fn first_lines(text: &str) -> String {
    text.lines().take(3).collect::<Vec<_>>().join("\n")
}

fn has_all(text: &str, words: &[&str]) -> bool {
    let text = text.to_lowercase();
    words.iter().all(|word| text.contains(&word.to_lowercase()))
}

/// Asks until the first three lines have all these words, and returns the answer.
fn diagnosed(switch: &Switch, words: &[&str]) -> Answer {
    let mut last = String::new();
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        eventually("the diagnosis", || {
            let answer = switch.ask(&["doctor"]);
            last = format!("{}{}", answer.out, answer.err);
            has_all(&first_lines(&answer.out), words).then_some(answer)
        })
    }));
    found.unwrap_or_else(|_| panic!("{words:?} are not in the first three lines of:\n{last}"))
}

/// Something is broken, and the first three lines say what.
fn blames(switch: &Switch, words: &[&str]) {
    let answer = diagnosed(switch, words);
    assert_eq!(answer.code, Some(1), "{}", answer.out);
    assert!(answer.out.starts_with("not ok: "), "{}", answer.out);
    assert!(first_lines(&answer.out).contains("remedy: "), "{}", answer.out);
}

/// Nothing is broken, but something is not as it could be.
fn warns(switch: &Switch, words: &[&str]) {
    let answer = diagnosed(switch, words);
    assert_eq!(answer.code, Some(0), "{}", answer.out);
    assert!(answer.out.starts_with("warning: "), "{}", answer.out);
}

fn guest_with(switch: &Switch, port: &str, options: GuestOptions) -> Guest {
    let guest = Guest::connect(switch.path(&format!("{port}.sock")), options).expect("attached");
    eventually("the guest", || (switch.port(port)["state"] == "running").then_some(()));
    guest
}

fn guest(switch: &Switch, port: &str, mac: [u8; 6]) -> Guest {
    guest_with(switch, port, GuestOptions { mac, ..GuestOptions::default() })
}

fn send(guest: &mut Guest, to: [u8; 6], from: [u8; 6], len: usize) {
    let mut frame = [&to[..], &from, &[0x88, 0xb5]].concat();
    frame.resize(len, 7);
    guest.reclaim(0).expect("a sound ring");
    assert!(guest.send(0, &frame, Offload::default()).expect("sent"), "the ring is full");
    guest.flush(0).expect("flushed");
}

#[test]
fn two_guests_that_talk_are_well() {
    let switch = Switch::start(&["--vnic", "one", "--vnic", "two"]);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    send(&mut one, TWO, ONE, 60);
    send(&mut two, ONE, TWO, 60);
    let answer = diagnosed(&switch, &["ok: nothing is wrong with 2 vnics"]);
    assert_eq!(answer.code, Some(0), "{}", answer.out);
    let drawing = "one: socket ok - peer ok - negotiation ok - memory ok - rings ok - link ok - learning ok - drops ok\n";
    assert!(answer.out.contains(drawing), "{}", answer.out);
    assert!(
        answer.out.contains("1 region, memfd, shared") && answer.out.contains("02:00:00:00:00:02"),
        "{}",
        answer.out
    );
    assert!(answer.out.contains("2 rings of 256 entries run"), "{}", answer.out);
    let json = switch.json(&["doctor", "two"]);
    assert_eq!((&json["ok"], json["findings"][4]["vnic"].as_str()), (&true.into(), Some("two")), "{json}");
    let ring = &json["facts"]["vnics"][1]["session"]["rings"][1];
    assert_eq!(
        (ring["progress"]["available"].as_u64(), ring["progress"]["used"].as_u64()),
        (Some(1), Some(1)),
        "{ring}"
    );
    assert!(has_all(&switch.ask(&["doctor", "twi"]).refused(), &["no vnic \"twi\"", "did you mean \"two\""]));
}
