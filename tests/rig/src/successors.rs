//! Programs for an upgrade that give chosen answers.

use std::os::unix::fs::PermissionsExt;

use super::Switch;

/// A program that reports state version `version` each time, and then runs `rest`, a line of sh.
pub fn successor_of_version(switch: &Switch, version: u64, rest: &str) -> String {
    successor_that_waits(switch, version, "", rest)
}

/// As `successor_of_version`; it runs `between`, lines of sh, before it reports that again.
pub fn successor_that_waits(switch: &Switch, version: u64, between: &str, rest: &str) -> String {
    let say = answer(&format!(r#"{{"version":{version}}}"#));
    program(switch, &format!("successor{version}"), &format!("{say}{between}{say}{rest}"))
}

/// A program that tells its state version once and ends: it has been told of no guest then.
pub fn successor_that_ends(switch: &Switch, version: u64) -> String {
    let say = answer(&format!(r#"{{"version":{version}}}"#));
    program(switch, "successor", &format!("{say}exit 1"))
}

/// The state version of this program, as a refusal tells it.
pub fn own_version(switch: &Switch) -> u64 {
    let said = switch.ask(&["upgrade", &successor_of_version(switch, 0, "cat")]).refused();
    assert!(said.contains("it has state version 0, and this switch has "), "{said}");
    let digits = said.trim().trim_end_matches('.').rsplit(' ').next().expect("a word");
    digits.parse().unwrap_or_else(|_| panic!("no number at the end of: {said}"))
}

/// A program that reports whether it prepares sessions, and runs `rest` when the file `go` exists.
pub fn late_successor(switch: &Switch, prepares: bool, rest: &str) -> String {
    let version = own_version(switch);
    let prepares = if prepares { r#","prepares":true"# } else { "" };
    let say = answer(&format!(r#"{{"version":{version}{prepares}}}"#));
    let go = switch.base.path().join("go");
    let waits = format!("{say}while ! [ -e {} ]; do sleep 0.01; done\n{rest}", go.display());
    program(switch, "successor", &waits)
}

/// The line of sh by which a program reports its state version.
fn answer(knows: &str) -> String {
    report(&format!(r#"{{"Reply":{{"id":0,"result":{{"Ok":{{"Knows":{knows}}}}}}}}}"#))
}

/// The line of sh by which a program sends any message of less than 256 bytes.
pub fn report(json: &str) -> String {
    // Four bytes of length, four of descriptors, as on the channel between the processes.
    format!("printf '\\{:03o}\\0\\0\\0\\0\\0\\0\\0%s' '{json}' >&0\n", json.len())
}

/// An older program, which does not know an option of the switch process.
pub fn successor_without_option(switch: &Switch, option: &str) -> String {
    let refuses = format!("case \" $* \" in *\" {option} \"*) exit 2 ;; esac\n");
    let says = answer(r#"{"version":0}"#);
    program(switch, "older", &format!("{refuses}{says}exec cat >/dev/null"))
}

/// A program of lines of sh.
fn program(switch: &Switch, name: &str, lines: &str) -> String {
    let path = switch.base.path().join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{lines}\n")).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("made executable");
    path.to_str().expect("text").to_owned()
}
