use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use crate::socket::Link;
use crate::{Device, MESSAGES_PER_TURN, Protocol, Refusals, SessionEnd, SessionView};

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
    pub fn new(socket: OwnedFd, device: D) -> io::Result<Self> {
        Ok(Self { link: Link::new(socket)?, protocol: Protocol::new(device) })
    }

    /// The socket, to wait for, level-triggered: always for reading, and for writing if [`wants_write`](Self::wants_write).
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.link.fd()
    }

    /// Whether replies wait for room in the socket.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        self.link.wants_write()
    }

    /// Serves what has arrived, [`MESSAGES_PER_TURN`] messages at most, and sends the replies.
    ///
    /// # Errors
    /// [`SessionEnd`]: why the session is over. Drop it.
    pub fn ready(&mut self) -> Result<(), SessionEnd> {
        let served = self.serve();
        // What was served before the end is still to be told.
        let flushed = self.link.flush();
        served.and(flushed)
    }

    fn serve(&mut self) -> Result<(), SessionEnd> {
        self.link.flush()?;
        for _ in 0..MESSAGES_PER_TURN {
            let Some((message, fds)) = self.link.next()? else { break };
            if let Some(reply) = self.protocol.handle(&message, fds)? {
                self.link.push(&reply)?;
            }
        }
        Ok(())
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

    /// What was asked for and not done.
    #[must_use]
    pub fn refusals(&self) -> &Refusals {
        self.protocol.refusals()
    }
}
