//! The fields of a datagram's IP header, as control data of a socket (ip(7), ipv6(7)).

use lasthop_wire::tunnel::{OuterHeader, flag};

/// Bytes of the control data: a packet information, a TTL, a TOS and the length of datagrams, each with its header.
pub(super) const CONTROL_BYTES: usize = 96 + SEGMENT_BYTES;
/// Bytes of the length of segments, with its header.
pub(super) const SEGMENT_BYTES: usize = 24;
/// Bytes of a `cmsghdr`, to which all of them are aligned.
const HEADER_BYTES: usize = 16;
const ALIGN: usize = 8;
/// The prefix of IPv4 addresses among those of IPv6 (RFC 4291, 2.5.5.2).
const MAPPED: u128 = 0xffff << 32;

/// Addresses and fields of a datagram. Addresses are of IPv6, those of IPv4 mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// The other host.
    pub(super) remote: u128,
    /// Its port.
    pub(super) port: u16,
    /// Our address; 0 for any.
    pub(super) local: u128,
    /// TOS or traffic class.
    pub(super) tos: u8,
    /// TTL or hop limit.
    pub(super) ttl: u8,
}

/// An address of IPv4 among those of IPv6.
pub(super) fn mapped(address: u32) -> u128 {
    u128::from(address) | MAPPED
}

/// Whether an address is one of IPv4 among those of IPv6.
pub(super) fn is_mapped(address: u128) -> bool {
    address >> 32 == MAPPED >> 32
}

impl Endpoint {
    /// Where a packet of this tunnel goes; to `port` unless it names another. With 0, there are no ports.
    pub(super) fn of(tunnel: &OuterHeader, port: u16) -> Self {
        let of_ipv4 = |address: u128| if address == 0 { 0 } else { mapped(address as u32) };
        let (local, remote) = match tunnel.has(flag::IPV6) {
            true => (tunnel.src, tunnel.dst),
            false => (of_ipv4(tunnel.src), of_ipv4(tunnel.dst)),
        };
        let port = if port == 0 || tunnel.tp_dst == 0 { port } else { tunnel.tp_dst };
        Self { remote, port, local, tos: tunnel.tos, ttl: tunnel.ttl }
    }

    /// The tunnel metadata of a packet that arrived at our `port`.
    pub(super) fn tunnel(&self, port: u16) -> OuterHeader {
        let is_ipv4 = is_mapped(self.remote);
        let bits = if is_ipv4 { u128::from(u32::MAX) } else { u128::MAX };
        OuterHeader {
            flags: if is_ipv4 { 0 } else { flag::IPV6 },
            tos: self.tos,
            ttl: self.ttl,
            tp_src: self.port,
            tp_dst: port,
            src: self.remote & bits,
            dst: self.local & bits,
            ..OuterHeader::default()
        }
    }
}

/// The entries of control data, each with its level and type. One that is cut ends them.
pub(super) fn entries(mut control: &[u8]) -> impl Iterator<Item = ((i32, i32), &[u8])> {
    std::iter::from_fn(move || {
        let (header, rest) = control.split_first_chunk::<HEADER_BYTES>()?;
        let [a, b, c, d, e, f, g, h, level @ .., i, j, k, l] = *header;
        let len = usize::from_ne_bytes([a, b, c, d, e, f, g, h]);
        let data = len.checked_sub(HEADER_BYTES).and_then(|len| rest.get(..len))?;
        control = rest.get(data.len().next_multiple_of(ALIGN)..).unwrap_or_default();
        Some(((i32::from_ne_bytes(level), i32::from_ne_bytes([i, j, k, l])), data))
    })
}

/// Parses the kernel's control data, and adds its fields to `endpoint`; with the length of each datagram, if the message has several.
pub(super) fn read_control(control: &[u8], mut endpoint: Endpoint) -> (Endpoint, Option<u32>) {
    let mut datagram_bytes = None;
    for entry in entries(control) {
        match entry {
            ((libc::SOL_IPV6, libc::IPV6_PKTINFO), data) => {
                endpoint.local = data.first_chunk().map_or(0, |address| u128::from_be_bytes(*address));
            }
            // in_pktinfo: interface, the address that answers come from, and the header's.
            ((libc::SOL_IP, libc::IP_PKTINFO), &[_, _, _, _, _, _, _, _, a, b, c, d, ..]) => {
                endpoint.local = mapped(u32::from_be_bytes([a, b, c, d]));
            }
            // A byte, or an int below 256.
            ((libc::SOL_IP, libc::IP_TOS) | (libc::SOL_IPV6, libc::IPV6_TCLASS), data) => {
                endpoint.tos = number(data);
            }
            ((libc::SOL_IP, libc::IP_TTL) | (libc::SOL_IPV6, libc::IPV6_HOPLIMIT), data) => {
                endpoint.ttl = number(data);
            }
            ((libc::SOL_UDP, libc::UDP_GRO), &[a, b, c, d, ..]) => {
                datagram_bytes =
                    u32::try_from(i32::from_ne_bytes([a, b, c, d])).ok().filter(|bytes| *bytes > 0);
            }
            _ => {}
        }
    }
    (endpoint, datagram_bytes)
}

fn number(data: &[u8]) -> u8 {
    match *data {
        [byte] => byte,
        [a, b, c, d, ..] => i32::from_ne_bytes([a, b, c, d]) as u8,
        _ => 0,
    }
}

/// Writes the fields of a datagram to be sent; their bytes. `is_ipv4_only`: the socket is of IPv4 and knows no addresses of IPv6.
pub(super) fn write_control(to: &Endpoint, is_ipv4_only: bool, out: &mut [u8; CONTROL_BYTES]) -> usize {
    let (tos, ttl) = match is_mapped(to.remote) {
        true => ((libc::SOL_IP, libc::IP_TOS), (libc::SOL_IP, libc::IP_TTL)),
        false => ((libc::SOL_IPV6, libc::IPV6_TCLASS), (libc::SOL_IPV6, libc::IPV6_HOPLIMIT)),
    };
    let mut at = 0;
    let mut put = |(level, kind): (i32, i32), data: &[u8]| {
        let len = HEADER_BYTES + data.len();
        let Some(place) = out.get_mut(at..at + len.next_multiple_of(ALIGN)) else { return };
        place.fill(0);
        place[..8].copy_from_slice(&len.to_ne_bytes());
        place[8..12].copy_from_slice(&level.to_ne_bytes());
        place[12..16].copy_from_slice(&kind.to_ne_bytes());
        place[HEADER_BYTES..len].copy_from_slice(data);
        at += place.len();
    };
    if to.local != 0 && is_ipv4_only {
        let mut info = [0; 12]; // in_pktinfo: any interface, the source address, and one that is not looked at
        info[4..8].copy_from_slice(&(to.local as u32).to_be_bytes());
        put((libc::SOL_IP, libc::IP_PKTINFO), &info);
    } else if to.local != 0 {
        let mut info = [0; 20]; // in6_pktinfo: an address, and any interface
        info[..16].copy_from_slice(&to.local.to_be_bytes());
        put((libc::SOL_IPV6, libc::IPV6_PKTINFO), &info);
    }
    put(tos, &i32::from(to.tos).to_ne_bytes());
    // The kernel refuses 0, and no packet would get anywhere with it.
    put(ttl, &i32::from(to.ttl.max(1)).to_ne_bytes());
    at
}

/// Writes the length of the datagrams that a message is cut into (udp(7), UDP_SEGMENT); its bytes, 0 if there is no room.
pub(super) fn write_segment_len(len: u16, out: &mut [u8]) -> usize {
    let Some(place) = out.first_chunk_mut::<SEGMENT_BYTES>() else { return 0 };
    place.fill(0);
    place[..8].copy_from_slice(&(HEADER_BYTES + size_of::<u16>()).to_ne_bytes());
    place[8..12].copy_from_slice(&libc::SOL_UDP.to_ne_bytes());
    place[12..16].copy_from_slice(&libc::UDP_SEGMENT.to_ne_bytes());
    place[16..18].copy_from_slice(&len.to_ne_bytes());
    SEGMENT_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_data_is_read_as_it_was_written() {
        for (remote, local) in [(MAPPED | 0x0a00_0001, MAPPED | 0x0a00_0002), (1 << 127 | 7, 1 << 127 | 8)] {
            let endpoint = Endpoint { remote, port: 9, local, tos: 0xb8, ttl: 63 };
            let mut out = [0; CONTROL_BYTES];
            let len = write_control(&endpoint, false, &mut out);
            let first = Endpoint { remote, port: 9, ..Endpoint::default() };
            assert_eq!(read_control(&out[..len], first), (endpoint, None));
            assert_eq!(Endpoint::of(&endpoint.tunnel(4), 9).remote, local, "back to where it came to");
        }
    }

    #[test]
    fn the_length_of_coalesced_datagrams_is_a_positive_number() {
        let told = |bytes: &[u8]| {
            let mut control = (HEADER_BYTES + bytes.len()).to_ne_bytes().to_vec();
            control.extend(libc::SOL_UDP.to_ne_bytes());
            control.extend(libc::UDP_GRO.to_ne_bytes());
            control.extend(bytes);
            read_control(&control, Endpoint::default()).1
        };
        assert_eq!(told(&1450_i32.to_ne_bytes()), Some(1450));
        for bytes in [0_i32, -1, i32::MIN] {
            assert_eq!(told(&bytes.to_ne_bytes()), None);
        }
        assert_eq!((told(&[1, 0, 0]), told(&[])), (None, None));
    }

    #[test]
    fn a_socket_of_ipv4_gets_addresses_of_its_own_kind() {
        let to = Endpoint { remote: mapped(1), local: mapped(0x0a00_0002), tos: 1, ttl: 2, port: 0 };
        let mut out = [0; CONTROL_BYTES];
        let len = write_control(&to, true, &mut out);
        let tunnel = OuterHeader { tp_dst: 9, ..to.tunnel(0) };
        assert_eq!((Endpoint::of(&tunnel, 0).port, Endpoint::of(&tunnel, 1).port), (0, 9));
        let kind = (i32::from_ne_bytes([out[8], out[9], out[10], out[11]]), &out[20..24]);
        assert_eq!((len, kind), (32 + 24 + 24, (libc::SOL_IP, &[10, 0, 0, 2][..])));
        assert_eq!(read_control(&out[..len], Endpoint::default()).0.ttl, 2);
    }

    #[test]
    fn control_data_that_is_cut_is_left_out() {
        let mut out = [0; CONTROL_BYTES];
        let to = Endpoint { remote: MAPPED | 1, local: MAPPED | 2, tos: 1, ttl: 2, port: 3 };
        let len = write_control(&to, false, &mut out);
        // Behind the last number is padding.
        for cut in 0..len - 4 {
            assert_eq!(read_control(&out[..cut], Endpoint::default()).0.ttl, 0, "{cut}");
        }
        assert_eq!(read_control(&out[..len - 4], Endpoint::default()).0.ttl, 2);
    }
}
