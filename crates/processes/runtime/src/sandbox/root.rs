//! An empty root file system: no path leads anywhere.

use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags, open};
use rustix::mount::{
    MountFlags, MountPropagationFlags, OpenTreeFlags, UnmountFlags, mount, mount_change, open_tree, unmount,
};
use rustix::process::{chdir, pivot_root};

use super::layer::{Layer, Made};

/// A directory that exists on all systems: the empty file system is mounted on it and becomes the root.
const PLACE: &str = "/proc";
const OWN_DESCRIPTORS: &str = "/proc/self/fd";

/// Makes an empty, read-only file system the root of the process's mount namespace.
pub(super) fn empty(layers: &[Layer]) -> Made {
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
