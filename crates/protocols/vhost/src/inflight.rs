//! The in-flight file, in which the back end records chains in flight: made here, kept by the front end, and returned
//! after a reconnect.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use lasthop_foreign::ForeignFd;
use lasthop_guestmem::Mapping;
use lasthop_ring::{RING_ENTRIES_MAX, RingFormat, RingLog};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use serde::{Deserialize, Serialize};

use crate::RequestError;
use crate::message::{InflightMessage, request};

/// The logs of all rings, one after the other; all have the same size.
#[derive(Debug)]
pub(crate) struct Inflight {
    mapping: Arc<Mapping>,
    pub(crate) kept: SavedInflight,
}

/// The file's number and its layout as the front end described it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedInflight {
    pub(crate) file: u32,
    offset_bytes: u64,
    size_bytes: u64,
    rings: u16,
    entries: u16,
}

/// Makes a file for the requested number of rings, at most `rings_max`, and describes how to map it.
pub(crate) fn create(
    asked: InflightMessage,
    rings_max: u16,
) -> Result<(OwnedFd, InflightMessage), RequestError> {
    check(asked, rings_max)?;
    // Large enough for both formats: the front end may ask before it acknowledges features.
    let size = u64::from(asked.rings) * RingLog::bytes(RingFormat::Packed, asked.entries) as u64;
    let size = size.next_multiple_of(4096);
    let failed = |error: rustix::io::Errno| {
        RequestError::System(request::name(request::GET_INFLIGHT_FD), error.into())
    };
    // It is not sealed, since the front end may return another file anyway. Truncation is detected as for guests'
    // memory.
    let file = memfd_create("lasthop-inflight", MemfdFlags::CLOEXEC).map_err(failed)?;
    ftruncate(&file, size).map_err(failed)?;
    Ok((file, InflightMessage { size_bytes: size, offset_bytes: 0, ..asked }))
}

fn check(message: InflightMessage, rings_max: u16) -> Result<(), RequestError> {
    let InflightMessage { rings, entries, .. } = message;
    let is_size = entries.is_power_of_two() && entries <= RING_ENTRIES_MAX;
    if rings == 0 || rings > rings_max || !is_size {
        return Err(RequestError::Inflight(format!(
            "{rings} rings of {entries} entries, and the port has {rings_max}"
        )));
    }
    Ok(())
}

impl Inflight {
    /// Maps a file that the front end sent; `file` is its number for a successor.
    pub(crate) fn map(
        message: InflightMessage,
        fd: &ForeignFd,
        file: u32,
        rings_max: u16,
    ) -> Result<Self, RequestError> {
        let InflightMessage { size_bytes, offset_bytes, rings, entries } = message;
        let kept = SavedInflight { file, offset_bytes, size_bytes, rings, entries };
        check(message, rings_max)?;
        let needed = u64::from(rings) * RingLog::bytes(RingFormat::Split, entries) as u64;
        if size_bytes < needed {
            return Err(RequestError::Inflight(format!(
                "{size_bytes} bytes, and {rings} rings need {needed}"
            )));
        }
        // Features may come later: packed rings are logged if there is room for that.
        let wished = u64::from(rings) * RingLog::bytes(RingFormat::Packed, entries) as u64;
        let mapping = Arc::new(Mapping::of_file(fd.as_fd(), offset_bytes, size_bytes.min(wished))?);
        Ok(Self { mapping, kept })
    }

    /// Maps the file of a dead session.
    pub(crate) fn of_kept(kept: SavedInflight, fd: &ForeignFd, rings_max: u16) -> Result<Self, RequestError> {
        let SavedInflight { file, offset_bytes, size_bytes, rings, entries } = kept;
        Self::map(InflightMessage { size_bytes, offset_bytes, rings, entries }, fd, file, rings_max)
    }

    /// The log of ring `index`, if there is one. Receive rings and the control ring use their chains in order, so every chain
    /// in flight becomes available again without a log. Both have even numbers.
    pub(crate) fn log(&self, format: RingFormat, index: u16, entries: u16) -> Option<RingLog> {
        let is_logged = !index.is_multiple_of(2) && index < self.kept.rings && entries <= self.kept.entries;
        let offset = usize::from(index) * RingLog::bytes(format, self.kept.entries);
        is_logged.then(|| RingLog::within(format, &self.mapping, offset, entries)).flatten()
    }
}
