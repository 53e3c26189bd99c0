//! Limits on kernel resources that the inner processes do not need (getrlimit(2)).
//!
//! These stay unchanged: open files, which guests need; address space, most of which is guests' memory; core files,
//! which exclude guests' memory (`guestmem`); file sizes, since the log may be a file; processes, since threads are
//! counted with those of all other programs of the user.

use rustix::process::{Resource, Rlimit, setrlimit};

use super::ProcessRole;
use super::layer::Made;

/// Sets the limits that `role` does not need to 0. The driver process needs locked memory for XDP sockets.
pub(super) fn lower(role: ProcessRole) -> Made {
    let (unused, words) = match role {
        ProcessRole::Switch | ProcessRole::Controller => {
            (&[Resource::Msgqueue, Resource::Rtprio, Resource::Memlock][..], ", locked memory")
        }
        ProcessRole::Driver => (&[Resource::Msgqueue, Resource::Rtprio][..], ""),
    };
    let nothing = || Rlimit { current: Some(0), maximum: Some(0) };
    let lowered = unused.iter().try_for_each(|resource| setrlimit(*resource, nothing()));
    lowered.map(|()| format!("message queues, real time{words}: 0")).map_err(|error| error.to_string())
}
