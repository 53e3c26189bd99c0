//! Cuts a TSO or USO frame into the segments that its sender left to the device (virtio 1.2, 5.1.6.2).

use core::fmt;
use core::ops::Range;

use crate::checksum::Sum;
use crate::headers::{HeaderError, IPV6_BYTES, Layers, Network, PROTO_TCP};
use crate::vnet::{
    F_NEEDS_CSUM, GSO_SIZE_BYTES_MIN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, Offload, UDP_CSUM_OFFSET,
};

/// Segments of one frame: bounds the work that a sender can request with one descriptor chain.
pub const SEGMENTS_MAX: u32 = 128;
/// Bytes of a frame to be segmented: Ethernet header, one VLAN tag, and the largest IPv4 packet.
pub const FRAME_BYTES_MAX: u32 = 14 + 4 + 65_535;
/// Offset of the checksum in a TCP header, in bytes.
pub const TCP_CSUM_OFFSET: u16 = 16;

/// Offsets in a TCP header, in bytes, and its flags (RFC 9293, 3.1; CWR: RFC 3168, 6.1).
const TCP_SEQUENCE: usize = 4;
const TCP_FLAGS: usize = 13;
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const PSH: u8 = 0x08;
const URG: u8 = 0x20;
const CWR: u8 = 0x80;

/// Offset of the length in a UDP header, in bytes (RFC 768).
const UDP_LENGTH: usize = 4;

/// Offsets in an IPv4 header, in bytes.
const IPV4_TOTAL_LENGTH: usize = 2;
const IPV4_IDENTIFICATION: usize = 4;
const IPV4_CHECKSUM: usize = 10;
/// Offset in an IPv6 header, in bytes.
const IPV6_PAYLOAD_LENGTH: usize = 4;

/// The reason why a frame cannot be segmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GsoError {
    /// `gso_type` is neither UDP nor TCP over the frame's IP version.
    Kind,
    /// `gso_size` is 0 or, for TCP, below `GSO_SIZE_BYTES_MIN`, or the packets would outgrow their length field.
    SegmentSize,
    /// The frame is longer than [`FRAME_BYTES_MAX`], or its IP packet longer than the frame.
    Length,
    /// The headers up to the end of the transport's are incomplete or inconsistent.
    Headers(HeaderError),
    /// The IP packet is a fragment, or has an IPv6 fragment header, whose identification must be unique.
    Fragment,
    /// The pseudo header is unknown, since the packet is source-routed.
    SourceRouted,
    /// SYN, RST or URG is set; these flags belong to one place of the stream.
    Flags,
    /// A checksum is partial, but it is not the transport's.
    ChecksumPlace,
    /// No byte follows the headers.
    NoPayload,
    /// More than [`SEGMENTS_MAX`].
    TooManySegments,
}

impl fmt::Display for GsoError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Kind => "gso_type is neither UDP nor TCP over the frame's IP version",
            Self::SegmentSize => "gso_size is too small or too large",
            Self::Length => "the frame is too long, or shorter than its IP packet",
            Self::Headers(error) => return error.fmt(formatter),
            Self::Fragment => "a packet with an IP fragment header cannot be segmented",
            Self::SourceRouted => "a source-routed packet cannot be segmented",
            Self::Flags => "a TCP packet with SYN, RST or URG cannot be segmented",
            Self::ChecksumPlace => "csum_start and csum_offset are not those of the transport checksum",
            Self::NoPayload => "there is no payload to segment",
            Self::TooManySegments => {
                return write!(formatter, "the frame has more than {SEGMENTS_MAX} segments");
            }
        };
        formatter.write_str(text)
    }
}

impl core::error::Error for GsoError {}

impl From<HeaderError> for GsoError {
    fn from(error: HeaderError) -> Self {
        Self::Headers(error)
    }
}

/// The headers of a GSO frame: complete, and consistent with its metadata.
#[derive(Clone, Copy, Debug)]
struct Checked {
    layers: Layers,
    /// Bytes up to the end of the transport header.
    header_len: u16,
    /// End of the IP packet in the frame.
    payload_end: u32,
}

impl Checked {
    #[inline]
    fn of(head: &[u8], offload: &Offload, frame_len_bytes: u32) -> Result<Self, GsoError> {
        let is_udp = offload.gso_type == GSO_UDP_L4;
        if offload.gso_size < if is_udp { 1 } else { GSO_SIZE_BYTES_MIN } {
            return Err(GsoError::SegmentSize);
        }
        if frame_len_bytes > FRAME_BYTES_MAX {
            return Err(GsoError::Length);
        }
        let head = &head[..head.len().min(frame_len_bytes as usize)];
        let layers = Layers::parse(head)?;
        check_packet(&layers, offload)?;
        let l4_len =
            if is_udp { layers.udp_header_len_bytes(head) } else { layers.tcp_header_len_bytes(head) }?;
        let header_len = layers.l4_offset + l4_len;
        let payload_end = packet_end(&layers, frame_len_bytes)?;
        let checked = Self { layers, header_len, payload_end };
        checked.check_payload(head, u32::from(offload.gso_size))?;
        Ok(checked)
    }

    #[inline]
    fn check_payload(&self, head: &[u8], gso_size: u32) -> Result<(), GsoError> {
        let payload = self.payload_bytes();
        let packet_max = u32::from(self.header_len - self.layers.l3_offset) + payload.min(gso_size);
        if payload == 0 {
            Err(GsoError::NoPayload)
        } else if packet_max > u32::from(u16::MAX) {
            Err(GsoError::SegmentSize)
        } else if payload > gso_size && self.layers.l4_proto == PROTO_TCP {
            let flags = head[usize::from(self.layers.l4_offset) + TCP_FLAGS];
            if flags & (SYN | RST | URG) == 0 { Ok(()) } else { Err(GsoError::Flags) }
        } else {
            Ok(())
        }
    }

    #[inline]
    fn payload_bytes(&self) -> u32 {
        self.payload_end.saturating_sub(u32::from(self.header_len))
    }
}

/// Checks a GSO frame. Returns the bytes of its headers, from the Ethernet header to the end of the transport's.
/// Arguments as for [`Segmentation::plan`].
///
/// # Errors
/// Anything in [`GsoError`] but `TooManySegments` for TCP: a receiver that takes the frame whole segments it by itself.
/// UDP has that bound as well (as in Linux), since its `gso_size` has no other.
#[inline]
pub fn check(head: &[u8], offload: &Offload, frame_len_bytes: u32) -> Result<u16, GsoError> {
    let checked = Checked::of(head, offload, frame_len_bytes)?;
    let udp_max = SEGMENTS_MAX * u32::from(offload.gso_size);
    if offload.gso_type == GSO_UDP_L4 && checked.payload_bytes() > udp_max {
        return Err(GsoError::TooManySegments);
    }
    Ok(checked.header_len)
}

/// A plan that cuts a frame: the bytes that each segment carries, and its headers.
///
/// A frame that fits one segment gives one segment, with its headers rewritten. A frame without payload is refused,
/// since no sender needs to segment it. Bytes after the end of the IP packet are padding, and are not carried.
#[derive(Clone, Copy, Debug)]
pub struct Segmentation {
    l3: Network,
    l4_proto: u8,
    l3_offset: usize,
    l4_offset: usize,
    header_len: usize,
    payload_end: u32,
    gso_size: u32,
    count: u32,
    /// The pseudo header's sum without the length.
    pseudo: Sum,
}

impl Segmentation {
    /// Plans the segments of a frame of `frame_len_bytes` bytes that starts with `head`, which must reach to the end of
    /// the TCP or UDP header.
    ///
    /// An IP length of zero, which some senders leave, means "to the end of the frame". UDP's length is ignored. If the
    /// sender requests a checksum, its position must be the transport's; the partial sum in the field is not used.
    ///
    /// # Errors
    /// Anything in [`GsoError`].
    pub fn plan(head: &[u8], offload: &Offload, frame_len_bytes: u32) -> Result<Self, GsoError> {
        let checked = Checked::of(head, offload, frame_len_bytes)?;
        let Checked { layers, header_len, payload_end } = checked;
        let gso_size = u32::from(offload.gso_size);
        let count = checked.payload_bytes().div_ceil(gso_size);
        if count > SEGMENTS_MAX {
            return Err(GsoError::TooManySegments);
        }
        Ok(Self {
            l3: layers.l3,
            l4_proto: layers.l4_proto,
            l3_offset: usize::from(layers.l3_offset),
            l4_offset: usize::from(layers.l4_offset),
            header_len: usize::from(header_len),
            payload_end,
            gso_size,
            count,
            pseudo: pseudo_header(layers.addresses(head), layers.l4_proto),
        })
    }

    /// Bytes before each segment's payload, from the Ethernet header to the TCP options.
    #[inline]
    #[must_use]
    pub fn header_len(&self) -> u32 {
        self.header_len as u32
    }

    /// The number of segments, 1 to [`SEGMENTS_MAX`].
    #[inline]
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The bytes of the frame that segment `index` carries; empty from [`Segmentation::count`] on.
    #[inline]
    #[must_use]
    pub fn payload(&self, index: u32) -> Range<u32> {
        let skipped = u64::from(index) * u64::from(self.gso_size);
        let start = (skipped + u64::from(self.header_len())).min(u64::from(self.payload_end)) as u32;
        start..self.payload_end.min(start + self.gso_size)
    }

    /// Writes the headers of segment `index` to the first [`Segmentation::header_len`] bytes of `out`.
    ///
    /// They equal those of `head`, the bytes that were planned with, except: IPv4 total length, identification
    /// (advanced by `index`) and header checksum, or IPv6 payload length; the TCP sequence number; FIN and PSH, which
    /// only the last segment has, and CWR, which only the first has; the UDP length. The transport's checksum is
    /// partial, as the returned [`Offload`] says: the caller completes it, or passes it on.
    ///
    /// # Panics
    /// for every segment; otherwise the compiler emits a call
    #[inline(always)] // for every segment; left to itself the compiler calls it
    pub fn write_header(&self, index: u32, head: &[u8], out: &mut [u8]) -> Offload {
        let out = &mut out[..self.header_len];
        out.copy_from_slice(&head[..self.header_len]);
        let payload = self.payload(index);
        let packet_len = (self.header_len - self.l3_offset) as u32 + (payload.end - payload.start);
        let (l3, l4) = out[self.l3_offset..].split_at_mut(self.l4_offset - self.l3_offset);
        match self.l3 {
            Network::Ipv4 => patch_ipv4(l3, index, packet_len),
            Network::Ipv6 => put(l3, IPV6_PAYLOAD_LENGTH, (packet_len - IPV6_BYTES as u32) as u16),
        }
        let l4_len = packet_len - l3.len() as u32;
        let csum_offset = if self.l4_proto == PROTO_TCP {
            self.patch_tcp(l4, index);
            TCP_CSUM_OFFSET
        } else {
            put(l4, UDP_LENGTH, l4_len as u16);
            UDP_CSUM_OFFSET
        };
        let mut sum = self.pseudo;
        sum.add_word(l4_len as u16);
        put(l4, usize::from(csum_offset), sum.partial());
        let csum_start = self.l4_offset as u16;
        Offload { flags: F_NEEDS_CSUM, csum_start, csum_offset, ..Offload::default() }
    }

    #[inline]
    fn patch_tcp(&self, tcp: &mut [u8], index: u32) {
        let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        let sequence = sequence.wrapping_add(index.wrapping_mul(self.gso_size));
        tcp[TCP_SEQUENCE..TCP_SEQUENCE + 4].copy_from_slice(&sequence.to_be_bytes());
        if index > 0 {
            tcp[TCP_FLAGS] &= !CWR;
        }
        if index + 1 < self.count {
            tcp[TCP_FLAGS] &= !(FIN | PSH);
        }
    }
}

/// Checks that do not depend on the transport header.
#[inline]
fn check_packet(layers: &Layers, offload: &Offload) -> Result<(), GsoError> {
    let is_udp = offload.gso_type == GSO_UDP_L4;
    let kind = match layers.l3 {
        Network::Ipv4 => GSO_TCPV4,
        Network::Ipv6 => GSO_TCPV6,
    };
    let csum_offset = if is_udp { UDP_CSUM_OFFSET } else { TCP_CSUM_OFFSET };
    let place = (offload.csum_start, offload.csum_offset);
    if offload.gso_kind() != kind && !is_udp {
        Err(GsoError::Kind)
    } else if layers.is_fragment || layers.has_fragment_header {
        Err(GsoError::Fragment)
    } else if layers.is_source_routed {
        Err(GsoError::SourceRouted)
    } else if offload.needs_csum() && place != (layers.l4_offset, csum_offset) {
        Err(GsoError::ChecksumPlace)
    } else {
        Ok(())
    }
}

/// End of the IP packet in the frame.
fn packet_end(layers: &Layers, frame_len_bytes: u32) -> Result<u32, GsoError> {
    let end = u32::from(layers.l3_offset) + layers.l3_len_bytes;
    match layers.l3_len_bytes {
        0 => Ok(frame_len_bytes),
        _ if end > frame_len_bytes => Err(GsoError::Length),
        _ => Ok(end),
    }
}

/// The part of the pseudo header that all segments share; the order of words does not matter.
fn pseudo_header(addresses: &[u8], l4_proto: u8) -> Sum {
    let mut sum = Sum::default();
    sum.add(addresses);
    sum.add_word(u16::from(l4_proto));
    sum
}

#[inline]
fn patch_ipv4(header: &mut [u8], index: u32, packet_len: u32) {
    put(header, IPV4_TOTAL_LENGTH, packet_len as u16);
    let identification = u16::from_be_bytes([header[IPV4_IDENTIFICATION], header[IPV4_IDENTIFICATION + 1]]);
    put(header, IPV4_IDENTIFICATION, identification.wrapping_add(index as u16));
    put(header, IPV4_CHECKSUM, 0);
    let mut sum = Sum::default();
    sum.add(header);
    put(header, IPV4_CHECKSUM, sum.finish());
}

#[inline]
fn put(header: &mut [u8], offset: usize, value: u16) {
    header[offset..offset + 2].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::headers::PROTO_UDP;
    use crate::vnet::GSO_ECN;

    const HEAD_BYTES: usize = 54;
    const OFFLOAD: Offload = Offload {
        flags: F_NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        hdr_len: 0,
        gso_size: 1000,
        csum_start: 34,
        csum_offset: TCP_CSUM_OFFSET,
    };

    /// Headers of a TCP over IPv4 frame without an IP length.
    fn head_v4() -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        head[12..15].copy_from_slice(&[8, 0, 0x45]);
        head[18..20].copy_from_slice(&[0xff, 0xff]);
        head[23] = PROTO_TCP;
        head[38..42].copy_from_slice(&[0xff, 0xff, 0xff, 0xff]);
        head[46..48].copy_from_slice(&[0x50, FIN | PSH | CWR | 0x10]);
        head
    }

    fn plan(edit: impl Fn(&mut [u8; HEAD_BYTES], &mut Offload, &mut u32)) -> Result<Segmentation, GsoError> {
        let (mut head, mut offload, mut len) = (head_v4(), OFFLOAD, 2554);
        edit(&mut head, &mut offload, &mut len);
        Segmentation::plan(&head, &offload, len)
    }

    #[test]
    fn cuts_at_gso_size() {
        let plan = plan(|_, _, _| {}).unwrap();
        assert_eq!((plan.header_len(), plan.count()), (54, 3));
        let payloads = [0, 1, 2, 3, u32::MAX].map(|index| plan.payload(index));
        assert_eq!(payloads, [54..1054, 1054..2054, 2054..2554, 2554..2554, 2554..2554]);
    }

    #[test]
    fn writes_what_changes_from_segment_to_segment() {
        let plan = plan(|_, _, _| {}).unwrap();
        let header = |index| {
            let mut out = [0xee; HEAD_BYTES + 1];
            let offload = plan.write_header(index, &head_v4(), &mut out);
            assert_eq!(offload, Offload { gso_type: 0, gso_size: 0, ..OFFLOAD });
            assert_eq!(out[HEAD_BYTES], 0xee, "nothing behind the headers is written");
            (out[16..20].to_vec(), u32::from_be_bytes([out[38], out[39], out[40], out[41]]), out[47])
        };
        assert_eq!(header(0), (vec![0x04, 0x10, 0xff, 0xff], 0xffff_ffff, 0x10 | CWR));
        assert_eq!(header(1), (vec![0x04, 0x10, 0x00, 0x00], 999, 0x10));
        assert_eq!(header(2), (vec![0x02, 0x1c, 0x00, 0x01], 1999, 0x10 | FIN | PSH));
    }

    #[test]
    fn one_segment_keeps_all_flags() {
        let plan = plan(|_, _, len| *len = 55).unwrap();
        let mut out = head_v4();
        plan.write_header(0, &head_v4(), &mut out);
        assert_eq!((plan.count(), plan.payload(0), out[47]), (1, 54..55, head_v4()[47]));
    }

    #[test]
    fn padding_is_not_payload() {
        let with_total =
            |total: u16| plan(move |head, _, _| head[16..18].copy_from_slice(&total.to_be_bytes()));
        assert_eq!(with_total(140).unwrap().payload(0), 54..154);
        assert_eq!(with_total(2540).unwrap().payload(2), 2054..2554);
        assert_eq!(with_total(2541).unwrap_err(), GsoError::Length);
        assert_eq!(with_total(40).unwrap_err(), GsoError::NoPayload);
        assert_eq!(with_total(20).unwrap_err(), GsoError::NoPayload);
        assert_eq!(with_total(19).unwrap_err(), GsoError::Headers(HeaderError::Malformed));
    }

    #[test]
    fn refuses_frames_it_cannot_segment() {
        let error = |edit: fn(&mut [u8; HEAD_BYTES], &mut Offload, &mut u32)| plan(edit).unwrap_err();
        assert_eq!(error(|_, offload, _| offload.gso_type = GSO_TCPV6), GsoError::Kind);
        assert_eq!(error(|_, offload, _| offload.gso_type = 0), GsoError::Kind);
        assert_eq!(error(|_, offload, _| offload.gso_type = 3), GsoError::Kind);
        assert_eq!(error(|_, offload, _| offload.gso_size = GSO_SIZE_BYTES_MIN - 1), GsoError::SegmentSize);
        assert_eq!(error(|_, _, len| *len = FRAME_BYTES_MAX + 1), GsoError::Length);
        assert_eq!(error(|_, _, len| *len = 54), GsoError::NoPayload);
        assert_eq!(error(|_, _, len| *len = 53), GsoError::Headers(HeaderError::Truncated));
        assert_eq!(error(|head, _, _| head[20] = 0x20), GsoError::Fragment);
        assert_eq!(error(|head, _, _| head[21] = 1), GsoError::Fragment);
        assert_eq!(error(|head, _, _| head[23] = 17), GsoError::Headers(HeaderError::NotTcp));
        assert_eq!(error(|head, _, _| head[46] = 0x40), GsoError::Headers(HeaderError::Malformed));
        assert_eq!(error(|_, offload, _| offload.csum_start = 38), GsoError::ChecksumPlace);
        assert_eq!(error(|_, offload, _| offload.csum_offset = 6), GsoError::ChecksumPlace);
        assert_eq!(error(|_, offload, _| offload.gso_type = GSO_UDP_L4), GsoError::ChecksumPlace);
        assert_eq!(error(|_, offload, _| offload.gso_type = GSO_UDP_L4 | GSO_ECN), GsoError::Kind);
        for flag in [SYN, RST, URG] {
            assert_eq!(plan(|head, _, _| head[47] |= flag).unwrap_err(), GsoError::Flags);
            assert!(plan(|head, _, len| (head[47], *len) = (flag, 100)).is_ok());
        }
    }

    #[test]
    fn refuses_source_routes() {
        let mut head = [0; HEAD_BYTES + 4];
        head[..34].copy_from_slice(&head_v4()[..34]);
        head[38..].copy_from_slice(&head_v4()[34..]);
        (head[14], head[34], head[35]) = (0x46, 131, 3);
        let offload = Offload { csum_start: 38, ..OFFLOAD };
        assert_eq!(Segmentation::plan(&head, &offload, 2000).unwrap_err(), GsoError::SourceRouted);
        (head[34], head[35]) = (1, 1);
        assert!(Segmentation::plan(&head, &offload, 2000).is_ok());
    }

    #[test]
    fn refuses_fragment_headers_of_whole_packets_too() {
        let mut head = [0; 14 + 40 + 8 + 20];
        (head[12], head[13], head[14], head[20]) = (0x86, 0xdd, 0x60, 44);
        (head[54], head[74]) = (PROTO_TCP, 0x50);
        let offload = Offload { gso_type: GSO_TCPV6, csum_start: 62, ..OFFLOAD };
        assert_eq!(Segmentation::plan(&head, &offload, 2000).unwrap_err(), GsoError::Fragment);
        head[20] = 60;
        assert!(Segmentation::plan(&head, &offload, 2000).is_ok(), "other extension headers are fine");
    }

    #[test]
    fn cuts_datagrams() {
        let mut head = head_v4();
        (head[23], head[38], head[39]) = (PROTO_UDP, 0xff, 0xff);
        let offload = Offload { gso_type: GSO_UDP_L4, csum_offset: UDP_CSUM_OFFSET, ..OFFLOAD };
        let plan = Segmentation::plan(&head, &offload, 42 + 2500).unwrap();
        let mut out = [0; 42];
        let left = plan.write_header(2, &head, &mut out);
        assert_eq!((plan.header_len(), plan.count(), plan.payload(2)), (42, 3, 2042..2542));
        assert_eq!(left, Offload { gso_type: 0, gso_size: 0, ..offload });
        assert_eq!(
            (&out[16..20], &out[38..40]),
            (&[2, 16, 0, 1][..], &[1, 252][..]),
            "lengths, identification"
        );
        assert_eq!(check(&head, &offload, 42 + 2500), Ok(42));
        let sized = |gso_size, len| check(&head, &Offload { gso_size, ..offload }, len);
        assert_eq!((sized(1, 42 + 128), sized(1, 42 + 129)), (Ok(42), Err(GsoError::TooManySegments)));
        assert_eq!(sized(0, 42 + 128), Err(GsoError::SegmentSize));
    }

    #[test]
    fn frames_that_pass_whole_may_exceed_the_segments_made_here() {
        let offload = Offload { gso_size: GSO_SIZE_BYTES_MIN, ..OFFLOAD };
        assert_eq!(check(&head_v4(), &offload, 60_000), Ok(54));
        assert_eq!(Segmentation::plan(&head_v4(), &offload, 60_000).unwrap_err(), GsoError::TooManySegments);
    }

    #[test]
    fn bounds_count_and_packet_length() {
        let sized =
            |len: u32, gso_size| plan(move |_, offload, frame| (offload.gso_size, *frame) = (gso_size, len));
        assert_eq!(sized(54 + 128 * 48, 48).unwrap().count(), 128);
        assert_eq!(sized(54 + 128 * 48 + 1, 48).unwrap_err(), GsoError::TooManySegments);
        assert_eq!(sized(14 + 65535, u16::MAX).unwrap().count(), 1);
        assert_eq!(sized(14 + 65536, u16::MAX).unwrap_err(), GsoError::SegmentSize);
        assert_eq!(sized(14 + 65536, 65495).unwrap().count(), 2);
        assert_eq!(sized(FRAME_BYTES_MAX, u16::MAX).unwrap_err(), GsoError::SegmentSize);
    }

    #[test]
    fn the_place_of_a_complete_checksum_is_not_checked() {
        assert!(plan(|_, offload, _| (offload.flags, offload.csum_start) = (0, 7)).is_ok());
    }

    proptest! {
        #[test]
        fn never_panics(
            edits in prop::collection::vec((0..HEAD_BYTES + 40, any::<u8>()), 0..12),
            head_len in 0..HEAD_BYTES + 40,
            (is_v6, is_udp, gso_size, len) in (any::<bool>(), any::<bool>(), 48_u16..2000, 0_u32..70_000),
        ) {
            let mut head = [&head_v4()[..], &[0x50; 40]].concat();
            if is_v6 {
                head[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
                (head[18], head[19], head[20]) = (0, 0, PROTO_TCP);
            }
            if is_udp {
                head[if is_v6 { 20 } else { 23 }] = PROTO_UDP;
            }
            edits.iter().for_each(|&(at, value)| head[at] = value);
            let head = &head[..head_len];
            let gso_type = if is_udp { GSO_UDP_L4 } else if is_v6 { GSO_TCPV6 } else { GSO_TCPV4 };
            if let Ok(plan) = Segmentation::plan(head, &Offload { flags: 0, gso_type, gso_size, ..OFFLOAD }, len) {
                let mut out = [0; HEAD_BYTES + 40];
                prop_assert!((1..=SEGMENTS_MAX).contains(&plan.count()));
                prop_assert!(plan.payload(0).start == plan.header_len() && plan.payload(plan.count() - 1).end <= len);
                (0..plan.count()).for_each(|index| { plan.write_header(index, head, &mut out); });
            }
        }
    }
}
