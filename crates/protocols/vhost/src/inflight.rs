//! The file in which a front end keeps track of chains in flight: made here, kept there, and given back after a reconnect.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use lasthop_foreign::ForeignFd;
use lasthop_guestmem::Mapping;
use lasthop_ring::{InflightLog, RING_ENTRIES_MAX};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use serde::{Deserialize, Serialize};

use crate::RequestError;
use crate::message::{InflightMessage, request};

/// The logs of all rings: each has as many bytes, one behind the other.
#[derive(Debug)]
pub(crate) struct Inflight {
    mapping: Arc<Mapping>,
    pub(crate) kept: SavedInflight,
}

/// The file's number and its layout by the front end's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedInflight {
    pub(crate) file: u32,
    offset_bytes: u64,
    size_bytes: u64,
    rings: u16,
    entries: u16,
}

/// Makes a file for as many rings as are asked for, at most `rings_max`, and says how it is to be mapped.
pub(crate) fn create(
    asked: InflightMessage,
    rings_max: u16,
) -> Result<(OwnedFd, InflightMessage), RequestError> {
    check(asked, rings_max)?;
    let size = u64::from(asked.rings) * InflightLog::bytes(asked.entries) as u64;
    let size = size.next_multiple_of(4096);
    let failed = |error: rustix::io::Errno| {
        RequestError::System(request::name(request::GET_INFLIGHT_FD), error.into())
    };
    // Not sealed: it may be another file by the time that it comes back. Truncation is noticed as that of guests' memory is.
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
    /// Maps a file that the front end sent, number `file` for a successor.
    pub(crate) fn map(
        message: InflightMessage,
        fd: &ForeignFd,
        file: u32,
        rings_max: u16,
    ) -> Result<Self, RequestError> {
        let InflightMessage { size_bytes, offset_bytes, rings, entries } = message;
        let kept = SavedInflight { file, offset_bytes, size_bytes, rings, entries };
        check(message, rings_max)?;
        let needed = u64::from(rings) * InflightLog::bytes(entries) as u64;
        if size_bytes < needed {
            return Err(RequestError::Inflight(format!(
                "{size_bytes} bytes, and {rings} rings need {needed}"
            )));
        }
        let mapping = Arc::new(Mapping::of_file(fd.as_fd(), offset_bytes, needed)?);
        Ok(Self { mapping, kept })
    }

    /// As the dead session had it.
    pub(crate) fn of_kept(kept: SavedInflight, fd: &ForeignFd, rings_max: u16) -> Result<Self, RequestError> {
        let SavedInflight { file, offset_bytes, size_bytes, rings, entries } = kept;
        Self::map(InflightMessage { size_bytes, offset_bytes, rings, entries }, fd, file, rings_max)
    }

    /// The log of ring `index`, if there is one. Chains of a receive ring are used in order, so none is ever in flight without
    /// being pending again; the same holds for the control ring. Both have even numbers.
    pub(crate) fn log(&self, index: u16, entries: u16) -> Option<InflightLog> {
        let is_logged = !index.is_multiple_of(2) && index < self.kept.rings && entries <= self.kept.entries;
        let offset = usize::from(index) * InflightLog::bytes(self.kept.entries);
        is_logged.then(|| InflightLog::within(&self.mapping, offset, entries)).flatten()
    }
}
