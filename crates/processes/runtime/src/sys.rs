//! A system call without a safe form: a thread's signals (pthread_sigmask(3)).
#![allow(unsafe_code)]

/// Blocks all signals in the calling thread from now on, or none.
pub(crate) fn block_signals(are_blocked: bool) {
    // SAFETY: a set of signals is made of numbers, of which zero is a value. It is filled or emptied before it is read.
    unsafe {
        let mut blocked = std::mem::zeroed();
        match are_blocked {
            true => libc::sigfillset(&raw mut blocked),
            false => libc::sigemptyset(&raw mut blocked),
        };
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const blocked, std::ptr::null_mut());
    }
}
