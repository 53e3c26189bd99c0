use std::sync::Arc;

use lasthop_guestmem::{Mapping, MemoryMap};
use thiserror::Error;

/// The guest cannot be served, since addresses are translated by a single addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the guest has {0} memory regions, a ceiling serves guests with one; give the guest its memory in one region"
)]
pub struct NotOneRegion(pub usize);

/// A guest's only memory region.
#[derive(Debug)]
pub(crate) struct GuestMemory {
    /// The host address of guest address 0.
    origin: *mut u8,
    guest_addr: u64,
    mapping: Arc<Mapping>,
}

// SAFETY: the mapping is shared memory that may be used by any thread, and `origin` is an address in it.
unsafe impl Send for GuestMemory {}

impl GuestMemory {
    pub(crate) fn of(map: &MemoryMap) -> Result<Self, NotOneRegion> {
        let [region] = map.regions() else { return Err(NotOneRegion(map.regions().len())) };
        let (guest_addr, mapping) = (region.guest_addr, Arc::clone(&region.mapping));
        let origin = mapping.start().as_ptr().wrapping_sub(guest_addr as usize);
        Ok(Self { origin, guest_addr, mapping })
    }

    /// The host address of `len_bytes` at a guest address, which is trusted: see the crate's documentation.
    #[inline(always)]
    pub(crate) fn at(&self, guest_addr: u64, len_bytes: u32) -> *mut u8 {
        debug_assert!(
            self.holds(guest_addr, len_bytes),
            "{len_bytes} bytes at guest address {guest_addr:#x}"
        );
        self.origin.wrapping_add(guest_addr as usize)
    }

    fn holds(&self, guest_addr: u64, len_bytes: u32) -> bool {
        let offset = guest_addr.checked_sub(self.guest_addr);
        let end = offset.and_then(|offset| offset.checked_add(u64::from(len_bytes)));
        end.is_some_and(|end| end <= self.mapping.len() as u64)
    }
}

/// Prefetches the cache line at `pointer`, which may be any address.
#[inline(always)]
pub(crate) fn prefetch(pointer: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch has no architectural effect and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(pointer.cast::<i8>()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = pointer;
}
