//! Mappings of guest memory files.

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{fcntl_get_seals, fstat};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};
#[cfg(not(miri))]
use rustix::mm::{mmap_anonymous, munmap};
use thiserror::Error;

use crate::address_space::AddressSpace;
use crate::backing::{Filled, filled_bytes};
use crate::huge::{HugePages, map_aligned};
use crate::unmapping::Unmapping;
use crate::{Backing, ByteSize, MAPPED_BYTES_MAX, REGION_BYTES_MAX, guard};

/// The reason why a front end's file range cannot be guest memory.
#[derive(Debug, Error)]
pub enum MappingError {
    /// The file is not a memfd, and not on tmpfs or hugetlbfs.
    #[error(
        "guest memory lies in a file that is neither a memfd nor on tmpfs or hugetlbfs; use a memfd, for QEMU: -object memory-backend-memfd,share=on"
    )]
    NotSharedMemory,
    /// The range is not inside the file.
    #[error("memory region of {len} bytes at file offset {offset} goes beyond its file of {file_len} bytes")]
    BeyondFile {
        /// Offset in the file, in bytes.
        offset: u64,
        /// Length of the region in bytes.
        len: u64,
        /// Length of the file in bytes.
        file_len: u64,
    },
    /// The region is empty, or larger than `REGION_BYTES_MAX`.
    #[error("memory region of {0} bytes is outside 1..={REGION_BYTES_MAX}")]
    BadLength(u64),
    /// All of `guard::WATCHES_MAX` watches are in use.
    #[error(
        "the switch maps {} memory regions already; give the guests fewer memory slots",
        guard::WATCHES_MAX
    )]
    TooManyMappings,
    /// All mapped files together would exceed [`MAPPED_BYTES_MAX`].
    #[error(
        "{} more of guest memory, with that of all other guests, would take more than {} of the switch's address space; lower memory-max of the vnics",
        ByteSize(*.0),
        ByteSize(MAPPED_BYTES_MAX)
    )]
    NoAddressSpace(u64),
    /// A system call failed.
    #[error("cannot map guest memory: {0}")]
    System(#[from] rustix::io::Errno),
}

/// The identity of a mapped range: two equal ranges are the same memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRange {
    /// Device number of the file.
    pub device: u64,
    /// Inode of the file.
    pub inode: u64,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl FileRange {
    /// Identifies the range of `fd`; checks that it is shared memory and exists.
    ///
    /// # Errors
    /// See [`MappingError`].
    pub fn of(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<Self, MappingError> {
        if len == 0 || len > REGION_BYTES_MAX {
            return Err(MappingError::BadLength(len));
        }
        // Only memfds and files on tmpfs or hugetlbfs have seals (fcntl(2)). This is the only query that no file system
        // of a front end's own (FUSE) takes part in: even fstat and fstatfs may wait for its answer for ever.
        if fcntl_get_seals(fd).is_err() {
            return Err(MappingError::NotSharedMemory);
        }
        let stat = fstat(fd)?;
        let file_len = stat.st_size as u64;
        if offset.checked_add(len).is_none_or(|end| end > file_len) {
            return Err(MappingError::BeyondFile { offset, len, file_len });
        }
        Ok(Self { device: stat.st_dev, inode: stat.st_ino, offset, len })
    }
}

/// A range of shared memory mapped into the switch: read and write, never execute.
#[derive(Debug)]
pub struct Mapping {
    /// The argument of `munmap`; page aligned.
    base: NonNull<u8>,
    mapped_bytes: usize,
    /// Start of the requested range.
    start: NonNull<u8>,
    len: usize,
    range: Option<FileRange>,
    backing: Option<Backing>,
    /// The file, for queries of its allocated bytes, and the last answer.
    file: Option<OwnedFd>,
    measured_bytes: AtomicU64,
    page_bytes: u64,
    dead: Arc<AtomicBool>,
    guard_slot: Option<usize>,
    /// For a mapped file.
    _address_space: Option<AddressSpace>,
    /// If the kernel shall be asked for huge pages.
    huge_pages: Option<HugePages>,
}

// SAFETY: the mapping is shared memory that other processes write at any time; this type hands out no references into
// it, only copies through raw pointers, so threads add no hazard that guests do not pose already.
unsafe impl Send for Mapping {}
// SAFETY: as above; all methods take `&self` and only read the fields, or atomics.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `fd` from `offset` on. Neither needs to be page aligned.
    ///
    /// # Errors
    /// See [`MappingError`].
    pub fn of_file(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<Self, MappingError> {
        Self::of_range(fd, offset, len, None)
    }

    /// The same, where the file's huge pages can be mapped as such, and [`Words::touch`](crate::Words::touch) asks the kernel for them.
    /// It is for memory of the switch itself: a guest chooses its own pages.
    ///
    /// # Errors
    /// See [`MappingError`].
    pub fn of_file_with_huge_pages(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<Self, MappingError> {
        Self::of_range(fd, offset, len, Some(HugePages::default()))
    }

    fn of_range(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        huge_pages: Option<HugePages>,
    ) -> Result<Self, MappingError> {
        let range = FileRange::of(fd, offset, len)?;
        // Huge pages must be mapped in whole pages; hugetlbfs reports their size as its block size.
        let page = (fstat(fd)?.st_blksize as u64).max(4096);
        let aligned = offset - offset % page;
        let lead = (offset - aligned) as usize;
        let mapped_bytes = (lead as u64 + len).next_multiple_of(page) as usize;
        let address_space = AddressSpace::take(mapped_bytes as u64);
        let address_space = address_space.ok_or(MappingError::NoAddressSpace(mapped_bytes as u64))?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        let base = match huge_pages {
            Some(_) => map_aligned(mapped_bytes, protection, flags, fd, aligned)?,
            // SAFETY: a fresh address range is chosen by the kernel; nothing existing is replaced.
            None => unsafe { mmap(std::ptr::null_mut(), mapped_bytes, protection, flags, fd, aligned)? },
        };
        // SAFETY: the advice only excludes the range from core files. If it is refused, guests' secrets may
        // be in one, as without it.
        let _ = unsafe { madvise(base, mapped_bytes, Advice::LinuxDontDump) };
        let mut mapping = Self::adopt(base, mapped_bytes, lead, len as usize, Some(range));
        let slot = guard::watch(base as usize, mapped_bytes, &mapping.dead);
        mapping._address_space = Some(address_space);
        mapping.huge_pages = huge_pages;
        mapping.backing = Backing::of(fd);
        mapping.measured_bytes = AtomicU64::new(mapping.backing.map_or(0, |backing| backing.filled_bytes));
        mapping.page_bytes = page;
        // Before any other error: the drop ends the watch.
        mapping.guard_slot = Some(slot.ok_or(MappingError::TooManyMappings)?);
        mapping.file = Some(rustix::io::fcntl_dupfd_cloexec(fd, 0)?);
        Ok(mapping)
    }

    /// Maps `len_bytes` of zeroed private memory.
    ///
    /// # Errors
    /// [`MappingError::BadLength`] and [`MappingError::System`].
    pub fn anonymous(len_bytes: usize) -> Result<Self, MappingError> {
        if len_bytes == 0 || len_bytes as u64 > REGION_BYTES_MAX {
            return Err(MappingError::BadLength(len_bytes as u64));
        }
        let mapped_bytes = len_bytes.next_multiple_of(4096);
        let base = zeroes(mapped_bytes)?;
        Ok(Self::adopt(base, mapped_bytes, 0, len_bytes, None))
    }

    fn adopt(
        base: *mut c_void,
        mapped_bytes: usize,
        lead: usize,
        len: usize,
        range: Option<FileRange>,
    ) -> Self {
        let base = NonNull::new(base.cast::<u8>()).expect("mmap never returns null without MAP_FIXED");
        // SAFETY: lead is less than a page and the mapping is longer than lead.
        let start = unsafe { base.add(lead) };
        let dead = Arc::new(AtomicBool::new(false));
        Self {
            base,
            mapped_bytes,
            start,
            len,
            range,
            backing: None,
            file: None,
            measured_bytes: AtomicU64::new(0),
            page_bytes: 4096,
            dead,
            guard_slot: None,
            _address_space: None,
            huge_pages: None,
        }
    }

    /// Length of the range in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false: a mapping has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The file range; `None` for private memory.
    #[must_use]
    pub fn range(&self) -> Option<FileRange> {
        self.range
    }

    /// The file at the time when it was mapped; `None` for private memory.
    #[must_use]
    pub fn backing(&self) -> Option<Backing> {
        self.backing
    }

    /// Allocated bytes of the file, and how much they changed since the last query; zero for private memory. Makes a
    /// system call.
    pub(crate) fn measure(&self) -> Filled {
        let Some(bytes) = self.filled_bytes() else { return Filled::default() };
        let before_bytes = self.measured_bytes.swap(bytes, Ordering::Relaxed);
        let (grown_bytes, shrunk_bytes) =
            (bytes.saturating_sub(before_bytes), before_bytes.saturating_sub(bytes));
        Filled { bytes, grown_bytes, shrunk_bytes }
    }

    /// Allocated bytes of the file; `None` for private memory. Makes a system call.
    pub(crate) fn filled_bytes(&self) -> Option<u64> {
        self.file.as_ref().and_then(|file| filled_bytes(file.as_fd()))
    }

    /// Page size of the file in bytes.
    pub(crate) fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Its huge pages, if the kernel shall be asked for them.
    pub(crate) fn huge_pages(&self) -> Option<&HugePages> {
        self.huge_pages.as_ref()
    }

    /// Whether the file was truncated under the mapping; the guest's memory then reads as zeroes.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// Address of the first byte; valid for `len` bytes while the mapping lives.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Some(slot) = self.guard_slot {
            guard::unwatch(slot);
        }
        let _unmapping = self.range.is_some().then(Unmapping::begin);
        // SAFETY: base and mapped_bytes are from mmap; holders of pointers into it hold the Arc of this
        // mapping.
        unsafe { release(self.base.as_ptr().cast::<c_void>(), self.mapped_bytes) };
    }
}

/// Maps zeroed private memory of whole pages.
#[cfg(not(miri))]
fn zeroes(mapped_bytes: usize) -> rustix::io::Result<*mut c_void> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh address range is chosen by the kernel; nothing existing is replaced.
    unsafe { mmap_anonymous(std::ptr::null_mut(), mapped_bytes, protection, flags) }
}

/// Bytes that one munmap takes: whole pages of any size.
#[cfg(not(miri))]
const UNMAPPED_BYTES: usize = 1 << 30;
/// Bytes whose pages are freed at a time before that.
#[cfg(not(miri))]
const EMPTIED_BYTES: usize = 64 << 20;

/// The kernel takes some 50 ms to unmap 1 GiB of small pages. Meanwhile no other thread of the process can map, unmap
/// or grow its heap. So the pages are freed first, which blocks no other thread, or (before Linux 6.17) only while one
/// part is freed.
///
/// # Safety
/// `base` and `mapped_bytes` are one whole range from mmap, which is not used any more.
#[cfg(not(miri))]
unsafe fn release(base: *mut c_void, mapped_bytes: usize) {
    for at in (0..mapped_bytes).step_by(EMPTIED_BYTES) {
        let bytes = EMPTIED_BYTES.min(mapped_bytes - at);
        // A part of a huge page cannot be freed; then munmap frees it.
        // SAFETY: a part of the range, and the caller's promise.
        let _ = unsafe { madvise(base.byte_add(at), bytes, Advice::LinuxDontNeed) };
    }
    for at in (0..mapped_bytes).step_by(UNMAPPED_BYTES) {
        let bytes = UNMAPPED_BYTES.min(mapped_bytes - at);
        // SAFETY: a part of the range, and the caller's promise.
        let _ = unsafe { munmap(base.byte_add(at), bytes) };
    }
}

/// Takes pages from the heap: Miri, which checks the accesses to this memory, makes no system calls.
#[cfg(miri)]
fn zeroes(mapped_bytes: usize) -> rustix::io::Result<*mut c_void> {
    let layout = std::alloc::Layout::from_size_align(mapped_bytes, 4096).expect("a mapping has a layout");
    // SAFETY: a mapping has at least one page.
    Ok(unsafe { std::alloc::alloc_zeroed(layout) }.cast())
}

/// # Safety
/// `base` and `mapped_bytes` are one whole range from `zeroes`, which is not used any more.
#[cfg(miri)]
unsafe fn release(base: *mut c_void, mapped_bytes: usize) {
    let layout = std::alloc::Layout::from_size_align(mapped_bytes, 4096).expect("a mapping has a layout");
    // SAFETY: the caller's promise; the layout is that of `zeroes`.
    unsafe { std::alloc::dealloc(base.cast(), layout) };
}
