//! Signals as bytes on a socket, so that the event loop handles them like other events.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::fault::Fault;
use crate::sys;

/// Readable once the process was told to end.
#[derive(Debug)]
pub struct Signals(UnixStream);

impl Signals {
    /// Handles SIGTERM and SIGINT, and SIGHUP unless it is ignored (`nohup`).
    pub fn take() -> Result<Self, Fault> {
        Self::register().map_err(|error| Fault::internal("handle signals", error))
    }

    fn register() -> std::io::Result<Self> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            if signal != SIGHUP || !is_ignored(signal) {
                signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
            }
        }
        Ok(Self(reader))
    }

    /// Whether a signal came since the last call.
    pub fn came(&mut self) -> bool {
        self.0.read(&mut [0; 64]).is_ok_and(|bytes| bytes > 0)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Blocks no signal, whatever this process inherited: its parent's thread that starts processes blocks all. For the
/// start of a process.
pub fn unblock() {
    sys::block_signals(false);
}

/// Blocks all signals in the calling thread: others handle them.
pub fn block() {
    sys::block_signals(true);
}

/// Ignores SIGTERM and SIGINT: the process ends when its supervisor tells it to or is gone.
pub fn ignore() -> Result<(), Fault> {
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))
            .map_err(|error| Fault::internal("handle signals", error))?;
    }
    Ok(())
}

/// Whether the parent ignored `signal`; the mask in /proc shows that without changing anything.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignored_mask(&status).is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

fn ignored_mask(status: &str) -> Option<u64> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_ignored_signals_is_found() {
        assert_eq!(ignored_mask("Name:\tx\nSigIgn:\t0000000000001001\nSigCgt:\t0\n"), Some(0x1001));
        assert_eq!(ignored_mask("Name:\tx\n"), None);
        assert!(!is_ignored(SIGTERM));
    }
}
