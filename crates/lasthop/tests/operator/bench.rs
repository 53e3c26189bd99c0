//! `lasthop bench` starts the program `lasthop-bench` beside it.

use std::process::{Command, Stdio};

use lasthop_rig::copy_of_lasthop;

#[test]
fn the_bench_beside_the_binary_gets_all_words() {
    let directory = tempfile::tempdir().expect("a directory");
    let binary = copy_of_lasthop(directory.path(), "lasthop");
    let run = |words: &[&str]| {
        let output = Command::new(&binary).args(words).stdin(Stdio::null()).output().expect("it runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, _, said) = run(&["bench"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("lasthop-bench\": No such file") && said.contains("make install"), "{said}");

    // Written by another process: a file that any thread here has open for writing cannot be executed.
    let script = "printf '#!/bin/sh\\necho \"$*\"\\nexit 3\\n' >lasthop-bench && chmod 755 lasthop-bench";
    let made = Command::new("sh").args(["-c", script]).current_dir(directory.path()).status();
    assert!(made.expect("a shell").success());
    for (words, got) in [
        (&["bench"][..], "\n"),
        (&["bench", "--help"], "--help\n"),
        (&["--json", "bench", "--rounds", "2"], "--json --rounds 2\n"),
        (&["bench", "--workload", "rtt", "--json", "--", "-x"], "--workload rtt --json -- -x\n"),
    ] {
        assert_eq!(run(words), (Some(3), got.to_owned(), String::new()), "{words:?}");
    }
}
