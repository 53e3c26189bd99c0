//! Limits of the kernel's own resources that the inner processes have no use for (getrlimit(2)).
//!
//! Left as they are: open files, which guests need; address space, of which guests' memory is most; core files, from which
//! guests' memory is left out (`guestmem`); file sizes, since the log may be a file; processes, since threads are counted
//! with those of all other programs of the same user.

use rustix::process::{Resource, Rlimit, setrlimit};

use super::layer::Made;

const UNUSED: &[Resource] = &[Resource::Memlock, Resource::Msgqueue, Resource::Rtprio];

/// Sets to nothing what is not used.
pub(super) fn lower() -> Made {
    let nothing = || Rlimit { current: Some(0), maximum: Some(0) };
    let lowered = UNUSED.iter().try_for_each(|resource| setrlimit(*resource, nothing()));
    lowered
        .map(|()| "locked memory, message queues, real time: 0".to_owned())
        .map_err(|error| error.to_string())
}
