//! Names of system calls, for the message about a refused one.

/// Calls that are in no list. An attacker in a process would try them, or a change of the code, the C library or std
/// would cause them.
macro_rules! strangers {
    ($($name:ident)*) => { &[$(call!($name)),*] };
}

use super::{Named, Refusal, call};
use crate::sandbox::ProcessRole;

#[cfg(target_arch = "x86_64")]
const OF_OLD_MACHINES: &[Named] = strangers! {
    SYS_creat SYS_stat SYS_lstat SYS_access SYS_pipe SYS_dup2 SYS_fork SYS_vfork SYS_rename SYS_mkdir SYS_rmdir SYS_link SYS_unlink SYS_symlink SYS_chmod SYS_chown SYS_getdents SYS_poll
    SYS_select SYS_epoll_create SYS_epoll_wait SYS_eventfd SYS_signalfd SYS_inotify_init SYS_alarm SYS_pause SYS_arch_prctl SYS_iopl SYS_ioperm SYS_modify_ldt SYS_time SYS_utime
    SYS_utimes SYS_getpgrp SYS_mknod SYS_uselib
};
#[cfg(not(target_arch = "x86_64"))]
const OF_OLD_MACHINES: &[Named] = &[];

const STRANGERS: &[Named] = strangers! {
    SYS_accept SYS_accept4 SYS_bind SYS_connect SYS_getpeername SYS_getsockname SYS_listen SYS_recvmmsg SYS_sendmmsg SYS_setsockopt SYS_shutdown SYS_socket SYS_socketpair
    SYS_chdir SYS_chroot SYS_close_range SYS_copy_file_range SYS_dup SYS_dup3 SYS_epoll_pwait2 SYS_faccessat SYS_faccessat2 SYS_fallocate SYS_fchdir SYS_fchmod SYS_fchmodat
    SYS_fchown SYS_fchownat SYS_fdatasync SYS_flock SYS_fsync SYS_getdents64 SYS_inotify_init1 SYS_ioctl SYS_linkat SYS_lseek SYS_mkdirat SYS_mknodat SYS_name_to_handle_at
    SYS_newfstatat SYS_open_by_handle_at SYS_openat2 SYS_pipe2 SYS_pread64 SYS_preadv SYS_preadv2 SYS_pwrite64 SYS_pwritev SYS_pwritev2 SYS_readv SYS_renameat SYS_renameat2
    SYS_sendfile SYS_splice SYS_statfs SYS_statx SYS_symlinkat SYS_sync SYS_tee SYS_truncate SYS_umask SYS_unlinkat SYS_utimensat SYS_vmsplice SYS_writev
    SYS_execve SYS_execveat SYS_exit SYS_kill SYS_pidfd_getfd SYS_pidfd_open SYS_pidfd_send_signal SYS_prlimit64 SYS_process_madvise SYS_process_vm_readv
    SYS_process_vm_writev SYS_ptrace SYS_rt_sigqueueinfo SYS_rt_sigsuspend SYS_rt_sigtimedwait SYS_rt_tgsigqueueinfo SYS_setns SYS_signalfd4 SYS_tkill
    SYS_unshare SYS_wait4 SYS_waitid
    SYS_clock_getres SYS_clock_settime SYS_gettimeofday SYS_nanosleep SYS_timer_create SYS_timerfd_create SYS_timerfd_settime
    SYS_mbind SYS_memfd_secret SYS_mincore SYS_mlock SYS_mlock2 SYS_mlockall SYS_msync SYS_munlock SYS_pkey_alloc SYS_pkey_mprotect SYS_remap_file_pages SYS_shmat SYS_shmget
    SYS_userfaultfd
    SYS_capget SYS_capset SYS_getcpu SYS_getegid SYS_geteuid SYS_getgid SYS_getgroups SYS_getpgid SYS_getppid SYS_getpriority SYS_getrlimit SYS_getrusage SYS_getsid SYS_getuid
    SYS_sched_getparam SYS_sched_getscheduler SYS_sched_setattr SYS_sched_setparam SYS_sched_setscheduler SYS_seccomp SYS_setgid SYS_setgroups SYS_setpgid
    SYS_setresgid SYS_setresuid SYS_setrlimit SYS_setsid SYS_setuid SYS_sysinfo SYS_times SYS_uname
    SYS_add_key SYS_bpf SYS_delete_module SYS_finit_module SYS_fsmount SYS_fsopen SYS_futex_waitv SYS_init_module SYS_io_setup SYS_io_submit SYS_io_uring_enter
    SYS_io_uring_register SYS_io_uring_setup SYS_ioprio_set SYS_kcmp SYS_kexec_load SYS_keyctl SYS_landlock_create_ruleset SYS_mount SYS_move_mount SYS_open_tree
    SYS_perf_event_open SYS_personality SYS_pivot_root SYS_quotactl SYS_reboot SYS_request_key SYS_swapon SYS_syslog SYS_umount2
};

/// The name of a system call of this architecture, if it is known here.
pub fn name_of(number: i64) -> Option<&'static str> {
    let refused = ProcessRole::Switch.refusals().iter().map(|Refusal(call)| call);
    let listed = ProcessRole::Switch.calls().chain(ProcessRole::Driver.calls()).chain(refused);
    let listed = listed.map(|call| (call.name, call.number));
    let mut all = listed.chain(STRANGERS.iter().chain(OF_OLD_MACHINES).copied());
    all.find(|(_, known)| *known == number).map(|(name, _)| name)
}
