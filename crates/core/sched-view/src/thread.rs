//! Threads, from /proc.

use std::io;
use std::path::Path;

use lasthop_sched::Activity;
use rustix::thread::Pid;
use thiserror::Error;

/// The PID namespace of the host, which the kernel gives this number (linux/proc_ns.h: PROC_PID_INIT_INO). BPF sees threads
/// by their numbers there.
const HOST_PID_NAMESPACE: &str = "pid:[4026531836]";
/// Fields of /proc/PID/stat behind the name, counted from the state (proc(5) counts that as 3).
const START_FIELD: usize = 22 - 3;
const CPU_FIELD: usize = 39 - 3;
const GUEST_TIME_FIELD: usize = 43 - 3;

/// A thread. Its start time distinguishes it from a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThreadId {
    /// Its number, in the PID namespace of the host.
    pub tid: u32,
    /// Its start, in clock ticks since the host's boot.
    pub start_ticks: u64,
}

/// Why a thread is unknown.
#[derive(Debug, Error)]
pub enum ThreadError {
    /// It has ended.
    #[error("thread {0} has ended")]
    Gone(u32),
    /// /proc differs from proc(5).
    #[error("/proc/{0}/stat cannot be read: {1}")]
    Proc(u32, io::Error),
}

/// A thread's line in /proc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadStat {
    pub(crate) id: ThreadId,
    /// It is a zombie, or will be gone in a moment.
    has_ended: bool,
    /// `None`: it has a CPU or waits for one, which /proc does not distinguish.
    pub(crate) sleeps: Option<Activity>,
    pub(crate) cpu: u16,
    /// For how long it has run virtual CPUs, in clock ticks; 0 where the kernel does not tell. In /proc/TID it is that of all
    /// threads of the process, in /proc/PID/task/TID the thread's own.
    pub(crate) guest_ticks: u64,
}

impl ThreadStat {
    pub(crate) fn read(tid: u32) -> Result<Self, ThreadError> {
        let text = std::fs::read_to_string(format!("/proc/{tid}/stat")).map_err(|error| {
            // ESRCH: it ended between open and read.
            let is_gone = error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(ESRCH);
            if is_gone { ThreadError::Gone(tid) } else { ThreadError::Proc(tid, error) }
        })?;
        match Self::parse(tid, &text) {
            Some(stat) if stat.has_ended => Err(ThreadError::Gone(tid)),
            stat => stat.ok_or_else(|| ThreadError::Proc(tid, io::ErrorKind::InvalidData.into())),
        }
    }

    pub(crate) fn parse(tid: u32, text: &str) -> Option<Self> {
        // The name may have any bytes, brackets included.
        let (_, fields) = text.rsplit_once(") ")?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let state = *fields.first()?;
        Some(Self {
            id: ThreadId { tid, start_ticks: fields.get(START_FIELD)?.parse().ok()? },
            has_ended: matches!(state, "Z" | "X" | "x"),
            sleeps: (state != "R").then_some(Activity::Blocked),
            cpu: fields.get(CPU_FIELD)?.parse().ok()?,
            guest_ticks: fields.get(GUEST_TIME_FIELD).and_then(|ticks| ticks.parse().ok()).unwrap_or(0),
        })
    }
}

const ESRCH: i32 = rustix::io::Errno::SRCH.raw_os_error();

impl ThreadId {
    /// The current thread with the given number.
    ///
    /// # Errors
    /// [`ThreadError`].
    pub fn of(tid: u32) -> Result<Self, ThreadError> {
        ThreadStat::read(tid).map(|stat| stat.id)
    }

    /// The calling thread.
    ///
    /// # Errors
    /// [`ThreadError::Proc`].
    pub fn current() -> Result<Self, ThreadError> {
        Self::of(Pid::as_raw(Some(rustix::thread::gettid())).cast_unsigned())
    }
}

/// Whether this process sees threads by the numbers that BPF sees.
pub(crate) fn is_in_host_pid_namespace() -> bool {
    std::fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link == Path::new(HOST_PID_NAMESPACE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REST: &str = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 3 37";

    #[test]
    fn state_start_and_cpu_are_found_behind_any_name() {
        for name in ["a", "CPU 0/KVM", ") R (", "x) S 1 (y"] {
            let stat = ThreadStat::parse(7, &format!("7 ({name}) S {REST}")).unwrap();
            assert_eq!(stat.id, ThreadId { tid: 7, start_ticks: 4711 }, "{name}");
            assert_eq!((stat.sleeps, stat.cpu, stat.guest_ticks), (Some(Activity::Blocked), 3, 0));
        }
        let guest = ThreadStat::parse(7, &format!("7 (a) S {REST} 38 39 40 41")).unwrap();
        assert_eq!(guest.guest_ticks, 40);
        assert_eq!(ThreadStat::parse(7, &format!("7 (a) R {REST}")).unwrap().sleeps, None);
        assert!(ThreadStat::parse(7, &format!("7 (a) Z {REST}")).unwrap().has_ended);
    }

    #[test]
    fn a_thread_of_this_process_is_read_and_a_missing_one_is_gone() {
        let current = ThreadId::current().unwrap();
        assert_eq!(ThreadId::of(current.tid).unwrap(), current);
        assert!(matches!(ThreadId::of(u32::MAX), Err(ThreadError::Gone(_))));
    }

    proptest! {
        #[test]
        fn any_line_is_read_or_refused(line in ".{0,200}") {
            let _ = ThreadStat::parse(1, &line);
        }
    }
}
