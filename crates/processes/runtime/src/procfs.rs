//! Facts about processes from proc(5).

use std::fmt::Display;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// All present processes.
pub fn pids() -> impl Iterator<Item = i32> {
    numbers(Path::new("/proc"))
}

/// The threads of a process; empty if it has ended.
pub fn threads(pid: impl Display) -> impl Iterator<Item = i32> {
    numbers(&dir(pid).join("task"))
}

/// The entries of a directory whose names are numbers.
pub fn numbers(dir: &Path) -> impl Iterator<Item = i32> + use<> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The directory of a process in /proc.
pub fn dir(pid: impl Display) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}"))
}

/// One of its text files; `None` if the process has ended, or access is denied.
pub fn text(pid: impl Display, file: &str) -> Option<String> {
    let bytes = std::fs::read(dir(pid).join(file)).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The name of a line of proc_pid_stat(5), and its fields behind it, from the state on, which that page counts as 3. The name may
/// contain anything, brackets included.
pub fn stat_fields(stat: &str) -> Option<(&str, impl Iterator<Item = &str>)> {
    let (head, fields) = stat.rsplit_once(") ")?;
    let (_, name) = head.split_once(" (")?;
    Some((name, fields.split_ascii_whitespace()))
}

/// The state of a process's first thread, as in proc_pid_stat(5).
fn state(pid: impl Display) -> Option<char> {
    stat_fields(&text(pid, "stat")?)?.1.next()?.chars().next()
}

/// CPU time of the threads of a process, in nanoseconds; 0 if it does not exist.
pub fn cpu_ns(pid: impl Display) -> u64 {
    threads(&pid).filter_map(|thread| thread_cpu_ns(&pid, thread)).sum()
}

/// CPU time of one thread of a process, in nanoseconds.
pub fn thread_cpu_ns(pid: impl Display, thread: i32) -> Option<u64> {
    text(pid, &format!("task/{thread}/schedstat"))?.split_whitespace().next()?.parse().ok()
}

/// CPU time in user space and in the kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuTimes {
    /// In user space, in seconds, by the kernel's clock ticks.
    pub user_s: f64,
    /// In the kernel, in seconds.
    pub kernel_s: f64,
}

/// CPU time of one thread of a process; `None` if it does not exist.
pub fn cpu_times(pid: impl Display, thread: i32) -> Option<CpuTimes> {
    let stat = text(pid, &format!("task/{thread}/stat"))?;
    // From field 3 on; 14 and 15 are needed.
    let mut fields = stat_fields(&stat)?.1.skip(14 - 3);
    let ticks_per_second = rustix::param::clock_ticks_per_second() as f64;
    let mut seconds = || Some(fields.next()?.parse::<u64>().ok()? as f64 / ticks_per_second);
    Some(CpuTimes { user_s: seconds()?, kernel_s: seconds()? })
}

/// Whether a path leads a process to the same file as this one, as far as can be told: it may have another file system.
pub fn sees(pid: impl Display, path: &Path) -> bool {
    let theirs = dir(pid).join("root").join(path.strip_prefix("/").unwrap_or(path));
    match (path.symlink_metadata(), theirs.symlink_metadata()) {
        (Ok(ours), Ok(theirs)) => (ours.dev(), ours.ino()) == (theirs.dev(), theirs.ino()),
        (Ok(_), Err(error)) => error.kind() != ErrorKind::NotFound,
        _ => true,
    }
}

/// Whether a process is stopped, by a signal or a debugger.
pub fn is_stopped(pid: impl Display) -> bool {
    matches!(state(pid), Some('T' | 't'))
}

/// The state of a process that does not answer, in words: "it is stopped (T)".
pub fn state_text(pid: impl Display) -> String {
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

/// The remedy that follows a stopped process's [`state_text`] in a message; empty for any other process.
pub fn remedy(pid: impl Display) -> String {
    if is_stopped(&pid) { format!("; continue it: kill -CONT {pid}") } else { String::new() }
}

/// The processes that any thread of a process started.
pub fn children(pid: impl Display + Copy) -> impl Iterator<Item = u32> {
    let listed = threads(pid).filter_map(|thread| text(pid, &format!("task/{thread}/children")));
    let pids = listed.collect::<Vec<_>>().join("");
    pids.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>().into_iter()
}

/// The words of a process's command line.
pub fn words(pid: impl Display) -> impl Iterator<Item = String> {
    let line = text(pid, "cmdline").unwrap_or_default();
    line.split_terminator('\0').map(str::to_owned).collect::<Vec<_>>().into_iter()
}

/// The process of a pidfd; `None` if it was reaped.
pub fn pid_of(pidfd: impl AsFd) -> Option<u32> {
    let number = pidfd.as_fd().as_raw_fd();
    let told = text("self", &format!("fdinfo/{number}"))?;
    let pid = told.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    pid.trim().parse().ok()
}

/// The state of a killed process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// One of its threads may still run, or access is denied.
    Runs,
    /// All its threads have ended.
    Ended,
    /// Its remaining threads are in uninterruptible system calls. The name of the first one.
    Stuck(String),
}

/// The state of a killed process. A thread in state D has SIGKILL pending, and does not return to its program.
pub fn standing(pid: impl Display) -> Standing {
    let stats = threads(&pid).map(|thread| text(&pid, &format!("task/{thread}/stat")));
    standing_of(stats)
}

fn standing_of(stats: impl Iterator<Item = Option<String>>) -> Standing {
    let mut standing = Standing::Ended;
    // A thread that disappeared after it was listed has ended.
    for stat in stats.flatten() {
        let Some((name, mut fields)) = stat_fields(&stat) else { return Standing::Runs };
        match fields.next() {
            Some("Z" | "X") => {}
            Some("D") if standing == Standing::Ended => standing = Standing::Stuck(name.to_owned()),
            Some("D") => {}
            _ => return Standing::Runs,
        }
    }
    standing
}

/// Whether the first thread of a process has ended, and other threads prevent that it is reaped.
pub fn is_headless(pid: impl Display) -> bool {
    matches!(state(&pid), Some('Z' | 'X')) && standing(&pid) != Standing::Ended
}

/// The value of a variable in an environment in the form of `environ`.
pub fn variable<'a>(environment: &'a str, name: &str) -> Option<&'a str> {
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
        assert!(!is_stopped(own) && remedy(own).is_empty());
        assert_eq!(words(own).next(), std::env::args().next());
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().expect("cat runs");
        assert!(children(own).any(|pid| pid == child.id()));
        drop(child.stdin.take());
        child.wait().expect("it ends");
        assert!(state_text(own).ends_with(')'), "{}", state_text(own));
        assert_eq!(state_text("none"), "it is no more");
    }

    #[test]
    fn a_process_is_stuck_if_those_threads_that_have_not_ended_wait_in_the_kernel() {
        let standing = |states: &[char]| {
            let stat = |(number, state): (usize, &char)| Some(format!("{number} (a) b) {state} 1 2"));
            standing_of(states.iter().enumerate().map(stat))
        };
        assert_eq!(standing(&[]), Standing::Ended);
        assert_eq!(standing(&['Z', 'X']), Standing::Ended);
        assert_eq!(standing(&['Z', 'D', 'D']), Standing::Stuck("a) b".to_owned()));
        assert_eq!(standing(&['Z', 'D', 'S']), Standing::Runs);
        assert_eq!(standing(&['R']), Standing::Runs);
        assert_eq!(standing_of([None, Some("torn".to_owned())].into_iter()), Standing::Runs);
        let own = std::process::id();
        assert_eq!((super::standing(own), is_headless(own)), (Standing::Runs, false));
    }

    #[test]
    fn variables_are_found_by_their_whole_names() {
        let environment = "HOME=/\0LD_PRELOAD=/a.so\0EMPTY=\0";
        assert_eq!(variable(environment, "LD_PRELOAD"), Some("/a.so"));
        assert_eq!(variable(environment, "EMPTY"), Some(""));
        assert_eq!(variable(environment, "LD"), None);
    }
}
