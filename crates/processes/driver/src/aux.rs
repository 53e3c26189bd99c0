//! Metadata of a frame from a packet socket (packet(7), `PACKET_AUXDATA`), and the VLAN tag that is restored from it.

use lasthop_wire::headers::ETHERTYPE_VLAN;
use lasthop_wire::vnet::{GSO_NONE, HEADER_BYTES, Offload};

/// `TP_STATUS_VLAN_VALID`: the kernel removed a tag from the frame.
const STATUS_VLAN_VALID: u32 = 1 << 4;
/// `TP_STATUS_VLAN_TPID_VALID`: the tag's TPID is valid, too.
const STATUS_VLAN_TPID_VALID: u32 = 1 << 6;
/// `struct cmsghdr` on 64-bit machines: a length, a level, a type.
const CONTROL_HEADER_BYTES: usize = 16;
/// `struct tpacket_auxdata`.
const AUXDATA_BYTES: usize = 20;

/// Bytes of the two addresses before a tag.
pub(crate) const ADDRESSES_BYTES: usize = 12;
/// Bytes of a tag.
pub(crate) const TAG_BYTES: usize = 4;

/// The tag that the kernel removed, as it was in the frame. `None` if there was none, or the control data is invalid.
pub(crate) fn stripped_tag(control: &[u8]) -> Option<[u8; TAG_BYTES]> {
    let word = |at: usize| Some(u32::from_ne_bytes(control.get(at..at + 4)?.try_into().ok()?));
    let half = |at: usize| Some(u16::from_ne_bytes(control.get(at..at + 2)?.try_into().ok()?));
    let len = usize::from_ne_bytes(control.get(..8)?.try_into().ok()?);
    let kind = (word(8)? as i32, word(12)? as i32);
    if len < CONTROL_HEADER_BYTES + AUXDATA_BYTES || kind != (libc::SOL_PACKET, libc::PACKET_AUXDATA) {
        return None;
    }
    tag_of(word(CONTROL_HEADER_BYTES)?, half(CONTROL_HEADER_BYTES + 16)?, half(CONTROL_HEADER_BYTES + 18)?)
}

/// The tag that the kernel removed from a frame, by its status and the tag's parts.
#[inline]
pub(crate) fn tag_of(status: u32, tci: u16, tpid: u16) -> Option<[u8; TAG_BYTES]> {
    if status & STATUS_VLAN_VALID == 0 {
        return None;
    }
    // Without a TPID it is that of 802.1Q.
    let tpid = if status & STATUS_VLAN_TPID_VALID == 0 { ETHERTYPE_VLAN } else { tpid };
    let ([a, b], [c, d]) = (tpid.to_be_bytes(), tci.to_be_bytes());
    Some([a, b, c, d])
}

/// The start of a frame with its tag restored: virtio-net header, addresses and tag.
pub(crate) const TAGGED_BYTES: usize = HEADER_BYTES + ADDRESSES_BYTES + TAG_BYTES;

/// Restores the tag at the start of a frame. Adjusts offsets in its header; `None` if they would overflow.
pub(crate) fn with_tag(
    start: [u8; HEADER_BYTES + ADDRESSES_BYTES],
    tag: [u8; TAG_BYTES],
) -> Option<[u8; TAGGED_BYTES]> {
    let mut header = [0; HEADER_BYTES];
    header.copy_from_slice(&start[..HEADER_BYTES]);
    let mut offload = Offload::parse(&header);
    if offload.needs_csum() {
        offload.csum_start = offload.csum_start.checked_add(TAG_BYTES as u16)?;
    }
    if offload.gso_type != GSO_NONE {
        offload.hdr_len = offload.hdr_len.checked_add(TAG_BYTES as u16)?;
    }
    let mut tagged = [0; TAGGED_BYTES];
    tagged[..HEADER_BYTES].copy_from_slice(&offload.emit(0));
    tagged[HEADER_BYTES..TAGGED_BYTES - TAG_BYTES].copy_from_slice(&start[HEADER_BYTES..]);
    tagged[TAGGED_BYTES - TAG_BYTES..].copy_from_slice(&tag);
    Some(tagged)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn control(status: u32, tci: u16, tpid: u16) -> Vec<u8> {
        let mut bytes = 36_usize.to_ne_bytes().to_vec();
        bytes.extend(libc::SOL_PACKET.to_ne_bytes());
        bytes.extend(libc::PACKET_AUXDATA.to_ne_bytes());
        bytes.extend(status.to_ne_bytes());
        bytes.extend([0; 12]); // lengths and offsets
        bytes.extend(tci.to_ne_bytes());
        bytes.extend(tpid.to_ne_bytes());
        bytes
    }

    #[test]
    fn tags_are_told_by_their_status() {
        assert_eq!(stripped_tag(&control(0x51, 0x6064, 0x88a8)), Some([0x88, 0xa8, 0x60, 0x64]));
        assert_eq!(stripped_tag(&control(0x11, 0x6064, 0)), Some([0x81, 0, 0x60, 0x64]), "no TPID told");
        assert_eq!(stripped_tag(&control(0x41, 0x6064, 0x8100)), None, "no tag");
        let mut other = control(0x51, 1, 0x8100);
        other[12] = 9;
        assert_eq!(stripped_tag(&other), None, "something else");
        for len in 0..36 {
            assert_eq!(stripped_tag(&control(0x51, 1, 0x8100)[..len]), None, "{len}");
        }
    }

    #[test]
    fn offsets_from_the_frame_s_start_move_with_a_tag() {
        let offload =
            Offload { flags: 1, gso_type: 1, hdr_len: 54, gso_size: 1448, csum_start: 34, csum_offset: 16 };
        let mut start = [0; HEADER_BYTES + ADDRESSES_BYTES];
        start[..HEADER_BYTES].copy_from_slice(&offload.emit(0));
        start[HEADER_BYTES..].copy_from_slice(&[7; ADDRESSES_BYTES]);
        let tagged = with_tag(start, [0x81, 0, 0, 5]).expect("counted");
        let moved = Offload { hdr_len: 58, csum_start: 38, ..offload };
        assert_eq!(tagged[..HEADER_BYTES], moved.emit(0));
        assert_eq!(tagged[HEADER_BYTES..], [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 0x81, 0, 0, 5]);
        start[6..8].copy_from_slice(&[0xfd, 0xff]);
        assert_eq!(with_tag(start, [0; 4]), None, "a sum that starts beyond all frames");
        start[..2].copy_from_slice(&[0, 0]);
        assert!(with_tag(start, [0; 4]).is_some(), "nothing is to be summed");
    }

    proptest! {
        #[test]
        fn any_answer_of_the_kernel_is_survived(
            control in proptest::collection::vec(any::<u8>(), 0..64),
            start in any::<[u8; HEADER_BYTES + ADDRESSES_BYTES]>(),
        ) {
            let tag = stripped_tag(&control).unwrap_or([0x81, 0, 0, 1]);
            if let Some(tagged) = with_tag(start, tag) {
                prop_assert_eq!(&tagged[HEADER_BYTES..HEADER_BYTES + ADDRESSES_BYTES], &start[HEADER_BYTES..]);
                prop_assert_eq!(&tagged[TAGGED_BYTES - TAG_BYTES..], &tag[..]);
                prop_assert_eq!(&tagged[..2], &start[..2]);
            }
        }
    }
}
