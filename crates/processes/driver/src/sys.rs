//! System calls without safe wrappers in std or rustix: they move frames in batches between a device and the vNIC's
//! memory, and map what the kernel shares through sockets.
//!
//! The kernel accesses the vNIC's memory on our behalf, while the switch may do the same. This module makes no
//! reference into it: it checks addresses against the arena ([`Arena`]) and passes them on.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use lasthop_frontend::VnicPair;
use lasthop_guestmem::{Mapping, StaleSegment};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Messages of one system call.
pub(crate) const BATCH: usize = 32;
/// Parts of all messages in one call of [`Outbox::send`]: enough for eight of the longest frames.
pub(crate) const PARTS_MAX: usize = 256;
/// Parts of a received message: the kernel's header may be shorter than the vNIC's.
pub(crate) const RECEIVE_PARTS: usize = 2;
/// Bytes of a received message's control data: one `tpacket_auxdata` with its header, as long as the kernel makes it.
pub(crate) const CONTROL_BYTES: usize = 40;

pub(crate) fn checked(result: c_int) -> Result<c_int, Errno> {
    if result < 0 { Err(last_error()) } else { Ok(result) }
}

fn last_error() -> Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

/// Sets a socket's option that is a number.
///
/// # Errors
/// Errors of setsockopt(2).
pub(crate) fn set_option(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> Result<(), Errno> {
    let (at, len_bytes) =
        (std::ptr::from_ref(&value).cast::<c_void>(), size_of::<c_int>() as libc::socklen_t);
    // SAFETY: the kernel reads the bytes of `value`.
    checked(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, at, len_bytes) }).map(drop)
}

/// Part of an arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    /// Offset from the arena's start.
    pub(crate) offset: u32,
    /// Bytes.
    pub(crate) len: u32,
}

/// The buffers of a queue pair, for system calls.
#[derive(Debug)]
pub(crate) struct Arena {
    start: NonNull<u8>,
    len_bytes: u32,
    _pin: Arc<Mapping>,
}

// SAFETY: the pin keeps the memory; only the kernel follows the pointer, and no reference is ever made.
unsafe impl Send for Arena {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for Arena {}

impl Arena {
    /// The arena of a pair; keeps it mapped.
    pub(crate) fn of(pair: &VnicPair) -> Result<Self, StaleSegment> {
        let segment = pair.arena();
        let (start, pin) = pair.map().pin(segment, 1)?;
        Ok(Self { start, len_bytes: segment.len, _pin: pin })
    }

    /// A part of it; an empty part if the span is not inside.
    #[inline]
    pub(crate) fn iovec(&self, span: Span) -> libc::iovec {
        let end = u64::from(span.offset) + u64::from(span.len);
        if end > u64::from(self.len_bytes) {
            return EMPTY;
        }
        // SAFETY: offset is at most the arena's length, which `of` had checked.
        let base = unsafe { self.start.add(span.offset as usize) };
        libc::iovec { iov_base: base.as_ptr().cast(), iov_len: span.len as usize }
    }
}

pub(crate) const EMPTY: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// A `mmsghdr` without anything.
pub(crate) fn blank() -> libc::mmsghdr {
    // SAFETY: all its fields are numbers and pointers, for which zeroes are valid.
    unsafe { std::mem::zeroed() }
}

#[repr(C, align(8))] // a cmsghdr starts with a size_t
struct Control([u8; CONTROL_BYTES]);

/// Buffers for `recvmmsg`. The pointers in its messages are valid during a call only.
pub(crate) struct Inbox {
    arena: Arc<Arena>,
    messages: Box<[libc::mmsghdr; BATCH]>,
    iovecs: Box<[[libc::iovec; RECEIVE_PARTS]; BATCH]>,
    controls: Box<[Control; BATCH]>,
}

// SAFETY: between calls its pointers are not followed.
unsafe impl Send for Inbox {}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Inbox")
    }
}

/// A received message.
pub(crate) struct Received<'a> {
    /// Bytes written to its parts.
    pub(crate) len: u32,
    /// Whether it was longer than its parts.
    pub(crate) is_truncated: bool,
    /// Its metadata from the kernel.
    pub(crate) control: &'a [u8],
}

impl Inbox {
    pub(crate) fn new(arena: Arc<Arena>) -> Self {
        Self {
            arena,
            messages: Box::new([blank(); BATCH]),
            iovecs: Box::new([[EMPTY; RECEIVE_PARTS]; BATCH]),
            controls: Box::new([const { Control([0; CONTROL_BYTES]) }; BATCH]),
        }
    }

    /// Receives one message for each of the `buffers`, into those parts that are not empty; returns the number of
    /// messages. At most [`BATCH`].
    ///
    /// # Errors
    /// Errors of recvmmsg(2) for the first message; `AGAIN` if there is none.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        fd: BorrowedFd<'_>,
        buffers: impl Iterator<Item = [Span; RECEIVE_PARTS]>,
    ) -> Result<usize, Errno> {
        let mut count = 0;
        let places = self.iovecs.iter_mut().zip(self.controls.iter_mut());
        for ((message, (iovecs, control)), spans) in self.messages.iter_mut().zip(places).zip(buffers) {
            *iovecs = spans.map(|span| self.arena.iovec(span));
            let header = &mut message.msg_hdr;
            header.msg_iov = iovecs.as_mut_ptr();
            header.msg_iovlen = if spans[1].len == 0 { 1 } else { 2 };
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL_BYTES as _;
            count += 1;
        }
        let messages = self.messages.as_mut_ptr();
        // SAFETY: the first `count` messages point to iovecs and control buffers of ours, as just set, and the iovecs into the
        // arena, which we keep.
        let received = unsafe {
            let flags = libc::MSG_DONTWAIT;
            libc::recvmmsg(fd.as_raw_fd(), messages, count, flags as _, std::ptr::null_mut())
        };
        checked(received).map(|received| received as usize)
    }

    /// Message `index` of the last call.
    #[inline]
    pub(crate) fn message(&self, index: usize) -> Received<'_> {
        let message = &self.messages[index];
        #[allow(clippy::unnecessary_cast, reason = "a socklen_t with musl")]
        let control_len = (message.msg_hdr.msg_controllen as usize).min(CONTROL_BYTES);
        Received {
            len: message.msg_len,
            is_truncated: message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            control: &self.controls[index].0[..control_len],
        }
    }
}

/// Messages for `sendmmsg`.
pub(crate) struct Outbox {
    arena: Arc<Arena>,
    messages: Box<[libc::mmsghdr; BATCH]>,
    iovecs: Box<[libc::iovec; PARTS_MAX]>,
    /// Index of each message's first part, and the end of the last one.
    starts: Box<[usize; BATCH + 1]>,
    message_count: usize,
}

// SAFETY: as for Inbox.
unsafe impl Send for Outbox {}

impl std::fmt::Debug for Outbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Outbox of {} messages", self.message_count)
    }
}

impl Outbox {
    pub(crate) fn new(arena: Arc<Arena>) -> Self {
        Self {
            arena,
            messages: Box::new([blank(); BATCH]),
            iovecs: Box::new([EMPTY; PARTS_MAX]),
            starts: Box::new([0; BATCH + 1]),
            message_count: 0,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.message_count = 0;
    }

    /// Adds a message of the given parts; returns false, without adding it, if there is no room.
    #[inline]
    pub(crate) fn add(&mut self, parts: impl Iterator<Item = Span>) -> bool {
        if self.message_count == BATCH {
            return false;
        }
        let mut end = self.starts[self.message_count];
        for span in parts {
            let Some(iovec) = self.iovecs.get_mut(end) else { return false };
            *iovec = self.arena.iovec(span);
            end += 1;
        }
        self.message_count += 1;
        self.starts[self.message_count] = end;
        true
    }

    /// Sends the added messages, from number `first` on, to a socket. Returns the number sent.
    ///
    /// # Errors
    /// Errors of sendmmsg(2) for the first of them.
    #[inline]
    pub(crate) fn send(&mut self, fd: BorrowedFd<'_>, first: usize) -> Result<usize, Errno> {
        let last = self.message_count;
        let messages = self.messages.get_mut(first..last).unwrap_or_default();
        let mut parts = self.iovecs.get_mut(self.starts[first.min(last)]..).unwrap_or_default();
        for (message, bounds) in messages.iter_mut().zip(self.starts[first.min(last)..].windows(2)) {
            let (own, rest) = parts.split_at_mut(bounds[1] - bounds[0]);
            (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (own.as_mut_ptr(), own.len() as _);
            parts = rest;
        }
        let (at, count) = (messages.as_mut_ptr(), messages.len() as _);
        // SAFETY: the messages point to iovecs of ours, as just set, and those into the arena, which we keep.
        let sent = unsafe { libc::sendmmsg(fd.as_raw_fd(), at, count, libc::MSG_DONTWAIT as _) };
        checked(sent).map(|sent| sent as usize)
    }

    /// Writes one of the added messages to a character device.
    ///
    /// # Errors
    /// Errors of writev(2); `INVAL` for a message that was not added.
    #[inline]
    pub(crate) fn write(&mut self, fd: BorrowedFd<'_>, message: usize) -> Result<usize, Errno> {
        if message >= self.message_count {
            return Err(Errno::INVAL);
        }
        let parts = &self.iovecs[self.starts[message]..self.starts[message + 1]];
        // SAFETY: the iovecs point into the arena, which we keep.
        let written = unsafe { libc::writev(fd.as_raw_fd(), parts.as_ptr(), parts.len() as c_int) };
        if written < 0 { Err(last_error()) } else { Ok(written as usize) }
    }
}

/// Reads a frame from a character device into `span`; returns its length.
///
/// # Errors
/// Errors of read(2); `AGAIN` if there is none.
#[inline]
pub(crate) fn read_frame(fd: BorrowedFd<'_>, arena: &Arena, span: Span) -> Result<usize, Errno> {
    let part = arena.iovec(span);
    // SAFETY: the part lies in the arena, which is pinned.
    let read = unsafe { libc::read(fd.as_raw_fd(), part.iov_base, part.iov_len) };
    if read < 0 { Err(last_error()) } else { Ok(read as usize) }
}

fn get_struct<T: Copy>(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: &mut T) -> Result<(), Errno> {
    let (at, mut len_bytes) = (std::ptr::from_mut(value).cast::<c_void>(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the kernel writes at most `len_bytes` to `value`, a plain number or struct of numbers.
    checked(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, at, &raw mut len_bytes) }).map(drop)
}

/// Number of frames that a packet socket lost since the last call, because it was full.
pub(crate) fn take_lost(fd: BorrowedFd<'_>) -> u32 {
    let mut stats = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    // It only fails for other sockets, which have no such losses.
    let _ = get_struct(fd, libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut stats);
    stats.tp_drops
}

/// Number of datagrams that a socket of IP dropped since it was opened, modulo 2^32: it was full, or they were damaged or refused by
/// the host's IPsec. 0 before Linux 4.12, which does not tell.
pub(crate) fn dropped_by_socket(fd: BorrowedFd<'_>) -> u32 {
    let mut facts = [0_u32; MEMINFO_WORDS];
    // It only fails where the kernel does not know the option.
    let _ = get_struct(fd, libc::SOL_SOCKET, libc::SO_MEMINFO, &mut facts);
    facts[MEMINFO_DROPS]
}

/// linux/sock_diag.h: `SK_MEMINFO_VARS`, `SK_MEMINFO_DROPS`.
const MEMINFO_WORDS: usize = 9;
const MEMINFO_DROPS: usize = 8;

/// Memory that the kernel shares through a socket, mapped as long as this value lives.
#[derive(Debug)]
pub(crate) struct KernelMemory {
    base: NonNull<u8>,
    len_bytes: usize,
}

impl KernelMemory {
    /// Maps `len_bytes` that `socket` has at file offset `offset`.
    ///
    /// # Errors
    /// Errors of mmap(2).
    pub(crate) fn of_socket(socket: BorrowedFd<'_>, offset: u64, len_bytes: usize) -> Result<Self, Errno> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a fresh address range is chosen by the kernel; nothing existing is replaced.
        let base = unsafe { mmap(std::ptr::null_mut(), len_bytes, protection, flags, socket, offset)? };
        let base = NonNull::new(base.cast()).expect("mmap never returns null without MAP_FIXED");
        Ok(Self { base, len_bytes })
    }

    /// Address of its first byte; it is valid as long as this value lives.
    #[inline]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for KernelMemory {
    fn drop(&mut self) {
        // SAFETY: mmap returned it, and those who have pointers into it own this value.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len_bytes) };
    }
}

/// Takes the error that the socket would report at the next call.
///
/// # Errors
/// That error.
pub(crate) fn socket_error(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::net::sockopt::socket_error(fd)?
}

/// Whether the device of a packet socket still exists; it may be down.
pub(crate) fn is_bound(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: as in `bind_to_device`.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut len_bytes = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len_bytes` to the address.
    let result = unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut address).cast(), &raw mut len_bytes) };
    result == 0 && address.sll_ifindex > 0
}
