//! A file system with nothing in it: even a path that could be opened leads nowhere.

use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags, open};
use rustix::mount::{
    MountFlags, MountPropagationFlags, OpenTreeFlags, UnmountFlags, mount, mount_change, open_tree, unmount,
};
use rustix::process::{chdir, pivot_root};

use super::layer::{Layer, Made};

/// Any directory that is there on all systems: the empty one is mounted on it and becomes the root.
const PLACE: &str = "/proc";
const OWN_DESCRIPTORS: &str = "/proc/self/fd";

/// Makes an empty file system, which cannot be written, the root of the process's mount namespace.
pub(super) fn empty(layers: &[Layer]) -> Made {
    if !layers.iter().any(|layer| layer.on && layer.name == "mount namespace") {
        return Err("it takes a mount namespace of its own".to_owned());
    }
    make().map(|()| "no files".to_owned()).map_err(|error| error.to_string())
}

fn make() -> rustix::io::Result<()> {
    // Mounts here must not show up where the namespace was copied from.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("lasthop", PLACE, "tmpfs", flags, c"size=0,nr_inodes=1")?;
    chdir(PLACE)?;
    // The old root lies over the new one then, and is taken off.
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    chdir("/")
}

/// The directory in which the kernel names each descriptor of this process, the only part of /proc that is left. Where
/// mounts may be made it is a mount of its own, which has no way up. None where there is no /proc.
pub(super) fn descriptor_names() -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let alone = open_tree(CWD, OWN_DESCRIPTORS, clone);
    alone.or_else(|_| open(OWN_DESCRIPTORS, flags, Mode::empty())).ok()
}
