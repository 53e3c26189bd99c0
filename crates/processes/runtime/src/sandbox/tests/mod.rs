//! Tests of the sandbox from inside, in child processes: this test program, started again.

mod inmate;
mod interpreter;
mod list;

use std::io::Write;

use inmate::{Attempt, End};

use super::{SandboxMode, Spent};

/// Attempts of an attacker who controls the process.
#[test]
fn what_is_not_in_the_list_ends_the_process_and_is_told_by_name() {
    for attempt in hostile() {
        let name = attempt.name;
        assert_eq!(attempt.make(), End::BySigsys(Some(name.to_owned())), "{attempt:?}");
    }
}

#[test]
fn devices_that_were_not_handed_over_are_out_of_the_driver_process_s_reach() {
    let internet = size_of::<libc::sockaddr_in6>();
    for attempt in [
        Attempt::call("bind", libc::SYS_bind, [0, 0, internet, 0, 0, 0]),
        Attempt::call("ioctl", libc::SYS_ioctl, [0, libc::TUNSETIFF as usize, 0, 0, 0, 0]),
        Attempt::call("setsockopt", libc::SYS_setsockopt, [0, 1, libc::SO_BINDTODEVICE as usize, 0, 0, 0]),
        Attempt::call("socket", libc::SYS_socket, [libc::AF_PACKET as usize, 3, 0, 0, 0, 0]),
        Attempt::call("readlinkat", libc::SYS_readlinkat, [0; 6]),
        Attempt::call("mmap", libc::SYS_mmap, [0, 4096, libc::PROT_EXEC as usize, 0x22, usize::MAX, 0]),
    ] {
        let attempt = attempt.by_driver();
        assert_eq!(attempt.make(), End::BySigsys(Some(attempt.name.to_owned())), "{attempt:?}");
    }
    let receive = Attempt::call("recvmmsg", libc::SYS_recvmmsg, [0, 0, 0, libc::MSG_DONTWAIT as usize, 0, 0]);
    assert_eq!(receive.by_driver().make(), End::Status(0));
}

#[test]
fn what_is_refused_fails_and_what_is_allowed_does_not() {
    assert_eq!(Attempt::call("openat", libc::SYS_openat, [0; 6]).make(), End::Status(inmate::NO_SUCH_CALL));
    assert_eq!(Attempt::call("clone3", libc::SYS_clone3, [0; 6]).make(), End::Status(inmate::NO_SUCH_CALL));
    let anonymous = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    let data = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let memory = [0, 4096, data, anonymous, usize::MAX, 0];
    assert_eq!(Attempt::call("mmap", libc::SYS_mmap, memory).make(), End::Status(0));
    assert_eq!(Attempt::call("getpid", libc::SYS_getpid, [0; 6]).make(), End::Status(0));
}

#[test]
fn a_panic_is_told_with_its_backtrace() {
    assert_eq!(Attempt::named("panic").make(), End::Status(0));
}

#[test]
fn threads_start_and_end_inside() {
    assert_eq!(Attempt::named("threads").make(), End::Status(0));
}

#[test]
fn a_last_filter_that_the_kernel_does_not_take_is_an_error_where_all_layers_are_wanted() {
    // The kernel refuses a filter without instructions.
    let spent = |mode| Spent { program: Vec::new(), mode };
    let fault = spent(SandboxMode::Strict).take_away().expect_err("refused");
    assert!(fault.message.starts_with("its sandbox lacks a layer, system calls: "), "{fault}");
    assert!(!spent(SandboxMode::Strict).is_taken_away(), "nor goes the keeper on");
    assert!(spent(SandboxMode::Auto).take_away().is_ok() && spent(SandboxMode::Auto).is_taken_away());
}

/// Layer by layer: each one works without the others.
#[test]
fn each_layer_holds_alone() {
    for layer in ["landlock", "root", "capabilities"] {
        match Attempt::named(layer).make() {
            End::Status(0) => {}
            End::Status(inmate::NOT_HERE) => {
                let _ = writeln!(std::io::stderr(), "skip: {layer} cannot be had here");
            }
            end => panic!("{layer}: {end:?}"),
        }
    }
}

fn hostile() -> Vec<Attempt> {
    let call = Attempt::call;
    let exec = libc::PROT_EXEC as usize;
    let anonymous = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    let own = inmate::OWN_PROCESS;
    let elsewhere = libc::AT_FDCWD as usize;
    vec![
        // The network.
        call("socket", libc::SYS_socket, [libc::AF_UNIX as usize, libc::SOCK_STREAM as usize, 0, 0, 0, 0]),
        call("socketpair", libc::SYS_socketpair, [0; 6]),
        call("connect", libc::SYS_connect, [0; 6]),
        call("bind", libc::SYS_bind, [0; 6]),
        call("listen", libc::SYS_listen, [0; 6]),
        call("accept4", libc::SYS_accept4, [0; 6]),
        call("setsockopt", libc::SYS_setsockopt, [0; 6]),
        call("sendto", libc::SYS_sendto, [0, 0, 0, 0, 8, 8]),
        // Files.
        call("openat2", libc::SYS_openat2, [0; 6]),
        call("open_by_handle_at", libc::SYS_open_by_handle_at, [0; 6]),
        call("unlinkat", libc::SYS_unlinkat, [0; 6]),
        call("readlinkat", libc::SYS_readlinkat, [elsewhere, 0, 0, 0, 0, 0]),
        call("mount", libc::SYS_mount, [0; 6]),
        call("ioctl", libc::SYS_ioctl, [0; 6]),
        call("fcntl", libc::SYS_fcntl, [0, libc::F_SETOWN as usize, 1, 0, 0, 0]),
        // Programs and processes.
        call("execve", libc::SYS_execve, [0; 6]),
        call("execveat", libc::SYS_execveat, [0; 6]),
        call("clone", libc::SYS_clone, [libc::SIGCHLD as usize, 0, 0, 0, 0, 0]),
        call("clone", libc::SYS_clone, [libc::CLONE_NEWUSER as usize, 0, 0, 0, 0, 0]),
        call("ptrace", libc::SYS_ptrace, [libc::PTRACE_ATTACH as usize, 1, 0, 0, 0, 0]),
        call("process_vm_readv", libc::SYS_process_vm_readv, [1, 0, 0, 0, 0, 0]),
        call("kill", libc::SYS_kill, [1, 0, 0, 0, 0, 0]),
        call("tkill", libc::SYS_tkill, [1, 0, 0, 0, 0, 0]),
        call("tgkill", libc::SYS_tgkill, [1, 1, libc::SIGURG as usize, 0, 0, 0]),
        call("tgkill", libc::SYS_tgkill, [own, 1, libc::SIGKILL as usize, 0, 0, 0]),
        call("pidfd_open", libc::SYS_pidfd_open, [1, 0, 0, 0, 0, 0]),
        call("setpriority", libc::SYS_setpriority, [0, 1, 19, 0, 0, 0]),
        call("sched_setaffinity", libc::SYS_sched_setaffinity, [1, 0, 0, 0, 0, 0]),
        // Code.
        call("mmap", libc::SYS_mmap, [0, 4096, exec, anonymous, usize::MAX, 0]),
        call("mprotect", libc::SYS_mprotect, [0, 4096, exec, 0, 0, 0]),
        call("pkey_mprotect", libc::SYS_pkey_mprotect, [0; 6]),
        call("personality", libc::SYS_personality, [0; 6]),
        // The sandbox itself, and the kernel.
        call("rt_sigaction", libc::SYS_rt_sigaction, [libc::SIGSYS as usize, 0, 0, 8, 0, 0]),
        call("prctl", libc::SYS_prctl, [libc::PR_SET_DUMPABLE as usize, 0, 0, 0, 0, 0]),
        call("seccomp", libc::SYS_seccomp, [0; 6]),
        call("unshare", libc::SYS_unshare, [0; 6]),
        call("setns", libc::SYS_setns, [0; 6]),
        call("bpf", libc::SYS_bpf, [0; 6]),
        call("io_uring_setup", libc::SYS_io_uring_setup, [0; 6]),
        call("userfaultfd", libc::SYS_userfaultfd, [0; 6]),
        call("perf_event_open", libc::SYS_perf_event_open, [0; 6]),
        call("futex", libc::SYS_futex, [0, libc::FUTEX_LOCK_PI as usize, 0, 0, 0, 0]),
        call("madvise", libc::SYS_madvise, [0, 0, libc::MADV_HWPOISON as usize, 0, 0, 0]),
    ]
}
