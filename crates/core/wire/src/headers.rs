//! Finds the headers of a frame: Ethernet, VLAN tags, IPv4, IPv6 with its extension headers, TCP, UDP.

use core::fmt;

/// Bytes of the two MAC addresses before the first EtherType.
pub const MACS_BYTES: usize = 12;
/// VLAN tags that are parsed: a service and a customer tag (IEEE 802.1Q-2022, 9.6).
pub const VLAN_TAGS_MAX: usize = 2;
/// IPv6 extension headers that are parsed. RFC 8200, 4.1 defines four kinds here, one of which may occur twice; the
/// limit is generous, and bounds the work.
pub const EXTENSION_HEADERS_MAX: usize = 8;

/// IPv4 (RFC 894).
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// IPv6 (RFC 2464).
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// Customer VLAN tag (IEEE 802.1Q).
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// Service VLAN tag (IEEE 802.1Q, formerly 802.1ad).
pub const ETHERTYPE_VLAN_SERVICE: u16 = 0x88a8;
/// EtherTypes of tags, which another EtherType follows.
pub const ETHERTYPES_VLAN: [u16; 2] = [ETHERTYPE_VLAN, ETHERTYPE_VLAN_SERVICE];
/// ARP (RFC 826).
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// RARP (RFC 903), with packets in ARP's format.
pub const ETHERTYPE_RARP: u16 = 0x8035;
/// Unicast and multicast MPLS (RFC 5332).
pub const ETHERTYPES_MPLS: [u16; 2] = [0x8847, 0x8848];
/// Network service header (RFC 8300).
pub const ETHERTYPE_NSH: u16 = 0x894f;

/// TCP (RFC 9293).
pub const PROTO_TCP: u8 = 6;
/// UDP (RFC 768).
pub const PROTO_UDP: u8 = 17;
/// ICMP (RFC 792).
pub const PROTO_ICMP: u8 = 1;
/// ICMPv6 (RFC 4443).
pub const PROTO_ICMPV6: u8 = 58;
/// SCTP (RFC 9260).
pub const PROTO_SCTP: u8 = 132;

/// IPv6 extension headers (RFC 8200, 4.3 to 4.6).
pub(crate) const HOP_BY_HOP: u8 = 0;
pub(crate) const ROUTING: u8 = 43;
pub(crate) const FRAGMENT: u8 = 44;
pub(crate) const DESTINATION: u8 = 60;

/// Bytes of an IPv4 header without options.
pub(crate) const IPV4_BYTES_MIN: usize = 20;
/// Bytes of an IPv6 header.
pub const IPV6_BYTES: usize = 40;
/// Bytes of a TCP header without options.
pub(crate) const TCP_BYTES_MIN: usize = 20;
/// Bytes of a UDP header.
const UDP_BYTES: u16 = 8;

/// The reason why the headers of a frame could not be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// The given bytes end inside a header; more of the frame may help.
    Truncated,
    /// The EtherType behind the VLAN tags is neither IPv4 nor IPv6.
    NotIp,
    /// A version or length field contradicts the protocol.
    Malformed,
    /// More than [`EXTENSION_HEADERS_MAX`] IPv6 extension headers.
    TooManyExtensions,
    /// The IP payload is not TCP, or a later fragment of it.
    NotTcp,
    /// The IP payload is not UDP, or a later fragment of it.
    NotUdp,
}

impl fmt::Display for HeaderError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Truncated => "the frame ends inside its headers",
            Self::NotIp => "the frame carries neither IPv4 nor IPv6",
            Self::Malformed => "a header's version or length field is wrong",
            Self::TooManyExtensions => "the IPv6 header has too many extension headers",
            Self::NotTcp => "the packet does not start with a TCP header",
            Self::NotUdp => "the packet does not start with a UDP header",
        })
    }
}

impl core::error::Error for HeaderError {}

/// The network protocol of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// RFC 791.
    Ipv4,
    /// RFC 8200.
    Ipv6,
}

/// The headers of an IP packet in a frame. Offsets are in bytes from the start of the Ethernet header, and are inside
/// or at the end of the parsed bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layers {
    /// The IP version.
    pub l3: Network,
    /// Start of the IP header.
    pub l3_offset: u16,
    /// Bytes of the IP packet according to its header; 0 if unknown (some senders of TSO frames; jumbograms). It may
    /// exceed the frame: callers that rely on it have to compare.
    pub l3_len_bytes: u32,
    /// End of the IP header with its options and extension headers: start of the transport header, or of a later
    /// fragment's payload.
    pub l4_offset: u16,
    /// The protocol at `l4_offset`.
    pub l4_proto: u8,
    /// Whether it is part of a fragmented packet. An IPv6 fragment header on a whole packet does not count (RFC 6946).
    pub is_fragment: bool,
    /// Whether there is an IPv6 fragment header, also on a whole packet (RFC 6946).
    pub has_fragment_header: bool,
    /// Whether the transport header is at `l4_offset`: false for any fragment but the first.
    pub has_l4: bool,
    /// The IP header's destination may not be the final one, which the pseudo header needs: there is an IPv4 source
    /// route option, or an IPv6 routing header with segments left.
    pub is_source_routed: bool,
}

impl Layers {
    /// Finds the headers in `head`, the first bytes of a frame.
    ///
    /// # Errors
    /// [`HeaderError::Truncated`], [`HeaderError::NotIp`], [`HeaderError::Malformed`],
    /// [`HeaderError::TooManyExtensions`].
    #[inline]
    pub fn parse(head: &[u8]) -> Result<Self, HeaderError> {
        match ethertype(head).ok_or(HeaderError::Truncated)? {
            (ETHERTYPE_IPV4, offset) => ipv4(head, offset),
            (ETHERTYPE_IPV6, offset) => ipv6(head, offset),
            _ => Err(HeaderError::NotIp),
        }
    }

    /// Finds the headers of an IP packet that begins at `offset` of `head`: without an Ethernet header, or inside of
    /// another packet.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn parse_network(head: &[u8], l3: Network, offset: usize) -> Result<Self, HeaderError> {
        // Offsets are 16 bits wide.
        let head = head.get(..head.len().min(1 << 14)).unwrap_or_default();
        match l3 {
            Network::Ipv4 => ipv4(head, offset),
            Network::Ipv6 => ipv6(head, offset),
        }
    }

    /// Source and destination address: 8 or 32 bytes of `head`, which must be the parsed bytes.
    #[inline]
    #[must_use]
    pub fn addresses<'a>(&self, head: &'a [u8]) -> &'a [u8] {
        let (from, len) = match self.l3 {
            Network::Ipv4 => (12, 8),
            Network::Ipv6 => (8, 32),
        };
        let from = usize::from(self.l3_offset) + from;
        head.get(from..from + len).unwrap_or_default()
    }

    /// Source and destination port of TCP, UDP or SCTP, if the header is in `head`, which must be the parsed bytes.
    #[inline]
    #[must_use]
    pub fn ports(&self, head: &[u8]) -> Option<[u8; 4]> {
        let has_ports = self.has_l4 && matches!(self.l4_proto, PROTO_TCP | PROTO_UDP | PROTO_SCTP);
        if has_ports { fixed(head, usize::from(self.l4_offset)).ok().copied() } else { None }
    }

    /// Bytes of the TCP header, options included; all are in `head`, which must be the parsed bytes.
    ///
    /// # Errors
    /// [`HeaderError::NotTcp`], [`HeaderError::Truncated`], [`HeaderError::Malformed`].
    #[inline]
    pub fn tcp_header_len_bytes(&self, head: &[u8]) -> Result<u16, HeaderError> {
        if !self.has_l4 || self.l4_proto != PROTO_TCP {
            return Err(HeaderError::NotTcp);
        }
        let offset = usize::from(self.l4_offset);
        let header: &[u8; TCP_BYTES_MIN] = fixed(head, offset)?;
        let len = usize::from(header[12] >> 4) * 4;
        if len < TCP_BYTES_MIN {
            return Err(HeaderError::Malformed);
        }
        if offset + len > head.len() {
            return Err(HeaderError::Truncated);
        }
        Ok(len as u16)
    }

    /// Bytes of the UDP header; all are in `head`, which must be the parsed bytes.
    ///
    /// # Errors
    /// [`HeaderError::NotUdp`], [`HeaderError::Truncated`].
    #[inline]
    pub fn udp_header_len_bytes(&self, head: &[u8]) -> Result<u16, HeaderError> {
        if !self.has_l4 || self.l4_proto != PROTO_UDP {
            return Err(HeaderError::NotUdp);
        }
        let end = usize::from(self.l4_offset + UDP_BYTES);
        if end > head.len() { Err(HeaderError::Truncated) } else { Ok(UDP_BYTES) }
    }
}

/// Number of bytes that a switch may decide on: MAC addresses, VLAN tags, and the IPv4 header or the fixed part of the
/// IPv6 header. `None` if `head` ends before the EtherType.
#[inline]
#[must_use]
pub fn decided_on_bytes(head: &[u8]) -> Option<usize> {
    if let Some([8, 0, 0x45, ..]) = head.get(MACS_BYTES..) {
        return Some(MACS_BYTES + 2 + IPV4_BYTES_MIN); // the usual packet needs no loop
    }
    let (ethertype, offset) = ethertype(head)?;
    Some(match ethertype {
        ETHERTYPE_IPV6 => offset + IPV6_BYTES,
        ETHERTYPE_IPV4 => {
            let words = head.get(offset).copied().unwrap_or_default() & 0xf;
            offset + 4 * usize::from(words).max(IPV4_BYTES_MIN / 4)
        }
        _ => offset,
    })
}

/// The EtherType after up to [`VLAN_TAGS_MAX`] tags (that of a further tag, if there are more), and the offset after
/// it. `None` if `head` ends before.
#[inline]
#[must_use]
pub fn ethertype(head: &[u8]) -> Option<(u16, usize)> {
    let mut offset = MACS_BYTES;
    let mut tags = 0;
    loop {
        let ethertype = u16::from_be_bytes(*fixed(head, offset).ok()?);
        let is_tag = matches!(ethertype, ETHERTYPE_VLAN | ETHERTYPE_VLAN_SERVICE);
        if !is_tag || tags == VLAN_TAGS_MAX {
            return Some((ethertype, offset + 2));
        }
        tags += 1;
        offset += 4;
    }
}

/// `N` bytes at `offset`.
#[inline]
fn fixed<const N: usize>(head: &[u8], offset: usize) -> Result<&[u8; N], HeaderError> {
    head.get(offset..).and_then(<[u8]>::first_chunk).ok_or(HeaderError::Truncated)
}

#[inline]
fn ipv4(head: &[u8], offset: usize) -> Result<Layers, HeaderError> {
    /// "More fragments", and the offset of this one.
    const FRAGMENT_BITS: u16 = 0x3fff;
    const FRAGMENT_OFFSET_BITS: u16 = 0x1fff;
    let header: &[u8; IPV4_BYTES_MIN] = fixed(head, offset)?;
    let header_len = usize::from(header[0] & 0xf) * 4;
    let total_len = u16::from_be_bytes([header[2], header[3]]);
    let short_total = total_len != 0 && usize::from(total_len) < header_len;
    if header[0] >> 4 != 4 || header_len < IPV4_BYTES_MIN || short_total {
        return Err(HeaderError::Malformed);
    }
    let options = head.get(offset + IPV4_BYTES_MIN..offset + header_len).ok_or(HeaderError::Truncated)?;
    let fragment = u16::from_be_bytes([header[6], header[7]]);
    Ok(Layers {
        l3: Network::Ipv4,
        l3_offset: offset as u16,
        l3_len_bytes: u32::from(total_len),
        l4_offset: (offset + header_len) as u16,
        l4_proto: header[9],
        is_fragment: fragment & FRAGMENT_BITS != 0,
        has_fragment_header: false,
        has_l4: fragment & FRAGMENT_OFFSET_BITS == 0,
        is_source_routed: has_source_route(options),
    })
}

/// Whether the valid IPv4 options contain a loose or strict source route (RFC 791, 3.1).
fn has_source_route(mut options: &[u8]) -> bool {
    const END: u8 = 0;
    const NO_OPERATION: u8 = 1;
    const LOOSE_SOURCE_ROUTE: u8 = 131;
    const STRICT_SOURCE_ROUTE: u8 = 137;
    loop {
        let skip = match *options {
            [LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE, ..] => return true,
            [] | [END, ..] => return false,
            [NO_OPERATION, ..] => 1,
            [_, len, ..] if len >= 2 => usize::from(len),
            _ => return false,
        };
        options = options.get(skip..).unwrap_or_default();
    }
}

#[inline]
fn ipv6(head: &[u8], offset: usize) -> Result<Layers, HeaderError> {
    let header: &[u8; IPV6_BYTES] = fixed(head, offset)?;
    if header[0] >> 4 != 6 {
        return Err(HeaderError::Malformed);
    }
    let payload_len = u32::from(u16::from_be_bytes([header[4], header[5]]));
    let l4_offset = offset + IPV6_BYTES;
    let layers = Layers {
        l3: Network::Ipv6,
        l3_offset: offset as u16,
        l3_len_bytes: if payload_len == 0 { 0 } else { payload_len + IPV6_BYTES as u32 },
        l4_offset: l4_offset as u16,
        l4_proto: header[6],
        is_fragment: false,
        has_fragment_header: false,
        has_l4: true,
        is_source_routed: false,
    };
    if is_extension(layers.l4_proto) { extensions(head, layers) } else { Ok(layers) }
}

#[inline]
fn is_extension(proto: u8) -> bool {
    matches!(proto, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION)
}

/// Moves `layers` past the extension headers. After the fragment header of a later fragment there are no headers.
fn extensions(head: &[u8], mut layers: Layers) -> Result<Layers, HeaderError> {
    for _ in 0..EXTENSION_HEADERS_MAX {
        // The shortest extension header has 8 bytes, the longest 2048, so the offset stays far below 64 Ki.
        let header: &[u8; 8] = fixed(head, usize::from(layers.l4_offset))?;
        let mut len = 8 * (u16::from(header[1]) + 1);
        match layers.l4_proto {
            ROUTING => layers.is_source_routed |= header[3] != 0,
            FRAGMENT => {
                let offset_and_more = u16::from_be_bytes([header[2], header[3]]);
                layers.has_fragment_header = true;
                layers.is_fragment |= offset_and_more & 0xfff9 != 0;
                layers.has_l4 = offset_and_more & 0xfff8 == 0;
                // Its second byte is reserved, not a length.
                len = 8;
            }
            _ => {}
        }
        layers.l4_offset += len;
        layers.l4_proto = header[0];
        if usize::from(layers.l4_offset) > head.len() {
            return Err(HeaderError::Truncated);
        }
        if !layers.has_l4 || !is_extension(layers.l4_proto) {
            return Ok(layers);
        }
    }
    Err(HeaderError::TooManyExtensions)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(ethertype: &[u8], l3: &[u8]) -> Vec<u8> {
        [&[2; MACS_BYTES], ethertype, l3].concat()
    }

    fn ipv6_frame(next: u8, payload: &[u8]) -> Vec<u8> {
        let mut l3 = [0; IPV6_BYTES];
        (l3[0], l3[5], l3[6]) = (0x60, payload.len() as u8, next);
        frame(&[0x86, 0xdd], &[&l3[..], payload].concat())
    }

    fn ipv4_header(options: &[u8]) -> Vec<u8> {
        let mut l3 = vec![0; IPV4_BYTES_MIN];
        l3[0] = 0x45 + (options.len() / 4) as u8;
        l3[9] = PROTO_UDP;
        l3.extend(options);
        l3
    }

    #[test]
    fn looks_behind_two_tags_and_no_third() {
        let tag = |count: usize| {
            frame(&[[0x81, 0, 0, 1], [0x88, 0xa8, 0, 2], [0x81, 0, 0, 3]][..count].concat(), &[])
        };
        for count in 0..=2 {
            let bytes = [&tag(count)[..], &[8, 0], &ipv4_header(&[])].concat();
            let layers = Layers::parse(&bytes);
            assert_eq!(layers.map(|layers| usize::from(layers.l3_offset)), Ok(14 + 4 * count));
        }
        let bytes = [&tag(3)[..], &[8, 0], &ipv4_header(&[])].concat();
        assert_eq!(ethertype(&bytes), Some((ETHERTYPE_VLAN, 22)));
        assert_eq!(Layers::parse(&bytes), Err(HeaderError::NotIp));
    }

    #[test]
    fn refuses_wrong_versions_and_lengths() {
        let mutations: [(usize, u8); 4] = [(0, 0x65), (0, 0x44), (0, 0x4f), (3, 19)];
        for (at, value) in mutations {
            let mut l3 = ipv4_header(&[]);
            l3[at] = value;
            let wanted = if value == 0x4f { HeaderError::Truncated } else { HeaderError::Malformed };
            assert_eq!(Layers::parse(&frame(&[8, 0], &l3)), Err(wanted), "{value:#x}");
        }
        let mut bytes = ipv6_frame(PROTO_UDP, &[0; 8]);
        bytes[14] = 0x40;
        assert_eq!(Layers::parse(&bytes), Err(HeaderError::Malformed));
    }

    #[test]
    fn finds_source_routes() {
        let routed = |options: &[u8]| {
            Layers::parse(&frame(&[8, 0], &ipv4_header(options))).map(|l| l.is_source_routed)
        };
        assert_eq!(routed(&[1, 131, 3, 4]), Ok(true));
        assert_eq!(routed(&[7, 3, 131, 137, 7, 4, 192, 0]), Ok(true));
        assert_eq!(routed(&[7, 3, 131, 0, 137, 7, 4, 192]), Ok(false));
        assert_eq!(routed(&[7, 0, 131, 3]), Ok(false));
        assert_eq!(routed(&[1, 1, 1, 7]), Ok(false));
        assert_eq!(routed(&[7, 255, 131, 3]), Ok(false));
        let segments_left = |left| Layers::parse(&ipv6_frame(ROUTING, &[PROTO_UDP, 0, 4, left, 0, 0, 0, 0]));
        assert_eq!(segments_left(0).map(|layers| layers.is_source_routed), Ok(false));
        assert_eq!(segments_left(1).map(|layers| layers.is_source_routed), Ok(true));
    }

    #[test]
    fn tells_fragments_from_whole_packets() {
        let fragment = |bits: u16| {
            let [high, low] = bits.to_be_bytes();
            let layers = Layers::parse(&ipv6_frame(
                FRAGMENT,
                &[DESTINATION, 0xff, high, low, 0, 0, 0, 1, 6, 0, 0, 0, 0, 0, 0, 0],
            ));
            layers.map(|l| (l.is_fragment, l.has_l4, l.l4_proto, l.l4_offset))
        };
        assert_eq!(fragment(0), Ok((false, true, PROTO_TCP, 70)));
        assert_eq!(fragment(1), Ok((true, true, PROTO_TCP, 70)));
        assert_eq!(fragment(8), Ok((true, false, DESTINATION, 62)));
        let fragment = |bits: u16| {
            let mut l3 = ipv4_header(&[]);
            l3[6..8].copy_from_slice(&bits.to_be_bytes());
            Layers::parse(&frame(&[8, 0], &l3)).map(|l| (l.is_fragment, l.has_l4))
        };
        assert_eq!(fragment(0x4000), Ok((false, true)));
        assert_eq!(fragment(0x2000), Ok((true, true)));
        assert_eq!(fragment(0x0001), Ok((true, false)));
    }

    #[test]
    fn a_packet_inside_of_another_one_is_parsed_in_its_place() {
        let frame = frame(&[8, 0], &ipv4_header(&[1, 1, 1, 1]));
        let inner = Layers::parse_network(&frame, Network::Ipv4, 14);
        assert_eq!(inner, Layers::parse(&frame));
        assert_eq!(Layers::parse_network(&frame, Network::Ipv6, 14), Err(HeaderError::Truncated));
        assert_eq!(Layers::parse_network(&frame, Network::Ipv4, 15), Err(HeaderError::Malformed));
        assert_eq!(Layers::parse_network(&frame, Network::Ipv4, usize::MAX), Err(HeaderError::Truncated));
    }

    #[test]
    fn bounds_the_extension_headers() {
        let chain = |count: usize| {
            let mut payload = [DESTINATION, 0, 1, 4, 0, 0, 0, 0].repeat(count);
            payload[8 * count - 8] = PROTO_UDP;
            Layers::parse(&ipv6_frame(HOP_BY_HOP, &payload)).map(|layers| layers.l4_offset)
        };
        assert_eq!(chain(EXTENSION_HEADERS_MAX), Ok(54 + 64));
        assert_eq!(chain(EXTENSION_HEADERS_MAX + 1), Err(HeaderError::TooManyExtensions));
    }

    #[test]
    fn a_tcp_header_is_whole_or_refused() {
        let mut tcp = [0; 24];
        tcp[12] = 0x60;
        let parse = |bytes: &[u8]| Layers::parse(bytes).and_then(|layers| layers.tcp_header_len_bytes(bytes));
        assert_eq!(parse(&ipv6_frame(PROTO_TCP, &tcp)), Ok(24));
        assert_eq!(parse(&ipv6_frame(PROTO_TCP, &tcp[..23])), Err(HeaderError::Truncated));
        assert_eq!(parse(&ipv6_frame(PROTO_TCP, &tcp[..19])), Err(HeaderError::Truncated));
        assert_eq!(parse(&ipv6_frame(PROTO_UDP, &tcp)), Err(HeaderError::NotTcp));
        tcp[12] = 0x4f;
        assert_eq!(parse(&ipv6_frame(PROTO_TCP, &tcp)), Err(HeaderError::Malformed));
    }

    /// Random bytes after a start that passes the first checks.
    fn nearly_a_frame() -> impl Strategy<Value = Vec<u8>> {
        let start = prop_oneof![
            Just(vec![]),
            Just(frame(&[8, 0], &[0x45, 0, 0, 0, 0, 0, 0, 0, 64, PROTO_TCP])),
            Just(frame(&[8, 0], &[0x4f, 0])),
            Just(frame(&[0x86, 0xdd], &[0x60, 0, 0, 0, 0, 0, HOP_BY_HOP])),
            Just(frame(&[0x81, 0, 0, 1, 0x86, 0xdd], &[0x60, 0, 0, 0, 0, 0, FRAGMENT])),
            Just(ipv6_frame(ROUTING, &[DESTINATION, 0, 0, 0, 0, 0, 0, 0, FRAGMENT, 0])),
        ];
        (start, prop::collection::vec(any::<u8>(), 0..300)).prop_map(|(start, rest)| [start, rest].concat())
    }

    proptest! {
        #[test]
        fn never_panics_and_stays_inside(head in nearly_a_frame()) {
            if let Ok(layers) = Layers::parse(&head) {
                prop_assert!(layers.l3_offset < layers.l4_offset);
                prop_assert!(usize::from(layers.l4_offset) <= head.len());
                prop_assert!(matches!(layers.addresses(&head).len(), 8 | 32));
                prop_assert!(layers.has_l4 || layers.is_fragment);
                let _ = layers.ports(&head);
                if let Ok(len) = layers.tcp_header_len_bytes(&head) {
                    prop_assert!(usize::from(layers.l4_offset + len) <= head.len());
                }
            }
        }
    }
}
