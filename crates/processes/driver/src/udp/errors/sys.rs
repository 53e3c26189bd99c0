//! The system call that reads a socket's error queue.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

use lasthop_device::TunnelSocket;
use rustix::io::Errno;

use super::{ERRORS, QueuedError, read_error};
use crate::sys::{blank, checked};
use crate::udp::sys::address_of;

/// Bytes of the control data of an error: its description with the address of a sender, and what a received datagram has, each with
/// its header.
const CONTROL_BYTES: usize = 256;

#[repr(C, align(8))] // a cmsghdr starts with a size_t
struct ErrorControl([u8; CONTROL_BYTES]);

/// Buffers for errors. The pointers in its messages are valid during a call only.
pub(super) struct ErrorInbox {
    messages: Box<[libc::mmsghdr; ERRORS]>,
    names: Box<[libc::sockaddr_in6; ERRORS]>,
    controls: Box<[ErrorControl; ERRORS]>,
    /// Its socket knows no addresses of IPv6.
    is_ipv4_only: bool,
}

// SAFETY: between calls its pointers are not followed.
unsafe impl Send for ErrorInbox {}

impl std::fmt::Debug for ErrorInbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ErrorInbox")
    }
}

impl ErrorInbox {
    pub(super) fn new(socket: TunnelSocket) -> Self {
        // SAFETY: all its fields are numbers, for which zeroes are valid.
        let no_name: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
        Self {
            messages: Box::new([blank(); ERRORS]),
            names: Box::new([no_name; ERRORS]),
            controls: Box::new([const { ErrorControl([0; CONTROL_BYTES]) }; ERRORS]),
            is_ipv4_only: socket.is_ipv4_only(),
        }
    }

    /// Takes errors from the socket's queue, at most [`ERRORS`]; returns their number. The datagrams that they are about are left out.
    ///
    /// # Errors
    /// Errors of recvmmsg(2); `AGAIN` if there is none.
    pub(super) fn receive(&mut self, fd: BorrowedFd<'_>) -> Result<usize, Errno> {
        let places = self.names.iter_mut().zip(self.controls.iter_mut());
        for (message, (name, control)) in self.messages.iter_mut().zip(places) {
            let header = &mut message.msg_hdr;
            header.msg_name = std::ptr::from_mut(name).cast();
            header.msg_namelen = size_of::<libc::sockaddr_in6>() as _;
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL_BYTES as _;
        }
        let (messages, flags) = (self.messages.as_mut_ptr(), libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT);
        // SAFETY: the messages point to names and control buffers of ours, as just set, and have no other buffers.
        let received = unsafe {
            libc::recvmmsg(fd.as_raw_fd(), messages, ERRORS as _, flags as _, std::ptr::null_mut())
        };
        checked(received).map(|received| received as usize)
    }

    /// Error `index` of the last call; none if its description is cut.
    pub(super) fn error(&self, index: usize) -> Option<QueuedError> {
        let (message, name) = (&self.messages[index], &self.names[index]);
        #[allow(clippy::unnecessary_cast, reason = "a socklen_t with musl")]
        let len = (message.msg_hdr.msg_controllen as usize).min(CONTROL_BYTES);
        read_error(&self.controls[index].0[..len], address_of(name, self.is_ipv4_only))
    }
}
