//! The functions of libc that the program calls, and their helpers: they turn raw pointers into safe calls.
//!
//! No function here panics, since a panic would end the program: failures are error numbers.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;

use libc::{iovec, msghdr, sockaddr, sockaddr_nl, socklen_t, ssize_t};
use rustix::io::Errno;

use crate::descriptor::borrow;
use crate::switch_socket::Datagram;
use crate::table::{self, NetlinkSocket};
use crate::{ahead, moved, probe};
use lasthop_dpif::private::END;

/// Bytes of a message's length and type.
const START_BYTES: usize = 6;

/// libc's own functions, which ours replace.
mod real {
    use super::*;
    use std::ffi::CStr;
    use std::sync::OnceLock;

    macro_rules! functions {
        ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
            /// # Safety
            /// As for libc.
            pub(super) unsafe fn $name($($argument: $type),*) -> $result {
                type Function = unsafe extern "C" fn($($type),*) -> $result;
                static FUNCTION: OnceLock<Option<Function>> = OnceLock::new();
                const NAME: &str = concat!(stringify!($name), "\0");
                let found = FUNCTION.get_or_init(|| {
                    let name = CStr::from_bytes_with_nul(NAME.as_bytes()).ok()?;
                    // SAFETY: the symbol of this name is a function of this type, or null, which is `None`.
                    unsafe {
                        let symbol = libc::dlsym(libc::RTLD_NEXT, name.as_ptr());
                        std::mem::transmute::<*mut c_void, Option<Function>>(symbol)
                    }
                });
                match found {
                    // SAFETY: the caller follows libc's rules.
                    Some(function) => unsafe { function($($argument),*) },
                    None => <$result>::from(failed(Errno::NOSYS) as i8),
                }
            }
        )*};
    }

    functions! {
        socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
        connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
        bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
        getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
        setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
        send(fd: c_int, bytes: *const c_void, len: usize, flags: c_int) -> ssize_t;
        sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
        recv(fd: c_int, bytes: *mut c_void, len: usize, flags: c_int) -> ssize_t;
        recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
        close(fd: c_int) -> c_int;
    }
}

/// Sets errno and returns -1.
fn failed(errno: Errno) -> c_int {
    // SAFETY: the pointer is to this thread's own number.
    unsafe { *libc::__errno_location() = errno.raw_os_error() };
    -1
}

fn errno() -> Errno {
    // SAFETY: as above.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

/// The result of a function of libc, as a length.
fn length(result: ssize_t) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| errno())
}

/// In the form of a libc function's result.
fn returned(result: Result<usize, Errno>) -> ssize_t {
    match result {
        Ok(len) => ssize_t::try_from(len).unwrap_or(ssize_t::MAX),
        Err(errno) => failed(errno) as ssize_t,
    }
}

fn done(result: Result<(), Errno>) -> c_int {
    result.map_or_else(failed, |()| 0)
}

/// Memory of the program for the duration of a call; if it is empty, the pointer may be anything.
///
/// # Safety
/// There are `len` items at `start`, which no other code writes meanwhile.
unsafe fn items<'a, T>(start: *const T, len: usize) -> &'a [T] {
    if start.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(start, len) }
}

/// # Safety
/// As socket(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let opened = if domain == libc::AF_NETLINK { table::open(protocol) } else { None };
    if let Some(result) = opened {
        return result.unwrap_or_else(failed);
    }
    // SAFETY: the caller's arguments.
    let fd = unsafe { real::socket(domain, kind, protocol) };
    if domain == libc::AF_NETLINK {
        table::note(fd, protocol);
    }
    fd
}

/// # Safety
/// As close(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn close(fd: c_int) -> c_int {
    table::forget(fd);
    // SAFETY: the caller's argument.
    unsafe { real::close(fd) }
}

/// # Safety
/// As connect(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    match table::switch_socket(fd) {
        Some(_) => 0,
        // SAFETY: the caller's arguments.
        None => unsafe { real::connect(fd, address, len) },
    }
}

/// # Safety
/// As bind(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    match table::switch_socket(fd) {
        Some(_) => 0,
        // SAFETY: the caller's arguments.
        None => unsafe { real::bind(fd, address, len) },
    }
}

/// # Safety
/// As getsockname(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let Some(socket) = table::switch_socket(fd) else {
        // SAFETY: the caller's arguments.
        return unsafe { real::getsockname(fd, address, len) };
    };
    let size = size_of::<sockaddr_nl>();
    // SAFETY: an address of zeros is one; as in libc, `address` has room for `*len` bytes, of which no more are written.
    unsafe {
        let mut name: sockaddr_nl = std::mem::zeroed();
        name.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        name.nl_pid = socket.port_id();
        let room = usize::try_from(*len).unwrap_or(0).min(size);
        std::ptr::copy_nonoverlapping((&raw const name).cast::<u8>(), address.cast::<u8>(), room);
        *len = size as socklen_t;
    }
    0
}

/// # Safety
/// As setsockopt(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    match table::switch_socket(fd).filter(|_| level == libc::SOL_NETLINK) {
        Some(socket) if len as usize >= size_of::<u32>() => {
            // SAFETY: as in libc, there are `len` bytes at `value`, enough for a number.
            let value = unsafe { value.cast::<u32>().read_unaligned() };
            done(socket.set_option(name, value))
        }
        Some(_) => failed(Errno::INVAL),
        // SAFETY: the caller's arguments.
        None => unsafe { real::setsockopt(fd, level, name, value, len) },
    }
}

/// # Safety
/// As send(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn send(fd: c_int, bytes: *const c_void, len: usize, flags: c_int) -> ssize_t {
    match table::find(fd) {
        Some(NetlinkSocket::Switch(socket)) => {
            // SAFETY: as in libc, there are `len` bytes at `bytes`.
            socket.remember(unsafe { items(bytes.cast::<u8>(), len) });
            returned(socket.send(|| {
                // SAFETY: the caller's arguments.
                length(unsafe { real::send(fd, bytes, len, flags | libc::MSG_NOSIGNAL) })
            }))
        }
        Some(NetlinkSocket::Route) => {
            // SAFETY: as in libc, there are `len` bytes at `bytes`.
            let request = unsafe { items(bytes.cast::<u8>(), len) };
            let changed = probe::changed(request);
            let bytes = changed.as_ref().map_or(bytes, |changed| changed.as_ptr().cast());
            // SAFETY: the caller's arguments, or as many bytes of ours, which live until the end of the call.
            unsafe { real::send(fd, bytes, len, flags) }
        }
        // SAFETY: the caller's arguments.
        None => unsafe { real::send(fd, bytes, len, flags) },
    }
}

/// # Safety
/// As sendmsg(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    match table::find(fd) {
        Some(NetlinkSocket::Switch(socket)) => {
            // SAFETY: as in libc, there is a header at `message`; the copy lives until the end of the call. A connected
            // socket takes no name.
            let mut unnamed = unsafe { message.read() };
            unnamed.msg_name = std::ptr::null_mut();
            unnamed.msg_namelen = 0;
            // SAFETY: as in libc, there are the message's pieces and their bytes.
            if let Some(len) = socket.send_ahead(unsafe { pieces(&unnamed) }) {
                return returned(Ok(len));
            }
            // SAFETY: as above.
            socket.remember(unsafe { only_piece(&unnamed) });
            returned(socket.send(|| {
                // SAFETY: the caller's pieces.
                length(unsafe { real::sendmsg(fd, &raw const unnamed, flags | libc::MSG_NOSIGNAL) })
            }))
        }
        // SAFETY: the caller's arguments.
        Some(NetlinkSocket::Route) => unsafe { send_route(fd, message, flags) },
        // SAFETY: the caller's arguments.
        None => unsafe { real::sendmsg(fd, message, flags) },
    }
}

/// The bytes of a message in one piece; empty for other messages.
///
/// # Safety
/// The pieces are as in sendmsg(2).
unsafe fn only_piece(message: &msghdr) -> &[u8] {
    // SAFETY: the caller's promise.
    match unsafe { items(message.msg_iov, message.msg_iovlen) } {
        // SAFETY: as above.
        [piece] => unsafe { items(piece.iov_base.cast::<u8>(), piece.iov_len) },
        _ => &[],
    }
}

/// The bytes of a message by pieces.
///
/// # Safety
/// The pieces are as in sendmsg(2).
unsafe fn pieces(message: &msghdr) -> impl Iterator<Item = &[u8]> + Clone {
    // SAFETY: the caller's promise.
    let pieces = unsafe { items(message.msg_iov, message.msg_iovlen) };
    // SAFETY: as above.
    pieces.iter().map(|piece| unsafe { items(piece.iov_base.cast::<u8>(), piece.iov_len) })
}

/// # Safety
/// As sendmsg(2).
unsafe fn send_route(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: as in libc, there are a header at `message`, its pieces, and their bytes.
    let (mut copy, pieces) = unsafe {
        let copy = message.read();
        (copy, items(copy.msg_iov, copy.msg_iovlen))
    };
    let mut pieces: Vec<iovec> = pieces.to_vec();
    // SAFETY: as above.
    let bytes = |piece: &iovec| unsafe { items(piece.iov_base.cast::<u8>(), piece.iov_len) };
    // OVS sends a request in one piece.
    let mut changed: Vec<Option<Vec<u8>>> = pieces.iter().map(|piece| probe::changed(bytes(piece))).collect();
    for (piece, changed) in pieces.iter_mut().zip(&mut changed) {
        if let Some(changed) = changed {
            piece.iov_base = changed.as_mut_ptr().cast();
        }
    }
    copy.msg_iov = pieces.as_mut_ptr();
    // SAFETY: the caller's arguments, but for pieces of ours, of the same lengths, which live until the end of the call.
    unsafe { real::sendmsg(fd, &raw const copy, flags) }
}

/// # Safety
/// As recvmsg(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let Some(socket) = table::switch_socket(fd) else {
        // SAFETY: the caller's arguments.
        return unsafe { real::recvmsg(fd, message, flags) };
    };
    // SAFETY: as in libc, there is a header at `message`. A length that was written is undone before another attempt.
    let before = unsafe { message.read() };
    let may_wait = flags & libc::MSG_DONTWAIT == 0;
    returned(socket.receive(may_wait, || {
        // SAFETY: the caller's arguments, but for the control data.
        unsafe {
            // A netlink socket has no descriptors to give; with room for them OVS would collect those that are sent here.
            (*message).msg_control = std::ptr::null_mut();
            (*message).msg_controllen = 0;
            (*message).msg_namelen = before.msg_namelen;
            let received = length(real::recvmsg(fd, message, flags | libc::MSG_DONTWAIT));
            (*message).msg_control = before.msg_control;
            Ok(datagram(fd, received?, &*message))
        }
    }))
}

/// The bytes received into the pieces of `message`.
///
/// # Safety
/// The pieces are as in recvmsg(2), and `len` bytes of them were written.
unsafe fn datagram(fd: RawFd, len: usize, message: &msghdr) -> Datagram {
    if message.msg_iovlen == 0 {
        return Datagram::Answer(len);
    }
    // SAFETY: there is a piece, with as many bytes as it says.
    let start = unsafe {
        let piece = message.msg_iov.read();
        items(piece.iov_base.cast::<u8>(), piece.iov_len.min(len))
    };
    match what(len, start.get(..START_BYTES).unwrap_or(start)) {
        Datagram::Answer(len) => {
            if let [_, _, _, _, low, high, ..] = *start {
                ahead::note_received(u16::from_ne_bytes([low, high]));
            }
            // Of the socket's network namespace.
            let name = |index| rustix::net::netdevice::index_to_name(borrow(fd), index).ok();
            let outdated = moved::outdated(start, name);
            outdated.map_or(Datagram::Answer(len), |device| Datagram::Outdated(len, device))
        }
        other => other,
    }
}

fn what(len: usize, start: &[u8]) -> Datagram {
    match (len, start) {
        (0, _) => Datagram::HungUp,
        (_, [_, _, _, _, kind @ ..]) if *kind == END.to_ne_bytes() => Datagram::End,
        _ => Datagram::Answer(len),
    }
}

/// # Safety
/// As recv(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn recv(fd: c_int, bytes: *mut c_void, len: usize, flags: c_int) -> ssize_t {
    let Some(socket) = table::switch_socket(fd) else {
        // SAFETY: the caller's arguments.
        return unsafe { real::recv(fd, bytes, len, flags) };
    };
    returned(socket.receive(flags & libc::MSG_DONTWAIT == 0, || {
        let found = peek(fd)?;
        // SAFETY: the caller's arguments.
        let received = length(unsafe { real::recv(fd, bytes, len, flags | libc::MSG_DONTWAIT) })?;
        Ok(if found == Datagram::End { found } else { what(received, &[]) })
    }))
}

/// Peeks at the next datagram, as the program's buffer may be too short to classify it.
fn peek(fd: RawFd) -> Result<Datagram, Errno> {
    let mut start = [0; START_BYTES];
    let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
    let (len, _) = rustix::net::recv(borrow(fd), start.as_mut_slice(), flags)?;
    Ok(what(len, start.get(..len).unwrap_or_default()))
}
