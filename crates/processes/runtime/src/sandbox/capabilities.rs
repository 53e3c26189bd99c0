//! Drops all capabilities, and the ways to get any (capabilities(7)).

use rustix::io::Errno;
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
