//! The limit on open descriptors.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::log::say;

/// Raises it as far as is allowed: each guest has one for its memory and several for each ring.
pub(crate) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
    {
        let current = limit.current.unwrap_or(u64::MAX);
        say!(Warning: "the limit on open files stays at {current}: {error}; many guests may not fit");
    }
}
