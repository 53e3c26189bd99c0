//! A compromised or hanging switch process: it sends anything, or nothing.

use std::sync::Mutex;

use rustix::process::Signal;

use lasthop_rig::successors::{own_version, report, successor_of_version};
use lasthop_rig::{Answer, Switch, eventually, signal, stop};

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

/// Sub-commands that ask the switch, with arguments. None disturbs another one.
const ASKING: [&str; 45] = [
    "acl add a --port one --direction ingress --action allow",
    "acl del b",
    "acl list",
    "apply --dry-run --config CONFIG",
    "capture one --write CAPTURE",
    "config show",
    "conntrack flush --all",
    "conntrack list",
    "conntrack stats",
    "doctor",
    "explain --from one udp,nw_dst=10.0.0.2",
    "fdb add 02:00:00:00:00:09 one",
    "fdb del 02:00:00:00:00:08 one",
    "fdb flush",
    "fdb show",
    "flow join one two --datapath outside",
    "flow show",
    "ovs run",
    "ovs status",
    "port add three,backend=vhost-user",
    "port del four",
    "port list",
    "port set one isolated=true",
    "port show one",
    "profile --for 1",
    "sched calibrate",
    "sched move one 0",
    "sched set yield=on",
    "sched show",
    "sched trace",
    "stats",
    "stats --check",
    "stats --workers",
    "switch add more,module=bridge",
    "switch del other",
    "switch list",
    "switch set outside fail-mode=standalone",
    "upgrade",
    "version",
    "vlan show",
    "vnic add five",
    "vnic del six",
    "vnic list",
    "vnic show one",
    "vnic set two isolated=true",
];

/// Those that ask no switch, or not at once.
const ALONE: [&str; 9] =
    ["bench", "check", "completions", "man", "ovs exec", "ovs install", "ovs relay", "ovs uninstall", "run"];

/// Asking ones that may be answered without the switch process: the supervisor knows enough.
const KNOWN: [&str; 15] = [
    "acl add",
    "acl del",
    "acl list",
    "apply",
    "config show",
    "port list",
    "port show",
    "sched calibrate",
    "sched set",
    "sched show",
    "sched trace",
    "version",
    "vlan show",
    "vnic list",
    "vnic show",
];

/// The names of all sub-commands, from their manual pages: "port add".
fn subcommands(switch: &Switch) -> Vec<String> {
    let pages = switch.base.path().join("man");
    switch.ask(&["man", "--out", pages.to_str().expect("text")]).ok();
    let files = std::fs::read_dir(pages).expect("pages").map(|page| page.expect("a page").file_name());
    let names = files.map(|name| name.to_str().expect("text").to_owned());
    let stems: Vec<String> = names.filter_map(|name| Some(name.strip_suffix(".1")?.to_owned())).collect();
    let is_group = |stem: &String| stems.iter().any(|other| other.starts_with(&format!("{stem}-")));
    let leaves = stems.iter().filter(|stem| !is_group(stem));
    leaves.filter_map(|stem| Some(stem.strip_prefix("lasthop-")?.replace('-', " "))).collect()
}

fn is_of(line: &str, name: &str) -> bool {
    line.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}

/// Whether a command sends a single request, which makes something.
fn is_addition(line: &str) -> bool {
    line.split(' ').nth(1) == Some("add")
}

#[test]
fn every_command_is_tried_with_a_stopped_process() {
    let switch = Switch::start(&["--vnic", "one"]);
    let all = subcommands(&switch);
    assert!(all.len() > 40, "{all:?}");
    for name in &all {
        let is_asking = ASKING.iter().any(|line| is_of(line, name));
        let is_alone = ALONE.contains(&name.as_str());
        assert!(
            is_asking != is_alone,
            "lasthop {name}: does it ask the switch? It has to be in one of both lists"
        );
    }
}

/// Asks `lines` at the same time, some at a time, and returns those whose answer `is_right` refuses.
fn ask_all(
    switch: &Switch,
    lines: impl Iterator<Item = &'static str> + Send,
    is_right: impl Fn(&str, &Answer) -> bool + Sync,
) -> Vec<(&'static str, Answer)> {
    let (config, capture) = (switch.base.path().join("config.toml"), switch.base.path().join("capture"));
    let [config, capture] = [config, capture].map(|path| path.to_str().expect("text").to_owned());
    let (lines, wrong) = (Mutex::new(lines), Mutex::new(Vec::new()));
    // More clients would be refused.
    let ask = || {
        loop {
            let Some(line) = lines.lock().expect("no panic").next() else { return };
            let told = line.replace("CONFIG", &config).replace("CAPTURE", &capture);
            let answer = switch.ask(&told.split(' ').collect::<Vec<_>>());
            if !is_right(line, &answer) {
                wrong.lock().expect("no panic").push((line, answer));
            }
        }
    };
    std::thread::scope(|scope| (0..16).for_each(|_| drop(scope.spawn(ask))));
    wrong.into_inner().expect("no panic")
}

/// A switch for all commands.
fn switch_for_all() -> Switch {
    let vnics = ["--vnic", "one", "--vnic", "two", "--vnic", "four", "--vnic", "six"];
    let others =
        ["--fail-mode", "secure", "--switch", "other,module=bridge", "--switch", "outside,controller=none"];
    let switch = Switch::start(&[&vnics[..], &others].concat());
    switch.ask(&["acl", "add", "b", "--port", "one", "--direction", "egress", "--action", "allow"]).ok();
    let config = switch.ask(&["config", "show"]).ok();
    std::fs::write(switch.base.path().join("config.toml"), config).expect("writable");
    switch
}

#[test]
fn a_switch_that_somebody_has_stopped_is_named_by_every_command() {
    let switch = switch_for_all();
    let pid = switch.pid();
    stop(pid);
    let named = format!("the switch (process {pid}) does not answer: it is stopped (T)");
    let is_named = |line: &str, answer: &Answer| {
        let told = format!("{}{}", answer.out, answer.err);
        let is_complete = told.contains("the change may be made then") || !is_addition(line);
        answer.code == Some(1)
            && told.contains(&format!("{named}; continue it: kill -CONT {pid}"))
            && is_complete
    };
    let wrong = ask_all(&switch, ASKING.into_iter(), is_named);
    signal(pid, Signal::CONT);
    assert!(wrong.is_empty(), "{wrong:#?}");
    // Clients that have gone keep their places for a moment.
    eventually("an answer", || (switch.ask(&["stats", "--check"]).code == Some(0)).then_some(()));
}

#[test]
fn a_switch_process_that_somebody_has_stopped_is_named_by_every_command_that_needs_it() {
    let switch = switch_for_all();
    let pid = switch.switch_pid().expect("a switch process");
    stop(pid);
    let is_right = |line: &str, answer: &Answer| {
        let told = format!("{}{}", answer.out, answer.err);
        let is_named = told.contains(&format!("(process {pid}) d")) && told.contains("it is stopped (T)");
        let is_complete = told.contains("the change is made then") || !is_addition(line);
        let is_known = KNOWN.iter().any(|name| is_of(line, name));
        match answer.code {
            // 3: the configuration differs.
            Some(0 | 3) => is_known,
            _ => is_named && told.contains(&format!("kill -CONT {pid}")) && is_complete,
        }
    };
    // An upgrade replaces the process, stopped or not.
    let wrong = ask_all(&switch, ASKING.into_iter().filter(|line| *line != "upgrade"), is_right);
    signal(pid, Signal::CONT);
    assert!(wrong.is_empty(), "{wrong:#?}");
    eventually("the change that nobody waits for", || {
        switch.ask(&["vnic", "list"]).ok().contains("five").then_some(())
    });
    // It still counts as silent until it has answered the supervisor.
    eventually("an answer", || (switch.ask(&["stats", "--check"]).code == Some(0)).then_some(()));
}
