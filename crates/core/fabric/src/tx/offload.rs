//! A sender's offload metadata: read once, and validated against the frame.

use lasthop_module_api::{DropReason, Header};
use lasthop_wire::vnet::HEADER_BYTES;
use lasthop_wire::{Fragmentation, Offload, check_partial, gso};

/// Stores a sender's metadata in `header`, which has the frame's image, if it is true of the frame. From here on
/// receivers may rely on it.
#[inline(always)] // left to itself the compiler calls it
pub(crate) fn read_offload(header: &mut Header, vnet: [u8; HEADER_BYTES]) -> Result<(), DropReason> {
    header.offload = Offload::default();
    // Without flags and segmentation the other fields have no meaning.
    if vnet[0] | vnet[1] == 0 { Ok(()) } else { parse_offload(header, Offload::parse(&vnet)) }
}

/// As [`read_offload`], for a frame of the switch's own, which may ask for fragmentation.
#[inline(never)]
pub(crate) fn read_own_offload(header: &mut Header, vnet: [u8; HEADER_BYTES]) -> Result<(), DropReason> {
    let offload = Offload::parse(&vnet);
    if !offload.is_fragmented() {
        return read_offload(header, vnet);
    }
    let plan = Fragmentation::plan(header.bytes(), &offload, header.frame_len_bytes());
    header.offload = plan.map(|_| offload).map_err(|_| DropReason::BadGso)?;
    Ok(())
}

#[inline(never)]
fn parse_offload(header: &mut Header, offload: Offload) -> Result<(), DropReason> {
    let frame_len_bytes = header.frame_len_bytes();
    if offload.is_gso() {
        if !offload.needs_csum() {
            return Err(DropReason::BadGso);
        }
        let hdr_len = gso::check(header.bytes(), &offload, frame_len_bytes);
        header.offload = Offload { hdr_len: hdr_len.map_err(|_| DropReason::BadGso)?, ..offload };
    } else if offload.needs_csum() {
        if !check_partial(&offload, header.bytes(), frame_len_bytes) {
            return Err(DropReason::BadCsum);
        }
        header.offload = Offload { hdr_len: 0, gso_size: 0, ..offload };
    }
    Ok(())
}
