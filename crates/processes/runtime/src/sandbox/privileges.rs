//! Drops privileges that the inner processes do not need: all capabilities, the ways to get any (capabilities(7)), and
//! kernel resources (getrlimit(2)).
//!
//! These limits stay unchanged: open files, which guests need; address space, most of which is guests' memory; core
//! files, which exclude guests' memory (`guestmem`); file sizes, since the log may be a file; processes, since threads
//! are counted with those of all other programs of the user.

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

use super::layer::Made;

/// Empties all five sets.
pub(super) fn drop_all() -> Made {
    // The bounding set limits capabilities from executed files. Emptying it takes CAP_SETPCAP; otherwise its
    // capabilities are useless without new privileges.
    let bounding = empty_bounding_set();
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    let dropped = clear_ambient_capability_set().and_then(|()| set_capabilities(None, sets));
    match (dropped, bounding) {
        (Ok(()), Ok(())) => Ok("none, in any set".to_owned()),
        (Ok(()), Err(error)) => Ok(format!("none, though the bounding set stays: {error}")),
        (Err(error), _) => Err(error.to_string()),
    }
}

fn empty_bounding_set() -> rustix::io::Result<()> {
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match capability_is_in_bounding_set(capability) {
            Ok(true) => remove_capability_from_bounding_set(capability)?,
            Ok(false) => {}
            // This number is beyond the kernel's last capability.
            Err(Errno::INVAL) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Forbids new privileges by executing files. seccomp and landlock require this of ordinary users.
pub(super) fn renounce_new() -> Made {
    set_no_new_privs(true).map(|()| "never again".to_owned()).map_err(|error| error.to_string())
}

/// Sets the limits that no inner process needs to 0. The supervisor pins the memory of XDP sockets.
pub(super) fn lower_limits() -> Made {
    let nothing = || Rlimit { current: Some(0), maximum: Some(0) };
    let unused = [Resource::Msgqueue, Resource::Rtprio, Resource::Memlock];
    let lowered = unused.iter().try_for_each(|resource| setrlimit(*resource, nothing()));
    let told = "message queues, real time, locked memory: 0".to_owned();
    lowered.map(|()| told).map_err(|error| error.to_string())
}
