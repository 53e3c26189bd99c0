//! The memory of a guest, and the regions that back ends see.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use lasthop_guestmem::{Mapping, MemoryMap, Region, memfd};
use lasthop_vhost::MemoryRegionMessage;

use crate::GuestError;
use crate::layout::{GUEST_ADDR, USER_ADDR};

/// The memory of a guest: one memfd, mapped whole.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) file: OwnedFd,
    /// One region, whatever regions the back end sees.
    pub(crate) map: MemoryMap,
}

impl Memory {
    pub(crate) fn new(len_bytes: u64) -> Result<Self, GuestError> {
        let file = memfd("lasthop-frontend", len_bytes)?;
        let mapping = Arc::new(Mapping::of_file(file.as_fd(), 0, len_bytes)?);
        let region = Region { guest_addr: GUEST_ADDR, user_addr: USER_ADDR, mapping };
        let map = MemoryMap::new(vec![region]).map_err(GuestError::Options)?;
        Ok(Self { file, map })
    }
}

/// The message about a range of the memory file for a back end.
pub(crate) fn region_message(range: &Range<u64>) -> MemoryRegionMessage {
    MemoryRegionMessage {
        guest_addr: GUEST_ADDR + range.start,
        size: range.end - range.start,
        user_addr: USER_ADDR + range.start,
        offset: range.start,
    }
}
