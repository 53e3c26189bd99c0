//! Numbers of network namespaces over rtnetlink(7), for taps that were moved to another one.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::io::Errno;

use super::message::{Netlink, find, put, u32_at};
use crate::sys::tap_namespace;

/// `RTM_NEWNSID`, `RTM_GETNSID` (linux/rtnetlink.h).
const NEW_NSID: u16 = 88;
const GET_NSID: u16 = 90;
/// `struct rtgenmsg`, padded.
const RTGEN: [u8; 4] = [0; 4];
/// Attributes (linux/net_namespace.h).
mod attribute {
    pub(super) const NSID: u16 = 1;
    pub(super) const FD: u16 = 3;
}
/// `NETNSA_NSID_NOT_ASSIGNED`: in an answer, that there is no number; in a request, any number.
const NONE: i32 = -1;

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
    namespace_id(theirs.as_fd()).map(Some)
}

/// The number of another network namespace in the caller's; assigns one if there is none.
///
/// # Errors
/// Errors of the kernel; `PERM` without CAP_NET_ADMIN if a number has to be assigned.
fn namespace_id(namespace: BorrowedFd<'_>) -> Result<i32, Errno> {
    let known = ask(namespace)?;
    if known != NONE {
        return Ok(known);
    }
    let mut body = about(namespace);
    put(&mut body, attribute::NSID, &NONE.to_ne_bytes());
    match Netlink::open(None)?.tell(NEW_NSID, &body) {
        // Another process has assigned one meanwhile.
        Ok(()) | Err(Errno::EXIST) => ask(namespace),
        Err(error) => Err(error),
    }
}

fn ask(namespace: BorrowedFd<'_>) -> Result<i32, Errno> {
    let answer = Netlink::open(None)?.ask(GET_NSID, &about(namespace))?;
    let id = answer.get(RTGEN.len()..).and_then(|attributes| find(attributes, attribute::NSID));
    id.and_then(|value| u32_at(value, 0)).map(u32::cast_signed).ok_or(Errno::PROTO)
}

fn about(namespace: BorrowedFd<'_>) -> Vec<u8> {
    let mut body = RTGEN.to_vec();
    put(&mut body, attribute::FD, &namespace.as_raw_fd().to_ne_bytes());
    body
}
