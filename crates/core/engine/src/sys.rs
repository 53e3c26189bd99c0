//! System calls for which neither std nor rustix has safe calls: interrupting a thread that waits in the kernel, reading how
//! long a thread waited, and finding the process at the other end of a socket.
//!
//! The signal is SIGURG: ignored by default, so that a stray one ends no process, and sent by the kernel only for
//! out-of-band data of sockets that asked for it, which none here does.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::thread::Pid;
use rustix::time::{ClockId, clock_gettime};

const SIGNAL: libc::c_int = libc::SIGURG;

extern "C" fn do_nothing(_signal: libc::c_int) {}

/// Installs the signal's handler for the whole process: it does nothing, without `SA_RESTART`, so that the signal
/// interrupts system calls.
///
/// # Errors
/// When sigaction(2) refuses.
pub(crate) fn install() -> io::Result<()> {
    // SAFETY: an all-zero sigaction is valid; the handler touches nothing.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = do_nothing as *const () as usize;
        action.sa_flags = libc::SA_ONSTACK;
        libc::sigaction(SIGNAL, &raw const action, std::ptr::null_mut())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Unblocks the signal for the calling thread, in case the inherited mask blocks it.
pub(crate) fn unblock() {
    // SAFETY: the set is initialized by sigemptyset before it is used, and lives here.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, SIGNAL);
        // Fails for unknown operations only.
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
    }
}

/// Interrupts the system call in which `thread` of this process waits. Does nothing if the thread has ended.
pub(crate) fn interrupt(thread: Pid) {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: tgkill takes three numbers; it reaches threads of this process only, which all have the handler.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread.as_raw_nonzero().get(), SIGNAL) };
}

/// CPU time of the calling thread in ns: it does not pass while others have the core.
pub(crate) fn thread_cpu_ns() -> u64 {
    time_ns(ClockId::ThreadCPUTime)
}

/// CPU time of a thread of this process in ns; `None` if it has ended.
pub(crate) fn thread_cpu_ns_of(thread: i32) -> Option<u64> {
    // CPUCLOCK_PERTHREAD_MASK and CPUCLOCK_SCHED (linux/posix-timers.h).
    let clock = (!thread << 3) | 4 | 2;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec, which lives here. It refuses a clock that is none.
    let status = unsafe { libc::clock_gettime(clock, &raw mut time) };
    // Neither is negative, and centuries fit.
    (status == 0).then_some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// CLOCK_MONOTONIC in ns.
pub(crate) fn monotonic_ns() -> u64 {
    time_ns(ClockId::Monotonic)
}

fn time_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    // Neither is negative, and centuries fit.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Ticks of the CPU's time stamp counter.
#[cfg(target_arch = "x86_64")]
pub(crate) fn time_stamp() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and it touches no memory.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Whether the time stamp counter runs at one rate in all states of the CPU (Intel SDM volume 3, 19.17.1).
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_steady_time_stamp() -> bool {
    const LEAF: u32 = 0x8000_0007;
    const INVARIANT_TSC: u32 = 1 << 8;
    let leaf = |number| std::arch::x86_64::__cpuid(number);
    leaf(0x8000_0000).eax >= LEAF && leaf(LEAF).edx & INVARIANT_TSC != 0
}

/// The kernel's counters of a thread's page faults and waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ThreadUsage {
    /// Page faults that did not need a disk.
    pub(crate) minor_faults: u64,
    /// Page faults that did: the host had swapped the page out.
    pub(crate) major_faults: u64,
    /// Voluntary context switches: it waited for something.
    pub(crate) waits: u64,
}

impl ThreadUsage {
    /// The usage of the calling thread, since it began.
    pub(crate) fn now() -> Self {
        // SAFETY: an all-zero rusage is valid, and the kernel writes one, which lives here.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            // Fails for unknown arguments only.
            libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
            usage
        };
        // Counts are never negative.
        Self {
            minor_faults: usage.ru_minflt as u64,
            major_faults: usage.ru_majflt as u64,
            waits: usage.ru_nvcsw as u64,
        }
    }

    pub(crate) fn faults(&self) -> u64 {
        self.minor_faults + self.major_faults
    }
}

/// The process at the other end of a connected UNIX socket. `None` if it is in a PID namespace that is not visible from
/// here: then the kernel returns 0, which rustix's type cannot hold.
#[must_use]
pub fn peer_process(socket: BorrowedFd<'_>) -> Option<i32> {
    peer(socket).map(|peer| peer.pid).filter(|pid| *pid > 0)
}

/// The user at the other end of a connected UNIX socket.
#[must_use]
pub fn peer_user(socket: BorrowedFd<'_>) -> Option<u32> {
    // Without a process the kernel does not know the user either.
    peer(socket).filter(|peer| peer.uid != u32::MAX).map(|peer| peer.uid)
}

fn peer(socket: BorrowedFd<'_>) -> Option<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len_bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len_bytes` to `peer`, any bytes of which are a ucred; both live here.
    let result = unsafe {
        let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut peer).cast(), &raw mut len_bytes)
    };
    (result == 0).then_some(peer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn both_ends_of_a_pair_are_ours_and_a_file_has_no_other_end() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        assert_eq!(peer_process(one.as_fd()), i32::try_from(std::process::id()).ok());
        let file = std::fs::File::open("/dev/null").expect("there");
        assert_eq!(peer_process(file.as_fd()), None);
    }
}
