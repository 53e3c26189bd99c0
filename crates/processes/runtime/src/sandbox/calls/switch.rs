//! Further calls of the switch process: guests' memory, captures.

use super::common::OWN;
use super::{Call, NO_ADDRESS, Term, Value, call, int};

pub(in crate::sandbox) const CALLS: &[Call] = &[
    Call::with(
        call!(SYS_readlinkat),
        &[&[Term { argument: 0, is: Value::DescriptorNames }]],
        "to check a front end's eventfd: the kernel's name for it in /proc/self/fd",
    ),
    Call::with(
        call!(SYS_getsockopt),
        &[
            &[int(1, libc::SOL_SOCKET), int(2, libc::SO_DOMAIN)],
            &[int(1, libc::SOL_SOCKET), int(2, libc::SO_TYPE)],
        ],
        "kind of a descriptor: a UNIX socket (calls of User Mode Linux) or a UNIX stream (back-end channel)",
    ),
    Call::with(
        call!(SYS_getrusage),
        &[&[int(0, libc::RUSAGE_THREAD)]],
        "page faults of a worker, sampled per visit",
    ),
    Call::with(
        call!(SYS_tgkill),
        &[&[OWN, int(2, libc::SIGURG)]],
        "the watchdog interrupts a worker that hangs",
    ),
    Call::with(call!(SYS_clone), &[&[int(0, libc::CLONE_VM)]], "the keeper of this memory starts").once(),
    Call::with(
        call!(SYS_seccomp),
        &[&[int(0, libc::SECCOMP_SET_MODE_FILTER as i32)]],
        "forbids clone of the keeper, and itself, here and in the keeper",
    )
    .once(),
    Call::any(call!(SYS_shutdown), "ends a session; the supervisor has a copy of its connection"),
    Call::any(call!(SYS_clock_nanosleep), "work under way ends before an upgrade").kept(),
    Call::with(call!(SYS_sched_setaffinity), &[&[int(0, 0)]], "a worker stays on its CPUs"),
    Call::with(
        call!(SYS_sendto),
        &[NO_ADDRESS],
        "captures are written to their clients, and answers of the control interface",
    ),
    Call::with(
        call!(SYS_ioctl),
        &[&[int(1, libc::FIONBIO as i32)]],
        "connections of the control interface become non-blocking",
    ),
    Call::any(
        call!(SYS_read),
        "the keeper waits for the end of this process; eventfds of upcalls and session threads",
    ),
    Call::any(call!(SYS_ppoll), "a session waits for its front end, a capture for its client"),
    Call::with(
        call!(SYS_setpriority),
        &[&[int(0, libc::PRIO_PROCESS as i32), int(1, 0)]],
        "threads of captures, and of sessions that take much time, give way to workers",
    ),
];
