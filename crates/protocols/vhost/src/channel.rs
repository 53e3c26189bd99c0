use std::os::fd::AsFd;

use lasthop_foreign::{ForeignFd, is_unix_stream};
use rustix::net::{SendFlags, send};

use crate::RequestError;
use crate::message::{VhostMessage, request};
use crate::saved::FdNumbers;

/// VHOST_USER_BACKEND_CONFIG_CHANGE_MSG (vhost-user, "Back-end message types"): the front end shall read the
/// configuration space again.
const CONFIG_CHANGE: u32 = 2;

/// The channel for requests to the front end. It is kept open even without use, since closing it ends the front end's
/// device.
#[derive(Debug, Default)]
pub(crate) struct BackendChannel {
    fd: Option<ForeignFd>,
    /// Its number for a successor.
    number: u32,
}

impl BackendChannel {
    /// Takes the socket that came with SET_BACKEND_REQ_FD, and replaces an older one. It must be a UNIX stream, as the
    /// specification says: on other sockets a write may wait, in spite of MSG_DONTWAIT, for a lock that the front end
    /// holds.
    ///
    /// # Errors
    /// [`RequestError`] if it is no UNIX stream.
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

    /// Takes the socket of a dead session.
    pub(crate) fn of_kept(fd: ForeignFd, number: u32) -> Self {
        Self { fd: Some(fd), number }
    }

    pub(crate) fn kept(&self) -> Option<u32> {
        self.fd.as_ref().map(|_| self.number)
    }

    /// Tells the front end that its device's configuration changed; returns whether it could. This does not wait for a
    /// front end that does not read, and requests no answer, so there is nothing to read here. The kernel appends to a
    /// UNIX stream's queue under a spinlock, and takes no lock that a reader keeps while it waits for a page.
    pub(crate) fn tell_config_changed(&self) -> bool {
        let Some(fd) = &self.fd else { return false };
        let message = VhostMessage::new(CONFIG_CHANGE, Vec::new()).encode();
        send(fd.as_fd(), &message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
            .is_ok_and(|sent| sent == message.len())
    }
}
