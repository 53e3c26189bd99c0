//! System calls of every process: a Rust program with threads, an event loop and a channel.

use super::{Call, Refusal, Term, Terms, Value, bits, call, int};

/// The flags of pthread_create(3): a thread of this process, which has nothing of its own except its stack. musl sets
/// CLONE_DETACHED, too, which has meant nothing since Linux 2.6.
const THREAD: Terms = &[bits(0, !CLONE_DETACHED, THREAD_FLAGS as u64)];
const THREAD_FLAGS: i32 = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID;
const CLONE_DETACHED: u64 = libc::CLONE_DETACHED as u64;

/// Memory is for data.
const NOT_EXECUTABLE: Terms = &[bits(2, libc::PROT_EXEC as u64, 0)];

/// An operation of futex(2), private or not, with either clock.
const fn futex(operation: i32) -> Term {
    const FLAGS: i32 = libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME;
    bits(1, !(FLAGS as u64) & u32::MAX as u64, operation as u64)
}

pub(super) const OWN: Term = Term { argument: 0, is: Value::OwnProcess };

pub(in crate::sandbox) const CALLS: &[Call] = &[
    // Sleeping and waking: the packet path's calls are allowed with any arguments, which costs least
    // (docs/design/sandbox.md).
    Call::any(call!(SYS_epoll_pwait), "event loops wait"),
    Call::any(call!(SYS_write), "eventfds: calls to guests, waking workers; lines of the log"),
    Call::any(call!(SYS_sched_yield), "a polling worker offers its CPU").kept(),
    Call::any(call!(SYS_epoll_ctl), "a descriptor comes or goes"),
    Call::any(call!(SYS_epoll_create1), "an event loop begins"),
    Call::any(call!(SYS_eventfd2), "the eventfd that wakes a worker"),
    Call::any(
        call!(SYS_restart_syscall),
        "continues a wait after the process was stopped (SIGSTOP) or traced",
    )
    .kept(),
    // Connections that were passed in. The process cannot make any, so there is no other peer.
    Call::any(call!(SYS_recvmsg), "the channel and vhost-user: messages with descriptors"),
    Call::any(call!(SYS_sendmsg), "answers on the channel and vhost-user"),
    Call::any(call!(SYS_close), "received descriptors are closed"),
    Call::any(call!(SYS_fstat), "identity and length of shared memory files"),
    Call::any(call!(SYS_fstatfs), "page size of shared memory"),
    Call::with(
        call!(SYS_fcntl),
        &[
            &[int(1, libc::F_GETFL)],
            &[int(1, libc::F_SETFL)],
            &[int(1, libc::F_DUPFD_CLOEXEC)],
            &[int(1, libc::F_GET_SEALS)],
        ],
        "non-blocking descriptors, copies; seals of memory",
    ),
    Call::with(
        call!(SYS_fcntl),
        &[&[int(1, libc::F_GETFD)], &[int(1, libc::F_SETFD)]],
        "std's debug builds check descriptors before close; musl copies in two steps",
    )
    .kept(),
    // Memory.
    Call::with(call!(SYS_mmap), &[NOT_EXECUTABLE], "memory of guests, of the allocator, of threads' stacks"),
    Call::any(call!(SYS_munmap), "unmapping of the same"),
    Call::with(
        call!(SYS_mprotect),
        &[NOT_EXECUTABLE],
        "the allocator's arenas grow, stacks get a guard page",
    ),
    Call::any(call!(SYS_brk), "the allocator's first arena, if it has to grow").kept(),
    Call::any(call!(SYS_mremap), "a large table grows (realloc)").kept(),
    Call::with(
        call!(SYS_madvise),
        &[&[int(2, libc::MADV_DONTNEED)], &[int(2, libc::MADV_DONTDUMP)]],
        "memory is given back; guests' memory stays out of core files",
    ),
    Call::with(
        call!(SYS_madvise),
        &[&[int(2, MADV_COLLAPSE)]],
        "huge pages for the memory of many connections, unless `huge-pages = \"off\"`",
    )
    .kept(),
    Call::with(
        call!(SYS_madvise),
        &[&[int(2, MADV_GUARD_INSTALL)], &[int(2, MADV_GUARD_REMOVE)]],
        "guard pages of stacks, from glibc 2.42 on",
    )
    .kept(),
    Call::any(
        call!(SYS_memfd_create),
        "to learn a memfd's properties; front ends' files for chains in flight",
    ),
    Call::any(call!(SYS_ftruncate), "size of such a file"),
    // Threads.
    Call::with(call!(SYS_clone), &[THREAD], "a thread starts"),
    Call::any(call!(SYS_set_robust_list), "a thread's list of locks, for the kernel"),
    Call::any(call!(SYS_rseq), "restartable sequences on one CPU (glibc from 2.35 on)"),
    Call::any(call!(SYS_sigaltstack), "a thread's signal stack, to report an overflow"),
    Call::any(call!(SYS_exit), "a thread ends"),
    Call::any(call!(SYS_gettid), "a thread's number"),
    Call::with(call!(SYS_prctl), &[&[int(0, libc::PR_SET_NAME)]], "a thread's name, for top and ps"),
    Call::any(call!(SYS_sched_getaffinity), "glibc: the end of a stack, the number of CPUs"),
    Call::with(
        call!(SYS_futex),
        &[&[futex(libc::FUTEX_WAIT)], &[futex(libc::FUTEX_WAKE)], &[futex(libc::FUTEX_WAIT_BITSET)]],
        "locks, and threads that wait for each other",
    ),
    Call::with(
        call!(SYS_futex),
        &[
            &[futex(libc::FUTEX_WAKE_BITSET)],
            &[futex(libc::FUTEX_REQUEUE)],
            &[futex(libc::FUTEX_CMP_REQUEUE)],
        ],
        "the same in other C libraries",
    )
    .kept(),
    // Signals.
    Call::any(call!(SYS_rt_sigprocmask), "threads start with signals blocked"),
    // A handler of SIGSYS could continue after a refused call.
    Call::with(
        call!(SYS_rt_sigaction),
        &[&[Term { argument: 0, is: Value::NotInt(libc::SIGSYS as u32) }]],
        "handlers for SIGBUS (guest memory that shrinks) and for the watchdog",
    ),
    Call::any(call!(SYS_rt_sigreturn), "end of a signal handler"),
    Call::with(call!(SYS_tgkill), &[&[OWN, int(2, libc::SIGABRT)]], "a panic ends the process").kept(),
    Call::any(call!(SYS_getpid), "to signal only this process").kept(),
    Call::any(call!(SYS_exit_group), "the process ends"),
    // The vDSO usually does this without a system call, but not with every clock source.
    Call::any(call!(SYS_clock_gettime), "the time, without vDSO; CPU time of a session's thread").kept(),
    Call::any(call!(SYS_getrandom), "keys of hash tables").kept(),
];

/// Since Linux 6.1 (linux/mman.h).
const MADV_COLLAPSE: i32 = 25;
/// Since Linux 6.13 (asm-generic/mman-common.h).
const MADV_GUARD_INSTALL: i32 = 102;
const MADV_GUARD_REMOVE: i32 = 103;
/// `PR_SET_VMA` (linux/prctl.h).
const PR_SET_VMA: i32 = 0x53_56_4d_41;

/// Ending the process for these would be too strict: C libraries try them, and do without.
pub(in crate::sandbox) const REFUSALS: &[Refusal] = &[
    Call::any(
        call!(SYS_clone3),
        "its flags lie in memory, where no filter sees them; glibc falls back to clone",
    )
    .refused(),
    Call::any(
        call!(SYS_openat),
        "glibc's allocator asks whether memory is overcommitted, and before 2.35 how many CPUs there are",
    )
    .kept()
    .refused(),
    #[cfg(target_arch = "x86_64")]
    Call::any(call!(SYS_open), "the same, from musl").kept().refused(),
    #[cfg(target_arch = "x86_64")]
    Call::any(call!(SYS_readlink), "a backtrace (RUST_BACKTRACE) looks for the program").kept().refused(),
    Call::any(call!(SYS_getcwd), "a backtrace looks for the directory").kept().refused(),
    Call::with(call!(SYS_prctl), &[&[int(0, PR_SET_VMA)]], "C libraries may name the allocator's memory")
        .kept()
        .refused(),
    Call::any(call!(SYS_membarrier), "musl asks at its first thread").kept().refused(),
];
