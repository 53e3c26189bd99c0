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

/// One connected front end and the device that it drives. Dropping it stops the rings, in order.
#[derive(Debug)]
pub struct Session<D: Device> {
    // Declared first, so dropped first: the rings stop before the front end sees the connection close.
    protocol: Protocol<D>,
    link: Link,
}

impl<D: Device> Session<D> {
    /// A session on a connected UNIX stream, which is made non-blocking.
    ///
    /// # Errors
    /// When the socket's flags cannot be set.
    pub fn new(socket: ForeignFd, device: D) -> io::Result<Self> {
        Ok(Self { link: Link::new(socket)?, protocol: Protocol::new(device) })
    }

    /// As `new`, with memory from which a successor may continue if this process is killed. The rest of its state comes from
    /// [`update`](Self::update).
    ///
    /// # Errors
    /// When the socket's flags cannot be set.
    pub fn with_memory(socket: ForeignFd, device: D, kept: SessionMemory) -> io::Result<Self> {
        Ok(Self { link: Link::new(socket)?, protocol: Protocol::with_memory(device, kept) })
    }

    /// The update for a successor since the last one: to be asked for after [`ready`](Self::ready).
    pub fn update(&mut self) -> Option<SessionUpdate> {
        self.protocol.update()
    }

    /// Whether a successor could go on with it: it is between two messages, all that was asked is answered, and the news are told
    /// ([`rest`](Self::rest)).
    #[must_use]
    pub fn is_resting(&self) -> bool {
        self.link.is_resting() && self.protocol.is_resting()
    }

    /// A successor knows all of the news: from now on it could go on, if all that was asked is answered.
    pub fn rest(&self) {
        if self.link.is_resting() {
            self.protocol.set_resting();
        }
    }

    /// The socket, to wait for, level-triggered: always for reading, and for writing if [`wants_write`](Self::wants_write).
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.link.fd()
    }

    /// The socket, to be waited for while another thread has the session.
    #[must_use]
    pub fn socket(&self) -> Arc<ForeignFd> {
        self.link.socket()
    }

    /// Whether replies wait for room in the socket.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        self.link.wants_write()
    }

    /// Serves what has arrived, [`MESSAGES_PER_TURN`] messages at most, and sends the replies. Takes nothing while too many descriptors
    /// that came before are still to be closed ([`lasthop_foreign::Origin::is_full`]).
    ///
    /// # Errors
    /// [`SessionEnd`]: why the session is over. Drop it.
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

    /// The CPU time that slow writes of answers have taken since this was asked last: each of them had a CPU to itself.
    pub fn take_slow_writes(&mut self) -> Duration {
        self.link.take_slow_writes()
    }

    /// The device that the front end drives.
    pub fn device(&mut self) -> &mut D {
        self.protocol.device()
    }

    /// How far the front end has come.
    #[must_use]
    pub fn view(&self) -> SessionView {
        self.protocol.view()
    }

    /// As [`Protocol::set_link`].
    pub fn set_link(&mut self, up: bool) -> bool {
        self.protocol.set_link(up)
    }

    /// As [`Protocol::hears_of_link`].
    #[must_use]
    pub fn hears_of_link(&self) -> bool {
        self.protocol.hears_of_link()
    }

    /// Requests that were refused.
    #[must_use]
    pub fn refusals(&self) -> &Refusals {
        self.protocol.refusals()
    }
}

/// All that it takes to go on with the session of another process, which may be at work meanwhile. Dropping it leaves the session as it
/// is.
#[derive(Debug)]
pub struct Successor<D: Device> {
    protocol: Protocol<D>,
    socket: ForeignFd,
}

impl<D: Device> Successor<D> {
    /// Gets everything ready that does not depend on how far the rings are.
    ///
    /// # Errors
    /// [`TakeOverError`]: the session cannot continue with this device, or not with the known state.
    pub fn prepare(socket: ForeignFd, device: D, previous: PreviousSession) -> Result<Self, TakeOverError> {
        Ok(Self { protocol: Protocol::prepare(device, previous)?, socket })
    }

    /// Has the memory mapped that the rings use now, ring after ring until `is_over`: the takeover need not wait for that.
    pub fn touch(&self, is_over: impl Fn() -> bool) {
        self.protocol.touch(is_over);
    }

    /// Continues the session; its process is dead or does nothing any more. The front end sees nothing of it.
    ///
    /// # Errors
    /// [`TakeOverError`]: it cannot continue, perhaps since this process lacks an update, and its connection is shut down.
    pub fn take_over(self) -> Result<Session<D>, TakeOverError> {
        // If anything fails from here on, the link ends the connection.
        let mut session = Session { protocol: self.protocol, link: Link::new(self.socket)? };
        session.protocol.take_over()?;
        Ok(session)
    }
}
