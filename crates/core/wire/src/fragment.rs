//! Fragments of IP packets: parses one, and cuts a packet into fragments (RFC 791, 3.2; RFC 8200, 4.5).
//!
//! ```text
//!               l3_offset        cut_at
//!   fragment    | IP, options    | (v6: fragment header) | payload, from `offset_bytes` of the whole packet's on
//!   packet      | IP, options    | payload, as large as all fragments'
//!   `--- in each fragment -------'
//! ```
//!
//! A packet that is to be fragmented travels whole, with [`GSO_FRAGMENTS`] in its metadata. Guests must not send that,
//! and never receive it.

use core::ops::Range;

use crate::checksum::Sum;
use crate::gso::{FRAME_BYTES_MAX, GsoError, SEGMENTS_MAX};
use crate::headers::{
    DESTINATION, ETHERTYPE_IPV4, ETHERTYPE_IPV6, EXTENSION_HEADERS_MAX, FRAGMENT, HOP_BY_HOP, IPV4_BYTES_MIN,
    IPV6_BYTES, Layers, Network, ROUTING, ethertype,
};
use crate::vnet::{GSO_FRAGMENTS, Offload};

/// Bytes of the IPv6 fragment header.
pub const FRAGMENT_HEADER_BYTES: usize = 8;
/// Fragments begin at multiples of this number of bytes.
pub const FRAGMENT_UNIT_BYTES: u32 = 8;
/// Bytes of the largest IP packet.
pub const PACKET_BYTES_MAX: u32 = 65_535;
/// Bytes of an IP packet that every link carries whole (RFC 791, 3.2): only the last fragment may be shorter.
const FRAGMENT_BYTES_MIN: usize = 68;

const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET_BITS: u16 = 0x1fff;
/// The congestion bits of both IP versions' traffic class (RFC 3168, 5).
const ECN_BITS: u8 = 3;

/// The reason why a frame is not a fragment that could be reassembled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentFault {
    /// Its headers or lengths are inconsistent, or it ends before its packet does.
    Malformed,
    /// It is not the last one, and shorter than any link makes it.
    TooSmall,
    /// It would end beyond the largest packet.
    TooLarge,
}

/// A fragment in a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The IP version.
    pub l3: Network,
    /// Start of the IP header in the frame.
    pub l3_offset: usize,
    /// End of the headers that every fragment has: the end of the IPv4 header, or the start of the IPv6 fragment
    /// header.
    pub cut_at: usize,
    /// Its payload in the frame.
    pub payload: Range<usize>,
    /// Offset of that payload in the payload of the whole packet.
    pub offset_bytes: u32,
    /// Whether more fragments follow.
    pub has_more: bool,
    /// Identifies the packet among those of one sender.
    pub identification: u32,
    /// The protocol of the payload, valid in the first fragment.
    pub proto: u8,
    /// For IPv6: offset of the field that has the number of the fragment header.
    next_header_at: usize,
    /// The two bits of explicit congestion notification.
    ecn: u8,
}

impl Fragment {
    /// Parses a whole frame that is known to have a fragment.
    ///
    /// # Errors
    /// See [`FragmentFault`].
    pub fn parse(frame: &[u8]) -> Result<Self, FragmentFault> {
        let found = match ethertype(frame) {
            Some((ETHERTYPE_IPV4, offset)) => Self::ipv4(frame, offset),
            Some((ETHERTYPE_IPV6, offset)) => Self::ipv6(frame, offset),
            _ => None,
        };
        let fragment = found.ok_or(FragmentFault::Malformed)?;
        let payload = fragment.payload.len() as u32;
        let headers = (fragment.cut_at - fragment.l3_offset) as u32;
        if payload == 0 || (fragment.has_more && !payload.is_multiple_of(FRAGMENT_UNIT_BYTES)) {
            Err(FragmentFault::Malformed)
        } else if fragment.has_more && fragment.payload.end - fragment.l3_offset < FRAGMENT_BYTES_MIN {
            Err(FragmentFault::TooSmall)
        } else if headers + fragment.offset_bytes + payload > PACKET_BYTES_MAX {
            Err(FragmentFault::TooLarge)
        } else {
            Ok(fragment)
        }
    }

    fn ipv4(frame: &[u8], l3_offset: usize) -> Option<Self> {
        let header = frame.get(l3_offset..)?.first_chunk::<IPV4_BYTES_MIN>()?;
        let header_len = usize::from(header[0] & 0xf) * 4;
        let end = l3_offset + usize::from(u16::from_be_bytes([header[2], header[3]]));
        let place = u16::from_be_bytes([header[6], header[7]]);
        let cut_at = l3_offset + header_len;
        let is_right =
            header[0] >> 4 == 4 && header_len >= IPV4_BYTES_MIN && (cut_at..=frame.len()).contains(&end);
        is_right.then(|| Self {
            l3: Network::Ipv4,
            l3_offset,
            cut_at,
            payload: cut_at..end,
            offset_bytes: u32::from(place & OFFSET_BITS) * FRAGMENT_UNIT_BYTES,
            has_more: place & MORE_FRAGMENTS != 0,
            identification: u32::from(u16::from_be_bytes([header[4], header[5]])),
            proto: header[9],
            next_header_at: l3_offset + 9,
            ecn: header[1] & ECN_BITS,
        })
    }

    fn ipv6(frame: &[u8], l3_offset: usize) -> Option<Self> {
        let header = frame.get(l3_offset..)?.first_chunk::<IPV6_BYTES>()?;
        let end = l3_offset + IPV6_BYTES + usize::from(u16::from_be_bytes([header[4], header[5]]));
        let ecn = header[1] >> 4 & ECN_BITS;
        let (mut next_header_at, mut at) = (l3_offset + 6, l3_offset + IPV6_BYTES);
        for _ in 0..EXTENSION_HEADERS_MAX {
            let kind = *frame.get(next_header_at)?;
            let extension = frame.get(at..)?.first_chunk::<FRAGMENT_HEADER_BYTES>()?;
            let payload = at + FRAGMENT_HEADER_BYTES..end;
            match kind {
                FRAGMENT if payload.start <= end && end <= frame.len() => {
                    let [proto, _, place @ .., a, b, c, d] = *extension;
                    let place = u16::from_be_bytes(place);
                    return Some(Self {
                        l3: Network::Ipv6,
                        l3_offset,
                        cut_at: at,
                        payload,
                        offset_bytes: u32::from(place & !7),
                        has_more: place & 1 != 0,
                        identification: u32::from_be_bytes([a, b, c, d]),
                        proto,
                        next_header_at,
                        ecn,
                    });
                }
                HOP_BY_HOP | ROUTING | DESTINATION => {
                    (next_header_at, at) = (at, at + 8 * (usize::from(extension[1]) + 1));
                }
                _ => return None,
            }
        }
        None
    }

    /// Source and destination address: 8 or 32 bytes of the frame.
    #[must_use]
    pub fn addresses<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        let at = match self.l3 {
            Network::Ipv4 => self.l3_offset + 12..self.l3_offset + 20,
            Network::Ipv6 => self.l3_offset + 8..self.l3_offset + 40,
        };
        frame.get(at).unwrap_or_default()
    }

    /// Whether a router on the way marked congestion (RFC 3168, 5).
    #[must_use]
    pub fn has_experienced_congestion(&self) -> bool {
        self.ecn == ECN_BITS
    }

    /// Turns the headers of this first fragment into those of a whole packet. `frame` has these headers up to `cut_at`,
    /// and then a payload of `payload_bytes`.
    pub fn make_whole(&self, frame: &mut [u8], payload_bytes: usize, has_experienced_congestion: bool) {
        let len = self.cut_at - self.l3_offset + payload_bytes;
        let Some((header, behind)) =
            frame.get_mut(self.l3_offset..).and_then(|l3| l3.split_at_mut_checked(20))
        else {
            return;
        };
        match self.l3 {
            Network::Ipv4 => {
                put(header, 2, len as u16);
                put(header, 6, 0);
                header[1] |= if has_experienced_congestion { ECN_BITS } else { 0 };
                let options = behind.get(..self.cut_at - self.l3_offset - IPV4_BYTES_MIN).unwrap_or_default();
                sum_ipv4(header, options);
            }
            Network::Ipv6 => {
                put(header, 4, (len - IPV6_BYTES) as u16);
                header[1] |= if has_experienced_congestion { ECN_BITS << 4 } else { 0 };
                if let Some(place) = frame.get_mut(self.next_header_at) {
                    *place = self.proto;
                }
            }
        }
    }
}

fn put(header: &mut [u8], offset: usize, value: u16) {
    if let Some(place) = header.get_mut(offset..offset + 2) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}

fn sum_ipv4(header: &mut [u8], options: &[u8]) {
    put(header, 10, 0);
    let mut sum = Sum::default();
    sum.add(header);
    sum.add(options);
    put(header, 10, sum.finish());
}

/// A plan that cuts a whole packet into fragments.
#[derive(Clone, Copy, Debug)]
pub struct Fragmentation {
    l3: Network,
    l3_offset: usize,
    cut_at: usize,
    next_header_at: usize,
    payload_end: u32,
    /// Bytes of payload in each fragment except the last.
    size: u32,
    count: u32,
    identification: u32,
}

impl Fragmentation {
    /// Plans the fragments of a frame of `frame_len_bytes` bytes that starts with `head`. `offload` is from
    /// [`Self::offload`].
    ///
    /// # Errors
    /// [`GsoError::Kind`], `SegmentSize`, `Length`, `Headers`, `Fragment`, `NoPayload`, `TooManySegments`.
    pub fn plan(head: &[u8], offload: &Offload, frame_len_bytes: u32) -> Result<Self, GsoError> {
        if offload.gso_type != GSO_FRAGMENTS || offload.needs_csum() {
            return Err(GsoError::Kind);
        }
        let size = u32::from(offload.gso_size);
        if size == 0 || !size.is_multiple_of(FRAGMENT_UNIT_BYTES) {
            return Err(GsoError::SegmentSize);
        }
        let identification = u32::from(offload.csum_start) << 16 | u32::from(offload.csum_offset);
        let whole = Self::uncut(head, frame_len_bytes)?;
        let count = whole.payload_bytes().div_ceil(size);
        if count > SEGMENTS_MAX {
            return Err(GsoError::TooManySegments);
        }
        Ok(Self { size, count, identification, ..whole })
    }

    fn uncut(head: &[u8], frame_len_bytes: u32) -> Result<Self, GsoError> {
        let layers = Layers::parse(head)?;
        let (l3, l3_offset) = (layers.l3, usize::from(layers.l3_offset));
        if layers.is_fragment || layers.has_fragment_header {
            return Err(GsoError::Fragment);
        }
        let payload_end = l3_offset as u32 + layers.l3_len_bytes;
        if layers.l3_len_bytes == 0 || payload_end > frame_len_bytes || frame_len_bytes > FRAME_BYTES_MAX {
            return Err(GsoError::Length);
        }
        let (cut_at, next_header_at) = match l3 {
            Network::Ipv4 => (usize::from(layers.l4_offset), l3_offset + 9),
            Network::Ipv6 => unfragmentable(head, l3_offset),
        };
        if payload_end <= cut_at as u32 {
            return Err(GsoError::NoPayload);
        }
        let (size, count, identification) = (0, 0, 0);
        Ok(Self { l3, l3_offset, cut_at, next_header_at, payload_end, size, count, identification })
    }

    /// Returns metadata that asks for fragments of at most `mtu_bytes`; a packet that is short enough gets none.
    /// `identification` identifies its fragments if it is IPv6; an IPv4 packet has its own.
    ///
    /// # Errors
    /// As [`Self::plan`].
    pub fn offload(
        head: &[u8],
        frame_len_bytes: u32,
        (mtu_bytes, identification): (u16, u32),
    ) -> Result<Offload, GsoError> {
        let whole = Self::uncut(head, frame_len_bytes)?;
        if whole.payload_end - whole.l3_offset as u32 <= u32::from(mtu_bytes) {
            return Ok(Offload::default());
        }
        let headers = (whole.header_len() as usize - whole.l3_offset) as u32;
        let size = u32::from(mtu_bytes).saturating_sub(headers) / FRAGMENT_UNIT_BYTES * FRAGMENT_UNIT_BYTES;
        let offload = Offload {
            flags: 0,
            gso_type: GSO_FRAGMENTS,
            hdr_len: whole.header_len() as u16,
            gso_size: size as u16,
            csum_start: (identification >> 16) as u16,
            csum_offset: identification as u16,
        };
        Self::plan(head, &offload, frame_len_bytes).map(|_| offload)
    }

    /// Bytes of the largest IP packet that it is cut into.
    #[must_use]
    pub fn mtu_bytes(&self) -> u16 {
        (self.header_len() - self.l3_offset as u32 + self.size) as u16
    }

    fn payload_bytes(&self) -> u32 {
        self.payload_end - self.cut_at as u32
    }

    /// Bytes before each fragment's payload, from the Ethernet header on.
    #[must_use]
    pub fn header_len(&self) -> u32 {
        let fragment_header = if self.l3 == Network::Ipv6 { FRAGMENT_HEADER_BYTES } else { 0 };
        (self.cut_at + fragment_header) as u32
    }

    /// The number of fragments, 1 to [`SEGMENTS_MAX`].
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The bytes of the frame that fragment `index` carries; empty from [`Self::count`] on.
    #[must_use]
    pub fn payload(&self, index: u32) -> Range<u32> {
        let start =
            (index.saturating_mul(self.size)).saturating_add(self.cut_at as u32).min(self.payload_end);
        start..self.payload_end.min(start + self.size)
    }

    /// Writes the headers of fragment `index` to the first [`Self::header_len`] bytes of `out`. Writes nothing if `out`
    /// or `head` is too short for them.
    pub fn write_header(&self, index: u32, head: &[u8], out: &mut [u8]) {
        let (Some(head), Some(out)) = (head.get(..self.cut_at), out.get_mut(..self.header_len() as usize))
        else {
            return;
        };
        let (ahead, behind) = out.split_at_mut(self.cut_at);
        ahead.copy_from_slice(head);
        let payload = self.payload(index);
        let payload_bytes = payload.end - payload.start;
        let units = (index * (self.size / FRAGMENT_UNIT_BYTES)) as u16;
        let is_last = index + 1 >= self.count;
        let l3 = &mut ahead[self.l3_offset..];
        match self.l3 {
            Network::Ipv4 => {
                put(l3, 2, l3.len() as u16 + payload_bytes as u16);
                put(l3, 6, units | if is_last { 0 } else { MORE_FRAGMENTS });
                let (header, options) = l3.split_at_mut(IPV4_BYTES_MIN);
                if index > 0 {
                    leave_first_options(options);
                }
                sum_ipv4(header, options);
            }
            Network::Ipv6 => {
                let len = l3.len() - IPV6_BYTES + FRAGMENT_HEADER_BYTES + payload_bytes as usize;
                put(l3, 4, len as u16);
                let next_header = core::mem::replace(&mut ahead[self.next_header_at], FRAGMENT);
                behind[..2].copy_from_slice(&[next_header, 0]);
                put(behind, 2, units << 3 | u16::from(!is_last));
                behind[4..].copy_from_slice(&self.identification.to_be_bytes());
            }
        }
    }
}

/// The end of the IPv6 headers that every fragment has, and the offset of the field that has the next header's number
/// (RFC 8200, 4.5).
fn unfragmentable(head: &[u8], l3_offset: usize) -> (usize, usize) {
    let (mut next_header_at, mut at) = (l3_offset + 6, l3_offset + IPV6_BYTES);
    let mut found = (at, next_header_at);
    for _ in 0..EXTENSION_HEADERS_MAX {
        let (Some(kind), Some(len)) = (head.get(next_header_at), head.get(at + 1)) else { break };
        if !matches!(*kind, HOP_BY_HOP | ROUTING | DESTINATION) {
            break;
        }
        (next_header_at, at) = (at, at + 8 * (usize::from(*len) + 1));
        if matches!(*kind, HOP_BY_HOP | ROUTING) && at <= head.len() {
            found = (at, next_header_at);
        }
    }
    found
}

/// Overwrites options that only the first fragment carries (RFC 791, 3.1) with no operation, so that the length stays.
fn leave_first_options(mut options: &mut [u8]) {
    const COPIED: u8 = 0x80;
    const NO_OPERATION: u8 = 1;
    loop {
        let len = match *options {
            [] | [0, ..] => return,
            [NO_OPERATION, ..] => 1,
            [_, len, ..] if len >= 2 && usize::from(len) <= options.len() => usize::from(len),
            _ => return,
        };
        let (option, rest) = options.split_at_mut(len);
        if option[0] & COPIED == 0 {
            option.fill(NO_OPERATION);
        }
        options = rest;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::headers::PROTO_UDP;

    /// A packet with this much payload, and the given extension headers or options.
    fn packet(is_ipv6: bool, extensions: &[u8], payload_bytes: usize) -> Vec<u8> {
        let mut frame = vec![2; 12];
        let payload: Vec<u8> = (0..payload_bytes).map(|at| ((at * 7) >> 3) as u8).collect();
        if is_ipv6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(((extensions.len() + payload_bytes) as u16).to_be_bytes());
            frame.extend([if extensions.is_empty() { PROTO_UDP } else { HOP_BY_HOP }, 64]);
            frame.extend([0xfc; 32]);
            frame.extend(extensions);
        } else {
            frame.extend([8, 0, 0x45 + (extensions.len() / 4) as u8, 0]);
            frame.extend(((20 + extensions.len() + payload_bytes) as u16).to_be_bytes());
            frame.extend([0x12, 0x34, 0, 0, 64, PROTO_UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            frame.extend(extensions);
            let (header, options) = frame[14..].split_at_mut(20);
            sum_ipv4(header, options);
        }
        frame.extend(payload);
        frame
    }

    fn cut(frame: &[u8], mtu_bytes: u16) -> Vec<Vec<u8>> {
        let head = &frame[..frame.len().min(128)];
        let len = frame.len() as u32;
        let offload = Fragmentation::offload(head, len, (mtu_bytes, 0xabcd_1234)).expect("it can be cut");
        let plan = Fragmentation::plan(head, &offload, len).expect("it is planned");
        assert!(plan.mtu_bytes() <= mtu_bytes);
        let all = (0..plan.count()).map(|index| {
            let mut out = vec![0; plan.header_len() as usize];
            plan.write_header(index, head, &mut out);
            let payload = plan.payload(index);
            out.extend(&frame[payload.start as usize..payload.end as usize]);
            out
        });
        all.collect()
    }

    fn put_together(fragments: &[Vec<u8>]) -> Vec<u8> {
        let parsed: Vec<_> =
            fragments.iter().map(|frame| Fragment::parse(frame).expect("a fragment")).collect();
        let mut whole = fragments[0][..parsed[0].cut_at].to_vec();
        for (frame, fragment) in fragments.iter().zip(&parsed) {
            assert_eq!(fragment.offset_bytes as usize, whole.len() - parsed[0].cut_at);
            whole.extend(&frame[fragment.payload.clone()]);
        }
        let payload = whole.len() - parsed[0].cut_at;
        parsed[0].make_whole(&mut whole, payload, false);
        whole
    }

    proptest! {
        #[test]
        fn a_cut_packet_is_the_same_when_put_together(
            is_ipv6: bool,
            units in 0..2_usize,
            payload_bytes in 1300..20_000_usize,
            mtu_bytes in 576..1280_u16,
        ) {
            let extensions = if is_ipv6 { vec![PROTO_UDP, 0, 1, 4, 0, 0, 0, 0] } else { vec![1, 1, 1, 1] };
            let frame = packet(is_ipv6, &extensions.repeat(units), payload_bytes);
            let fragments = cut(&frame, mtu_bytes);
            for fragment in &fragments {
                prop_assert!(fragment.len() - 14 <= usize::from(mtu_bytes));
                prop_assert!(Layers::parse(fragment).expect("headers").is_fragment);
            }
            prop_assert_eq!(put_together(&fragments), frame);
        }

        #[test]
        fn no_bytes_make_it_panic(mut frame in prop::collection::vec(any::<u8>(), 0..200), kind in 0..3) {
            let ethertype = [[8, 0], [0x86, 0xdd], [0x81, 0]][kind as usize];
            if let Some(place) = frame.get_mut(12..14) {
                place.copy_from_slice(&ethertype);
            }
            if let Ok(fragment) = Fragment::parse(&frame) {
                let len = fragment.payload.len();
                fragment.make_whole(&mut frame, len, true);
            }
            let _ = Fragmentation::offload(&frame, frame.len() as u32, (100, 1));
        }
    }

    #[test]
    fn options_of_the_first_fragment_stay_there() {
        // Record route, which is not copied to fragments, and router alert, which is.
        let frame = packet(false, &[7, 3, 4, 1, 0x94, 4, 0, 0], 2000);
        let fragments = cut(&frame, 1000);
        assert_eq!(fragments[0][34..42], [7, 3, 4, 1, 0x94, 4, 0, 0]);
        assert_eq!(fragments[1][34..42], [1, 1, 1, 1, 0x94, 4, 0, 0]);
        for fragment in &fragments {
            let mut sum = Sum::default();
            sum.add(&fragment[14..42]);
            assert_eq!(sum.finish(), 0);
        }
    }

    #[test]
    fn faults_have_names() {
        let fragments = cut(&packet(false, &[], 2000), 1000);
        let fault = |edit: fn(&mut Vec<u8>)| {
            let mut frame = fragments[0].clone();
            edit(&mut frame);
            Fragment::parse(&frame).expect_err("a fault")
        };
        assert_eq!(fault(|frame| frame.truncate(500)), FragmentFault::Malformed);
        assert_eq!(fault(|frame| frame[17] -= 1), FragmentFault::Malformed);
        assert_eq!(fault(|frame| frame[16..18].copy_from_slice(&[0, 44])), FragmentFault::TooSmall);
        assert_eq!(fault(|frame| frame[20..22].copy_from_slice(&[0x3f, 0xff])), FragmentFault::TooLarge);
        assert_eq!(fault(|frame| frame[14] = 0x65), FragmentFault::Malformed);
    }

    #[test]
    fn a_short_packet_is_not_cut() {
        let frame = packet(true, &[], 1000);
        assert_eq!(
            Fragmentation::offload(&frame[..128], frame.len() as u32, (1280, 1)),
            Ok(Offload::default())
        );
        let long = packet(true, &[], 60_000);
        let refused = Fragmentation::offload(&long[..128], long.len() as u32, (300, 1));
        assert_eq!(refused, Err(GsoError::TooManySegments));
    }
}
