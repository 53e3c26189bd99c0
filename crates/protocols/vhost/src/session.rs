use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use lasthop_foreign::ForeignFd;

use crate::socket::Link;
use crate::{
    Device, MESSAGES_PER_TURN, PreviousSession, Protocol, Refusals, SessionEnd, SessionMemory, SessionUpdate,
    SessionView, TakeOverError,
};

/// A connected front end and its device. Dropping it stops the rings in order.
#[derive(Debug)]
pub struct Session<D: Device> {
    // Declared first, so dropped first: the rings stop before the front end sees the connection close.
    protocol: Protocol<D>,
    link: Link,
}

impl<D: Device> Session<D> {
    /// Makes a session on a connected UNIX stream, which becomes non-blocking.
    ///
    /// # Errors
    /// If the socket's flags cannot be set.
    pub fn new(socket: ForeignFd, device: D) -> io::Result<Self> {
        Ok(Self { link: Link::new(socket)?, protocol: Protocol::new(device) })
    }

    /// Like `new`, with memory from which a successor may continue if this process is killed. [`update`](Self::update)
    /// gives the rest of its state.
    ///
    /// # Errors
    /// If the socket's flags cannot be set.
    pub fn with_memory(socket: ForeignFd, device: D, kept: SessionMemory) -> io::Result<Self> {
        Ok(Self { link: Link::new(socket)?, protocol: Protocol::with_memory(device, kept) })
    }

    /// The update for a successor since the last one; call it after [`ready`](Self::ready).
    pub fn update(&mut self) -> Option<SessionUpdate> {
        self.protocol.update()
    }

    /// Whether a successor could continue the session: it is between two messages, all replies are sent, and the last
    /// update was reported ([`rest`](Self::rest)).
    #[must_use]
    pub fn is_resting(&self) -> bool {
        self.link.is_resting() && self.protocol.is_resting()
    }

    /// Declares that the last update was reported. A successor can continue from now on, if all replies are sent.
    pub fn rest(&self) {
        if self.link.is_resting() {
            self.protocol.set_resting();
        }
    }

    /// The socket to wait for, level-triggered: always for reading, and for writing if
    /// [`wants_write`](Self::wants_write).
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.link.fd()
    }

    /// The socket, for waiting while another thread has the session.
    #[must_use]
    pub fn socket(&self) -> Arc<ForeignFd> {
        self.link.socket()
    }

    /// Whether replies wait for room in the socket.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        self.link.wants_write()
    }

    /// Serves the messages that have arrived, at most [`MESSAGES_PER_TURN`], and sends the replies. Reads nothing while
    /// too many earlier descriptors are still being closed ([`lasthop_foreign::Origin::is_full`]).
    ///
    /// # Errors
    /// [`SessionEnd`] when the session has ended: drop it.
    pub fn ready(&mut self) -> Result<(), SessionEnd> {
        self.protocol.set_reading();
        let served = self.serve();
        // Replies to messages before the end are still sent.
        let flushed = self.link.flush();
        served.and(flushed)
    }

    fn serve(&mut self) -> Result<(), SessionEnd> {
        self.link.flush()?;
        for _ in 0..MESSAGES_PER_TURN {
            let Some((message, fds)) = self.link.next()? else { break };
            if let Some(reply) = self.protocol.handle(&message, fds)? {
                self.link.push(&reply, self.protocol.take_reply_fd())?;
            }
        }
        Ok(())
    }

    /// The CPU time of slow replies since the last call; each of them occupied a CPU.
    pub fn take_slow_writes(&mut self) -> Duration {
        self.link.take_slow_writes()
    }

    /// The device of the session.
    pub fn device(&mut self) -> &mut D {
        self.protocol.device()
    }

    /// A snapshot of the session, for diagnosis.
    #[must_use]
    pub fn view(&self) -> SessionView {
        self.protocol.view()
    }

    /// See [`Protocol::set_link`].
    pub fn set_link(&mut self, up: bool) -> bool {
        self.protocol.set_link(up)
    }

    /// See [`Protocol::hears_of_link`].
    #[must_use]
    pub fn hears_of_link(&self) -> bool {
        self.protocol.hears_of_link()
    }

    /// Refused requests.
    #[must_use]
    pub fn refusals(&self) -> &Refusals {
        self.protocol.refusals()
    }
}

/// Everything needed to continue the session of another process, which may still be running. Dropping it leaves the
/// session as it is.
#[derive(Debug)]
pub struct Successor<D: Device> {
    protocol: Protocol<D>,
    socket: ForeignFd,
}

impl<D: Device> Successor<D> {
    /// Prepares everything that does not depend on the rings' positions.
    ///
    /// # Errors
    /// [`TakeOverError`] if the session cannot continue with this device or this state.
    pub fn prepare(socket: ForeignFd, device: D, previous: PreviousSession) -> Result<Self, TakeOverError> {
        Ok(Self { protocol: Protocol::prepare(device, previous)?, socket })
    }

    /// Faults the memory of running rings in, ring after ring until `is_over`, so that the takeover need not wait for
    /// that.
    pub fn touch(&self, is_over: impl Fn() -> bool) {
        self.protocol.touch(is_over);
    }

    /// Continues the session. The old process has died, or does nothing any more. The front end does not notice.
    ///
    /// # Errors
    /// [`TakeOverError`] if it cannot continue, for example for lack of an update; the connection is shut
    /// down.
    pub fn take_over(self) -> Result<Session<D>, TakeOverError> {
        // After an error from here on, dropping the link shuts the connection down.
        let mut session = Session { protocol: self.protocol, link: Link::new(self.socket)? };
        session.protocol.take_over()?;
        Ok(session)
    }
}
