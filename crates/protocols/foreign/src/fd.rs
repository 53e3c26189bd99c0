use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use crate::{Origin, closing};

/// A descriptor from another process, or a socket to which other processes can send descriptors. Dropping it never
/// blocks.
#[derive(Debug)]
pub struct ForeignFd {
    /// `None` only while it is dropped.
    fd: Option<OwnedFd>,
    origin: Origin,
}

impl ForeignFd {
    /// A descriptor that came from `origin`.
    #[must_use]
    pub fn new(fd: OwnedFd, origin: &Origin) -> Self {
        Self { fd: Some(fd), origin: origin.clone() }
    }

    /// The connection that it came by.
    #[must_use]
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Sets the connection, once that is known.
    #[must_use]
    pub fn of(mut self, origin: &Origin) -> Self {
        self.origin = origin.clone();
        self
    }

    /// Duplicates it.
    ///
    /// # Errors
    /// The error of fcntl(2).
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self::new(self.as_fd().try_clone_to_owned()?, &self.origin))
    }

    /// Makes it a descriptor that is closed at once, for those that a trusted process made itself.
    #[must_use]
    pub fn into_trusted(mut self) -> OwnedFd {
        self.fd.take().expect("only drop takes it before")
    }
}

impl From<OwnedFd> for ForeignFd {
    /// A descriptor of this process's own.
    fn from(fd: OwnedFd) -> Self {
        Self::new(fd, Origin::own())
    }
}

impl From<UnixStream> for ForeignFd {
    /// Like an `OwnedFd`.
    fn from(socket: UnixStream) -> Self {
        OwnedFd::from(socket).into()
    }
}

impl AsFd for ForeignFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("only drop takes it").as_fd()
    }
}

impl AsRawFd for ForeignFd {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Drop for ForeignFd {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            closing::close(&self.origin, fd);
        }
    }
}
