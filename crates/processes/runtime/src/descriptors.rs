//! The limit on open descriptors, and the threads that close others'.

use log::{info, warn};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Starts the first of the threads that close descriptors which other processes sent. The sandbox, if there is to be one, is there before.
pub fn start_closing() {
    lasthop_foreign::start(|name| {
        info!(limited = true; "{name}: a descriptor that it sent takes long to close, and others of it wait for that");
    });
}

/// Raises it as far as is allowed: each guest has one for its memory and several for each ring.
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
