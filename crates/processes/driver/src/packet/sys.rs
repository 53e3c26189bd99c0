//! The memory of a packet socket's ring for received frames: mapped from the kernel, which writes to a slot while that is its own.
//!
//! ```text
//!   one mapping   [ slot 0 | slot 1 | ... | slot n-1 ]
//!   a slot        [ tpacket2_hdr: status, .. | .. | virtio-net header | frame ]
//!                   0                          mac - header_bytes^  mac^
//! ```
//!
//! A slot's status says whose it is. Only this process has the mapping: the switch does not see it.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use lasthop_device::PacketRing;
use rustix::io::Errno;

use crate::sys::KernelMemory;

/// More than a device's ring has.
const RING_BYTES_MAX: usize = 64 << 20;
const HEADER_BYTES: usize = size_of::<libc::tpacket2_hdr>();

/// The mapped slots.
#[derive(Debug)]
pub(super) struct FrameSlots {
    memory: KernelMemory,
    slots: u32,
    slot_bytes: usize,
}

// SAFETY: the mapping belongs to this value alone. The kernel shares it, and by the status of a slot either side knows
// whether it may access the rest.
unsafe impl Send for FrameSlots {}

/// A slot that is not the kernel's.
#[derive(Clone, Copy)]
pub(super) struct FrameSlot<'a> {
    pub(super) header: libc::tpacket2_hdr,
    /// The rest, behind the header.
    bytes: &'a [u8],
}

impl std::fmt::Debug for FrameSlot<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slot of status {:#x}", self.header.tp_status)
    }
}

impl<'a> FrameSlot<'a> {
    /// Bytes of it, by their place in the slot; `None` if they are not behind its header and inside.
    #[inline]
    pub(super) fn bytes(&self, range: Range<usize>) -> Option<&'a [u8]> {
        let behind = |at: usize| at.checked_sub(HEADER_BYTES);
        self.bytes.get(behind(range.start)?..behind(range.end)?)
    }
}

impl FrameSlots {
    /// Maps the ring that `socket` has.
    ///
    /// # Errors
    /// Errors of mmap(2); `PROTO` for a ring that no supervisor makes.
    pub(super) fn of_socket(socket: BorrowedFd<'_>, ring: PacketRing) -> Result<Self, Errno> {
        let slot_bytes = ring.slot_bytes as usize;
        let whole = (ring.slots as usize).checked_mul(slot_bytes).filter(|bytes| *bytes <= RING_BYTES_MAX);
        let is_usual =
            ring.slots > 1 && ring.slots.is_power_of_two() && slot_bytes.is_multiple_of(HEADER_BYTES);
        let len_bytes = whole.filter(|bytes| *bytes > 0 && is_usual).ok_or(Errno::PROTO)?;
        Ok(Self { memory: KernelMemory::of_socket(socket, 0, len_bytes)?, slots: ring.slots, slot_bytes })
    }

    /// Number of slots, at least 2.
    #[inline]
    pub(super) fn count(&self) -> u32 {
        self.slots
    }

    /// Address of slot `number`, modulo the number of slots.
    #[inline]
    fn at(&self, number: u32) -> NonNull<u8> {
        let index = (number & (self.slots - 1)) as usize;
        // SAFETY: the index is below the number of slots, all of which are mapped.
        unsafe { self.memory.base().add(index * self.slot_bytes) }
    }

    #[inline]
    fn status(&self, number: u32) -> &AtomicU32 {
        const { assert!(std::mem::offset_of!(libc::tpacket2_hdr, tp_status) == 0) };
        // SAFETY: a slot begins with its status, and is aligned to the header's size; the kernel and this process use it as
        // one word only.
        unsafe { self.at(number).cast::<AtomicU32>().as_ref() }
    }

    /// Slot `number`, unless it is the kernel's.
    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<FrameSlot<'_>> {
        if self.status(number).load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return None;
        }
        let at = self.at(number);
        // SAFETY: the slot is mapped and aligned, and the kernel has written its header before the status, and writes
        // no more to it until `release`, which needs this value exclusively.
        let header = unsafe { at.cast::<libc::tpacket2_hdr>().read() };
        // SAFETY: as above; `of_socket` found the slot larger than its header.
        let bytes = unsafe {
            std::slice::from_raw_parts(at.add(HEADER_BYTES).as_ptr(), self.slot_bytes - HEADER_BYTES)
        };
        Some(FrameSlot { header, bytes })
    }

    /// Gives slot `number` to the kernel.
    #[inline]
    pub(super) fn release(&mut self, number: u32) {
        self.status(number).store(libc::TP_STATUS_KERNEL, Ordering::Release);
    }
}
