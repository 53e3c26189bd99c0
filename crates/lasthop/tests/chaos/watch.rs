//! The descriptors and memory of a process, from /proc.

use std::fs;

/// The anonymous memory and open files of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holding {
    /// Anonymous resident memory in KiB, without guests' memory.
    pub(crate) own_kib: u64,
    pub(crate) fds: usize,
}

impl Holding {
    pub(crate) fn of(pid: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("RssAnon");
        let own_kib = line.split_whitespace().next().and_then(|word| word.parse().ok()).expect("KiB");
        Self { own_kib, fds: fds(pid) }
    }
}

/// Open files of a process.
pub(crate) fn fds(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).expect("the process lives").count()
}

/// Mappings of guests' memory in a process.
pub(crate) fn guest_mappings(pid: u32) -> usize {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("the process lives");
    maps.lines().filter(|line| line.contains("memfd:lasthop-frontend")).count()
}
