//! System calls on UDP sockets: datagrams in batches, with addresses and the fields of their IP headers.
//!
//! As in `crate::sys`, this makes no reference into the vNIC's memory: it checks addresses against the arena and passes
//! them on.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use lasthop_wire::tunnel::geneve::HEADER_BYTES_MAX;
use rustix::io::Errno;

use super::control::{CONTROL_BYTES, Endpoint, read_control, write_control};
use crate::sys::{Arena, BATCH, EMPTY, PARTS_MAX, Span, blank, checked};

#[repr(C, align(8))] // a cmsghdr starts with a size_t
struct Control([u8; CONTROL_BYTES]);

fn no_name() -> libc::sockaddr_in6 {
    // SAFETY: all its fields are numbers, for which zeroes are valid.
    unsafe { std::mem::zeroed() }
}

/// Buffers for `recvmmsg`. The pointers in its messages are valid during a call only.
pub(super) struct UdpInbox {
    arena: Arc<Arena>,
    messages: Box<[libc::mmsghdr; BATCH]>,
    iovecs: Box<[libc::iovec; BATCH]>,
    names: Box<[libc::sockaddr_in6; BATCH]>,
    controls: Box<[Control; BATCH]>,
}

// SAFETY: between calls its pointers are not followed.
unsafe impl Send for UdpInbox {}

impl std::fmt::Debug for UdpInbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UdpInbox")
    }
}

impl UdpInbox {
    pub(super) fn new(arena: Arc<Arena>) -> Self {
        Self {
            arena,
            messages: Box::new([blank(); BATCH]),
            iovecs: Box::new([EMPTY; BATCH]),
            names: Box::new([no_name(); BATCH]),
            controls: Box::new([const { Control([0; CONTROL_BYTES]) }; BATCH]),
        }
    }

    /// Receives one datagram for each of the `buffers`, at most [`BATCH`]; returns their number.
    ///
    /// # Errors
    /// Errors of recvmmsg(2) for the first of them; `AGAIN` if there is none.
    pub(super) fn receive(
        &mut self,
        fd: BorrowedFd<'_>,
        buffers: impl Iterator<Item = Span>,
    ) -> Result<usize, Errno> {
        let mut count = 0;
        let places = self.iovecs.iter_mut().zip(self.names.iter_mut()).zip(self.controls.iter_mut());
        for ((message, ((iovec, name), control)), span) in self.messages.iter_mut().zip(places).zip(buffers) {
            *iovec = self.arena.iovec(span);
            let header = &mut message.msg_hdr;
            (header.msg_iov, header.msg_iovlen) = (std::ptr::from_mut(iovec), 1);
            header.msg_name = std::ptr::from_mut(name).cast();
            header.msg_namelen = size_of::<libc::sockaddr_in6>() as _;
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL_BYTES as _;
            count += 1;
        }
        let messages = self.messages.as_mut_ptr();
        // SAFETY: the first `count` messages point to iovecs, names and control buffers of ours, as just set, and the iovecs into
        // the arena, which we keep.
        let received = unsafe {
            let flags = libc::MSG_DONTWAIT;
            libc::recvmmsg(fd.as_raw_fd(), messages, count, flags as _, std::ptr::null_mut())
        };
        checked(received).map(|received| received as usize)
    }

    /// Length of datagram `index` of the last call, and its source; `None` if it was truncated.
    pub(super) fn datagram(&self, index: usize) -> (u32, Option<Endpoint>) {
        let (message, name) = (&self.messages[index], &self.names[index]);
        #[allow(clippy::unnecessary_cast, reason = "a socklen_t with musl")]
        let control_len = (message.msg_hdr.msg_controllen as usize).min(CONTROL_BYTES);
        let is_whole = message.msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) == 0;
        let remote = u128::from_be_bytes(name.sin6_addr.s6_addr);
        let first = Endpoint { remote, port: u16::from_be(name.sin6_port), ..Endpoint::default() };
        let endpoint = read_control(&self.controls[index].0[..control_len], first);
        (message.msg_len, is_whole.then_some(endpoint))
    }
}

/// Datagrams for `sendmmsg`, each with a header of ours in front of its parts in the arena.
pub(super) struct UdpOutbox {
    arena: Arc<Arena>,
    messages: Box<[libc::mmsghdr; BATCH]>,
    iovecs: Box<[libc::iovec; PARTS_MAX + BATCH]>,
    heads: Box<[[u8; HEADER_BYTES_MAX]; BATCH]>,
    names: Box<[libc::sockaddr_in6; BATCH]>,
    controls: Box<[Control; BATCH]>,
    /// Index of each message's first part, and the end of the last one.
    starts: Box<[usize; BATCH + 1]>,
    count: usize,
}

// SAFETY: as for UdpInbox.
unsafe impl Send for UdpOutbox {}

impl std::fmt::Debug for UdpOutbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UdpOutbox of {} messages", self.count)
    }
}

impl UdpOutbox {
    pub(super) fn new(arena: Arc<Arena>) -> Self {
        Self {
            arena,
            messages: Box::new([blank(); BATCH]),
            iovecs: Box::new([EMPTY; PARTS_MAX + BATCH]),
            heads: Box::new([[0; HEADER_BYTES_MAX]; BATCH]),
            names: Box::new([no_name(); BATCH]),
            controls: Box::new([const { Control([0; CONTROL_BYTES]) }; BATCH]),
            starts: Box::new([0; BATCH + 1]),
            count: 0,
        }
    }

    pub(super) fn clear(&mut self) {
        self.count = 0;
    }

    /// Adds a datagram to `to`: `head`, then the parts. Returns false, without adding it, if there is no room.
    pub(super) fn add(&mut self, to: &Endpoint, head: &[u8], parts: impl Iterator<Item = Span>) -> bool {
        let at = self.count;
        if at == BATCH || head.len() > HEADER_BYTES_MAX {
            return false;
        }
        self.heads[at][..head.len()].copy_from_slice(head);
        let mut end = self.starts[at];
        let first = libc::iovec { iov_base: self.heads[at].as_mut_ptr().cast(), iov_len: head.len() };
        let rest = parts.map(|span| self.arena.iovec(span));
        for iovec in std::iter::once(first).chain(rest) {
            let Some(place) = self.iovecs.get_mut(end) else { return false };
            *place = iovec;
            end += 1;
        }
        let name = &mut self.names[at];
        name.sin6_family = libc::AF_INET6 as _;
        name.sin6_port = to.port.to_be();
        name.sin6_addr.s6_addr = to.remote.to_be_bytes();
        let control_len = write_control(to, &mut self.controls[at].0);
        let header = &mut self.messages[at].msg_hdr;
        header.msg_controllen = control_len as _;
        self.count += 1;
        self.starts[self.count] = end;
        true
    }

    /// Sends the added messages from number `first` to the one before `end`. Returns the number sent.
    ///
    /// # Errors
    /// Errors of sendmmsg(2) for the first of them.
    pub(super) fn send(&mut self, fd: BorrowedFd<'_>, first: usize, end: usize) -> Result<usize, Errno> {
        let end = end.min(self.count);
        for at in first..end {
            let (start, stop) = (self.starts[at], self.starts[at + 1]);
            let header = &mut self.messages[at].msg_hdr;
            header.msg_iov = self.iovecs[start..stop].as_mut_ptr();
            header.msg_iovlen = (stop - start) as _;
            header.msg_name = std::ptr::from_mut(&mut self.names[at]).cast();
            header.msg_namelen = size_of::<libc::sockaddr_in6>() as _;
            header.msg_control = self.controls[at].0.as_mut_ptr().cast();
        }
        let messages = self.messages.get_mut(first..end).unwrap_or_default();
        let (at, count) = (messages.as_mut_ptr(), messages.len() as _);
        // SAFETY: the messages point to iovecs, names and control buffers of ours, as just set, and the iovecs to heads of ours and into
        // the arena, which we keep.
        let sent = unsafe { libc::sendmmsg(fd.as_raw_fd(), at, count, libc::MSG_DONTWAIT as _) };
        checked(sent).map(|sent| sent as usize)
    }
}
