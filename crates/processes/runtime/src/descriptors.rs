//! The table of open descriptors and its limit, and the threads that close other processes' descriptors.

use std::io;

use log::{info, warn};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors for which the table has room from the start: some 400 guests, in 33 KiB of the kernel's memory.
const TABLE_ENTRIES: i32 = 4096;

/// Starts the first of the threads that close descriptors from other processes. Call it in the sandbox, if there is
/// one.
pub fn start_closing() {
    lasthop_foreign::start(|name| {
        info!(limited = true; "{name}: a descriptor that it sent takes long to close, and others of it wait for that");
    });
}

/// Raises the limit as far as permitted, and makes room in the table. Call it while the process has one thread only.
pub fn prepare_table() {
    raise_limit();
    reserve_table();
}

/// Whether a call failed since this process or the system has no room for another descriptor.
pub fn is_full(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// Whether a call failed for lack of descriptors or memory. It may succeed later, and another program would lack the same.
pub fn is_shortage(error: &io::Error) -> bool {
    let shortages = [Errno::NOMEM, Errno::NOBUFS, Errno::TOOMANYREFS];
    is_full(error) || Errno::from_io_error(error).is_some_and(|errno| shortages.contains(&errno))
}

/// Each guest has one descriptor for its memory and several for each ring.
fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum
        && let Err(error) =
            setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
    {
        let current = limit.current.unwrap_or(u64::MAX);
        warn!("the limit on open files stays at {current}: {error}; many guests may not fit");
    }
    lasthop_foreign::set_limit(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX));
}

/// A table that several threads use grows after a grace period of RCU only, often 10 ms, for which the thread that opens a descriptor
/// waits. That would be the largest part of the time in which guests stand still when a process begins in place of a dead one.
fn reserve_table() {
    // The table stays as long as it was. Without it all works, but later.
    let _ = fcntl_dupfd_cloexec(std::io::stdin(), TABLE_ENTRIES - 1);
}
