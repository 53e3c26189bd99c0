//! The limit on open descriptors, and the threads that close other processes' descriptors.

use log::{info, warn};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Starts the first of the threads that close descriptors from other processes. Call it in the sandbox, if there is
/// one.
pub fn start_closing() {
    lasthop_foreign::start(|name| {
        info!(limited = true; "{name}: a descriptor that it sent takes long to close, and others of it wait for that");
    });
}

/// Raises the limit as far as permitted: each guest has one for its memory and several for each ring.
pub fn raise_limit() {
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
