//! A socket's error queue (ip(7), `IP_RECVERR`; ipv6(7), `IPV6_RECVERR`): it says how long datagrams to a host may be.
//!
//! The kernel queues two kinds of errors. Its own are about a datagram that was just refused, and are as true as its routes. Those of
//! others came as ICMP. Anyone may have sent them, so they say nothing here: the kernel has checked them, and has changed what it knows of
//! the path, which the next datagram meets. But each of them fails one system call on the socket, whichever datagram that is for.

mod sys;

use std::os::fd::BorrowedFd;

use lasthop_device::TunnelSocket;
use rustix::io::Errno;

use self::sys::ErrorInbox;
use super::control::entries;

/// Errors that one system call takes.
const ERRORS: usize = 8;
/// System calls until the queue is left for the next time.
const READS_MAX: usize = 8;

/// The origins of errors (linux/errqueue.h).
const ORIGIN_LOCAL: u8 = 1;
/// Bytes of a `sock_extended_err`.
const DESCRIPTION_BYTES: usize = 16;

/// An error that the kernel queued at a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueuedError {
    /// Where its datagram was to go; an address of IPv4 is mapped.
    remote: u128,
    /// The kernel refused the datagram, and no other host said so.
    is_local: bool,
    code: i32,
    /// Of `EMSGSIZE`: the MTU of the path, in bytes.
    mtu_bytes: u32,
}

/// Parses the control data of an error.
fn read_error(control: &[u8], remote: u128) -> Option<QueuedError> {
    let is_error =
        |kind| matches!(kind, (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR));
    let (_, data) = entries(control).find(|(kind, _)| is_error(*kind))?;
    let &[a, b, c, d, origin, _, _, _, e, f, g, h, _, _, _, _] = data.first_chunk::<DESCRIPTION_BYTES>()?;
    Some(QueuedError {
        remote,
        is_local: origin == ORIGIN_LOCAL,
        code: i32::from_ne_bytes([a, b, c, d]),
        mtu_bytes: u32::from_ne_bytes([e, f, g, h]),
    })
}

/// Errors that ICMP from other hosts can cause, for any datagram (the kernel's `icmp_err_convert` and `icmpv6_err_convert`).
pub(super) fn is_of_icmp(error: Errno) -> bool {
    matches!(
        error,
        Errno::NETUNREACH
            | Errno::HOSTUNREACH
            | Errno::NOPROTOOPT
            | Errno::CONNREFUSED
            | Errno::MSGSIZE
            | Errno::OPNOTSUPP
            | Errno::HOSTDOWN
            | Errno::NONET
            | Errno::ACCESS
            | Errno::PROTO
    )
}

/// Errors that the queue had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReceivedErrors {
    /// Errors that ICMP caused.
    pub(super) has_foreign: bool,
    /// The last datagram that was too long: where it was to go, and the MTU of the path there, in bytes.
    too_long: Option<(u128, u32)>,
}

impl ReceivedErrors {
    fn add(&mut self, error: Option<QueuedError>) {
        match error {
            Some(QueuedError { is_local: true, code: libc::EMSGSIZE, remote, mtu_bytes }) => {
                self.too_long = Some((remote, mtu_bytes));
            }
            Some(QueuedError { is_local: true, .. }) => {}
            _ => self.has_foreign = true,
        }
    }

    /// The MTU of the path to a host, if the kernel refused a datagram there for its length.
    pub(super) fn mtu(&self, remote: u128) -> Option<u32> {
        self.too_long.filter(|(there, _)| *there == remote).map(|(_, mtu_bytes)| mtu_bytes)
    }
}

/// Reads a socket's error queue.
#[derive(Debug)]
pub(super) struct ErrorQueue {
    inbox: ErrorInbox,
}

impl ErrorQueue {
    pub(super) fn new(socket: TunnelSocket) -> Self {
        Self { inbox: ErrorInbox::new(socket) }
    }

    /// Empties the queue, at most [`ERRORS`] times [`READS_MAX`]: errors in it take room from datagrams.
    pub(super) fn take(&mut self, fd: BorrowedFd<'_>) -> ReceivedErrors {
        let mut heard = ReceivedErrors::default();
        for _ in 0..READS_MAX {
            // An error of the call itself: there is none in the queue.
            let Ok(count) = self.inbox.receive(fd) else { break };
            (0..count).for_each(|index| heard.add(self.inbox.error(index)));
            if count < ERRORS {
                break;
            }
        }
        heard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(kind: (i32, i32), code: i32, origin: u8, info: u32) -> Vec<u8> {
        let mut control = (16_usize + 16).to_ne_bytes().to_vec();
        control.extend([kind.0.to_ne_bytes(), kind.1.to_ne_bytes(), code.to_ne_bytes()].concat());
        control.extend([origin, 0, 0, 0]);
        control.extend(info.to_ne_bytes());
        control.extend([0; 4]);
        control
    }

    #[test]
    fn only_the_kernel_s_own_errors_say_an_mtu() {
        for kind in [(libc::SOL_IP, libc::IP_RECVERR), (libc::SOL_IPV6, libc::IPV6_RECVERR)] {
            let mut heard = ReceivedErrors::default();
            heard.add(read_error(&control(kind, libc::EMSGSIZE, 2, 68), 7));
            assert_eq!((heard.has_foreign, heard.mtu(7)), (true, None), "it came as ICMP");
            heard.add(read_error(&control(kind, libc::EMSGSIZE, ORIGIN_LOCAL, 1400), 7));
            assert_eq!((heard.mtu(7), heard.mtu(8)), (Some(1400), None));
            heard.add(read_error(&control(kind, libc::EHOSTUNREACH, ORIGIN_LOCAL, 9), 7));
            assert_eq!(heard.mtu(7), Some(1400));
        }
    }

    #[test]
    fn a_description_that_is_cut_or_missing_is_none() {
        let whole = control((libc::SOL_IPV6, libc::IPV6_RECVERR), libc::EMSGSIZE, ORIGIN_LOCAL, 1400);
        for cut in 0..whole.len() {
            assert_eq!(read_error(&whole[..cut], 7), None, "{cut}");
        }
        let other = control((libc::SOL_IPV6, libc::IPV6_PKTINFO), libc::EMSGSIZE, ORIGIN_LOCAL, 1400);
        assert!(read_error(&other, 7).is_none() && read_error(&whole, 7).is_some());
    }
}
