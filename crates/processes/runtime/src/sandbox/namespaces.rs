//! Namespaces of the process's own, with nothing in them.
//!
//! Each is asked for by itself, since a container may refuse some. The user namespace comes first: it gives an ordinary
//! user the right to make the others, and to root it means that no capability which the process may ever come by counts
//! outside. No user is mapped into it. Descriptors that were opened before, sockets among them, stay where they belong.
//!
//! A PID namespace is not made: it would take a further process, and the signals and /proc that it is for are out of
//! reach by other layers.

use rustix::io::Errno;
use rustix::thread::UnshareFlags;

use super::layer::{Layer, Made};
use super::sys;

const NAMESPACES: &[(&str, UnshareFlags)] = &[
    ("user namespace", UnshareFlags::NEWUSER),
    ("mount namespace", UnshareFlags::NEWNS),
    ("network namespace", UnshareFlags::NEWNET),
    ("IPC namespace", UnshareFlags::NEWIPC),
    ("UTS namespace", UnshareFlags::NEWUTS),
];

/// Leaves those that the process was started in, as far as that is permitted.
pub(super) fn separate() -> Vec<Layer> {
    NAMESPACES.iter().map(|(name, flag)| Layer::new(name, leave(*flag))).collect()
}

fn leave(flag: UnshareFlags) -> Made {
    match sys::unshare(flag) {
        Ok(()) => Ok("its own".to_owned()),
        // The cause is mostly one of these.
        Err(error @ Errno::NOSPC) => Err(format!("{error}; see /proc/sys/user/max_*_namespaces")),
        Err(error @ Errno::PERM) => {
            Err(format!("{error}; a container's rules, or kernel.unprivileged_userns_clone=0, refuse it"))
        }
        Err(error) => Err(error.to_string()),
    }
}
