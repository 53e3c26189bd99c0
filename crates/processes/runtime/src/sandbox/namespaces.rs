//! Empty namespaces for the process.
//!
//! Each is requested separately, since a container may refuse some. The user namespace comes first: it gives an
//! ordinary user the right to make the others, and for root it means that no capability of the process counts outside.
//! No user is mapped into it. Descriptors that were opened before, including sockets, stay in their namespaces.
//!
//! There is no PID namespace: it would need a further process, and other layers already forbid signals and access to
//! /proc.

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

/// Leaves the namespaces in which the process was started, as far as permitted.
pub(super) fn separate() -> Vec<Layer> {
    NAMESPACES.iter().map(|(name, flag)| Layer::new(name, leave(*flag))).collect()
}

fn leave(flag: UnshareFlags) -> Made {
    match sys::unshare(flag) {
        Ok(()) => Ok("its own".to_owned()),
        // The cause is usually one of these.
        Err(error @ Errno::NOSPC) => Err(format!("{error}; see /proc/sys/user/max_*_namespaces")),
        Err(error @ Errno::PERM) => {
            Err(format!("{error}; a container's rules, or kernel.unprivileged_userns_clone=0, refuse it"))
        }
        Err(error) => Err(error.to_string()),
    }
}
