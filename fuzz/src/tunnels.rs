//! Tunnels: any datagram is read or refused, its inner frame lies in it, and a header that was read is written again unchanged.

use lasthop_wire::tunnel::erspan::{self, ErspanStamp};
use lasthop_wire::tunnel::layer3::Inner;
use lasthop_wire::tunnel::{self, OptionBytes, OuterHeader, bareudp, flag, geneve, gre, vxlan, vxlan_gpe};

use crate::input::{Input, Seed};

/// Panics when something does not hold for a datagram, or for metadata.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (kind, datagram) = (input.u8(), input.rest());
    match kind & 3 {
        0 if kind & 4 != 0 => read_vxlan_gpe(datagram),
        0 => read_geneve(datagram),
        2 if kind & 4 != 0 => read_bareudp(datagram, kind & 8 != 0),
        1 => read_vxlan(datagram, kind & 4 != 0),
        2 => read_metadata(datagram),
        _ if kind & 4 != 0 => read_erspan(datagram),
        _ => read_gre(datagram),
    }
}

fn read_geneve(datagram: &[u8]) {
    let mut tunnel = OuterHeader::default();
    let Ok(at) = geneve::read(datagram, &mut tunnel) else { return };
    assert!(at + 14 <= datagram.len() && tunnel.id <= tunnel::VNI_MAX);
    let mut out = [0; geneve::HEADER_BYTES_MAX];
    assert_eq!((geneve::write(&tunnel, &mut out), &out[4..7]), (at, &datagram[4..7]));
    assert_eq!(out[8..at], datagram[8..at]);
    come_back(&tunnel);
}

fn read_vxlan(datagram: &[u8], has_policy: bool) {
    let mut tunnel = OuterHeader::default();
    let Ok(at) = vxlan::read(datagram, has_policy, &mut tunnel) else { return };
    assert!(at + 14 <= datagram.len() && (has_policy || !tunnel.has(flag::GBP)));
    let (written, mut again) = (vxlan::write(&tunnel, has_policy), OuterHeader::default());
    let frame = [&written[..], &datagram[at..]].concat();
    assert_eq!((vxlan::read(&frame, has_policy, &mut again), again), (Ok(at), tunnel));
    come_back(&tunnel);
}

fn read_gre(datagram: &[u8]) {
    let mut tunnel = OuterHeader::default();
    let Ok(inner) = gre::read(datagram, &mut tunnel) else { return };
    check_inner(inner, datagram, &tunnel);
    let (mut out, mut again) = ([0; gre::HEADER_BYTES_MAX], OuterHeader::default());
    let at = gre::write(&tunnel, inner.ethertype, &mut out);
    let frame = [&out[..at], &datagram[inner.at..]].concat();
    assert_eq!((gre::read(&frame, &mut again), again), (Ok(Inner { at, ..inner }), tunnel));
    come_back(&tunnel);
}

fn read_vxlan_gpe(datagram: &[u8]) {
    let mut tunnel = OuterHeader::default();
    let Ok(inner) = vxlan_gpe::read(datagram, &mut tunnel) else { return };
    check_inner(inner, datagram, &tunnel);
    let header = vxlan_gpe::write(&tunnel, inner.ethertype).expect("it has a next protocol");
    assert_eq!((&header[..1], &header[3..7]), (&datagram[..1], &datagram[3..7]));
    come_back(&tunnel);
}

fn read_bareudp(datagram: &[u8], is_mpls: bool) {
    let mut tunnel = OuterHeader::default();
    let Ok(inner) = bareudp::read(datagram, is_mpls, &mut tunnel) else { return };
    check_inner(inner, datagram, &tunnel);
    assert!(inner.ethertype.is_some_and(|ethertype| bareudp::takes(ethertype, is_mpls)));
    come_back(&tunnel);
}

/// A frame has room for its Ethernet header, and a packet without one for its own.
fn check_inner(inner: Inner, datagram: &[u8], tunnel: &OuterHeader) {
    let len = if inner.ethertype.is_some() { 4 } else { 14 };
    assert!(inner.at + len <= datagram.len() && tunnel.is_layer3 == inner.ethertype.is_some());
}

fn read_erspan(datagram: &[u8]) {
    let mut tunnel = OuterHeader::default();
    let Ok(at) = erspan::read(datagram, &mut tunnel) else { return };
    assert!(at + 14 <= datagram.len() && tunnel.id <= u64::from(erspan::SESSION_MAX));
    let (mut out, mut again) = ([0; erspan::HEADER_BYTES_MAX], OuterHeader::default());
    let len = erspan::write(&tunnel, ErspanStamp::default(), &mut out).expect("the options are ERSPAN's");
    let frame = [&out[..len], &datagram[at..]].concat();
    assert_eq!((erspan::read(&frame, &mut again), again.id, again.flags), (Ok(len), tunnel.id, tunnel.flags));
    come_back(&tunnel);
}

fn read_metadata(bytes: &[u8]) {
    let Some(tunnel) = OuterHeader::parse(bytes) else { return };
    let mut out = [0; tunnel::TUNNEL_BYTES];
    let len = tunnel.emit(&mut out);
    assert_eq!(out[..len], bytes[..len]);
}

fn come_back(tunnel: &OuterHeader) {
    let mut out = [0; tunnel::TUNNEL_BYTES];
    let len = tunnel.emit(&mut out);
    assert_eq!(OuterHeader::parse(&out[..len]), Some(*tunnel));
}

/// Datagrams as Linux and OVN send them, and the metadata of one.
#[must_use]
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let frame = [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0][..], &[0x45; 28]].concat();
    let seed = |kind: u8, header: &[u8]| {
        let mut seed = Seed::default();
        seed.u8(kind).bytes(header).bytes(&frame);
        seed.into_bytes()
    };
    let ovn = [2, 0x40, 0x65, 0x58, 0, 0, 1, 0, 1, 2, 0x80, 1, 0, 5, 0, 6];
    let options = OptionBytes::of(&ovn[8..]).unwrap_or_default();
    let tunnel =
        OuterHeader { flags: flag::IPV6 | flag::GENEVE, ttl: 64, dst: 1, options, ..OuterHeader::default() };
    let mut out = [0; tunnel::TUNNEL_BYTES];
    let len = tunnel.emit(&mut out);
    let mut bare = Seed::default();
    bare.u8(6).bytes(&[0x45; 28]);
    let mut labelled = Seed::default();
    labelled.u8(14).bytes(&[0, 0, 0x31, 64]).bytes(&[0x45; 28]);
    vec![
        ("bareudp".into(), bare.into_bytes()),
        ("bareudp-mpls".into(), labelled.into_bytes()),
        ("vxlan-gpe".into(), seed(4, &[0x0c, 0, 0, 3, 0, 0, 42, 0])),
        ("vxlan-gpe-ipv4".into(), seed(4, &[&[0x0c, 0, 0, 1, 0, 0, 42, 0][..], &[0x45; 20]].concat())),
        ("gre-ipv4".into(), seed(3, &[&[0, 0, 8, 0][..], &[0x45; 20]].concat())),
        ("geneve".into(), seed(0, &[0, 0, 0x65, 0x58, 0, 0, 1, 0])),
        ("geneve-ovn".into(), seed(0, &ovn)),
        ("vxlan".into(), seed(1, &[8, 0, 0, 0, 0, 0, 42, 0])),
        ("vxlan-policy".into(), seed(5, &[0x88, 0x48, 1, 2, 0, 0, 42, 0])),
        ("metadata".into(), seed(2, &out[..len])),
        ("gre".into(), seed(3, &[0, 0, 0x65, 0x58])),
        ("gre-key".into(), seed(3, &[0xa0, 0, 0x65, 0x58, 0x12, 0x34, 0, 0, 0, 0, 0, 77])),
        ("erspan-2".into(), seed(7, &[0x10, 0, 0x88, 0xbe, 0, 0, 0, 6, 0x10, 0, 0, 1, 0, 0, 0, 7])),
        (
            "erspan-3".into(),
            seed(7, &[0x10, 0, 0x22, 0xeb, 0, 0, 0, 6, 0x20, 0, 0, 1, 1, 2, 3, 4, 0, 0, 0x80, 0x78]),
        ),
    ]
}
