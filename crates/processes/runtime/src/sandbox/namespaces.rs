//! Empty namespaces for the process.
//!
//! Each is requested separately, since a container may refuse some. The user namespace comes first: it gives an
//! ordinary user the right to make the others, and for root it means that no capability of the process counts outside.
//! No user is mapped into it. Descriptors that were opened before, including sockets, stay in their namespaces.
//!
//! There is no PID namespace: it would need a further process, and other layers already forbid signals and access to
//! /proc.

use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, OpenTreeFlags, UnmountFlags, mount, mount_change, open_tree, unmount,
};
use rustix::process::{chdir, pivot_root};
use rustix::thread::UnshareFlags;

use crate::sandbox::layer::{Layer, Made};
use crate::sandbox::sys;

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

/// A directory that exists on all systems: the empty file system is mounted on it and becomes the root.
const PLACE: &str = "/proc";
const OWN_DESCRIPTORS: &str = "/proc/self/fd";

/// Makes an empty, read-only file system the root of the process's mount namespace.
pub(super) fn empty_root(layers: &[Layer]) -> Made {
    if !layers.iter().any(|layer| layer.on && layer.name == "mount namespace") {
        return Err("it takes a mount namespace of its own".to_owned());
    }
    make().map(|()| "no files".to_owned()).map_err(|error| error.to_string())
}

fn make() -> rustix::io::Result<()> {
    // Mounts here must not propagate to the original namespace.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("lasthop", PLACE, "tmpfs", flags, c"size=0,nr_inodes=1")?;
    chdir(PLACE)?;
    // The old root is then mounted over the new one, and unmounted.
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    chdir("/")
}

/// The directory with the kernel's names of this process's descriptors, the only remaining part of /proc. If mounts are
/// permitted it is a mount of its own, without a parent. `None` without /proc.
pub(super) fn descriptor_names() -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let alone = open_tree(CWD, OWN_DESCRIPTORS, clone);
    alone.or_else(|_| open(OWN_DESCRIPTORS, flags, Mode::empty())).ok()
}
