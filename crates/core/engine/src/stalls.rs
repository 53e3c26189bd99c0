//! Whether a long wait in a guest's memory is the doing of its front end.
//!
//! A worker that touches a page waits for the front end if that punches holes around it, and for others: for the host, when it is short
//! of memory; for a disk, when the page was swapped out; for another session's memory that is being unmapped, on kernels before 6.7.
//! So a wait counts only if nothing was unmapped meanwhile and a control shows none: pages of the worker's own, right afterwards.

use std::time::Instant;

use lasthop_guestmem::{Mapping, MemoryMap, Region, Segment};

/// An access to a port's memory that waits longer is a stall, in ns: no page takes that long that has not to come from a disk.
pub(crate) const STALL_NS: u64 = 10_000_000;
/// A control that takes longer, in ns, shows that pages are slow to get for everybody. It takes some 0.02 ms.
const CONTROL_NS_MAX: u64 = 1_000_000;
/// Pages of a control: as many as a large frame has.
const CONTROL_BYTES: usize = 64 * 1024;

/// The things known of a piece of work in one guest's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub(crate) ns: u64,
    /// The thread gave its core away: one that lost it did not wait for memory.
    pub(crate) has_slept: bool,
    /// A page came from a disk.
    pub(crate) has_read_disk: bool,
    /// No memory of any guest was unmapped meanwhile.
    pub(crate) is_alone: bool,
}

impl Wait {
    /// Whether it was for that guest's memory and nothing else. `control` measures how long pages take that no guest has to do with,
    /// and is asked only if all else speaks against the guest.
    pub(crate) fn is_of_the_memory(self, control: impl FnOnce() -> u64) -> bool {
        let Self { ns, has_slept, has_read_disk, is_alone } = self;
        ns >= STALL_NS && has_slept && !has_read_disk && is_alone && control() <= CONTROL_NS_MAX
    }
}

/// How long it takes to get fresh pages of this process's own, in ns; for ever if there are none.
pub(crate) fn control_ns() -> u64 {
    let start = Instant::now();
    let write = || {
        let mapping = Mapping::anonymous(CONTROL_BYTES).ok()?;
        let region = Region { guest_addr: 0, user_addr: 0, mapping: mapping.into() };
        let map = MemoryMap::new(vec![region]).ok()?;
        let all = Segment { offset: 0, len: CONTROL_BYTES as u32, region: 0 };
        // Written, since pages that are only read are one page of zeroes.
        (0..CONTROL_BYTES as u32).step_by(4096).try_for_each(|skip| map.write(all, skip, &[1])).ok()?;
        Some(start.elapsed().as_nanos() as u64)
    };
    write().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALL: Wait = Wait { ns: STALL_NS, has_slept: true, has_read_disk: false, is_alone: true };

    #[test]
    fn a_long_wait_that_nothing_else_explains_is_of_the_memory() {
        assert!(STALL.is_of_the_memory(|| CONTROL_NS_MAX));
    }

    #[test]
    fn a_wait_that_something_else_explains_is_not() {
        let quick = || 20_000;
        assert!(!STALL.is_of_the_memory(|| CONTROL_NS_MAX + 1), "the host is short of memory");
        assert!(!Wait { is_alone: false, ..STALL }.is_of_the_memory(quick), "another session's munmap");
        assert!(!Wait { has_read_disk: true, ..STALL }.is_of_the_memory(quick), "swap");
        assert!(!Wait { has_slept: false, ..STALL }.is_of_the_memory(quick), "the core was taken away");
    }

    #[test]
    fn work_that_did_not_take_long_costs_no_control() {
        let quick = Wait { ns: STALL_NS - 1, ..STALL };
        assert!(!quick.is_of_the_memory(|| unreachable!("it is not suspected")));
    }

    #[test]
    fn a_control_touches_pages_and_gives_them_back() {
        assert!(control_ns() < u64::MAX);
    }
}
