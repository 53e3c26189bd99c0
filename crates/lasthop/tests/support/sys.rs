//! Descriptors that only bare system calls give.
#![allow(unsafe_code, reason = "bare system calls")]

use std::os::fd::{FromRawFd, OwnedFd};

/// The descriptor that a system call returned, if it succeeded. Many hosts refuse some calls.
fn owned(fd: libc::c_long) -> Option<OwnedFd> {
    // SAFETY: a descriptor that the kernel has just made belongs to nothing else.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A signalfd(2) for no signal.
pub(crate) fn signalfd() -> Option<OwnedFd> {
    let none = 0_u64;
    // SAFETY: the mask is a word of as many bytes as is said, and lives on.
    owned(unsafe { libc::syscall(libc::SYS_signalfd4, -1, &raw const none, 8, libc::SFD_CLOEXEC) })
}

/// A userfaultfd(2) of this process.
pub(crate) fn userfaultfd() -> Option<OwnedFd> {
    const USER_MODE_ONLY: i32 = 1;
    // SAFETY: flags alone.
    owned(unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY) })
}

/// An io_uring(7).
pub(crate) fn io_uring() -> Option<OwnedFd> {
    let mut parameters = [0_u8; 120]; // struct io_uring_params
    // SAFETY: the parameters are as long as the kernel's, and live on.
    owned(unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr()) })
}

/// Memory that only its processes see: memfd_secret(2).
pub(crate) fn secret_memory() -> Option<OwnedFd> {
    // SAFETY: flags alone.
    owned(unsafe { libc::syscall(libc::SYS_memfd_secret, libc::O_CLOEXEC) })
}

/// Mounts and descriptors of this thread are its own from now on: it has copies of all, which are closed when it ends.
pub(crate) fn unshare_mounts_and_descriptors() {
    // SAFETY: flags alone. Descriptors that this thread opens are used by it alone, and those of others stay open for others.
    let done = unsafe { libc::unshare(libc::CLONE_NEWNS | libc::CLONE_FILES) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}
