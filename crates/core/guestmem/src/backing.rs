//! The kind of file behind guest memory, for diagnosing a guest without network; not used per packet.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;

use rustix::fs::{Stat, fstat, fstatfs};

const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;
/// The unit of st_blocks on any file system (stat(3type)).
const STAT_BLOCK_BYTES: u64 = 512;

/// The file system of a mapping's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// memfd_create(2).
    Memfd,
    /// A file in a tmpfs, as in /dev/shm.
    Tmpfs,
    /// Huge pages, by a file or a memfd.
    HugeTlb,
}

impl MemoryKind {
    /// The name in output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Memfd => "memfd",
            Self::Tmpfs => "tmpfs",
            Self::HugeTlb => "hugetlbfs",
        }
    }
}

/// The file behind a mapping, at the time when it was mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backing {
    /// The file system.
    pub kind: MemoryKind,
    /// Allocated bytes of the file. A guest that has booted in it has filled some; a guest with a private copy left it
    /// empty.
    pub filled_bytes: u64,
}

/// Allocated bytes of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filled {
    /// Allocated bytes.
    pub bytes: u64,
    /// Growth since the last query. For each file either this or `shrunk_bytes` is 0.
    pub grown_bytes: u64,
    /// Decrease since the last query.
    pub shrunk_bytes: u64,
}

impl Backing {
    /// Describes the file behind `fd`, which is known to be shared memory. `None` if a system call fails.
    pub(crate) fn of(fd: BorrowedFd<'_>) -> Option<Self> {
        let stat = fstat(fd).ok()?;
        let is_huge = fstatfs(fd).ok()?.f_type as i64 == HUGETLBFS_MAGIC;
        let kind = match (is_huge, is_of_memfds(&stat)) {
            (true, _) => MemoryKind::HugeTlb,
            (false, true) => MemoryKind::Memfd,
            (false, false) => MemoryKind::Tmpfs,
        };
        Some(Self { kind, filled_bytes: stat.st_blocks as u64 * STAT_BLOCK_BYTES })
    }
}

/// Allocated bytes of a shared memory file. `None` if a system call fails.
pub(crate) fn filled_bytes(fd: BorrowedFd<'_>) -> Option<u64> {
    Some(fstat(fd).ok()?.st_blocks as u64 * STAT_BLOCK_BYTES)
}

/// Whether a file is on the kernel's internal mount for memfds.
fn is_of_memfds(stat: &Stat) -> bool {
    static DEVICE: OnceLock<Option<u64>> = OnceLock::new();
    let of_probe = || Some(fstat(memfd("lasthop-probe", 0).ok()?.as_fd()).ok()?.st_dev);
    *DEVICE.get_or_init(of_probe) == Some(stat.st_dev)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags, open};

    #[test]
    fn memfds_are_told_from_files_and_written_bytes_counted() {
        let file = memfd("t", 1 << 20).expect("a memfd");
        let fresh = Backing::of(file.as_fd()).expect("known");
        assert_eq!(fresh, Backing { kind: MemoryKind::Memfd, filled_bytes: 0 });
        rustix::io::pwrite(&file, &[1; 8192], 0).expect("written");
        assert_eq!(Backing::of(file.as_fd()).expect("known").filled_bytes, 8192);
        // tmpfs is not mounted everywhere; /dev/shm is on any usual Linux.
        let unnamed = OFlags::TMPFILE | OFlags::RDWR;
        if let Ok(file) = open("/dev/shm", unnamed, Mode::RUSR | Mode::WUSR) {
            assert_eq!(Backing::of(file.as_fd()).expect("known").kind, MemoryKind::Tmpfs);
        }
    }
}

/// Makes a memfd of `len_bytes`, for memory to be shared.
///
/// # Errors
/// Errors of memfd_create(2) or ftruncate(2).
pub fn memfd(name: &str, len_bytes: u64) -> rustix::io::Result<std::os::fd::OwnedFd> {
    let fd = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(fd.as_fd(), len_bytes)?;
    Ok(fd)
}
