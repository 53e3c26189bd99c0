//! Commands in messages are to be copied: they name the switch, and their words are quoted for a shell.

use std::path::Path;

use lasthop_api::rundir;

/// Commands that ask a switch, as remedies name them.
const COMMANDS: [&str; 7] = ["vnic", "port", "switch", "stats", "ovs", "flow", "sched"];

/// Adds the switch's directory to commands; the default one needs no option.
pub fn addressed(text: &str, dir: &Path) -> String {
    let option = rundir::option(dir);
    if option.is_empty() || text.contains(&option) {
        return text.to_owned();
    }
    COMMANDS.into_iter().fold(text.to_owned(), |text, command| {
        text.replace(&format!("lasthop {command} "), &format!("lasthop{option} {command} "))
    })
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
        for text in ["a lasthop that runs", "lasthop --dir /r stats a", "lasthop doctor"] {
            assert_eq!(told(text), text);
        }
    }

    #[test]
    fn quotes_survive_the_shell() {
        assert_eq!(quote("/a'b"), "'/a'\\''b'");
        assert_eq!(quote("/a/b.sock"), "/a/b.sock");
    }
}
