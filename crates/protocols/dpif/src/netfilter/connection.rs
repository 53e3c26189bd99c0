//! Connections as attributes (`CTA_*` of linux/netfilter/nfnetlink_conntrack.h).

use lasthop_conntrack::{CtProtocol, CtRecord, CtTuple, IpBytes};
use lasthop_wire::headers::{PROTO_ICMP, PROTO_ICMPV6};

use super::{AF_INET, AF_INET6, AF_UNSPEC};
use crate::attr::{Attr, Attrs, Writer};
use crate::refusal::{Errno, Refusal};

pub(super) const TUPLE_ORIG: u16 = 1;
pub(super) const TUPLE_REPLY: u16 = 2;
pub(super) const STATUS: u16 = 3;
pub(super) const PROTOINFO: u16 = 4;
pub(super) const HELP: u16 = 5;
pub(super) const TIMEOUT: u16 = 7;
pub(super) const MARK: u16 = 8;
pub(super) const COUNTERS_ORIG: u16 = 9;
pub(super) const COUNTERS_REPLY: u16 = 10;
const ID: u16 = 12;
const TUPLE_MASTER: u16 = 14;
pub(super) const ZONE: u16 = 18;
pub(super) const LABELS: u16 = 22;

const TUPLE_IP: u16 = 1;
const TUPLE_PROTO: u16 = 2;
const IP_V4: [u16; 2] = [1, 2];
const IP_V6: [u16; 2] = [3, 4];
const PROTO_NUM: u16 = 1;
const PORTS: [u16; 2] = [2, 3];
/// Attributes of identifier, type and code.
const ICMP: [u16; 3] = [4, 5, 6];
const ICMPV6: [u16; 3] = [7, 8, 9];

const PROTOINFO_TCP: u16 = 1;
const PROTOINFO_SCTP: u16 = 3;
const TCP_STATE: u16 = 1;
const TCP_SCALES: [u16; 2] = [2, 3];
const TCP_FLAGS: [u16; 2] = [4, 5];
const SCTP_STATE: u16 = 1;
const SCTP_TAGS: [u16; 2] = [2, 3];
pub(super) const COUNTERS_PACKETS: u16 = 1;
pub(super) const COUNTERS_BYTES: u16 = 2;
const HELP_NAME: u16 = 1;

/// Bits of a status (`IPS_*` of linux/netfilter/nf_conntrack_common.h).
const EXPECTED: u32 = 1;
const SEEN_REPLY: u32 = 2;
const ASSURED: u32 = 4;
const CONFIRMED: u32 = 8;
const SRC_NAT: u32 = 0x10;
const DST_NAT: u32 = 0x20;
const SRC_NAT_DONE: u32 = 0x80;
const DST_NAT_DONE: u32 = 0x100;
const HAS_HELPER: u32 = 0x2000;

/// The connections that a request selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionSelector {
    /// All connections.
    All,
    /// The connections of a zone.
    Zone(u16),
    /// The connection with this tuple, of either direction, if its number is this one or none is given.
    One(CtTuple, Option<u32>),
}

impl ConnectionSelector {
    /// Decodes a request's attributes. Anything unknown is an error, since a request for some connections must never be
    /// taken for one for all.
    ///
    /// # Errors
    /// EOPNOTSUPP for unknown filters, EINVAL for invalid tuples.
    pub(crate) fn decode(family: u8, attrs: Attrs<'_>) -> Result<Self, Refusal> {
        let (mut zone, mut tuple, mut id) = (None, None, None);
        for attr in attrs {
            let attr = attr?;
            match attr.kind {
                ZONE => zone = Some(u16::from_be_bytes(array(&attr)?)),
                TUPLE_ORIG | TUPLE_REPLY => tuple = Some(decode_tuple(attr.nested())?),
                ID => id = Some(u32::from_be_bytes(array(&attr)?)),
                _ => return Err(unknown_filter()),
            }
        }
        match (tuple, zone) {
            (Some(tuple), zone) => Ok(Self::One(CtTuple { zone: zone.unwrap_or(0), ..tuple }, id)),
            // A number alone selects no connection.
            (None, _) if id.is_some() => Err(unknown_filter()),
            (None, _) if family != AF_UNSPEC => Err(unknown_filter()),
            (None, Some(zone)) => Ok(Self::Zone(zone)),
            (None, None) => Ok(Self::All),
        }
    }
}

fn unknown_filter() -> Refusal {
    Refusal::new(Errno::EOPNOTSUPP, "connections are chosen by zone or tuple only")
}

fn array<const N: usize>(attr: &Attr<'_>) -> Result<[u8; N], Refusal> {
    attr.array()
        .map_err(|_| Refusal::invalid("an attribute of a connection does not have the length of its type"))
}

pub(super) fn decode_tuple(attrs: Attrs<'_>) -> Result<CtTuple, Refusal> {
    let incomplete = Refusal::invalid("a connection's tuple lacks addresses or ports");
    let (mut addresses, mut proto) = (None, None);
    for attr in attrs {
        let attr = attr?;
        match attr.kind {
            TUPLE_IP => addresses = Some(decode_addresses(attr.nested())?),
            TUPLE_PROTO => proto = Some(decode_proto(attr.nested())?),
            _ => return Err(unknown_filter()),
        }
    }
    let ((src, dst, is_ipv6), (proto, src_port, dst_port)) = addresses.zip(proto).ok_or(incomplete)?;
    Ok(CtTuple { src, dst, src_port, dst_port, zone: 0, proto, is_ipv6 })
}

fn decode_addresses(attrs: Attrs<'_>) -> Result<(IpBytes, IpBytes, bool), Refusal> {
    let (mut four, mut six) = ([None; 2], [None; 2]);
    for attr in attrs {
        let attr = attr?;
        if let Some(place) = IP_V4.iter().position(|kind| *kind == attr.kind) {
            four[place] = Some(IpBytes::from(std::net::IpAddr::from(array::<4>(&attr)?)));
        } else if let Some(place) = IP_V6.iter().position(|kind| *kind == attr.kind) {
            six[place] = Some(IpBytes(array(&attr)?));
        }
    }
    match (four, six) {
        ([Some(src), Some(dst)], [None, None]) => Ok((src, dst, false)),
        ([None, None], [Some(src), Some(dst)]) => Ok((src, dst, true)),
        _ => {
            Err(Refusal::invalid("a connection's tuple lacks an address, or has addresses of both versions"))
        }
    }
}

/// Decodes the protocol, and ports as in a tuple.
fn decode_proto(attrs: Attrs<'_>) -> Result<(u8, u16, u16), Refusal> {
    let (mut proto, mut ports, mut icmp) = (None, [0; 2], [0_u8; 2]);
    for attr in attrs {
        let attr = attr?;
        match attr.kind {
            PROTO_NUM => proto = Some(attr.u8()?),
            kind if kind == PORTS[0] => ports[0] = u16::from_be_bytes(array(&attr)?),
            kind if kind == PORTS[1] => ports[1] = u16::from_be_bytes(array(&attr)?),
            kind if [ICMP[0], ICMPV6[0]].contains(&kind) => ports[0] = u16::from_be_bytes(array(&attr)?),
            kind if [ICMP[1], ICMPV6[1]].contains(&kind) => icmp[0] = attr.u8()?,
            kind if [ICMP[2], ICMPV6[2]].contains(&kind) => icmp[1] = attr.u8()?,
            _ => return Err(unknown_filter()),
        }
    }
    let proto = proto.ok_or(Refusal::invalid("a connection's tuple lacks its protocol"))?;
    let is_icmp = matches!(proto, PROTO_ICMP | PROTO_ICMPV6);
    Ok((proto, ports[0], if is_icmp { u16::from_be_bytes(icmp) } else { ports[1] }))
}

fn put_tuple(writer: &mut Writer, kind: u16, tuple: &CtTuple) {
    writer.nest(kind, |nested| {
        nested.nest(TUPLE_IP, |ip| put_addresses(ip, tuple));
        nested.nest(TUPLE_PROTO, |proto| put_proto(proto, tuple));
    });
}

fn put_addresses(writer: &mut Writer, tuple: &CtTuple) {
    let (kinds, len) = if tuple.is_ipv6 { (IP_V6, 16) } else { (IP_V4, 4) };
    for (kind, address) in kinds.into_iter().zip([tuple.src, tuple.dst]) {
        writer.put(kind, address.0.get(..len).unwrap_or_default());
    }
}

fn put_proto(writer: &mut Writer, tuple: &CtTuple) {
    writer.put(PROTO_NUM, &[tuple.proto]);
    let icmp = match tuple.proto {
        PROTO_ICMP => ICMP,
        PROTO_ICMPV6 => ICMPV6,
        _ => {
            for (kind, port) in PORTS.into_iter().zip([tuple.src_port, tuple.dst_port]) {
                writer.put(kind, &port.to_be_bytes());
            }
            return;
        }
    };
    let [kind, code] = tuple.dst_port.to_be_bytes();
    writer.put(icmp[0], &tuple.src_port.to_be_bytes());
    writer.put(icmp[1], &[kind]);
    writer.put(icmp[2], &[code]);
}

/// Encodes a connection as a message's body.
pub(crate) fn encode(writer: &mut Writer, record: &CtRecord) {
    let [original, reply] = &record.tuples;
    super::begin(writer, if original.is_ipv6 { AF_INET6 } else { AF_INET });
    put_tuple(writer, TUPLE_ORIG, original);
    put_tuple(writer, TUPLE_REPLY, reply);
    if original.zone != 0 {
        writer.put(ZONE, &original.zone.to_be_bytes());
    }
    writer.put(STATUS, &status(record).to_be_bytes());
    // Rounded up: a connection that still exists has time left.
    let left_s = u32::try_from(record.left_ms.div_ceil(1000)).unwrap_or(u32::MAX);
    writer.put(TIMEOUT, &left_s.to_be_bytes());
    for (kind, way) in [(COUNTERS_ORIG, 0), (COUNTERS_REPLY, 1)] {
        writer.nest(kind, |nested| {
            nested.put(COUNTERS_PACKETS, &record.packets[way].to_be_bytes());
            nested.put(COUNTERS_BYTES, &record.bytes[way].to_be_bytes());
        });
    }
    put_protocol(writer, &record.protocol);
    if let Some(helper) = record.helper {
        writer.nest(HELP, |nested| nested.put_string(HELP_NAME, helper.name()));
    }
    writer.put(MARK, &record.mark.to_be_bytes());
    if record.labels != [0; 16] {
        writer.put(LABELS, &record.labels);
    }
    if let Some(master) = &record.master {
        put_tuple(writer, TUPLE_MASTER, master);
    }
    writer.put(ID, &record.id.number().to_be_bytes());
}

/// Encodes a request for all connections, or those of a zone.
pub(crate) fn encode_request(writer: &mut Writer, zone: Option<u16>) {
    super::begin(writer, AF_UNSPEC);
    writer.put_some(ZONE, zone.map(u16::to_be_bytes));
}

fn status(record: &CtRecord) -> u32 {
    let bits = [
        (true, CONFIRMED | SRC_NAT_DONE | DST_NAT_DONE),
        (record.master.is_some(), EXPECTED),
        (record.is_replied, SEEN_REPLY),
        (record.is_assured, ASSURED),
        (record.is_source_translated, SRC_NAT),
        (record.is_destination_translated, DST_NAT),
        (record.helper.is_some(), HAS_HELPER),
    ];
    bits.iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, bit)| all | bit)
}

fn put_protocol(writer: &mut Writer, protocol: &CtProtocol) {
    match protocol {
        CtProtocol::Tcp { state, scales, flags } => writer.nest(PROTOINFO, |nested| {
            nested.nest(PROTOINFO_TCP, |tcp| {
                tcp.put(TCP_STATE, &[*state as u8]);
                for way in 0..2 {
                    tcp.put(TCP_SCALES[way], &[scales[way]]);
                    // Flags, and a mask of valid ones.
                    tcp.put(TCP_FLAGS[way], &[flags[way], 0]);
                }
            });
        }),
        CtProtocol::Sctp { state, tags } => writer.nest(PROTOINFO, |nested| {
            nested.nest(PROTOINFO_SCTP, |sctp| {
                sctp.put(SCTP_STATE, &[*state as u8]);
                for way in 0..2 {
                    sctp.put(SCTP_TAGS[way], &tags[way].to_be_bytes());
                }
            });
        }),
        CtProtocol::Other => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(proto: u8, is_ipv6: bool) -> CtTuple {
        let of = |last: u8| match is_ipv6 {
            true => IpBytes([last; 16]),
            false => IpBytes::from(std::net::IpAddr::from([10, 0, 0, last])),
        };
        CtTuple { src: of(1), dst: of(2), src_port: 7, dst_port: 0x0803, zone: 9, proto, is_ipv6 }
    }

    fn request(fill: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new());
        fill(&mut writer);
        writer.finish().expect("it is short")
    }

    #[test]
    fn a_tuple_survives_its_attributes() {
        for (proto, is_ipv6) in [(6, false), (17, true), (1, false), (58, true), (132, false)] {
            let tuple = tuple(proto, is_ipv6);
            let bytes = request(|writer| {
                writer.put(ZONE, &9_u16.to_be_bytes());
                put_tuple(writer, TUPLE_ORIG, &tuple);
                writer.put(ID, &7_u32.to_be_bytes());
            });
            let family = if is_ipv6 { AF_INET6 } else { AF_INET };
            assert_eq!(
                ConnectionSelector::decode(family, Attrs::new(&bytes)),
                Ok(ConnectionSelector::One(tuple, Some(7)))
            );
        }
    }

    #[test]
    fn nothing_but_no_attributes_means_all() {
        let decode = |family, bytes: &[u8]| ConnectionSelector::decode(family, Attrs::new(bytes));
        assert_eq!(decode(AF_UNSPEC, &[]), Ok(ConnectionSelector::All));
        assert!(decode(AF_INET, &[]).is_err(), "those of a family");
        let zone = request(|writer| writer.put(ZONE, &5_u16.to_be_bytes()));
        assert_eq!(decode(AF_UNSPEC, &zone), Ok(ConnectionSelector::Zone(5)));
        for unknown in [MARK, LABELS, 21, 60] {
            let bytes = request(|writer| writer.put(unknown, &[0; 4]));
            assert!(decode(AF_UNSPEC, &bytes).is_err(), "{unknown}");
        }
        let incomplete = request(|writer| writer.nest(TUPLE_ORIG, |_| {}));
        assert!(decode(AF_INET, &incomplete).is_err());
        let number = request(|writer| writer.put(ID, &[0; 4]));
        assert!(decode(AF_UNSPEC, &number).is_err());
        let bad_zone = request(|writer| writer.put(ZONE, &[0; 4]));
        assert!(decode(AF_UNSPEC, &bad_zone).is_err());
    }
}
