//! Programs that an upgrade is asked for, and that say what they like.

use std::os::unix::fs::PermissionsExt;

use super::Switch;

/// A program that says as often as it is asked that it knows `version` of what is kept, and then does `rest`, a line of sh.
pub(crate) fn heir_of_version(switch: &Switch, version: u64, rest: &str) -> String {
    heir_that_waits(switch, version, "", rest)
}

/// As `heir_of_version`; it does `between`, lines of sh, before it says so once more.
pub(crate) fn heir_that_waits(switch: &Switch, version: u64, between: &str, rest: &str) -> String {
    let say = answer(&format!(r#"{{"version":{version}}}"#));
    program(switch, &format!("heir{version}"), &format!("{say}{between}{say}{rest}"))
}

/// The version of what this program keeps, as a refusal tells it.
pub(crate) fn own_version(switch: &Switch) -> u64 {
    let said = switch.ask(&["upgrade", &heir_of_version(switch, 0, "cat")]).refused();
    assert!(
        said.contains("it knows version 0 of what is kept of guests, and this switch has version "),
        "{said}"
    );
    let digits = said.trim().trim_end_matches('.').rsplit(' ').next().expect("a word");
    digits.parse().unwrap_or_else(|_| panic!("no number at the end of: {said}"))
}

/// One that says whether it gets ready for sessions, and does `rest` when the file `go` is there.
pub(crate) fn late_heir(switch: &Switch, prepares: bool, rest: &str) -> String {
    let version = own_version(switch);
    let prepares = if prepares { r#","prepares":true"# } else { "" };
    let say = answer(&format!(r#"{{"version":{version}{prepares}}}"#));
    let go = switch.base.path().join("go");
    let waits = format!("{say}while ! [ -e {} ]; do sleep 0.01; done\n{rest}", go.display());
    program(switch, "heir", &waits)
}

/// The line of sh by which a program answers what it knows.
fn answer(knows: &str) -> String {
    report(&format!(r#"{{"Reply":{{"id":0,"result":{{"Ok":{{"Knows":{knows}}}}}}}}}"#))
}

/// The line of sh by which a program says anything, of less than 256 bytes.
pub(crate) fn report(json: &str) -> String {
    // Four bytes of length, four of descriptors, as the channel between the processes has them.
    format!("printf '\\{:03o}\\0\\0\\0\\0\\0\\0\\0%s' '{json}' >&0\n", json.len())
}

/// A program of lines of sh.
fn program(switch: &Switch, name: &str, lines: &str) -> String {
    let path = switch.base.path().join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{lines}\n")).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("made executable");
    path.to_str().expect("text").to_owned()
}
