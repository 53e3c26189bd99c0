//! Entries of AF_XDP rings: frames, and addresses of free frames.

/// Entries of the largest ring here.
pub(super) const RING_ENTRIES_MAX: u32 = 1 << 16;
/// The entries of a ring; any bytes are a valid value.
pub(super) trait Entry: Copy + private::Sealed {}

mod private {
    /// Types for which any bytes are a valid value, and which have no padding.
    pub(in super::super) trait Sealed {}
    impl Sealed for u64 {}
    impl Sealed for super::Frame {}
}

/// A frame in the receive or transmit ring: `struct xdp_desc` (linux/if_xdp.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Frame {
    /// Offset in the UMEM.
    pub(super) addr: u64,
    pub(super) len_bytes: u32,
    /// XDP_PKT_CONTD: the frame continues in the next entry.
    pub(super) options: u32,
}

impl Entry for u64 {}
impl Entry for Frame {}
