use std::os::fd::AsFd;

use lasthop_foreign::{ForeignFd, is_unix_stream};
use rustix::net::{SendFlags, send};

use crate::RequestError;
use crate::message::{VhostMessage, request};
use crate::saved::FdNumbers;

/// VHOST_USER_BACKEND_CONFIG_CHANGE_MSG (vhost-user, "Back-end message types"): read the configuration space again.
const CONFIG_CHANGE: u32 = 2;

/// Where the back end may ask the front end for something. It is kept open, since a closed one ends the front end's device.
#[derive(Debug, Default)]
pub(crate) struct BackendChannel {
    fd: Option<ForeignFd>,
    /// Its number for a successor.
    number: u32,
}

impl BackendChannel {
    /// Takes the socket that came with SET_BACKEND_REQ_FD, in place of an older one. It is a UNIX stream, as the specification has
    /// it: to others a write may wait, in spite of MSG_DONTWAIT, for a lock that the front end holds.
    ///
    /// # Errors
    /// [`RequestError`]: it is something else.
    pub(crate) fn open(
        &mut self,
        fds: Vec<ForeignFd>,
        fd_numbers: &mut FdNumbers,
    ) -> Result<(), RequestError> {
        let fd = fds.into_iter().next();
        if fd.as_ref().is_some_and(|fd| !is_unix_stream(fd.as_fd())) {
            return Err(RequestError::NoUnixStream(request::name(request::SET_BACKEND_REQ_FD)));
        }
        *self = Self { number: fd.as_ref().map_or(0, |fd| fd_numbers.keep(fd)), fd };
        Ok(())
    }

    /// The socket of a dead session.
    pub(crate) fn of_kept(fd: ForeignFd, number: u32) -> Self {
        Self { fd: Some(fd), number }
    }

    pub(crate) fn kept(&self) -> Option<u32> {
        self.fd.as_ref().map(|_| self.number)
    }

    /// Whether the front end was told that its device's configuration changed. Nothing waits for one that does not read, and
    /// no answer is asked for, so that there is nothing to read here. The kernel appends to a UNIX stream's queue under a spinlock, and
    /// takes no lock that a reader keeps while it waits for a page.
    pub(crate) fn tell_config_changed(&self) -> bool {
        let Some(fd) = &self.fd else { return false };
        let message = VhostMessage::new(CONFIG_CHANGE, Vec::new()).encode();
        send(fd.as_fd(), &message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
            .is_ok_and(|sent| sent == message.len())
    }
}
