//! Interrupting what one thread waits for in the kernel: neither std nor rustix has safe calls for that.
//!
//! The signal is SIGURG: ignored by default, so that it ends nobody wherever it goes astray, and sent by the kernel only
//! for out-of-band data of sockets that asked for it, which none here does.
#![allow(unsafe_code)]

use std::io;

use rustix::thread::Pid;

const SIGNAL: libc::c_int = libc::SIGURG;

extern "C" fn do_nothing(_signal: libc::c_int) {}

/// Has the signal interrupt system calls, in the whole process: a handler that does nothing, without `SA_RESTART`.
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

/// Lets the signal reach the calling thread, whatever mask was inherited.
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

/// Interrupts what `thread` of this process waits for. A thread that is gone is none the worse for it.
pub(crate) fn interrupt(thread: Pid) {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: tgkill takes three numbers; it reaches threads of this process only, which all have the handler.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread.as_raw_nonzero().get(), SIGNAL) };
}
