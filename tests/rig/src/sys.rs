//! Descriptors that only raw system calls return.
#![allow(unsafe_code, reason = "bare system calls")]

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// The descriptor that a system call returned, if it succeeded. Many hosts refuse some calls.
fn owned(fd: libc::c_long) -> Option<OwnedFd> {
    // SAFETY: nothing else uses a descriptor that the kernel has just created.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A signalfd(2) for no signal.
pub fn signalfd() -> Option<OwnedFd> {
    let none = 0_u64;
    // SAFETY: the mask is a word of the given size, and outlives the call.
    owned(unsafe { libc::syscall(libc::SYS_signalfd4, -1, &raw const none, 8, libc::SFD_CLOEXEC) })
}

/// A userfaultfd(2) of this process.
pub fn userfaultfd() -> Option<OwnedFd> {
    const USER_MODE_ONLY: i32 = 1;
    // SAFETY: flags alone.
    owned(unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY) })
}

/// Maps a file into this process permanently, with a userfaultfd(2) that is never read. A thread that touches an absent
/// page of this mapping waits forever. Returns false if the kernel does not support that.
pub fn map_with_faults_that_wait(file: BorrowedFd<'_>, bytes: usize) -> bool {
    /// `UFFDIO_API`, `UFFDIO_REGISTER` and their arguments (linux/userfaultfd.h).
    const API: libc::Ioctl = 0xc018_aa3f_u32 as libc::Ioctl;
    const REGISTER: libc::Ioctl = 0xc020_aa00_u32 as libc::Ioctl;
    const VERSION: u64 = 0xaa;
    const MISSING: u64 = 1;
    let Some(faults) = userfaultfd() else { return false };
    let shared = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping at an address that the kernel chooses; nothing of this process refers to it.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, shared.0, shared.1, file.as_raw_fd(), 0) };
    let (mut api, mut range) = ([VERSION, 0, 0], [at as u64, bytes as u64, MISSING, 0]);
    // SAFETY: the arguments have the kernel's sizes, and outlive the call.
    let is_watched = at != libc::MAP_FAILED
        && unsafe { libc::ioctl(faults.as_raw_fd(), API, api.as_mut_ptr()) } == 0
        && unsafe { libc::ioctl(faults.as_raw_fd(), REGISTER, range.as_mut_ptr()) } == 0;
    // Faults wait as long as it is open.
    std::mem::forget(faults);
    is_watched
}

/// An io_uring(7).
pub fn io_uring() -> Option<OwnedFd> {
    let mut parameters = [0_u8; 120]; // struct io_uring_params
    // SAFETY: the parameters have the kernel's size, and outlive the call.
    owned(unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr()) })
}

/// Memory that only its processes see: memfd_secret(2).
pub fn secret_memory() -> Option<OwnedFd> {
    // SAFETY: flags alone.
    owned(unsafe { libc::syscall(libc::SYS_memfd_secret, libc::O_CLOEXEC) })
}

/// Gives the calling thread, and those that it starts, a separate descriptor table: processes that others start get no
/// copies, so no exec(2) waits for the close of one. The copies are closed when it ends.
pub fn unshare_descriptors() {
    unshare(UnshareFlags::FILES);
}

/// The same, with separate mounts, too.
pub fn unshare_mounts_and_descriptors() {
    unshare(UnshareFlags::FILES | UnshareFlags::NEWNS);
}

fn unshare(parts: UnshareFlags) {
    // SAFETY: the thread uses no descriptor that another thread opens or closes later, and passes none to others.
    let unshared = unsafe { unshare_unsafe(parts) };
    unshared.expect("parts of its own");
}
