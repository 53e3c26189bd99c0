//! A non-blocking stream as a sequence of incoming and outgoing messages.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use lasthop_foreign::ForeignFd;
use rustix::time::{ClockId, clock_gettime};

use crate::fds::{Received, receive, send, set_nonblocking};
use crate::message::{HEADER_BYTES, MessageHeader, VhostMessage};
use crate::{OUTPUT_BYTES_MAX, ProtocolError, SessionEnd};

/// A write that takes more CPU time is slow: some hundred times as much as one that wakes one thread. It wakes all
/// watches that the front end has on its end of the connection, and cannot be interrupted.
const SLOW_WRITE: Duration = Duration::from_micros(250);
/// Descriptors that may wait with their replies; a front end needs one.
const OUTPUT_FDS_MAX: usize = 4;

/// A stream with its incoming message and its outgoing replies.
///
/// It never reads beyond a message, so received file descriptors belong to the incoming message.
#[derive(Debug)]
pub(crate) struct Link {
    socket: Arc<ForeignFd>,
    header: [u8; HEADER_BYTES],
    /// Length as in the header; empty before the header has arrived.
    body: Vec<u8>,
    /// Bytes of header and body that have arrived.
    arrived: usize,
    fds: Vec<ForeignFd>,
    output: Vec<u8>,
    /// Descriptors of unsent replies, each with the reply's offset in the output.
    output_fds: VecDeque<(usize, OwnedFd)>,
    /// CPU time of slow writes since the last report.
    slow_writes: Duration,
}

impl Link {
    pub(crate) fn new(socket: ForeignFd) -> io::Result<Self> {
        set_nonblocking(socket.as_fd())?;
        let (body, fds, output) = (Vec::new(), Vec::new(), Vec::new());
        let output_fds = VecDeque::new();
        let socket = Arc::new(socket);
        let slow_writes = Duration::ZERO;
        Ok(Self { socket, header: [0; HEADER_BYTES], body, arrived: 0, fds, output, output_fds, slow_writes })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(crate) fn socket(&self) -> Arc<ForeignFd> {
        Arc::clone(&self.socket)
    }

    /// The CPU time of slow writes since the last call.
    pub(crate) fn take_slow_writes(&mut self) -> Duration {
        std::mem::take(&mut self.slow_writes)
    }

    pub(crate) fn wants_write(&self) -> bool {
        !self.output.is_empty()
    }

    /// Whether it is between two messages, and all replies are sent.
    pub(crate) fn is_resting(&self) -> bool {
        self.arrived == 0 && self.output.is_empty()
    }

    /// The next message, once all of it has arrived.
    pub(crate) fn next(&mut self) -> Result<Option<(VhostMessage, Vec<ForeignFd>)>, SessionEnd> {
        while self.arrived < HEADER_BYTES + self.body.len() {
            if !self.fill()? {
                return Ok(None);
            }
            if self.arrived == HEADER_BYTES {
                self.body = vec![0; MessageHeader::decode(self.header).check()?.size as usize];
            }
        }
        self.arrived = 0;
        let MessageHeader { request, flags, .. } = MessageHeader::decode(self.header);
        let body = std::mem::take(&mut self.body);
        Ok(Some((VhostMessage { request, flags, body }, std::mem::take(&mut self.fds))))
    }

    /// Receives more of the incoming message. Returns false if there is nothing to read, or too many earlier
    /// descriptors are still being closed.
    fn fill(&mut self) -> Result<bool, SessionEnd> {
        let into = match self.arrived.checked_sub(HEADER_BYTES) {
            None => &mut self.header[self.arrived..],
            Some(at) => &mut self.body[at..],
        };
        let origin = self.socket.origin();
        if origin.is_overdue() {
            return Err(SessionEnd::SlowToClose);
        }
        if origin.is_full() {
            return Ok(false);
        }
        match receive(self.socket.as_fd(), into, origin, &mut self.fds) {
            Ok(Received { bytes: 0, .. }) => Err(SessionEnd::HungUp),
            Ok(Received { fds_lost: true, .. }) => Err(ProtocolError::TooManyFds.into()),
            Ok(Received { bytes, .. }) => {
                self.arrived += bytes;
                Ok(true)
            }
            Err(error) => passing(error).map(|()| false),
        }
    }

    /// Appends a reply to the output, with its descriptor if it has one.
    pub(crate) fn push(&mut self, reply: &VhostMessage, fd: Option<OwnedFd>) -> Result<(), ProtocolError> {
        self.output_fds.extend(fd.map(|fd| (self.output.len(), fd)));
        self.output.extend(reply.encode());
        let waiting = self.output.len();
        let is_too_much = waiting > OUTPUT_BYTES_MAX || self.output_fds.len() > OUTPUT_FDS_MAX;
        if is_too_much { Err(ProtocolError::RepliesUnread(waiting)) } else { Ok(()) }
    }

    /// Sends as much as the socket accepts.
    pub(crate) fn flush(&mut self) -> Result<(), SessionEnd> {
        while !self.output.is_empty() {
            // A descriptor goes with the first byte of its reply.
            let (fd, next) = match self.output_fds.front() {
                Some((0, fd)) => (Some(fd.as_fd()), self.output_fds.get(1)),
                next => (None, next),
            };
            let end = next.map_or(self.output.len(), |(at, _)| *at);
            let before = cpu_time();
            let sent = send(self.socket.as_fd(), &self.output[..end], fd.as_slice());
            let took = cpu_time().saturating_sub(before);
            if took >= SLOW_WRITE {
                self.slow_writes += took;
            }
            match sent {
                Ok(bytes) => self.sent(bytes),
                Err(error) => return passing(error),
            }
        }
        Ok(())
    }
}

impl Link {
    fn sent(&mut self, bytes: usize) {
        self.output.drain(..bytes);
        if bytes > 0 && self.output_fds.front().is_some_and(|(at, _)| *at == 0) {
            self.output_fds.pop_front();
        }
        self.output_fds.iter_mut().for_each(|(at, _)| *at -= bytes);
    }
}

impl Drop for Link {
    /// Shuts the connection down, since a copy of the socket in another process would keep it open.
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

/// The CPU time of this thread so far.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns no error if the call can be repeated when the socket is ready.
fn passing(error: io::Error) -> Result<(), SessionEnd> {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, Interrupted, WouldBlock};
    match error.kind() {
        WouldBlock | Interrupted => Ok(()),
        BrokenPipe | ConnectionReset => Err(SessionEnd::HungUp),
        _ => Err(SessionEnd::Io(error)),
    }
}
