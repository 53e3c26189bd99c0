//! Threads of our processes at one moment, from `/proc`.

use std::path::Path;

use crate::procfs;

/// Threads of a process that are looked at: one for each session, and some more.
const THREADS_MAX: usize = 4096;
/// Names of threads that move packets (`engine/threads.rs`, `driver/io.rs`), each followed by a number.
const PACKET_THREADS: [&str; 2] = ["worker", "io-"];
/// Fields of /proc/PID/stat behind the name, counted from the state (proc(5) counts that as 3).
const USER_FIELD: usize = 14 - 3;
const SYSTEM_FIELD: usize = 15 - 3;
const START_FIELD: usize = 22 - 3;
const CPU_FIELD: usize = 39 - 3;

/// A thread at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampledThread {
    /// Up to 15 bytes, which the process chooses.
    pub name: String,
    /// Its start, in clock ticks since the host's boot. Distinguishes it from a later one of the same number.
    pub start_ticks: u64,
    /// It has a CPU or waits for one.
    pub is_runnable: bool,
    /// CPU time since its start, by the kernel's clock ticks.
    pub used_ns: u64,
    /// The CPU that it uses, or used last.
    pub cpu: usize,
}

impl SampledThread {
    /// The thread `tid` of process `pid`; `None` if it has ended.
    pub fn read(proc: &Path, pid: u32, tid: u32) -> Option<Self> {
        let stat = std::fs::read(proc.join(format!("{pid}/task/{tid}/stat"))).ok()?;
        Self::parse(&String::from_utf8_lossy(&stat), rustix::param::clock_ticks_per_second())
    }

    fn parse(stat: &str, ticks_per_second: u64) -> Option<Self> {
        let (name, fields) = procfs::stat_fields(stat)?;
        let fields: Vec<&str> = fields.collect();
        let number = |field: usize| fields.get(field)?.parse::<u64>().ok();
        let ticks = number(USER_FIELD)?.checked_add(number(SYSTEM_FIELD)?)?;
        let state = *fields.first()?;
        let has_ended = matches!(state, "Z" | "X" | "x");
        (!has_ended).then_some(Self {
            name: name.to_owned(),
            start_ticks: number(START_FIELD)?,
            is_runnable: state == "R",
            used_ns: ticks.saturating_mul(1_000_000_000 / ticks_per_second.max(1)),
            cpu: number(CPU_FIELD).and_then(|cpu| usize::try_from(cpu).ok()).unwrap_or(0),
        })
    }

    /// Whether it has the name of a thread that moves packets. The process chooses it: a wrong one costs threads of the
    /// same group alone.
    pub fn moves_packets(&self) -> bool {
        let number = PACKET_THREADS.iter().find_map(|kind| self.name.strip_prefix(kind));
        number.is_some_and(|number| {
            (1..=3).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit())
        })
    }
}

/// The threads of a process; none if it has ended.
pub fn threads_of(proc: &Path, pid: u32) -> impl Iterator<Item = u32> {
    let numbers = procfs::numbers(&proc.join(format!("{pid}/task")));
    numbers.filter_map(|tid| u32::try_from(tid).ok()).take(THREADS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_proc_is_read_whatever_the_name_is() {
        let fields = "R 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 9 0 4711 0";
        let read = |name: &str| SampledThread::parse(&format!("7 ({name}) {fields}"), 100);
        let thread = read("a) R (b").expect("a thread");
        assert_eq!((&*thread.name, thread.start_ticks, thread.is_runnable), ("a) R (b", 4711, true));
        assert_eq!(thread.used_ns, 2_000_000_000);
        assert_eq!(SampledThread::parse("7 (gone) Z 1 2", 100), None);
        assert_eq!(SampledThread::parse("", 100), None);
        let packets =
            ["worker0", "worker63", "io-1", "worker", "worker1234", "io-x", "main", "helper0", "worker-1"];
        let packets = packets.map(|name| read(name).expect("a thread").moves_packets());
        assert_eq!(packets, [true, true, true, false, false, false, false, false, false]);
    }
}
