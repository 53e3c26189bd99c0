//! Identifies the open file of a descriptor, by words that outlive this process.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use serde::{Deserialize, Serialize};

/// Names in /proc/PID/fdinfo of numbers that identify files without their own inode: eventfds, and processes before
/// Linux 6.9.
const NUMBERS: [&str; 2] = ["eventfd-id:", "Pid:"];

/// Equal for two descriptors of the same file, and different for other files, as long as one of them is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FdIdentity {
    device: u64,
    inode: u64,
    /// The access mode: read, write or both.
    access: u32,
    /// A number for files that share an inode; otherwise 0.
    number: u64,
}

impl FdIdentity {
    /// Of an open descriptor.
    pub fn of(fd: impl AsFd) -> io::Result<Self> {
        let fd = fd.as_fd();
        let (stat, flags) = (fstat(fd)?, fcntl_getfl(fd)?);
        let is_socket = FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
        let number = if is_socket { 0 } else { number(fd.as_raw_fd())? };
        let access = (flags & OFlags::RWMODE).bits();
        Ok(Self { device: stat.st_dev, inode: stat.st_ino, access, number })
    }

    #[cfg(test)]
    pub(crate) fn made_up(device: u64, inode: u64) -> Self {
        Self { device, inode, access: 0, number: 0 }
    }
}

fn number(fd: i32) -> io::Result<u64> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}"))?;
    let value = |line: &str| NUMBERS.iter().find_map(|name| line.strip_prefix(name)?.trim().parse().ok());
    Ok(info.lines().find_map(value).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn copies_are_the_same_and_others_are_not() {
        let (one, other) = UnixStream::pair().expect("a pair");
        let event = || eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        let memory = || memfd_create("identity", MemfdFlags::CLOEXEC).expect("a file");
        let process = |pid| pidfd_open(pid, PidfdFlags::empty()).expect("a process");
        let own = rustix::process::getpid();
        let init = Pid::from_raw(1).expect("a number");
        let all: Vec<OwnedFd> =
            vec![one.into(), other.into(), event(), event(), memory(), memory(), process(own), process(init)];
        let of = |fd: &OwnedFd| FdIdentity::of(fd).expect("open");
        for (at, fd) in all.iter().enumerate() {
            assert_eq!(of(fd), of(&fd.try_clone().expect("a copy")), "{at}");
            assert!(all[..at].iter().all(|before| of(before) != of(fd)), "{at}");
        }
    }

    #[test]
    fn a_file_that_may_be_written_is_not_one_that_may_not() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let for_reading = std::fs::File::open(file.path()).expect("open");
        assert_ne!(
            FdIdentity::of(&for_reading).expect("open"),
            FdIdentity::of(file.as_file()).expect("open")
        );
    }
}
