//! Messages with file descriptors on a UNIX stream.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use lasthop_foreign::{ForeignFd, Origin};
use rustix::cmsg_space;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::message::TABLE_REGIONS_MAX;

/// Room for the descriptors of one outgoing message.
const CONTROL_BYTES: usize = cmsg_space!(ScmRights(TABLE_REGIONS_MAX));

/// The result of a receive call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    /// Number of bytes; 0 when the peer closed.
    pub(crate) bytes: usize,
    /// Whether descriptors were lost: more than a message can have, or more than the process may open.
    pub(crate) fds_lost: bool,
}

/// Receives bytes into `into`, and adds the file descriptors that come with them to `fds`; they count for `origin`.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    into: &mut [u8],
    origin: &Origin,
    fds: &mut Vec<ForeignFd>,
) -> io::Result<Received> {
    let received = lasthop_foreign::receive(socket, into, RecvFlags::empty(), origin, fds)?;
    Ok(Received { bytes: received.bytes, fds_lost: received.is_cut || fds.len() > TABLE_REGIONS_MAX })
}

/// Sends bytes, and the file descriptors with the first of them; returns the number of sent bytes.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

/// Makes a descriptor non-blocking.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = fcntl_getfl(fd)?;
    Ok(fcntl_setfl(fd, flags | OFlags::NONBLOCK)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    fn receive_one(socket: &UnixStream, fds: &mut Vec<ForeignFd>) -> (u8, Received) {
        let mut byte = [0; 1];
        let received = receive(socket.as_fd(), &mut byte, &Origin::new("a front end"), fds).unwrap();
        (byte[0], received)
    }

    #[test]
    fn descriptors_come_with_the_first_byte() {
        let (one, other) = UnixStream::pair().unwrap();
        let file = lasthop_guestmem::memfd("sent", 4096).unwrap();
        assert_eq!(send(one.as_fd(), b"ab", &[file.as_fd(), one.as_fd()]).unwrap(), 2);
        let mut fds = Vec::new();
        let whole = Received { bytes: 1, fds_lost: false };
        assert_eq!((receive_one(&other, &mut fds), fds.len()), ((b'a', whole), 2));
        assert_eq!((receive_one(&other, &mut fds), fds.len()), ((b'b', whole), 2));
    }

    #[test]
    fn more_descriptors_than_a_message_has_arrive_and_are_too_many() {
        let (one, other) = UnixStream::pair().unwrap();
        let mut fds = Vec::new();
        for _ in 0..2 {
            send(one.as_fd(), b"a", &[one.as_fd(); TABLE_REGIONS_MAX]).unwrap();
        }
        assert!(!receive_one(&other, &mut fds).1.fds_lost);
        assert!(receive_one(&other, &mut fds).1.fds_lost);
        assert_eq!(fds.len(), 2 * TABLE_REGIONS_MAX);
    }
}
