//! Header images: private copies of the first bytes of frames, for checks, decisions and edits.

mod splice;
mod tag;

use lasthop_wire::Offload;

pub use tag::{TAG_BYTES, TagEdit};

use crate::{DropReason, Mac};

/// Bytes of a frame that are copied into its header image when it is fetched.
pub const IMAGE_FETCH_BYTES: usize = 128;
/// Room of a header image: the fetched bytes, and headers that actions may push (VLAN and MPLS tags, a
/// service header behind an Ethernet header), or a tunnel's header as metadata ([`Header::set_tunnel`]).
pub const IMAGE_BYTES: usize = 224;

/// The first bytes of a frame, read from guest memory once. Checks, decisions and delivery use this copy.
///
/// ```text
///   frame in guest memory   |<---- covers ---->|<------------- rest, copied straight ------------->|
///   image                   |<------ len ------>|        (len != covers after tags were added or removed)
///                                                  ... | tunnel |   at the end of the room
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Header {
    bytes: [u8; IMAGE_BYTES],
    len: u16,
    /// Bytes of the image, at most [`IMAGE_BYTES`]; in the bits above, the bytes of a tunnel's header. One store sets
    /// both.
    covers_and_tunnel: u16,
    /// Bytes of the frame as it will be delivered.
    frame_len: u32,
    /// The sender's offload metadata.
    pub offload: Offload,
}

impl Default for Header {
    fn default() -> Self {
        Self {
            bytes: [0; IMAGE_BYTES],
            len: 0,
            covers_and_tunnel: 0,
            frame_len: 0,
            offload: Offload::default(),
        }
    }
}

impl Header {
    /// An image of `bytes`, the first `bytes.len()` of a frame of `frame_len_bytes`.
    ///
    /// # Panics
    /// If `bytes` is longer than [`IMAGE_BYTES`] or than the frame.
    #[must_use]
    pub fn new(bytes: &[u8], frame_len_bytes: u32, offload: Offload) -> Self {
        let mut header = Self { offload, ..Self::default() };
        header.fill(frame_len_bytes, bytes.len()).copy_from_slice(bytes);
        header
    }

    /// Resets the image to the first `image_len` bytes of a frame of `frame_len_bytes`; the caller writes the bytes.
    ///
    /// # Panics
    /// If `image_len` is longer than [`IMAGE_BYTES`] or than the frame.
    #[inline]
    pub fn fill(&mut self, frame_len_bytes: u32, image_len: usize) -> &mut [u8] {
        let len = u16::try_from(image_len).expect("an image is shorter than 64 KiB");
        assert!(u32::from(len) <= frame_len_bytes, "an image is no longer than its frame");
        (self.len, self.covers_and_tunnel, self.frame_len) = (len, len, frame_len_bytes);
        &mut self.bytes[..image_len]
    }

    /// The bytes of the image.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The bytes of the image, to be edited in place.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..usize::from(self.len)]
    }

    /// How many bytes of the received frame the image replaces.
    #[inline]
    #[must_use]
    pub fn covers_bytes(&self) -> u32 {
        u32::from(self.covers_and_tunnel as u8)
    }

    /// Length of the frame as it will be delivered, in bytes, without the virtio-net header.
    #[inline]
    #[must_use]
    pub fn frame_len_bytes(&self) -> u32 {
        self.frame_len
    }

    /// Makes the image longer or shorter, and the frame with it.
    fn set_image_len(&mut self, len: u16) {
        self.frame_len = self.frame_len - u32::from(self.len) + u32::from(len);
        self.len = len;
    }

    /// Bytes of the tunnel's header.
    #[inline]
    fn tunnel_len(&self) -> usize {
        usize::from(self.covers_and_tunnel >> 8)
    }

    /// The largest image that leaves room for the tunnel's header, in bytes.
    #[inline]
    fn room(&self) -> usize {
        IMAGE_BYTES - self.tunnel_len()
    }

    /// The tunnel's header as metadata (`lasthop_wire::tunnel`): the one that the packet was received with, or the one
    /// that it will be sent with. Empty without a tunnel.
    #[inline]
    #[must_use]
    pub fn tunnel(&self) -> &[u8] {
        &self.bytes[IMAGE_BYTES - self.tunnel_len()..]
    }

    /// Whether the packet has a tunnel's header.
    #[inline]
    #[must_use]
    pub fn has_tunnel(&self) -> bool {
        self.covers_and_tunnel > u16::from(u8::MAX)
    }

    /// Sets the tunnel's header and replaces an earlier one; empty `bytes` remove it.
    ///
    /// # Errors
    /// [`DropReason::TooLong`] if there is no room for it behind the image; nothing has changed then.
    pub fn set_tunnel(&mut self, tunnel: &[u8]) -> Result<(), DropReason> {
        let Some(len) = u8::try_from(tunnel.len())
            .ok()
            .filter(|len| usize::from(self.len) + usize::from(*len) <= IMAGE_BYTES)
        else {
            return Err(DropReason::TooLong);
        };
        self.bytes[IMAGE_BYTES - tunnel.len()..].copy_from_slice(tunnel);
        self.covers_and_tunnel = self.covers_and_tunnel & 0xff | u16::from(len) << 8;
        Ok(())
    }

    /// Destination and source address as numbers, most significant byte first, and the first EtherType; `None` for a frame
    /// shorter than an Ethernet header.
    #[inline]
    #[must_use]
    pub fn ethernet(&self) -> Option<(u64, u64, u16)> {
        let head = self.bytes().first_chunk::<14>()?;
        let [_, _, _, _, pair @ .., _, _] = head;
        let destination = u64::from_be_bytes(*head.first_chunk()?) >> 16;
        let source = u64::from_be_bytes(*pair) & 0xffff_ffff_ffff; // the mask removes two bytes of the destination
        Some((destination, source, u16::from_be_bytes(*head.last_chunk()?)))
    }

    /// Whether both frames begin with the same Ethernet header: addresses, and the first EtherType.
    #[inline]
    #[must_use]
    pub fn is_alike(&self, other: &Self) -> bool {
        // Two overlapping words cover the 14 bytes.
        let words = |header: &Self| {
            let head = header.bytes.first_chunk::<14>().filter(|_| header.len >= 14)?;
            Some([u64::from_ne_bytes(*head.first_chunk()?), u64::from_ne_bytes(*head.last_chunk()?)])
        };
        words(self).is_some_and(|own| words(other) == Some(own))
    }

    /// Destination and source address; `None` for a frame shorter than an Ethernet header.
    #[inline]
    #[must_use]
    pub fn macs(&self) -> Option<(Mac, Mac)> {
        let (destination, rest) = self.bytes().split_first_chunk::<6>()?;
        let (source, ethertype) = rest.split_first_chunk::<6>()?;
        (ethertype.len() >= 2).then_some((Mac(*destination), Mac(*source)))
    }
}

/// The metadata of a TCP packet with a partial checksum.
#[cfg(test)]
const CSUM: Offload = Offload {
    flags: lasthop_wire::vnet::F_NEEDS_CSUM,
    gso_type: lasthop_wire::vnet::GSO_NONE,
    hdr_len: 54,
    gso_size: 0,
    csum_start: 34,
    csum_offset: 16,
};
