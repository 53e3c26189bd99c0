//! The program's descriptors of sockets to the switch.

mod sys;

pub(crate) use sys::{borrow, replace};

use std::os::fd::RawFd;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::WAIT;

/// Waits for data: for an answer with a time limit, otherwise for as long as the program wants.
pub(crate) fn wait(fd: RawFd, is_answer: bool) -> Result<(), Errno> {
    let limit = Timespec { tv_sec: WAIT.as_secs().cast_signed(), tv_nsec: 0 };
    let fd = borrow(fd);
    match rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], is_answer.then_some(&limit))? {
        0 => Err(Errno::TIMEDOUT),
        _ => Ok(()),
    }
}

/// Sends a request of the program again.
pub(crate) fn send_again(fd: RawFd, datagram: &[u8]) -> Result<usize, Errno> {
    rustix::net::send(borrow(fd), datagram, rustix::net::SendFlags::NOSIGNAL)
}
