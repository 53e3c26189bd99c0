//! Deliberate mistakes (docs/user/troubleshooting.md): the first three lines of `lasthop doctor`, or of the error, name the cause.

mod fake;
mod guests;
mod host;
mod memory;
mod outside;
mod ports;
mod rings;

use lasthop_frontend::Guest;
use lasthop_rig::guests::{ONE, TWO, controlled, frame, guest, guest_with, receive};
use lasthop_rig::{Answer, Switch, eventually, module};

/// The lines that a user reads first.
fn first_lines(text: &str) -> String {
    text.lines().take(3).collect::<Vec<_>>().join("\n")
}

fn has_all(text: &str, words: &[&str]) -> bool {
    let text = text.to_lowercase();
    words.iter().all(|word| text.contains(&word.to_lowercase()))
}

/// Repeats until the first three lines contain all these words, and returns the answer.
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

/// Runs the commands of the remedies, with placeholders filled in. None may be refused, and after one that changes something its
/// complaint has to be gone.
fn try_remedies(switch: &Switch, text: &str) {
    try_remedies_during(switch, text, || {});
}

/// The same for complaints that end with the next packet.
fn try_remedies_during(switch: &Switch, text: &str, mut traffic: impl FnMut()) {
    let lines: Vec<&str> = text.lines().collect();
    let mut is_there = |complaint: &str| {
        traffic();
        let said = switch.ask(&["doctor"]).out;
        said.lines().any(|line| essence(line) == essence(complaint))
    };
    let mut has_changed = false;
    for pair in lines.windows(2) {
        let Some(remedy) = pair[1].trim().strip_prefix("remedy: ") else { continue };
        // The remedy of another complaint may have ended it.
        if has_changed && !is_there(pair[0]) {
            continue;
        }
        let commands = commands(switch, remedy);
        for words in &commands {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let answer = switch.ask(&words);
            assert_eq!(answer.code, Some(0), "{words:?} of \"{remedy}\": {}{}", answer.out, answer.err);
        }
        if commands.iter().any(|words| ["add", "del", "set"].contains(&words[1].as_str())) {
            has_changed = true;
            eventually(&format!("an end of \"{}\"", pair[0]), || (!is_there(pair[0])).then_some(()));
        }
    }
}

/// The words of the commands in a remedy for this switch.
fn commands(switch: &Switch, remedy: &str) -> Vec<Vec<String>> {
    let command = format!("lasthop --dir {} ", switch.dir().display());
    let is_over =
        |word: &str| ["&&", "or", "prints", "tells", "for"].contains(&word) || word.starts_with('(');
    let of = |rest: &str| {
        let mut words = Vec::new();
        for word in rest.split(' ').take_while(|word| !is_over(word)) {
            let bare = word.trim_end_matches([';', ':', ',', ')']);
            words.push(bare.replace("NAME", "spare"));
            if bare != word {
                break;
            }
        }
        words
    };
    remedy.split(&command).skip(1).map(of).collect()
}

/// A complaint without what differs each time: numbers behind the port's name, parentheses and counters.
fn essence(line: &str) -> String {
    let line = line.split(';').next().unwrap_or_default();
    let (start, rest) = line.split_at(line.match_indices(": ").nth(1).map_or(0, |(at, _)| at));
    let mut depth = 0_usize;
    let is_lasting = |letter: &char| {
        depth += usize::from(*letter == '(');
        let is_inside = depth > 0;
        depth -= usize::from(*letter == ')' && is_inside);
        !is_inside && !letter.is_ascii_digit()
    };
    start.to_owned() + &rest.chars().filter(is_lasting).collect::<String>()
}

/// Checks for an error that the first three lines name.
fn blames(switch: &Switch, words: &[&str]) {
    try_remedies(switch, &blamed(switch, words));
}

/// Checks for an error that the first three lines name, and returns the text.
fn blamed(switch: &Switch, words: &[&str]) -> String {
    let answer = diagnosed(switch, words);
    assert_eq!(answer.code, Some(1), "{}", answer.out);
    assert!(answer.out.starts_with("not ok: "), "{}", answer.out);
    assert!(first_lines(&answer.out).contains("remedy: "), "{}", answer.out);
    answer.out
}

/// Waits for a line of the log with all words.
fn logs(switch: &Switch, words: &[&str]) {
    eventually(&format!("{words:?}"), || switch.log().lines().any(|line| has_all(line, words)).then_some(()));
}

/// Checks for a warning.
fn warns(switch: &Switch, words: &[&str]) {
    let answer = diagnosed(switch, words);
    assert_eq!(answer.code, Some(0), "{}", answer.out);
    assert!(answer.out.starts_with("warning: "), "{}", answer.out);
    try_remedies(switch, &answer.out);
}

fn send(guest: &mut Guest, to: [u8; 6], from: [u8; 6], len: usize) {
    lasthop_rig::guests::send(guest, &frame(to, from, 7, len));
}

#[test]
fn two_guests_that_talk_are_well() {
    let switch = Switch::start(&["--vnic", "one", "--vnic", "two"]);
    controlled(&switch);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    send(&mut one, TWO, ONE, 60);
    receive(&mut two);
    send(&mut two, ONE, TWO, 60);
    receive(&mut one);
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
    let findings = json["findings"].as_array().expect("findings");
    let about: Vec<_> = findings.iter().filter_map(|finding| finding["vnic"].as_str()).collect();
    assert_eq!((&json["ok"], &about[..]), (&true.into(), &["two"; 8][..]), "{json}");
    let controller = findings.iter().find(|finding| finding["link"] == "controller");
    let text = controller.and_then(|finding| finding["text"].as_str());
    assert_eq!(text.map(|text| text.contains("2 flows")), (module() == "flow").then_some(true), "{json}");
    let ring = &json["facts"]["vnics"][1]["session"]["rings"][1];
    assert_eq!(
        (ring["progress"]["available"].as_u64(), ring["progress"]["used"].as_u64()),
        (Some(1), Some(1)),
        "{ring}"
    );
    assert!(has_all(&switch.ask(&["doctor", "twi"]).refused(), &["no port \"twi\"", "did you mean \"two\""]));
}
