//! Commands in messages are to be copied: they name the switch, and their words are quoted for a shell.

use std::path::Path;

use lasthop_api::rundir;

/// Commands that ask a switch. `lasthop run` is named as a process, too, and the others need no switch.
pub const COMMANDS: [&str; 19] = [
    "acl",
    "apply",
    "capture",
    "config",
    "conntrack",
    "doctor",
    "explain",
    "fdb",
    "flow",
    "ovs",
    "port",
    "profile",
    "sched",
    "stats",
    "switch",
    "upgrade",
    "version",
    "vlan",
    "vnic",
];

/// Adds the switch's directory to commands that lack it; the default one needs no option.
pub fn addressed(text: &str, dir: &Path) -> String {
    const PROGRAM: &str = "lasthop";
    let option = rundir::option(dir);
    if option.is_empty() {
        return text.to_owned();
    }
    let mut parts = text.split("lasthop ");
    let mut told = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|letter: char| !letter.is_ascii_lowercase()).unwrap_or(part.len());
        let (word, rest) = part.split_at(end);
        let lacks_it = COMMANDS.contains(&word) && !rest.starts_with(&option);
        told.extend([PROGRAM, if lacks_it { &option } else { "" }, " ", part]);
    }
    told
}

/// Quotes a word for a shell if necessary.
pub fn quote(text: &str) -> String {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-,:=+@".contains(&byte));
    if is_plain { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_name_another_directory_than_the_usual_one() {
        let told = |text| addressed(text, Path::new("/r"));
        assert_eq!(
            told("first: lasthop switch set a controller=none"),
            "first: lasthop --dir /r switch set a controller=none"
        );
        let twice = told("lasthop vnic del a && lasthop vnic add a");
        assert_eq!(twice, "lasthop --dir /r vnic del a && lasthop --dir /r vnic add a");
        for text in [
            "a lasthop that runs",
            "restart lasthop run",
            "lasthop --dir /r stats a",
            "start one: lasthop run --dir /r; lasthop doctor --dir /r looks for others",
        ] {
            assert_eq!(told(text), text);
        }
        let mixed = told("lasthop --dir /r port list, or lasthop doctor");
        assert_eq!(mixed, "lasthop --dir /r port list, or lasthop --dir /r doctor");
    }

    #[test]
    fn every_remedy_names_the_directory() {
        for (remedy, start) in [
            ("lasthop acl list shows the rules", "lasthop --dir /r acl list"),
            ("see lasthop conntrack stats; shorter", "see lasthop --dir /r conntrack stats;"),
            ("lasthop conntrack list --address A", "lasthop --dir /r conntrack list --address"),
            ("lasthop capture VNIC shows them", "lasthop --dir /r capture VNIC"),
            ("lasthop fdb show", "lasthop --dir /r fdb show"),
            ("lasthop fdb del 02:00:00:00:00:07 a", "lasthop --dir /r fdb del"),
            ("lasthop vlan show", "lasthop --dir /r vlan show"),
            ("lasthop upgrade replaces it", "lasthop --dir /r upgrade"),
            ("lasthop doctor NAME", "lasthop --dir /r doctor NAME"),
            ("(try again: lasthop doctor)", "(try again: lasthop --dir /r doctor)"),
        ] {
            let told = addressed(remedy, Path::new("/r"));
            assert!(told.starts_with(start), "{told}");
        }
    }

    #[test]
    fn quotes_survive_the_shell() {
        assert_eq!(quote("/a'b"), "'/a'\\''b'");
        assert_eq!(quote("/a/b.sock"), "/a/b.sock");
    }
}
