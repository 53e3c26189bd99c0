//! The memory that the XDP sockets of a device share with the kernel. The opener registers it, and the driver uses it.
//!
//! ```text
//!   one memfd    [ queue 0: slots of 1024 received frames | of 1024 frames to send ] [ queue 1 ] ...
//! ```

/// Slots of a queue's frames for each direction; a power of two. 1024 frames are 1.2 ms of a 10 Gbit/s link.
pub const XDP_FRAMES: u32 = 1024;
/// Bytes before every received frame that belong to the receiver (XDP_PACKET_HEADROOM, linux/bpf.h): more than a
/// virtio-net header.
pub const XDP_HEADROOM_BYTES: u32 = 256;
/// Bytes of an Ethernet header with one VLAN tag.
pub const XDP_LINK_BYTES: u32 = 18;
/// Bytes of the largest MTU with which a device can be used through XDP sockets: one frame fits a slot.
pub const XDP_MTU_BYTES_MAX: u32 = SLOT_BYTES[1] - XDP_HEADROOM_BYTES - XDP_LINK_BYTES;
/// Sizes of a frame's slot: those of an aligned UMEM, with pages of 4 KiB.
const SLOT_BYTES: [u32; 2] = [2048, 4096];

/// Bytes of each frame's slot, for devices of `mtu_bytes`; `None` above [`XDP_MTU_BYTES_MAX`].
#[must_use]
pub fn xdp_slot_bytes(mtu_bytes: u32) -> Option<u32> {
    let wanted = (XDP_HEADROOM_BYTES + XDP_LINK_BYTES).checked_add(mtu_bytes)?;
    SLOT_BYTES.into_iter().find(|bytes| *bytes >= wanted)
}

/// Bytes of one queue's memory with slots of `slot_bytes`: whole pages.
#[must_use]
pub fn xdp_queue_bytes(slot_bytes: u32) -> u32 {
    2 * XDP_FRAMES * slot_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_hold_frames_of_the_mtu_with_a_tag() {
        for (mtu_bytes, slot) in [(68, 2048), (1500, 2048), (1774, 2048), (1775, 4096), (3822, 4096)] {
            assert_eq!(xdp_slot_bytes(mtu_bytes), Some(slot), "{mtu_bytes}");
        }
        assert_eq!(xdp_slot_bytes(XDP_MTU_BYTES_MAX + 1), None);
        assert_eq!(xdp_slot_bytes(u32::MAX), None);
        assert_eq!(xdp_queue_bytes(2048), 4 << 20);
    }
}
