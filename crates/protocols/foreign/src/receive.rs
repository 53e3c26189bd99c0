use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::cmsg_space;
use rustix::io::Result;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

use crate::{ForeignFd, Origin};

/// Most descriptors of one message (unix(7), SCM_MAX_FD).
const MESSAGE_FDS_MAX: usize = 253;
/// Room for all of them: the kernel closes those without room in the receiving thread.
const CONTROL_BYTES: usize = cmsg_space!(ScmRights(MESSAGE_FDS_MAX));
/// Numbers that are kept free below the limit of open files, twice as many as a message can have, for the same reason:
/// descriptors beyond the limit are closed in the receiving thread.
const SPARE_NUMBERS: u64 = 2 * MESSAGE_FDS_MAX as u64;
/// A limit below this has no room for spare numbers.
const LIMIT_MIN: u64 = 4 * SPARE_NUMBERS;

/// The first spare number.
static SPARE_FROM: AtomicI32 = AtomicI32::new(RawFd::MAX);

/// The result of a receive call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Number of bytes; 0 when the peer closed. With `MSG_TRUNC`, the length of the datagram.
    pub bytes: usize,
    /// Whether descriptors were lost, since the limit of open files is (nearly) reached.
    pub is_cut: bool,
}

/// Sets the limit of open files to `numbers` (RLIMIT_NOFILE).
pub fn set_limit(numbers: u64) {
    let from = if numbers < LIMIT_MIN { u64::MAX } else { numbers - SPARE_NUMBERS };
    SPARE_FROM.store(RawFd::try_from(from).unwrap_or(RawFd::MAX), Ordering::Relaxed);
}

/// Receives bytes into `into`, and adds the descriptors that come with them to `fds`; they count for `origin`.
///
/// If the numbers of descriptors come near the limit, the received ones go to the closing threads.
///
/// # Errors
/// Those of recvmsg(2).
pub fn receive(
    socket: BorrowedFd<'_>,
    into: &mut [u8],
    flags: RecvFlags,
    origin: &Origin,
    fds: &mut Vec<ForeignFd>,
) -> Result<Received> {
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(into)];
    let received = recvmsg(socket, &mut slices, &mut control, flags | RecvFlags::CMSG_CLOEXEC)?;
    let before = fds.len();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights.map(|fd| ForeignFd::new(fd, origin)));
        }
    }
    let spare_from = SPARE_FROM.load(Ordering::Relaxed);
    let is_short = fds[before..].iter().any(|fd| fd.as_fd().as_raw_fd() >= spare_from);
    if is_short {
        fds.truncate(before);
    }
    Ok(Received { bytes: received.bytes, is_cut: is_short || received.flags.contains(ReturnFlags::CTRUNC) })
}

/// Like [`receive`], from a peer that has no descriptors to send: closes any, and returns whether there were any.
///
/// # Errors
/// Those of recvmsg(2).
pub fn discard(
    socket: BorrowedFd<'_>,
    into: &mut [u8],
    flags: RecvFlags,
    origin: &Origin,
) -> Result<(usize, bool)> {
    let mut fds = Vec::new();
    let received = receive(socket, into, flags, origin, &mut fds)?;
    Ok((received.bytes, received.is_cut || !fds.is_empty()))
}
