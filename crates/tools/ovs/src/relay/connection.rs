//! One end of a relayed connection.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use lasthop_runtime::fault::Fault;
use lasthop_runtime::poller::{Interest, Poller};

use super::frames::Frames;

/// Bytes that are read at a time.
const READ_BYTES: usize = 64 << 10;
/// While more bytes wait for a reader, no more are read for it.
const WAITING_BYTES_MAX: usize = 1 << 20;

/// A socket, with the bytes that were received, and those that wait to be sent.
#[derive(Debug)]
pub(super) struct End {
    stream: UnixStream,
    source: u64,
    received: Frames,
    waiting: Vec<u8>,
    sent: usize,
    interest: Interest,
}

impl End {
    /// Watches a connected socket under the number `source`.
    pub(super) fn new(stream: UnixStream, source: u64, poller: &Poller) -> Result<Self, Fault> {
        stream.set_nonblocking(true).map_err(|error| Fault::internal("watch a connection", error))?;
        let interest = Interest::READ;
        poller.add(&stream, source, interest)?;
        Ok(Self { stream, source, received: Frames::default(), waiting: Vec::new(), sent: 0, interest })
    }

    /// Reads once; whether the other side is still there.
    pub(super) fn receive(&mut self) -> bool {
        let mut bytes = [0; READ_BYTES];
        match self.stream.read(&mut bytes) {
            Ok(0) => false,
            Ok(count) => {
                self.received.push(&bytes[..count]);
                true
            }
            Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }

    /// The next whole message that was received.
    pub(super) fn message(&mut self) -> Result<Option<Vec<u8>>, Fault> {
        self.received.next()
    }

    pub(super) fn send(&mut self, message: &[u8]) {
        self.waiting.extend_from_slice(message);
    }

    /// Sends as much as there is room for; whether the other side is still there.
    pub(super) fn flush(&mut self) -> bool {
        while self.sent < self.waiting.len() {
            match self.stream.write(&self.waiting[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
        (self.waiting, self.sent) = (Vec::new(), 0);
        true
    }

    /// Whether its reader is too slow for more.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() - self.sent > WAITING_BYTES_MAX
    }

    /// Watches it for bytes if the other end takes them, and for room if bytes wait.
    pub(super) fn watch(&mut self, reads: bool, poller: &Poller) -> Result<(), Fault> {
        let interest = Interest { read: reads, write: !self.waiting.is_empty() };
        if interest != self.interest {
            poller.modify(&self.stream, self.source, interest)?;
            self.interest = interest;
        }
        Ok(())
    }
}
