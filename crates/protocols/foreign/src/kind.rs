//! The kind of a descriptor. This never asks a file system, since the sender may serve that itself and not answer.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{fcntl_get_seals, readlink, readlinkat};
use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{AddressFamily, SocketType};

/// Whether it is an eventfd, according to /proc; true without /proc.
#[must_use]
pub fn is_eventfd(fd: BorrowedFd<'_>) -> bool {
    name_of(fd).is_none_or(|name| name == b"anon_inode:[eventfd]")
}

/// Whether it is a UNIX socket of any type.
#[must_use]
pub fn is_unix_socket(fd: BorrowedFd<'_>) -> bool {
    socket_domain(fd).is_ok_and(|domain| domain == AddressFamily::UNIX)
}

/// Whether it is a UNIX stream socket.
#[must_use]
pub fn is_unix_stream(fd: BorrowedFd<'_>) -> bool {
    is_unix_socket(fd) && socket_type(fd).is_ok_and(|kind| kind == SocketType::STREAM)
}

/// Whether it is memory: a memfd, or a file on tmpfs or hugetlbfs. Only these have seals (fcntl(2)).
#[must_use]
pub fn is_memory(fd: BorrowedFd<'_>) -> bool {
    fcntl_get_seals(fd).is_ok()
}

/// The directory with the kernel's names of descriptors, for a process that can open no path.
static NAMES: OnceLock<OwnedFd> = OnceLock::new();

/// Keeps `directory`, which is /proc/self/fd, for looking descriptors up: for a process that is about to lose access to
/// all paths. Only the first call counts.
pub fn keep_descriptor_names(directory: OwnedFd) {
    let _ = NAMES.set(directory);
}

fn name_of(fd: BorrowedFd<'_>) -> Option<Vec<u8>> {
    let number = fd.as_raw_fd();
    let name = match NAMES.get() {
        Some(names) => readlinkat(names, number.to_string(), Vec::new()),
        None => readlink(format!("/proc/self/fd/{number}"), Vec::new()),
    };
    Some(name.ok()?.into_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::*;

    #[test]
    fn each_kind_is_told_from_the_others() {
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let (stream, _other) = UnixStream::pair().unwrap();
        let (datagram, _other_end) = UnixDatagram::pair().unwrap();
        let (_read, write) = rustix::pipe::pipe().unwrap();
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let memory = rustix::fs::memfd_create("kind", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let kinds = |fd: BorrowedFd<'_>| {
            [is_eventfd(fd), is_unix_socket(fd), is_unix_stream(fd), is_memory(fd)].map(u8::from)
        };
        assert_eq!(kinds(event.as_fd()), [1, 0, 0, 0]);
        assert_eq!(kinds(stream.as_fd()), [0, 1, 1, 0]);
        assert_eq!(kinds(datagram.as_fd()), [0, 1, 0, 0]);
        assert_eq!(kinds(write.as_fd()), [0; 4]);
        assert_eq!(kinds(udp.as_fd()), [0; 4]);
        assert_eq!(kinds(memory.as_fd()), [0, 0, 0, 1]);
    }

    #[test]
    fn a_file_on_tmpfs_is_memory_without_seals_of_its_own() {
        let Ok(file) = tempfile_in("/dev/shm") else { return };
        assert!(is_memory(file.as_fd()));
    }

    fn tempfile_in(directory: &str) -> std::io::Result<std::fs::File> {
        use std::os::unix::fs::OpenOptionsExt;
        let unnamed = rustix::fs::OFlags::TMPFILE.bits() as i32;
        std::fs::OpenOptions::new().read(true).write(true).custom_flags(unnamed).open(directory)
    }
}
