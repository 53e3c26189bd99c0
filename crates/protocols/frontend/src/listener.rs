//! The socket of a VMM in server mode.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use crate::{Guest, GuestError, GuestOptions};

/// The socket of a VMM in server mode: back ends connect to it.
#[derive(Debug)]
pub struct GuestListener {
    socket: UnixListener,
    path: PathBuf,
}

impl GuestListener {
    /// Listens at `path`, which must not exist.
    ///
    /// # Errors
    /// [`GuestError::System`] if the socket cannot be bound.
    pub fn bind(path: impl AsRef<Path>) -> Result<Self, GuestError> {
        let path = path.as_ref().to_owned();
        Ok(Self { socket: UnixListener::bind(&path)?, path })
    }

    /// Waits for a back end to connect, and starts a guest on it.
    ///
    /// # Errors
    /// [`GuestError::System`] if no connection comes, else as [`Guest::over`].
    pub fn accept(&self, options: GuestOptions) -> Result<Guest, GuestError> {
        let (stream, _) = self.socket.accept()?;
        Guest::over(stream, options)
    }

    /// The socket, for waiting or for making it non-blocking.
    #[must_use]
    pub fn socket(&self) -> &UnixListener {
        &self.socket
    }
}

impl Drop for GuestListener {
    fn drop(&mut self) {
        // No client can connect after this; the file may be removed already.
        let _ = std::fs::remove_file(&self.path);
    }
}
