//! Messages with file descriptors on a UNIX stream, and what kind of file a descriptor is.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::cmsg_space;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, readlink, readlinkat};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::message::TABLE_REGIONS_MAX;

const CONTROL_BYTES: usize = cmsg_space!(ScmRights(TABLE_REGIONS_MAX));

/// What one receive brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    /// Bytes; 0 when the other side closed.
    pub(crate) bytes: usize,
    /// Whether file descriptors were lost, since there were too many.
    pub(crate) fds_lost: bool,
}

/// Receives bytes into `into`, and adds the file descriptors that come with them to `fds`.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    into: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<Received> {
    receive_within(&mut [MaybeUninit::uninit(); CONTROL_BYTES], socket, into, fds)
}

/// As `receive`, with `space` for file descriptors.
fn receive_within(
    space: &mut [MaybeUninit<u8>],
    socket: BorrowedFd<'_>,
    into: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<Received> {
    let mut control = RecvAncillaryBuffer::new(space);
    let mut slices = [IoSliceMut::new(into)];
    let received = recvmsg(socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    // The kernel drops what finds no space, or what would go beyond the limit of open files.
    let fds_lost = received.flags.contains(ReturnFlags::CTRUNC) || fds.len() > TABLE_REGIONS_MAX;
    Ok(Received { bytes: received.bytes, fds_lost })
}

/// Sends bytes, the file descriptors with the first of them; how many bytes went.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

/// Whether a descriptor is an eventfd, as /proc tells; where there is no /proc, it is taken for one.
pub(crate) fn is_eventfd(fd: BorrowedFd<'_>) -> bool {
    what_is(fd).is_none_or(|what| what == b"anon_inode:[eventfd]")
}

/// Whether a descriptor is a UNIX socket: User Mode Linux takes its calls through a pair of them.
///
/// Nothing else will do, since writes have to come back: who reads from a pipe, or from a socket of the network, into memory
/// whose pages somebody holds back keeps a lock meanwhile, and no signal gets a writer out of the wait for that.
pub(crate) fn is_unix_socket(fd: BorrowedFd<'_>) -> bool {
    rustix::net::sockopt::socket_domain(fd).is_ok_and(|domain| domain == AddressFamily::UNIX)
}

/// Where the kernel tells what descriptors are, for a process that can open no path.
static NAMES: OnceLock<OwnedFd> = OnceLock::new();

/// Keeps `directory`, which is /proc/self/fd, to look descriptors up in it: for a process that is about to lose all paths.
/// The first one is kept.
pub fn keep_descriptor_names(directory: OwnedFd) {
    let _ = NAMES.set(directory);
}

fn what_is(fd: BorrowedFd<'_>) -> Option<Vec<u8>> {
    let number = fd.as_raw_fd();
    let name = match NAMES.get() {
        Some(names) => readlinkat(names, number.to_string(), Vec::new()),
        None => readlink(format!("/proc/self/fd/{number}"), Vec::new()),
    };
    Some(name.ok()?.into_bytes())
}

/// Makes reads and writes of a descriptor return at once.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = fcntl_getfl(fd)?;
    Ok(fcntl_setfl(fd, flags | OFlags::NONBLOCK)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn an_eventfd_is_told_from_other_files() {
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        assert!(is_eventfd(event.as_fd()));
        let (one, _other) = UnixStream::pair().unwrap();
        assert!(!is_eventfd(one.as_fd()));
        assert!(!is_eventfd(lasthop_guestmem::memfd("no-eventfd", 4096).unwrap().as_fd()));
        let (_read, write) = rustix::pipe::pipe().unwrap();
        assert!(!is_unix_socket(write.as_fd()) && !is_eventfd(write.as_fd()));
        assert!(is_unix_socket(one.as_fd()) && !is_unix_socket(event.as_fd()));
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(!is_unix_socket(udp.as_fd()));
    }

    #[test]
    fn descriptors_come_with_the_first_byte() {
        let (one, other) = UnixStream::pair().unwrap();
        let file = lasthop_guestmem::memfd("sent", 4096).unwrap();
        assert_eq!(send(one.as_fd(), b"ab", &[file.as_fd(), one.as_fd()]).unwrap(), 2);
        let (mut byte, mut fds) = ([0; 1], Vec::new());
        assert_eq!(
            receive(other.as_fd(), &mut byte, &mut fds).unwrap(),
            Received { bytes: 1, fds_lost: false }
        );
        assert_eq!((byte[0], fds.len()), (b'a', 2));
        assert_eq!(receive(other.as_fd(), &mut byte, &mut fds).unwrap().bytes, 1);
        assert_eq!((byte[0], fds.len()), (b'b', 2));
    }
    #[test]
    fn lost_descriptors_are_noticed() {
        let (one, other) = UnixStream::pair().unwrap();
        send(one.as_fd(), b"a", &[one.as_fd(); 8]).unwrap();
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut fds = Vec::new();
        let received = receive_within(&mut space, other.as_fd(), &mut [0], &mut fds).unwrap();
        assert_eq!(received, Received { bytes: 1, fds_lost: true });
        assert!(fds.len() < 8);
    }
}
