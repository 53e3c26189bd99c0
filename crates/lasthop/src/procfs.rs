//! Facts about processes from proc(5).

use std::fmt::Display;
use std::path::{Path, PathBuf};

/// All processes that are there now.
pub(crate) fn pids() -> impl Iterator<Item = i32> {
    numbers(Path::new("/proc"))
}

/// The threads of a process; none if it is no more.
pub(crate) fn threads(pid: impl Display) -> impl Iterator<Item = i32> {
    numbers(&dir(pid).join("task"))
}

/// The entries of a directory whose names are numbers.
fn numbers(dir: &Path) -> impl Iterator<Item = i32> + use<> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Where the system tells of a process.
pub(crate) fn dir(pid: impl Display) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}"))
}

/// One of its files of text; none if there is no such process any more, or it may not be looked at.
pub(crate) fn text(pid: impl Display, file: &str) -> Option<String> {
    let bytes = std::fs::read(dir(pid).join(file)).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The state of a process's first thread, as proc_pid_stat(5) has it.
fn state(pid: impl Display) -> Option<char> {
    // Behind the name, in which there may be anything.
    text(pid, "stat")?.rsplit_once(") ")?.1.chars().next()
}

/// Whether somebody has stopped a process: by a signal, or with a debugger.
pub(crate) fn is_stopped(pid: impl Display) -> bool {
    matches!(state(pid), Some('T' | 't'))
}

/// The state of a process that does not answer, in words: "it is stopped (T)".
pub(crate) fn state_text(pid: impl Display) -> String {
    let Some(state) = state(pid) else { return "it is no more".to_owned() };
    let what = match state {
        'T' => "it is stopped",
        't' => "a debugger has stopped it",
        'D' => "it waits for the kernel",
        'R' => "it is busy, or gets no CPU",
        'Z' | 'X' => "it has ended",
        _ => "it waits for something",
    };
    format!("{what} ({state})")
}

/// The value of a variable in an environment as `environ` has it.
pub(crate) fn variable<'a>(environment: &'a str, name: &str) -> Option<&'a str> {
    environment.split('\0').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_finds_itself() {
        let own = std::process::id() as i32;
        assert!(pids().any(|pid| pid == own));
        assert!(text(own, "comm").is_some_and(|name| !name.is_empty()));
        assert_eq!(text(own, "no such file"), None);
        assert!(!is_stopped(own));
        assert!(state_text(own).ends_with(')'), "{}", state_text(own));
        assert_eq!(state_text("none"), "it is no more");
    }

    #[test]
    fn variables_are_found_by_their_whole_names() {
        let environment = "HOME=/\0LD_PRELOAD=/a.so\0EMPTY=\0";
        assert_eq!(variable(environment, "LD_PRELOAD"), Some("/a.so"));
        assert_eq!(variable(environment, "EMPTY"), Some(""));
        assert_eq!(variable(environment, "LD"), None);
    }
}
