//! The peer of a socket. rustix's type for it cannot hold the process number 0, which the kernel returns for processes
//! of other namespaces.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The user who connected a UNIX socket, or who made the pair.
///
/// # Errors
/// If it is no UNIX socket.
pub(crate) fn peer_user(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len_bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len_bytes` to `peer`, any bytes of which are a ucred; both live here.
    let result = unsafe {
        let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut peer).cast(), &raw mut len_bytes)
    };
    // Sockets of other families have the owner -1.
    match (result, peer.uid) {
        (0, u32::MAX) => Err(io::Error::other("it is no UNIX socket")),
        (0, user) => Ok(user),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_socket_pair_has_our_user_and_a_file_none() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        assert_eq!(peer_user(one.as_fd()).expect("a socket"), rustix::process::geteuid().as_raw());
        let file = std::fs::File::open("/dev/null").expect("there");
        assert!(peer_user(file.as_fd()).is_err());
    }
}
