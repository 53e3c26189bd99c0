//! Computes a new memory map from memory messages; unchanged regions keep their mappings.

use std::os::fd::AsFd;
use std::sync::Arc;

use lasthop_foreign::ForeignFd;
use lasthop_guestmem::{FileRange, Mapping, MemoryMap, Region};

use crate::message::{MemoryRegionMessage, request};
use crate::{MEMORY_SLOTS_MAX, RequestError};

/// The map of a new table, with one file descriptor for each region; their total size is limited to `bytes_max`.
pub(crate) fn replaced(
    old: &MemoryMap,
    messages: &[MemoryRegionMessage],
    fds: &[ForeignFd],
    bytes_max: u64,
) -> Result<MemoryMap, RequestError> {
    if messages.is_empty() {
        return Err(RequestError::NotShared);
    }
    check_fds(request::SET_MEM_TABLE, fds, messages.len())?;
    check_size(messages.iter().map(|message| message.size), bytes_max)?;
    let regions = messages.iter().zip(fds).map(|(message, fd)| region(old, *message, fd));
    map(regions.collect::<Result<_, _>>()?)
}

/// The old map with one more region; `None` if that region exists already: front ends with several queue pairs add it
/// once for each (QEMU up to 7.2). The total size is limited to `bytes_max`.
pub(crate) fn added(
    old: &MemoryMap,
    message: MemoryRegionMessage,
    fds: &[ForeignFd],
    bytes_max: u64,
) -> Result<Option<MemoryMap>, RequestError> {
    check_fds(request::ADD_MEM_REG, fds, 1)?;
    let range = FileRange::of(fds[0].as_fd(), message.offset, message.size)?;
    if unchanged(old, message, range).is_some() {
        return Ok(None);
    }
    check_size([old.bytes(), message.size], bytes_max)?;
    let mut regions = old.regions().to_vec();
    if regions.len() >= MEMORY_SLOTS_MAX {
        return Err(RequestError::MemoryTable(format!("all {MEMORY_SLOTS_MAX} memory slots are taken")));
    }
    regions.push(region(old, message, &fds[0])?);
    map(regions).map(Some)
}

/// The old map without one region; `None` if that was removed already, as for `added`. The file offset in the message
/// is ignored, since some front ends omit it.
pub(crate) fn removed(
    old: &MemoryMap,
    message: MemoryRegionMessage,
) -> Result<Option<MemoryMap>, RequestError> {
    let mut regions = old.regions().to_vec();
    let at = regions.iter().position(|region| {
        region.guest_addr == message.guest_addr
            && region.user_addr == message.user_addr
            && region.mapping.len() as u64 == message.size
    });
    let Some(at) = at else { return Ok(None) };
    regions.remove(at);
    map(regions).map(Some)
}

fn map(regions: Vec<Region>) -> Result<MemoryMap, RequestError> {
    MemoryMap::new(regions).map_err(RequestError::MemoryTable)
}

fn check_size(sizes: impl IntoIterator<Item = u64>, max_bytes: u64) -> Result<(), RequestError> {
    let asked_bytes = sizes.into_iter().fold(0, u64::saturating_add);
    if asked_bytes > max_bytes { Err(RequestError::MemoryMax { asked_bytes, max_bytes }) } else { Ok(()) }
}

fn check_fds(number: u32, fds: &[ForeignFd], needed: usize) -> Result<(), RequestError> {
    match fds.len() {
        0 => Err(RequestError::NotShared),
        got if got == needed => Ok(()),
        got => Err(RequestError::FdCount { request: request::name(number), got, needed }),
    }
}

/// The old region with the same memory at the same addresses.
fn unchanged(old: &MemoryMap, message: MemoryRegionMessage, range: FileRange) -> Option<&Region> {
    old.regions().iter().find(|region| {
        region.guest_addr == message.guest_addr
            && region.user_addr == message.user_addr
            && region.mapping.range() == Some(range)
            && !region.mapping.is_dead()
    })
}

fn region(old: &MemoryMap, message: MemoryRegionMessage, fd: &ForeignFd) -> Result<Region, RequestError> {
    let MemoryRegionMessage { guest_addr, size, user_addr, offset } = message;
    let range = FileRange::of(fd.as_fd(), offset, size)?;
    let mapping = match unchanged(old, message, range) {
        Some(region) => Arc::clone(&region.mapping),
        None => Arc::new(Mapping::of_file(fd.as_fd(), offset, size)?),
    };
    Ok(Region { guest_addr, user_addr, mapping })
}
