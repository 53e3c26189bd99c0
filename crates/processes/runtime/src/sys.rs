//! A system call without a safe form: a thread's signals (pthread_sigmask(3)).
#![allow(unsafe_code)]

/// Blocks no signal in the calling thread from now on.
pub(crate) fn unblock_signals() {
    // SAFETY: a set of signals is made of numbers, of which zero is a value. It is emptied before it is read.
    unsafe {
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}
