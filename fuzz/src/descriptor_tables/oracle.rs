//! The packets that a receiver is to find, computed from the sender's memory the plainest way.

use lasthop_fabric::Capabilities;
use lasthop_fabric::bounds::{FRAME_BYTES_MAX, FRAME_BYTES_MIN};
use lasthop_wire::vnet::{F_NEEDS_CSUM, GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, HEADER_BYTES};
use lasthop_wire::{Offload, Segmentation, check_partial, gso};

use crate::headers::checksum_of;

use super::layout::Raw;

/// Bytes of a frame that the switch looks at.
const IMAGE_BYTES: usize = 128;
/// Bytes of a virtio-net header that mean the same for all packets: all but the number of buffers.
pub(super) const SHOWN_BYTES: usize = 10;

/// The bytes of a chain's buffers, as far as they are in memory.
pub(super) fn gather(memory: &[u8], buffers: &[Raw]) -> Vec<u8> {
    buffers.iter().filter_map(|raw| raw.range()).flat_map(|range| memory[range].iter().copied()).collect()
}

/// The packets that a chain of these bytes may become at a receiver, each with its virtio-net header up to the number of
/// buffers. None if it is not to be delivered.
pub(super) fn packets(chain: &[u8], header_bytes: usize, receiver: Capabilities) -> Vec<Vec<u8>> {
    let Some((header, frame)) = chain.split_at_checked(header_bytes) else { return Vec::new() };
    let lengths = FRAME_BYTES_MIN as usize..=FRAME_BYTES_MAX as usize;
    let mut vnet = [0; HEADER_BYTES];
    // Behind the long header there may be a hash, which no receiver is told of.
    let header = &header[..header_bytes.min(HEADER_BYTES)];
    vnet[..header.len()].copy_from_slice(header);
    let mut offload = Offload::parse(&vnet);
    let head = &frame[..frame.len().min(IMAGE_BYTES)];
    if !lengths.contains(&frame.len())
        || (offload.needs_csum() && !check_partial(&offload, head, frame.len() as u32))
        || (offload.is_gso() && !offload.needs_csum())
    {
        return Vec::new();
    }
    if offload.is_gso() {
        let Ok(hdr_len) = gso::check(head, &offload, frame.len() as u32) else { return Vec::new() };
        offload.hdr_len = hdr_len;
    } else {
        (offload.hdr_len, offload.gso_size) = (0, 0);
    }
    // A receiver that takes a frame whole gets its segments if it has no room for that.
    let whole = !offload.is_gso() || takes(receiver, offload);
    let mut packets = if whole { vec![shown(offload, frame.to_vec(), receiver)] } else { Vec::new() };
    let Ok(plan) = Segmentation::plan(head, &offload, frame.len() as u32) else { return packets };
    let segment = |index| {
        let mut bytes = vec![0; plan.header_len() as usize];
        let offload = plan.write_header(index, head, &mut bytes);
        let payload = plan.payload(index);
        bytes.extend(&frame[payload.start as usize..payload.end as usize]);
        shown(offload, bytes, receiver)
    };
    packets.extend((0..plan.count()).map(segment));
    packets
}

fn takes(receiver: Capabilities, offload: Offload) -> bool {
    let kind = match offload.gso_kind() {
        GSO_TCPV4 => receiver.tso4,
        GSO_TCPV6 => receiver.tso6,
        GSO_UDP_L4 => receiver.uso,
        _ => false,
    };
    kind && receiver.csum && (receiver.ecn || offload.gso_type & GSO_ECN == 0)
}

/// A packet as the receiver sees it: offloads that it did not negotiate are completed.
fn shown(offload: Offload, mut frame: Vec<u8>, receiver: Capabilities) -> Vec<u8> {
    let mut told = Offload::default();
    if offload.needs_csum() && receiver.csum {
        told = Offload { flags: F_NEEDS_CSUM, ..offload };
    } else if offload.needs_csum() {
        let start = usize::from(offload.csum_start);
        let field = start + usize::from(offload.csum_offset);
        let sum = checksum_of(&frame[start..]);
        // In UDP zero means that there is no checksum.
        let sum = if sum == 0 && offload.csum_offset == 6 { 0xffff } else { sum };
        frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    }
    [&told.emit(0)[..SHOWN_BYTES], &frame].concat()
}
