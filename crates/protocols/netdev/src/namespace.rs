use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::io::Errno;

use crate::netlink;
use crate::sys::tap_namespace;

/// This network namespace's number for the one to which a tap was moved; `None` if the tap is in this one. `queue` is
/// any descriptor of the tap.
///
/// # Errors
/// `BADFD` if the tap is gone; other errors of ioctl(2) and rtnetlink(7).
pub fn tap_namespace_id(queue: BorrowedFd<'_>) -> Result<Option<i32>, Errno> {
    let theirs = tap_namespace(queue)?;
    let own = open("/proc/thread-self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let (one, other) = (fstat(&theirs)?, fstat(&own)?);
    if (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino) {
        return Ok(None);
    }
    netlink::namespace_id(theirs.as_fd()).map(Some)
}
