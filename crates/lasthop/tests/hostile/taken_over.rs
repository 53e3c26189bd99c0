//! A compromised or hanging switch process: it sends anything, or nothing.

use rustix::process::Signal;

use lasthop_rig::successors::{own_version, report, successor_of_version};
use lasthop_rig::{Switch, eventually, signal, stop};

/// Replaces the switch process by one that runs `lines`, lines of sh, once it is the current one.
fn taken_over_by(switch: &Switch, lines: &str) {
    let successor = successor_of_version(switch, own_version(switch), lines);
    switch.ask(&["upgrade", &successor]).refused();
}

#[test]
fn words_of_a_switch_process_neither_steer_a_terminal_nor_make_up_lines() {
    let switch = Switch::start(&["--vnic", "one"]);
    let words = r#"{"Failed":{"why":"\u001b[2Jgone\nlasthop: all is well"}}"#;
    taken_over_by(&switch, &format!("sleep 0.2\n{}", report(words)));
    eventually("its last words", || switch.log().contains("[2Jgone").then_some(()));
    let log = switch.log();
    assert!(!log.contains('\x1b') && log.lines().all(|line| line != "lasthop: all is well"), "{log}");
    let told = switch.ask(&["doctor"]).refused_with_output();
    assert!(!told.contains('\x1b') && told.contains("[2Jgone"), "{told}");
}

#[test]
fn what_a_switch_process_writes_to_standard_error_neither_steers_a_terminal_nor_makes_up_lines() {
    let switch = Switch::start(&["--vnic", "one"]);
    taken_over_by(&switch, "printf '\\033[2Jgone\\nlasthop: all is well\\n' >&2\nexec sleep 0.2");
    eventually("its words", || switch.log().contains("all is well").then_some(()));
    let log = switch.log();
    assert!(!log.contains('\x1b'), "{log}");
    for line in ["the switch process: \u{fffd}[2Jgone", "the switch process: all is well"] {
        assert!(log.lines().any(|logged| logged == format!("lasthop: {line}")), "{line}: {log}");
    }
    assert!(log.lines().all(|line| line.starts_with("lasthop: ") && line != "lasthop: all is well"), "{log}");
}

#[test]
fn a_switch_process_that_somebody_has_stopped_is_named_and_goes_on() {
    let switch = Switch::start(&["--vnic", "one"]);
    let pid = switch.switch_pid().expect("a switch process");
    stop(pid);
    let named = format!("the switch process (process {pid}) does not answer: it is stopped (T)");
    let list = switch.ask(&["vnic", "list"]).ok();
    assert!(list.contains("one"), "what is known without it: {list}");
    eventually("its name", || switch.log().contains(&named).then_some(()));
    assert!(switch.ask(&["stats"]).refused().contains(&named), "at once");
    switch.ask(&["version"]).ok();
    switch.ask(&["doctor"]).refused_with_output();
    signal(pid, Signal::CONT);
    let line = format!("the switch process (process {pid}) answers again");
    eventually("an answer", || switch.log().contains(&line).then_some(()));
    switch.ask(&["stats", "--check"]).ok();
    assert_eq!(switch.switch_pid(), Some(pid));
}

#[test]
fn a_switch_process_that_hangs_is_named_and_another_one_takes_its_place() {
    let switch = Switch::start(&["--vnic", "one"]);
    // It confirms all its first messages, and then answers no more.
    let done = |id| report(&format!(r#"{{"Reply":{{"id":{id},"result":{{"Ok":"Done"}}}}}}"#));
    let yes: String = (1..60).map(done).collect();
    let successor =
        successor_of_version(&switch, own_version(&switch), &format!("sleep 0.3\n{yes}exec sleep 60"));
    switch.ask(&["upgrade", &successor]);
    let hangs = switch.switch_pid();
    switch.ask(&["vnic", "list"]).ok();
    eventually("a line in the log", || switch.log().contains("does not answer: it waits").then_some(()));
    eventually("its end", || switch.log().contains("was killed by signal 9").then_some(()));
    eventually("another one", || switch.switch_pid().filter(|pid| Some(*pid) != hangs));
}

#[test]
fn a_switch_that_somebody_has_stopped_is_named_by_every_command() {
    let switch = Switch::start(&["--vnic", "one"]);
    stop(switch.pid());
    let named = format!("the switch (process {}) does not answer: it is stopped (T)", switch.pid());
    std::thread::scope(|scope| {
        for words in [&["vnic", "list"][..], &["version"], &["stats"], &["doctor"]] {
            let (switch, named) = (&switch, &named);
            scope.spawn(move || {
                let answer = switch.ask(words);
                let told = format!("{}{}", answer.out, answer.err);
                assert!(answer.code == Some(1) && told.contains(named), "{words:?}: {told}");
            });
        }
    });
    signal(switch.pid(), Signal::CONT);
    switch.ask(&["stats", "--check"]).ok();
}
