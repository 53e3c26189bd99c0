//! A transmit chain and its headers: read once, checked, then used.

use std::ops::RangeInclusive;

use lasthop_guestmem::{Cursor, MemoryMap, Place, Segment};
use lasthop_module_api::{DropReason, Hashes, Header, IMAGE_FETCH_BYTES};
use lasthop_wire::hash::HASH_BYTES;
use lasthop_wire::tunnel::{self, OuterHeader, TUNNEL_BYTES, flag};
use lasthop_wire::vnet::HEADER_BYTES;
use lasthop_wire::{Fragmentation, Offload, PacketHash, check_partial, gso};

use crate::bounds::{FRAME_BYTES_MAX, FRAME_BYTES_MIN};

/// Bytes of a valid frame.
const FRAME_BYTES: RangeInclusive<u32> = FRAME_BYTES_MIN..=FRAME_BYTES_MAX;

/// A chain as it was taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Chain {
    pub(crate) head: u16,
    /// Whether all segments were kept.
    pub(crate) whole: bool,
    pub(crate) bytes: u32,
    /// The first segment, which usually has the headers.
    pub(crate) first: Segment,
}

impl Chain {
    #[inline]
    pub(crate) fn is_one_piece(&self) -> bool {
        self.bytes == self.first.len && self.whole
    }

    /// Bytes of the chain's frame.
    #[inline]
    pub(crate) fn frame_bytes(&self, vnet_bytes: usize) -> Result<u32, DropReason> {
        if !self.whole {
            return Err(DropReason::ChainTooLong);
        }
        match self.bytes.checked_sub(vnet_bytes as u32) {
            None | Some(..FRAME_BYTES_MIN) => Err(DropReason::TooShort),
            Some(bytes) if bytes > FRAME_BYTES_MAX => Err(DropReason::TooLong),
            Some(bytes) => Ok(bytes),
        }
    }
}

/// Reads the virtio-net header and the frame's head of a chain in one piece into `header`, and checks the metadata.
#[inline]
pub(crate) fn read_one_piece(map: &MemoryMap, header: &mut Header, chain: &Chain) -> Result<(), DropReason> {
    chain.frame_bytes(HEADER_BYTES)?;
    read_place(map.place(chain.first).map_err(|_| DropReason::Recalled)?, header)
}

/// As [`read_one_piece`], for the memory of a chain.
#[inline(always)]
pub(crate) fn read_place(place: Place<'_>, header: &mut Header) -> Result<(), DropReason> {
    let frame_len = place.len_bytes().wrapping_sub(HEADER_BYTES as u32);
    if !FRAME_BYTES.contains(&frame_len) {
        return Err(DropReason::TooShort);
    }
    let mut vnet = [0; HEADER_BYTES];
    let image = header.fill(frame_len, (frame_len as usize).min(IMAGE_FETCH_BYTES));
    place.read_start(&mut vnet, image).map_err(|_| DropReason::Recalled)?;
    read_offload(header, vnet)
}

/// The frames that one visit has read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadFrames {
    pub(crate) count: usize,
    pub(crate) bytes: u64,
    pub(crate) gso_packets: u64,
}

/// As [`read_one_piece`], for the chains at `places`, up to the first invalid frame.
// Not inlined, so that the loop has all registers.
#[inline(never)]
pub(crate) fn read_usual(places: &[Place<'_>], headers: &mut [Header]) -> ReadFrames {
    let mut read = ReadFrames::default();
    for (&place, header) in places.iter().zip(headers) {
        if read_place(place, header).is_err() {
            break;
        }
        read.count += 1;
        read.bytes += u64::from(place.len_bytes());
        read.gso_packets += u64::from(header.offload.is_gso());
    }
    read.bytes -= (HEADER_BYTES * read.count) as u64;
    read
}

/// Reads the outer header and the rest of a packet that came by a tunnel.
// Not inlined, so that other packets need no stack for that header.
#[inline(never)]
fn read_tunnelled(
    mut cursor: Cursor<'_>,
    header: &mut Header,
    frame_len: u32,
    vnet: [u8; HEADER_BYTES],
) -> Result<(), DropReason> {
    let mut bytes = [0; TUNNEL_BYTES];
    cursor.read(&mut bytes).map_err(|_| DropReason::Recalled)?;
    let told = OuterHeader::parse(&bytes).ok_or(DropReason::BadTunnel)?;
    let image = header.fill(frame_len, (frame_len as usize).min(IMAGE_FETCH_BYTES));
    cursor.read(image).map_err(|_| DropReason::Recalled)?;
    let len = OuterHeader { flags: told.flags & !flag::SEND, ..told }.emit(&mut bytes);
    header.set_tunnel(bytes.get(..len).unwrap_or_default())?;
    read_offload(header, vnet)
}

/// As [`read_one_piece`], for a chain in pieces or with another header. A hash behind the header is stored for packet
/// `index`; a tunnel's header is kept with the image. The switch's own packets (`is_own`) may ask for fragmentation.
#[inline(never)]
pub(crate) fn read_pieces(
    (map, segments): (&MemoryMap, &[Segment]),
    header: &mut Header,
    chain: &Chain,
    (vnet_bytes, is_own): (usize, bool),
    (hashes, index): (&mut Hashes, usize),
) -> Result<(), DropReason> {
    let frame_len = chain.frame_bytes(vnet_bytes)?;
    let mut cursor = Cursor::new(map, segments);
    let mut vnet = [0; HEADER_BYTES];
    cursor.read(&mut vnet[..vnet_bytes.min(HEADER_BYTES)]).map_err(|_| DropReason::Recalled)?;
    if vnet_bytes == tunnel::HEADER_BYTES {
        return read_tunnelled(cursor, header, frame_len, vnet);
    }
    if vnet_bytes > HEADER_BYTES {
        let mut hash = [0; HASH_BYTES];
        cursor.read(&mut hash).map_err(|_| DropReason::Recalled)?;
        hashes.tell(index, PacketHash::parse(&hash));
    }
    let image = header.fill(frame_len, (frame_len as usize).min(IMAGE_FETCH_BYTES));
    cursor.read(image).map_err(|_| DropReason::Recalled)?;
    if is_own { read_own_offload(header, vnet) } else { read_offload(header, vnet) }
}

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
