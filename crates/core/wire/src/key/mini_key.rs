//! The key of a usual packet in half a cache line (IPv4) or a whole one (IPv6).
//!
//! Most packets are TCP or UDP, with at most one VLAN tag, and without options, extension headers and fragments. The
//! keys of such packets, on their first pass and from one input port, differ only in fields that fit four words for
//! IPv4 and eight for IPv6, in the order of the wire:
//!
//! ```text
//!   word  byte 0                                        IPv4                                         byte 7
//!    0    destination address : 48                                                | source address : 16
//!    1    source address : 32                     | TCI : 16               | 0 : 8 | TOS : 8
//!    2    TTL : 8 | protocol : 8                  | IPv4 source : 32               | destination : 16
//!    3    destination : 16  | source port : 16    | destination port : 16          | TCP flags : 16
//!
//!                                                       IPv6
//!    0    destination address : 48                                                | source address : 16
//!    1    source address : 32                     | TCI : 16               | protocol : 8 | hop limit : 8
//!   2-5   IPv6 source : 128 | destination : 128
//!    6    0 : 4 | traffic class : 8 | flow label : 20     | source port : 16 | destination port : 16
//!    7    TCP flags : 16 | 0
//! ```

use super::{Key, VLAN_PRESENT, field, wide_field};
use crate::headers::{IPV4_BYTES_MIN, IPV6_BYTES, PROTO_TCP, PROTO_UDP, TCP_BYTES_MIN};

/// Words of an IPv4 mini key and of an IPv6 one.
pub const MINI_KEY4_WORDS: usize = 4;
/// See [`MINI_KEY4_WORDS`].
pub const MINI_KEY6_WORDS: usize = 8;

/// Bytes of a packet's headers up to UDP.
const WINDOW4_BYTES: usize = ETHERNET_BYTES + IPV4_BYTES_MIN + UDP_BYTES;
const WINDOW6_BYTES: usize = ETHERNET_BYTES + IPV6_BYTES + UDP_BYTES;
const UDP_BYTES: usize = 8;
/// An untagged Ethernet header.
const ETHERNET_BYTES: usize = 14;
const TAG_BYTES: usize = 4;
/// EtherTypes in a little-endian load: of a tag; of IPv4 with version and header length without options; of IPv6 with
/// its version.
const TAG: u64 = 0x00_81;
const PLAIN_IPV4: u64 = 0x45_00_08;
const PLAIN_IPV6: u64 = 0x60_dd_86;

/// A usual packet's key; or, as a mask, the bits that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MiniKey<const WORDS: usize>(pub [u64; WORDS]);

impl<const WORDS: usize> MiniKey<WORDS> {
    /// The mini key with only the bits that `mask` has.
    #[inline(always)]
    #[must_use]
    pub fn masked(&self, mask: &Self) -> Self {
        Self(core::array::from_fn(|word| self.0[word] & mask.0[word]))
    }
}

impl MiniKey<MINI_KEY4_WORDS> {
    /// The mini key of the packet that starts with `head`; `None` unless it is a usual IPv4 packet. Two packets with
    /// mini keys have the same one if and only if [`super::extract`] gives them the same key for the same metadata.
    #[inline(always)]
    #[must_use]
    pub fn of(head: &[u8]) -> Option<Self> {
        // Most frames have no tag: one comparison checks that and the EtherType.
        if let Some(window) = head.first_chunk::<WINDOW4_BYTES>() {
            let second = load(window, 8);
            if second >> 32 & 0xff_ffff == PLAIN_IPV4 {
                return Self::of_ipv4([load(window, 0), second & 0xffff_ffff], head);
            }
        }
        let (macs, behind) = link(head)?;
        Self::of_ipv4(macs, behind)
    }

    /// As [`Self::of`], with the words of addresses and tag, and the frame shifted as if it had no tag.
    #[inline(always)]
    fn of_ipv4(macs: [u64; 2], behind: &[u8]) -> Option<Self> {
        // "More fragments", or a fragment offset, in network order.
        const FRAGMENTS: u64 = 0xff3f << 32;
        let window: &[u8; WINDOW4_BYTES] = behind.first_chunk()?;
        let (start, middle) = (load(window, 8) >> 32, load(window, 16));
        if start & 0xff_ffff != PLAIN_IPV4 || middle & FRAGMENTS != 0 {
            return None;
        }
        let flags = tcp_flags((middle >> 56) as u8, &behind[ETHERNET_BYTES + IPV4_BYTES_MIN..])?;
        let addresses = load(window, 24) & !0xffff | middle >> 48;
        let ports = load(window, 32) & 0xffff_ffff_ffff | flags << 48;
        Some(Self([macs[0], macs[1] | start >> 24 << 56, addresses, ports]))
    }

    /// The mask for mini keys that corresponds to `mask`, a mask for keys. Bits that are equal in all packets with mini
    /// keys never count; the presence of a tag always does.
    #[must_use]
    pub fn mask_of(mask: &Key) -> Self {
        let bits = |field| mask.get(field);
        let ([first, second], to) = (link_mask(mask), bits(field::IPV4_DST));
        let third =
            bits(field::IP_TTL) << 56 | bits(field::IP_PROTO) << 48 | bits(field::IPV4_SRC) << 16 | to >> 16;
        let ports = bits(field::TP_SRC) << 32 | bits(field::TP_DST) << 16;
        let fourth = to << 48 | ports | bits(field::TCP_FLAGS) & 0x0fff;
        Self([first, second | bits(field::IP_TOS), third, fourth].map(u64::swap_bytes))
    }

    /// The packet's TCP flags, 12 bits; 0 for UDP.
    #[inline(always)]
    #[must_use]
    pub const fn tcp_flags(&self) -> u16 {
        ((self.0[3] >> 48) as u16).swap_bytes()
    }
}

impl MiniKey<MINI_KEY6_WORDS> {
    /// As [`Self::of`] for IPv4.
    #[inline(always)]
    #[must_use]
    pub fn of(head: &[u8]) -> Option<Self> {
        let (macs, behind) = link(head)?;
        let window: &[u8; WINDOW6_BYTES] = behind.first_chunk()?;
        let (start, middle) = (load(window, 8) >> 32, load(window, 16) >> 32 & 0xffff);
        if start & 0xf0_ffff != PLAIN_IPV6 {
            return None;
        }
        let flags = tcp_flags(middle as u8, &behind[ETHERNET_BYTES + IPV6_BYTES..])?;
        let [a, b, c, d] = [22, 30, 38, 46].map(|at| load(window, at));
        let class_and_ports = load(window, 14) & 0xffff_ff0f | load(window, 54) << 32;
        Some(Self([macs[0], macs[1] | middle << 48, a, b, c, d, class_and_ports, flags]))
    }

    /// As [`Self::mask_of`] for IPv4.
    #[must_use]
    pub fn mask_of(mask: &Key) -> Self {
        let bits = |field| mask.get(field);
        let [first, second] = link_mask(mask);
        let second = second | bits(field::IP_PROTO) << 8 | bits(field::IP_TTL);
        let [source, to] = [wide_field::IPV6_SRC, wide_field::IPV6_DST].map(|field| mask.get_wide(field));
        let ([a, b], [c, d]) = (halves(source), halves(to));
        let class = (bits(field::IP_TOS) << 20 | bits(field::IPV6_LABEL)) << 32;
        let seventh = class | bits(field::TP_SRC) << 16 | bits(field::TP_DST);
        let flags = (bits(field::TCP_FLAGS) & 0x0fff) << 48;
        Self([first, second, a, b, c, d, seventh, flags].map(u64::swap_bytes))
    }

    /// As [`Self::tcp_flags`] for IPv4.
    #[inline(always)]
    #[must_use]
    pub const fn tcp_flags(&self) -> u16 {
        (self.0[7] as u16).swap_bytes()
    }
}

/// Loads eight bytes of the window.
#[inline(always)]
fn load<const BYTES: usize>(window: &[u8; BYTES], at: usize) -> u64 {
    window[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// The words with a frame's addresses and tag; and the frame, shifted such that the headers after a tag are at the
/// offsets of an untagged frame.
#[inline(always)]
fn link(head: &[u8]) -> Option<([u64; 2], &[u8])> {
    let window: &[u8; 16] = head.first_chunk()?;
    let (first, second) = (load(window, 0), load(window, 8));
    if second >> 32 & 0xffff != TAG {
        return Some(([first, second & 0xffff_ffff], head));
    }
    let tci = second >> 48 | u64::from(VLAN_PRESENT.swap_bytes());
    Some(([first, second & 0xffff_ffff | tci << 32], head.get(TAG_BYTES..)?))
}

/// The flags of a TCP header in a little-endian load; `None` if the header is not whole; 0 for UDP.
#[inline(always)]
fn tcp_flags(proto: u8, header: &[u8]) -> Option<u64> {
    match proto {
        PROTO_UDP => Some(0),
        PROTO_TCP => {
            let start: &[u8; 14] = header.first_chunk()?;
            let header_bytes = usize::from(start[12] >> 4) * 4;
            let is_whole = header_bytes >= TCP_BYTES_MIN && header.len() >= header_bytes;
            is_whole.then(|| u64::from(u16::from_le_bytes([start[12] & 0xf, start[13]])))
        }
        _ => None,
    }
}

/// The mask of addresses and tag, in network order.
fn link_mask(mask: &Key) -> [u64; 2] {
    let source = mask.get(field::ETH_SRC);
    let tci = mask.get(field::VLAN_TCI) | u64::from(VLAN_PRESENT);
    [mask.get(field::ETH_DST) << 16 | source >> 32, source << 32 | tci << 16]
}

fn halves(number: u128) -> [u64; 2] {
    [(number >> 64) as u64, number as u64]
}

#[cfg(test)]
mod tests;
