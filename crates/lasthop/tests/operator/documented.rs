//! Commands of README and docs that need a switch alone, in order, as pasted. Other tests paste the others.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lasthop_rig::namespaces::{Namespace, may};
use lasthop_rig::{Switch, copy_of_lasthop};

/// The lines that other tests paste, or none, with the reason; `tools/check-docs` checks that none is missing, and each is there.
const LIST: &str = include_str!("../../../../tests/documented.tsv");

/// Commands that report findings by their exit status, and these statuses.
const FINDS: &[(&str, &[i32])] =
    &[("lasthop doctor", &[1, 2]), ("--dry-run", &[3]), ("lasthop explain", &[3, 4])];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Whether the list has a command of a page (`docs/user/ports.md`).
fn is_listed(page: &str, command: &str) -> bool {
    LIST.lines().filter(|row| !row.starts_with('#')).any(|row| {
        let mut fields = row.split('\t');
        let mut field = || fields.next().expect("four columns");
        let (of, words) = (field(), field());
        (of == "*" || of == page) && command.contains(words)
    })
}

/// The pages of a folder of documents.
fn pages(folder: &str) -> Vec<PathBuf> {
    let files = std::fs::read_dir(root().join("docs").join(folder)).expect("a folder of documents");
    let files = files.map(|entry| entry.expect("a file").path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

/// The commands of a text's indented blocks.
fn commands(text: &str) -> Vec<&str> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("    ")).map(str::trim_start);
    let ours = lines.filter(|line| line.starts_with("lasthop ") || line.starts_with("ip "));
    ours.map(|line| line.split(" #").next().unwrap_or_default().trim_end()).collect()
}

/// A shell in a directory with a configuration file and a program to upgrade to.
struct Shell(tempfile::TempDir);

impl Shell {
    fn new() -> Self {
        let base = tempfile::tempdir().expect("a directory");
        copy_of_lasthop(base.path(), "lasthop");
        let file = "[[vnic]]\nname = \"vm1\"\n[[vnic]]\nname = \"vm2\"\n";
        std::fs::write(base.path().join("lasthop.toml"), file).expect("written");
        Self(base)
    }

    /// Runs a command as typed, against `switch`.
    fn run(&self, switch: &Switch, command: &str) -> (i32, String) {
        let binary = env!("CARGO_BIN_EXE_lasthop");
        self.run_script(&format!(
            "lasthop() {{ '{binary}' --dir '{}' \"$@\"; }}\n{command}",
            switch.dir().display()
        ))
    }

    fn run_script(&self, script: &str) -> (i32, String) {
        let output =
            Command::new("sh").args(["-c", script]).current_dir(self.0.path()).stdin(Stdio::null()).output();
        let output = output.expect("a shell");
        let said = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&said).into_owned())
    }
}

/// Runs the commands of a page, in order; returns the failures.
fn try_page(page: &str, text: &str, host: &Namespace) -> Vec<String> {
    let shell = Shell::new();
    let mut switch = Switch::start_in(host.name(), &["--vnic", "vm1", "--vnic", "vm2"]);
    let mut wrong = Vec::new();
    for command in commands(text).into_iter().filter(|command| !is_listed(page, command)) {
        if let Some(words) = command.strip_prefix("lasthop run ") {
            drop(switch);
            switch = Switch::start_in(host.name(), &words.split_whitespace().collect::<Vec<_>>());
        } else {
            let (code, said) = match command.starts_with("ip ") {
                true => host.within(|| shell.run_script(command)),
                false => shell.run(&switch, command),
            };
            let finds = FINDS.iter().any(|(words, codes)| command.contains(words) && codes.contains(&code));
            if code != 0 && !finds {
                wrong.push(format!("{command}: {code}, {said}"));
            }
        }
    }
    wrong
}

#[test]
fn what_is_documented_works_as_pasted() {
    if !may() {
        return;
    }
    let (host, outside) = (Namespace::new(), Namespace::new());
    host.wire("eth1", &outside, "eth0");
    for page in ["user", "design", "results"].into_iter().flat_map(pages).chain([root().join("README.md")]) {
        let text = std::fs::read_to_string(&page).expect("a text");
        let page = page.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
        if !commands(&text).is_empty() {
            assert_eq!(try_page(&page, &text, &host), Vec::<String>::new(), "{page}");
        }
    }
}
