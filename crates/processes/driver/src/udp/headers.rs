//! The headers of a tunnel port: read and written by its kind.

use std::time::{SystemTime, UNIX_EPOCH};

use lasthop_device::{TunnelFacts, TunnelKind, TunnelSocket};
use lasthop_wire::coalesce::HEAD_BYTES_MAX;
use lasthop_wire::headers::ETHERTYPE_VLAN;
use lasthop_wire::tunnel::erspan::{self, ErspanStamp};
use lasthop_wire::tunnel::layer3::{Inner, PLACEHOLDER_BYTES, ethertype_in};
use lasthop_wire::tunnel::{OuterHeader, TunnelFault, bareudp, flag, geneve, gre, vxlan, vxlan_gpe};

use super::control::{Endpoint, mapped};

/// Bytes of the longest header that is written.
pub(super) const WRITTEN_BYTES_MAX: usize = geneve::HEADER_BYTES_MAX;
const _: () = assert!(erspan::HEADER_BYTES_MAX <= WRITTEN_BYTES_MAX);
/// Bytes of a datagram that are looked at: the longest header of IPv4, that of a tunnel, and the headers of a TCP segment.
pub(super) const START_BYTES: usize = 60 + WRITTEN_BYTES_MAX + HEAD_BYTES_MAX;
/// Bytes of a frame that are looked at: they have its VLAN tag, or a placeholder and some of its packet.
pub(super) const TAGGED_BYTES: usize = 16;
const _: () = assert!(TAGGED_BYTES > PLACEHOLDER_BYTES);

/// The headers of one tunnel port.
#[derive(Debug)]
pub(super) struct Headers {
    facts: TunnelFacts,
    socket: TunnelSocket,
    /// Of GRE, of the next datagram that has one.
    sequence: u32,
}

impl Headers {
    pub(super) fn new(facts: TunnelFacts, socket: TunnelSocket) -> Self {
        // Receivers take lower numbers than they have seen for late ones. A driver process that follows another begins beyond its numbers as
        // long as that one sent fewer than 62500 a second.
        Self { facts, socket, sequence: (since_epoch_us() >> 4) as u32 }
    }

    pub(super) fn facts(&self) -> &TunnelFacts {
        &self.facts
    }

    /// The socket that datagrams with them pass.
    pub(super) fn socket(&self) -> TunnelSocket {
        self.socket
    }

    /// Whether there is a checksum over datagrams that is not the kernel's to check.
    pub(super) fn is_summed(&self, tunnel: &OuterHeader) -> bool {
        !self.socket.is_udp() && tunnel.has(flag::CSUM)
    }

    /// Reads a datagram's IP header, if the socket hands it over with one; its bytes, and where the datagram came from.
    pub(super) fn read_ip(&self, start: &[u8], told: Endpoint) -> Result<(usize, Endpoint), TunnelFault> {
        match self.socket {
            TunnelSocket::RawIpv4 => read_ipv4(start),
            TunnelSocket::Udp | TunnelSocket::UdpIpv4 | TunnelSocket::RawIpv6 => Ok((0, told)),
        }
    }

    /// The frame or packet in a datagram that begins with these bytes.
    pub(super) fn read(&self, start: &[u8], tunnel: &mut OuterHeader) -> Result<Inner, TunnelFault> {
        let at = match self.facts.kind {
            TunnelKind::Geneve => geneve::read(start, tunnel),
            TunnelKind::Vxlan => vxlan::read(start, false, tunnel),
            TunnelKind::VxlanGbp => vxlan::read(start, true, tunnel),
            TunnelKind::Erspan | TunnelKind::Ip6Erspan => erspan::read(start, tunnel),
            TunnelKind::Gre | TunnelKind::Ip6Gre => return gre::read(start, tunnel),
            TunnelKind::VxlanGpe => return vxlan_gpe::read(start, tunnel),
            TunnelKind::Bareudp => return bareudp::read(start, self.has_mpls(), tunnel),
        };
        Ok(Inner { at: at?, ethertype: None })
    }

    /// Whether packets of a bareudp port are MPLS. The request for the port does not say its payload, so the UDP port does.
    fn has_mpls(&self) -> bool {
        self.facts.port == bareudp::MPLS_PORT
    }

    /// Writes the header in front of a frame that begins with these bytes; its bytes. None if the tunnel is none of this port's.
    pub(super) fn write(
        &mut self,
        tunnel: &OuterHeader,
        frame: &[u8],
        head: &mut [u8; WRITTEN_BYTES_MAX],
    ) -> Option<usize> {
        let has_family = match self.socket {
            TunnelSocket::Udp => true,
            TunnelSocket::UdpIpv4 | TunnelSocket::RawIpv4 => !tunnel.has(flag::IPV6),
            TunnelSocket::RawIpv6 => tunnel.has(flag::IPV6),
        };
        if tunnel.dst == 0 || !has_family {
            return None;
        }
        if tunnel.is_layer3 {
            return self.write_bare(tunnel, ethertype_in(frame)?, head);
        }
        match self.facts.kind {
            TunnelKind::Geneve => Some(geneve::write(tunnel, head)),
            TunnelKind::Vxlan => Some(put(&vxlan::write(tunnel, false), head)),
            TunnelKind::VxlanGbp => Some(put(&vxlan::write(tunnel, true), head)),
            TunnelKind::VxlanGpe => Some(put(&vxlan_gpe::write(tunnel, None)?, head)),
            TunnelKind::Gre | TunnelKind::Ip6Gre => Some(gre::write(tunnel, None, head.first_chunk_mut()?)),
            TunnelKind::Bareudp => None,
            TunnelKind::Erspan | TunnelKind::Ip6Erspan => {
                let time_100us = (since_epoch_us() / 100) as u32;
                let stamp = ErspanStamp { sequence: self.sequence, time_100us, tag: tag(frame) };
                let len = erspan::write(tunnel, stamp, head.first_chunk_mut()?)?;
                self.sequence = self.sequence.wrapping_add(1);
                Some(len)
            }
        }
    }
}

impl Headers {
    /// The same for a packet of this EtherType without an Ethernet header.
    fn write_bare(
        &self,
        tunnel: &OuterHeader,
        ethertype: u16,
        head: &mut [u8; WRITTEN_BYTES_MAX],
    ) -> Option<usize> {
        match self.facts.kind {
            TunnelKind::Gre | TunnelKind::Ip6Gre => {
                Some(gre::write(tunnel, Some(ethertype), head.first_chunk_mut()?))
            }
            TunnelKind::VxlanGpe => Some(put(&vxlan_gpe::write(tunnel, Some(ethertype))?, head)),
            TunnelKind::Bareudp => bareudp::takes(ethertype, self.has_mpls()).then_some(0),
            _ => None,
        }
    }
}

fn put(header: &[u8; vxlan::HEADER_BYTES], head: &mut [u8; WRITTEN_BYTES_MAX]) -> usize {
    head[..header.len()].copy_from_slice(header);
    header.len()
}

fn since_epoch_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64)
}

/// The VLAN tag of a frame, if it has one.
fn tag(frame: &[u8]) -> Option<u16> {
    let &[.., a, b, c, d] = frame.first_chunk::<TAGGED_BYTES>()?;
    (u16::from_be_bytes([a, b]) == ETHERTYPE_VLAN).then(|| u16::from_be_bytes([c, d]))
}

/// The fields of a header of IPv4 that the kernel has checked; its bytes.
fn read_ipv4(start: &[u8]) -> Result<(usize, Endpoint), TunnelFault> {
    let &[first, tos, _, _, _, _, _, _, ttl, _, _, _, a, b, c, d, e, f, g, h] =
        start.first_chunk::<20>().ok_or(TunnelFault::Short)?;
    let len_bytes = 4 * usize::from(first & 0x0f);
    if first >> 4 != 4 || len_bytes < 20 || len_bytes > start.len() {
        return Err(TunnelFault::Short);
    }
    let remote = mapped(u32::from_be_bytes([a, b, c, d]));
    let local = mapped(u32::from_be_bytes([e, f, g, h]));
    Ok((len_bytes, Endpoint { remote, local, tos, ttl, port: 0 }))
}

#[cfg(test)]
mod tests {
    use lasthop_wire::tunnel::OptionBytes;
    use lasthop_wire::tunnel::erspan::OPTIONS_BYTES;

    use super::*;

    fn headers(kind: TunnelKind) -> Headers {
        Headers::new(TunnelFacts { kind, port: 0 }, kind.socket())
    }

    #[test]
    fn a_raw_datagram_of_ipv4_says_where_it_came_from() {
        let header = [0x46, 0xb8, 0, 0, 0, 0, 0x40, 0, 63, 47, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 1, 1, 1, 0];
        let (len, endpoint) =
            headers(TunnelKind::Gre).read_ip(&header, Endpoint::default()).expect("it is sound");
        let tunnel = endpoint.tunnel(0);
        assert_eq!((len, tunnel.src, tunnel.dst), (24, 0x0a00_0001, 0x0a00_0002));
        assert_eq!((tunnel.tos, tunnel.ttl, tunnel.flags), (0xb8, 63, 0));
        for (at, byte) in [(0, 0x44), (0, 0x47), (0, 0x66)] {
            let mut bad = header;
            bad[at] = byte;
            assert!(headers(TunnelKind::Gre).read_ip(&bad, Endpoint::default()).is_err(), "{byte:x}");
        }
        let told = Endpoint { remote: 7, ..Endpoint::default() };
        assert_eq!(headers(TunnelKind::Ip6Gre).read_ip(&header, told), Ok((0, told)), "it has none");
    }

    #[test]
    fn a_tunnel_of_another_kind_or_family_gets_no_header() {
        let mut head = [0; WRITTEN_BYTES_MAX];
        let of_ipv4 = OuterHeader { dst: 1, ..OuterHeader::default() };
        let of_ipv6 = OuterHeader { flags: flag::IPV6, ..of_ipv4 };
        for (kind, good, bad) in [(TunnelKind::Gre, of_ipv4, of_ipv6), (TunnelKind::Ip6Gre, of_ipv6, of_ipv4)]
        {
            assert_eq!(headers(kind).write(&good, &[], &mut head), Some(4));
            assert_eq!(headers(kind).write(&bad, &[], &mut head), None);
            assert_eq!(headers(kind).write(&OuterHeader { dst: 0, ..good }, &[], &mut head), None);
        }
        assert_eq!(headers(TunnelKind::Erspan).write(&of_ipv4, &[], &mut head), None, "it has no options");
        assert_eq!(headers(TunnelKind::Geneve).write(&of_ipv6, &[], &mut head), Some(8));
        let facts = TunnelFacts { kind: TunnelKind::Geneve, port: 6081 };
        let mut without_ipv6 = Headers::new(facts, TunnelSocket::UdpIpv4);
        assert_eq!(without_ipv6.write(&of_ipv6, &[], &mut head), None);
        assert_eq!(without_ipv6.write(&of_ipv4, &[], &mut head), Some(8));
    }

    #[test]
    fn datagrams_of_erspan_are_numbered_and_bear_the_frame_s_tag() {
        let mut bytes = [0; OPTIONS_BYTES];
        bytes[..4].copy_from_slice(&1_u32.to_ne_bytes());
        let options = OptionBytes::of(&bytes).expect("they fit");
        let tunnel = OuterHeader { flags: flag::ERSPAN, dst: 1, options, ..OuterHeader::default() };
        let (mut headers, mut head) = (headers(TunnelKind::Erspan), [0; WRITTEN_BYTES_MAX]);
        headers.sequence = u32::MAX;
        let frame = [&[2; 12][..], &[0x81, 0, 0, 5, 8, 0]].concat();
        assert_eq!(headers.write(&tunnel, &frame, &mut head), Some(16));
        assert_eq!((&head[4..8], &head[8..10]), (&[0xff; 4][..], &[0x10, 5][..]));
        assert_eq!(headers.write(&tunnel, &frame[..15], &mut head), Some(16));
        assert_eq!((&head[4..8], &head[8..10]), (&[0; 4][..], &[0x10, 0][..]), "its tag is not in sight");
    }
}
