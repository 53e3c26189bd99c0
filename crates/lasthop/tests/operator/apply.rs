//! `lasthop check` and `lasthop apply`.

use std::path::PathBuf;

use serde_json::{Value, json};

use lasthop_rig::guests::{ONE, TWO, frame, guest, receive, send};
use lasthop_rig::{Answer, Switch, lasthop, module};

/// A file with `text` in the switch's base directory.
fn file(switch: &Switch, text: &str) -> PathBuf {
    let path = switch.base.path().join("lasthop.toml");
    std::fs::write(&path, text).expect("written");
    path
}

fn apply(switch: &Switch, text: &str, words: &[&str]) -> Answer {
    let path = file(switch, text);
    switch.ask(&[&["apply", "-c", path.to_str().expect("text")], words].concat())
}

fn check(text: &str, words: &[&str]) -> Answer {
    let base = tempfile::tempdir().expect("a directory");
    let path = base.path().join("f.toml");
    std::fs::write(&path, text).expect("written");
    let mut answer = lasthop(&[&["check", "-c", path.to_str().expect("text")], words].concat());
    answer.out = answer.out.replace(&format!("{}/", base.path().display()), "");
    answer
}

#[test]
fn all_mistakes_of_a_file_are_named_with_lines_and_remedies() {
    let text =
        "modul = \"bridge\"\n[[vnic]]\nname = \"a\"\nmak = \"x\"\n\n[[vnic]]\nname = \"b\"\nlink = \"don\"\n";
    let answer = check(text, &[]);
    assert_eq!((answer.code, answer.err.as_str()), (Some(1), ""));
    let expected = [
        "f.toml:1: unknown key \"modul\"; did you mean \"module\"?",
        "f.toml:4: unknown key \"mak\"; did you mean \"mac\"?",
        "f.toml:8: link=don is unknown; use link=up or link=down; did you mean \"down\"?",
    ];
    let lines: Vec<&str> = answer.out.lines().collect();
    assert_eq!(lines.len(), expected.len(), "{lines:?}");
    assert!(lines.iter().zip(expected).all(|(line, start)| line.starts_with(start)), "{lines:?}");
    let json: Value = serde_json::from_str(&check(text, &["--json"]).out).expect("JSON");
    assert_eq!((&json["valid"], &json["mistakes"][1]["line"]), (&json!(false), &json!(4)));
}

#[test]
fn a_valid_file_is_valid_and_what_the_machine_lacks_is_told() {
    assert_eq!(check("workers = 2\n[[vnic]]\nname = \"a\"\n", &[]).ok(), "f.toml is valid\n");
    let out = check("cpus = \"8191\"\n[[vnic]]\nname = \"a\"\nsocket-owner = \"no-such-user\"\n", &[]).out;
    assert!(out.starts_with("f.toml: cpus=8191: CPU 8191 cannot be used"), "{out}");
    assert!(out.contains("\nf.toml: port \"a\": socket-owner=no-such-user: there is no user"), "{out}");
    let out = check(
        "[[vnic]]\nname = \"a\"\nswitch = \"red\"\n[[vnic]]\nname = \"b\"\nswitch = \"blue\"\n\
         [[fdb]]\nmac = \"02:00:00:00:00:07\"\nvnic = \"c\"\n[[fdb]]\nmac = \"02:00:00:00:00:08\"\nvnic = \"d\"\n",
        &[],
    )
    .out;
    let named = ["no switch \"red\"", "no switch \"blue\"", "for port \"c\"", "for port \"d\""];
    assert!(out.lines().count() == 4 && named.iter().all(|words| out.contains(words)), "{out}");
    assert!(lasthop(&["check", "-c", "/nonexistent/f.toml"]).refused().contains("cannot read"));
}

#[test]
fn a_switch_refuses_a_file_with_its_first_mistake_and_the_way_to_the_others() {
    let base = tempfile::tempdir().expect("a directory");
    let path = base.path().join("f.toml");
    std::fs::write(&path, "modul = 1\nworkers = 99\n").expect("written");
    let shown = path.to_str().expect("text");
    let message = lasthop(&["run", "--dir", "/nonexistent/x", "-c", shown]).refused();
    let first = "f.toml:1: unknown key \"modul\"; did you mean \"module\"?";
    let more = format!("(1 more; see all with: lasthop check -c {shown})");
    assert!(message.contains(first) && message.contains(&more), "{message}");
}

#[test]
fn a_plan_is_shown_and_then_carried_out() {
    let switch = Switch::start(&["--vnic", "vm1", "--vnic", "vm2,mac=02:00:00:00:00:02", "--vnic", "vm4"]);
    let text = "[[vnic]]\nname = \"vm2\"\nmac = \"02:00:00:00:00:12\"\nmtu = 1400\n\
                [[vnic]]\nname = \"vm3\"\n[[vnic]]\nname = \"vm4\"\nqueues = 2\n";
    let plan = "- port vm1\n\
                ~ port vm2 mac: 02:00:00:00:00:02 -> 02:00:00:00:00:12\n\
                ~ port vm2 mtu: - -> 1400 (for the next guest that attaches)\n\
                ~ port vm4 queues: 1 -> 2 (made anew: its guest attaches again)\n\
                + port vm3\n";
    let dry = apply(&switch, text, &["--dry-run"]);
    assert_eq!(dry.out, format!("{plan}1 added, 1 removed, 2 changed if this were applied\n"));
    assert_eq!(dry.code, Some(3));
    assert_eq!(switch.json(&["config", "show"])["vnics"][0]["name"], "vm1", "a dry run changes nothing");
    assert_eq!(apply(&switch, text, &[]).ok(), format!("{plan}1 added, 1 removed, 2 changed\n"));
    let vnics = switch.json(&["config", "show"])["vnics"].clone();
    let names: Vec<&Value> = vnics.as_array().expect("vnics").iter().map(|vnic| &vnic["name"]).collect();
    assert_eq!(names, ["vm2", "vm3", "vm4"]);
    assert_eq!((&vnics[0]["mac"], &vnics[2]["queues"]), (&json!("02:00:00:00:00:12"), &json!(2)));
    let path = file(&switch, text);
    let again = apply(&switch, text, &[]).ok();
    assert_eq!(again, format!("nothing to do: the switch is as {} says\n", path.display()));
    assert_eq!(apply(&switch, text, &["--dry-run"]).code, Some(0));
}

#[test]
fn guests_of_other_vnics_do_not_notice() {
    let switch = Switch::start(&["--vnic", "one", "--vnic", "two", "--vnic", "old"]);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let text = "[[vnic]]\nname = \"one\"\n[[vnic]]\nname = \"two\"\nmac = \"02:00:00:00:00:02\"\n[[vnic]]\nname = \"new\"\n";
    apply(&switch, text, &[]).ok();
    send(&mut one, &frame(TWO, ONE, 1, 60));
    assert_eq!(receive(&mut two), frame(TWO, ONE, 1, 60));
    assert!(!switch.log().contains("is gone"), "{}", switch.log());
}

#[test]
fn two_vnics_swap_their_addresses() {
    let vnic = |name: &str, last: u8| format!("{name},mac=02:00:00:00:00:0{last}");
    let switch = Switch::start(&["--vnic", &vnic("a", 1), "--vnic", &vnic("b", 2)]);
    let text = "[[vnic]]\nname = \"a\"\nmac = \"02:00:00:00:00:02\"\n[[vnic]]\nname = \"b\"\nmac = \"02:00:00:00:00:01\"\n";
    apply(&switch, text, &[]).ok();
    let vnics = switch.json(&["config", "show"])["vnics"].clone();
    assert_eq!(
        (&vnics[0]["mac"], &vnics[1]["mac"]),
        (&json!("02:00:00:00:00:02"), &json!("02:00:00:00:00:01"))
    );
    assert_eq!(switch.json(&["fdb", "show"])["entries"][0]["port"], "b");
}

#[test]
fn what_takes_a_restart_is_said_and_the_rest_is_done() {
    let switch = Switch::start(&["--workers", "1"]);
    let text = format!("workers = 2\nmodule = \"{}\"\n[[vnic]]\nname = \"a\"\n", module());
    let answer = apply(&switch, &text, &[]);
    assert_eq!(
        answer.out,
        "! workers: 1 -> 2 (takes a restart of the switch)\n+ port a\n1 added, 0 removed, 0 changed\n"
    );
    assert_eq!(answer.code, Some(3));
    assert!(switch.path("a.sock").exists());
}

#[test]
fn a_step_that_fails_is_named_and_nothing_follows() {
    let switch = Switch::start(&[]);
    let foreign = switch.base.path().join("foreign.sock");
    let _owner = std::os::unix::net::UnixListener::bind(&foreign).expect("bound");
    let text =
        format!("[[vnic]]\nname = \"a\"\nsocket = \"{}\"\n[[vnic]]\nname = \"b\"\n", foreign.display());
    let message = apply(&switch, &text, &[]).err;
    assert!(message.contains("in use by another process") && message.contains("apply again"), "{message}");
    assert!(!switch.path("b.sock").exists());
}

#[test]
fn the_running_configuration_is_a_file_to_start_with() {
    let switch =
        Switch::start(&["--workers", "1", "--vnic", "a,mtu=1400,features-off=TSO+ECN", "--vnic", "b"]);
    switch.ask(&["vnic", "set", "b", "link=down,socket-mode=0666"]).ok();
    let text = switch.ask(&["config", "show"]).ok();
    assert_eq!(apply(&switch, &text, &["--dry-run"]).code, Some(0), "{text}");
    assert!(
        text.contains("\n[[port]]\nname = \"a\"\nbackend = \"vhost-user\"\nfeatures-off = [\"TSO\", \"ECN\"]\nmtu = 1400\n"),
        "{text}"
    );
    assert!(
        text.contains(
            "\n[[port]]\nname = \"b\"\nbackend = \"vhost-user\"\nlink = \"down\"\nsocket-mode = \"0666\"\n"
        ),
        "{text}"
    );
}

#[test]
fn the_documented_file_has_no_mistakes() {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/user/ports.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let text = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a file");
    let json: Value = serde_json::from_str(&check(text, &["--json"]).out).expect("JSON");
    let mistakes = json["mistakes"].as_array().expect("a list");
    // Line 0: CPUs or groups that this machine lacks.
    assert!(mistakes.iter().all(|mistake| mistake["line"] == 0), "{mistakes:?}");
}
