//! The socket of a VMM in server mode.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use crate::{Guest, GuestError, GuestOptions};

/// The socket of a VMM that serves: back ends connect to it.
#[derive(Debug)]
pub struct GuestListener {
    socket: UnixListener,
    path: PathBuf,
}

impl GuestListener {
    /// Listens at `path`, where nothing may be yet.
    ///
    /// # Errors
    /// [`GuestError::System`] when the socket cannot be bound.
    pub fn bind(path: impl AsRef<Path>) -> Result<Self, GuestError> {
        let path = path.as_ref().to_owned();
        Ok(Self { socket: UnixListener::bind(&path)?, path })
    }

    /// Waits for a back end to connect, and starts a guest on it.
    ///
    /// # Errors
    /// [`GuestError::System`] when no connection comes, else as [`Guest::over`].
    pub fn accept(&self, options: GuestOptions) -> Result<Guest, GuestError> {
        let (stream, _) = self.socket.accept()?;
        Guest::over(stream, options)
    }

    /// The socket, to wait for connections or to be made non-blocking.
    #[must_use]
    pub fn socket(&self) -> &UnixListener {
        &self.socket
    }
}

impl Drop for GuestListener {
    fn drop(&mut self) {
        // No client can connect any more; it may have been removed already.
        let _ = std::fs::remove_file(&self.path);
    }
}
