use proptest::prelude::*;

use super::erspan::{ErspanOptions, ErspanStamp};
use super::layer3::Inner;
use super::*;

fn geneve(words: u8, options: &[u8]) -> Vec<u8> {
    let base = [words, 0, 0x65, 0x58, 0x12, 0x34, 0x56, 0];
    [&base[..], options, &[7; INNER_BYTES_MIN]].concat()
}

/// The option of OVN: class 0x0102, critical type 0, four bytes.
const OVN: [u8; 8] = [1, 2, 0x80, 1, 0, 5, 0, 6];

#[test]
fn a_geneve_header_is_what_its_bytes_say() {
    let mut tunnel = OuterHeader::default();
    let datagram = geneve(2, &OVN);
    assert_eq!(geneve::read(&datagram, &mut tunnel), Ok(16));
    assert_eq!(
        (tunnel.id, tunnel.options.get(), tunnel.flags),
        (0x12_3456, &OVN[..], flag::KEY | flag::GENEVE)
    );
    let mut out = [0; geneve::HEADER_BYTES_MAX];
    let len = geneve::write(&tunnel, &mut out);
    let critical = [2, 0x40, 0x65, 0x58, 0x12, 0x34, 0x56, 0];
    assert_eq!(out[..len], [&critical[..], &OVN].concat(), "the header says that there is a critical option");
}

#[test]
fn geneve_datagrams_are_refused_for_the_fault_that_they_have() {
    let fault = |datagram: &[u8]| geneve::read(datagram, &mut OuterHeader::default()).expect_err("it is bad");
    let good = geneve(2, &OVN);
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    assert_eq!(fault(&good[..7]), TunnelFault::Short);
    assert_eq!(fault(&good[..good.len() - 1]), TunnelFault::Short, "no room for an Ethernet header");
    assert_eq!(fault(&with(0, 0x42)), TunnelFault::Version);
    assert_eq!(fault(&with(2, 8)), TunnelFault::Protocol);
    assert_eq!(fault(&with(11, 2)), TunnelFault::Options, "longer than all of them");
    assert_eq!(fault(&with(11, 0)), TunnelFault::Options, "another one begins at its data, and does not fit");
    assert_eq!(fault(&with(0, 0x3f)), TunnelFault::Short);
    let many = geneve(17, &[[0, 0, 0, 16].to_vec(), vec![0; 64]].concat());
    assert_eq!(fault(&many), TunnelFault::ManyOptions);
}

#[test]
fn a_vxlan_header_is_what_its_bytes_say() {
    let frame = [7; INNER_BYTES_MIN];
    let plain = [&[8, 0, 0, 0, 0, 0, 42, 0][..], &frame].concat();
    let policy = [&[0x88, 0x48, 1, 2, 0, 0, 42, 0][..], &frame].concat();
    let mut tunnel = OuterHeader::default();
    assert_eq!(vxlan::read(&plain, false, &mut tunnel), Ok(8));
    assert_eq!((tunnel.id, tunnel.flags), (42, flag::KEY));
    assert_eq!(vxlan::write(&tunnel, true), plain[..8]);
    assert_eq!(vxlan::read(&policy, false, &mut tunnel), Err(TunnelFault::Version));
    assert_eq!(vxlan::read(&policy, true, &mut tunnel), Ok(8));
    assert_eq!((tunnel.flags, tunnel.options.get()), (flag::KEY | flag::GBP, &[0, 0x48, 1, 2][..]));
    assert_eq!(vxlan::write(&tunnel, true), policy[..8]);
    assert_eq!(vxlan::write(&tunnel, false), plain[..8]);
    let other = [&[0, 0, 0, 0, 0, 0, 42, 0][..], &frame].concat();
    assert_eq!(vxlan::read(&other, true, &mut tunnel), Err(TunnelFault::Version), "it has no identifier");
    assert_eq!(vxlan::read(&plain[..21], true, &mut tunnel), Err(TunnelFault::Short));
}

/// A datagram around an empty frame.
fn around(header: &[u8]) -> Vec<u8> {
    [header, &[7; INNER_BYTES_MIN]].concat()
}

fn sum_of(bytes: &[u8]) -> crate::Sum {
    let mut sum = crate::Sum::default();
    sum.add(bytes);
    sum
}

#[test]
fn a_gre_header_is_what_its_bytes_say() {
    let all = around(&[0xb0, 0, 0x65, 0x58, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 9]);
    let mut tunnel = OuterHeader::default();
    assert_eq!(gre::read(&all, &mut tunnel), Ok(Inner { at: 16, ethertype: None }));
    assert_eq!((tunnel.flags, tunnel.id), (flag::KEY | flag::CSUM, 0x102));
    let mut out = [0; gre::HEADER_BYTES_MAX];
    let len = gre::write(&tunnel, None, &mut out);
    assert_eq!(out[..len], [0xa0, 0, 0x65, 0x58, 0, 0, 0, 0, 0, 0, 1, 2], "no sequence number is sent");
    let mut sent = around(&out[..len]);
    assert_eq!(gre::is_sound(&tunnel, sum_of(&sent)), Err(TunnelFault::Checksum));
    let sum = sum_of(&sent);
    gre::write_checksum(sum, &mut sent);
    assert_eq!(gre::is_sound(&tunnel, sum_of(&sent)), Ok(()));
    let plain = OuterHeader::default();
    assert_eq!((gre::write(&plain, None, &mut out), &out[..4]), (4, &[0, 0, 0x65, 0x58][..]));
    assert_eq!(gre::is_sound(&plain, sum_of(&sent[1..])), Ok(()), "there is none");
}

#[test]
fn gre_datagrams_are_refused_for_the_fault_that_they_have() {
    let fault = |bytes: &[u8]| gre::read(bytes, &mut OuterHeader::default()).expect_err("it is bad");
    let bits =
        |first: u8, second: u8| around(&[first, second, 0x65, 0x58, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(fault(&[0, 0, 0x65]), TunnelFault::Short);
    for first in [0x80, 0x20, 0x10] {
        assert_eq!(fault(&[first, 0, 0x65, 0x58, 0, 0, 0]), TunnelFault::Short, "{first}");
    }
    assert_eq!(fault(&bits(0, 0)[..17]), TunnelFault::Short, "no room for an Ethernet header");
    assert_eq!((fault(&bits(0x40, 0)), fault(&bits(0x08, 0))), (TunnelFault::Routing, TunnelFault::Routing));
    assert_eq!((fault(&bits(0, 1)), fault(&bits(4, 0))), (TunnelFault::Version, TunnelFault::Version));
    assert_eq!(fault(&around(&[0, 0, 0x88, 0x3e])), TunnelFault::Protocol);
    let reserved = bits(3, 0xf8);
    assert!(gre::read(&reserved, &mut OuterHeader::default()).is_ok(), "passed over (RFC 2784, 2.3)");
}

/// As the kernel's device sends them: session 1; index 7, or hardware 7 on the way out.
const TYPE_2: [u8; 16] = [0x10, 0, 0x88, 0xbe, 0, 0, 0, 6, 0x10, 0, 0, 1, 0, 0, 0, 7];
const TYPE_3: [u8; 20] = [0x10, 0, 0x22, 0xeb, 0, 0, 0, 6, 0x20, 0, 0, 1, 1, 2, 3, 4, 0, 0, 0x80, 0x78];

#[test]
fn an_erspan_header_is_what_its_bytes_say() {
    let (index, mirror) = (ErspanOptions::Index(7), ErspanOptions::Mirror { is_egress: true, hardware: 7 });
    for (header, options) in [(&TYPE_2[..], index), (&TYPE_3, mirror)] {
        let mut tunnel = OuterHeader::default();
        assert_eq!(erspan::read(&around(header), &mut tunnel), Ok(header.len()));
        assert_eq!((tunnel.id, tunnel.flags), (1, flag::KEY | flag::ERSPAN));
        assert_eq!(ErspanOptions::of(tunnel.options_of(flag::ERSPAN)), Some(options));
        let stamp = ErspanStamp { sequence: 6, time_100us: 0x0102_0304, tag: None };
        let mut out = [0; erspan::HEADER_BYTES_MAX];
        let len = erspan::write(&tunnel, stamp, &mut out);
        assert_eq!((len, &out[..header.len()]), (Some(header.len()), header));
        let stamp = ErspanStamp { tag: Some(0xa123), ..stamp };
        let _ = erspan::write(&tunnel, stamp, &mut out);
        let en = if options == index { 0x18 } else { 0 };
        assert_eq!((out[8] & 0xf, out[9], out[10]), (1, 0x23, 0xa0 | en), "the tag's VLAN and priority");
        tunnel.flags = flag::GENEVE;
        assert_eq!(erspan::write(&tunnel, stamp, &mut out), None, "its options are of another kind");
    }
}

#[test]
fn erspan_datagrams_are_refused_for_the_fault_that_they_have() {
    let fault = |bytes: &[u8]| erspan::read(bytes, &mut OuterHeader::default()).expect_err("it is bad");
    let with = |header: &[u8], at: usize, byte: u8| {
        let mut bytes = around(header);
        bytes[at] = byte;
        bytes
    };
    for header in [&TYPE_2[..], &TYPE_3] {
        for len in 0..header.len() + INNER_BYTES_MIN {
            assert_eq!(fault(&around(header)[..len]), TunnelFault::Short, "{len}");
        }
        assert_eq!(fault(&with(header, 8, 0)), TunnelFault::Version);
        assert_eq!(fault(&with(header, 0, 0)), TunnelFault::Sequence);
        assert_eq!(fault(&with(header, 0, 0x50)), TunnelFault::Routing);
        assert_eq!(fault(&with(header, 2, 0x65)), TunnelFault::Protocol);
    }
    assert_eq!(fault(&with(&TYPE_3, 8, 0x30)), TunnelFault::Version);
    assert_eq!(fault(&with(&TYPE_3, 18, 0x88)), TunnelFault::Protocol, "an IP packet is inside");
    let mut of_type_2 = around(&TYPE_3);
    of_type_2[2..4].copy_from_slice(&TYPE_2[2..4]);
    assert_eq!(
        erspan::read(&of_type_2, &mut OuterHeader::default()),
        Ok(20),
        "as the first versions of Linux sent it"
    );
    let platform = with(&[&TYPE_3[..], &[5; 8]].concat(), 19, 0x79);
    assert_eq!(erspan::read(&platform, &mut OuterHeader::default()), Ok(28));
    assert_eq!(fault(&platform[..platform.len() - 1]), TunnelFault::Short);
}

/// Whether the packet has room for the headers that its EtherType promises.
fn is_inside(inner: Inner, datagram: &[u8]) -> bool {
    let len = match inner.ethertype {
        None => INNER_BYTES_MIN,
        Some(0x0800) => 20,
        Some(0x86dd) => 40,
        Some(_) => 4,
    };
    inner.at + len <= datagram.len()
}

/// Packets of each EtherType, shorter than their header, and with another version than that says.
#[test]
fn packets_without_an_ethernet_header_are_what_they_say() {
    let packet = |first: u8, len: usize| [&[first][..], &vec![7; len - 1]].concat();
    let gre = |ethertype: u16, packet: &[u8]| {
        let mut tunnel = OuterHeader::default();
        let datagram = [&[0, 0][..], &ethertype.to_be_bytes(), packet].concat();
        gre::read(&datagram, &mut tunnel).inspect(|_| assert!(tunnel.is_layer3))
    };
    for (ethertype, first, len) in
        [(0x0800, 0x45, 20), (0x86dd, 0x60, 40), (0x8847, 0xf0, 4), (0x8848, 0, 4), (0x894f, 0, 8)]
    {
        let inner = Inner { at: 4, ethertype: Some(ethertype) };
        assert_eq!(gre(ethertype, &packet(first, len)), Ok(inner));
        assert_eq!(gre(ethertype, &packet(first, len)[..len - 1]), Err(TunnelFault::Short), "{ethertype:x}");
        let mut out = [0; gre::HEADER_BYTES_MAX];
        assert_eq!(gre::write(&OuterHeader::default(), Some(ethertype), &mut out), 4);
        assert_eq!(out[2..4], ethertype.to_be_bytes());
        assert_eq!(
            layer3::ethertype_in(&[&layer3::placeholder(ethertype)[..], &[1]].concat()),
            Some(ethertype)
        );
    }
    assert_eq!(gre(0x0800, &packet(0x65, 40)), Err(TunnelFault::Protocol));
    assert_eq!(gre(0x86dd, &packet(0x45, 40)), Err(TunnelFault::Protocol));
    for ethertype in [0x0806, 0x8100, 0x88a8, 0x0000, 0xffff] {
        assert_eq!(gre(ethertype, &packet(0x45, 60)), Err(TunnelFault::Protocol), "{ethertype:x}");
    }
    assert_eq!(layer3::ethertype_in(&layer3::placeholder(0x0800)), None, "there is no packet");

    let bare = |packet: &[u8], is_mpls| bareudp::read(packet, is_mpls, &mut OuterHeader::default());
    let is = |ethertype| Ok(Inner { at: 0, ethertype: Some(ethertype) });
    assert_eq!((bare(&packet(0x45, 20), false), bare(&packet(0x60, 40), false)), (is(0x0800), is(0x86dd)));
    assert_eq!(bare(&packet(0x45, 20), true), is(0x8847), "the port says so");
    assert_eq!(bare(&packet(0x50, 40), false), Err(TunnelFault::Protocol));
    for (short, is_mpls) in
        [(packet(0x45, 19), false), (packet(0x60, 39), false), (packet(0, 3), true), (vec![], true)]
    {
        assert_eq!(bare(&short, is_mpls), Err(TunnelFault::Short));
    }
    assert!(bareudp::takes(0x0800, false) && !bareudp::takes(0x0800, true) && !bareudp::takes(0x8847, false));
}

#[test]
fn a_vxlan_gpe_header_is_what_its_bytes_say() {
    let datagram =
        |first: u8, next: u8, packet: &[u8]| [&[first, 0, 0, next, 0, 0, 42, 0][..], packet].concat();
    let mut tunnel = OuterHeader::default();
    let ipv4 = [&[0x45][..], &[7; 19]].concat();
    let inner = vxlan_gpe::read(&datagram(0x0c, 1, &ipv4), &mut tunnel);
    assert_eq!(inner, Ok(Inner { at: 8, ethertype: Some(0x0800) }));
    assert_eq!((tunnel.id, tunnel.flags, tunnel.is_layer3), (42, flag::KEY, true));
    assert_eq!(vxlan_gpe::write(&tunnel, Some(0x0800)), Some([0x0c, 0, 0, 1, 0, 0, 42, 0]));
    assert_eq!(vxlan_gpe::write(&tunnel, None), Some([0x0c, 0, 0, 3, 0, 0, 42, 0]));
    assert_eq!(vxlan_gpe::write(&tunnel, Some(0x0806)), None);
    let mut tunnel = OuterHeader::default();
    let inner = vxlan_gpe::read(&datagram(0x0c, 3, &[7; INNER_BYTES_MIN]), &mut tunnel);
    assert_eq!((inner, tunnel.is_layer3), (Ok(Inner { at: 8, ethertype: None }), false));
    let fault =
        |datagram: &[u8]| vxlan_gpe::read(datagram, &mut OuterHeader::default()).expect_err("it is bad");
    for first in [0x08, 0x04, 0x1c, 0x0d, 0x8c] {
        assert_eq!(fault(&datagram(first, 1, &ipv4)), TunnelFault::Version, "{first:x}");
    }
    for next in [0, 2, 6, 255] {
        assert_eq!(
            fault(&datagram(0x0c, next, &[&ipv4[..], &ipv4].concat())),
            TunnelFault::Protocol,
            "{next}"
        );
    }
    assert_eq!(fault(&datagram(0x0c, 1, &ipv4[1..])), TunnelFault::Short);
    assert_eq!(fault(&[0x0c; 7]), TunnelFault::Short);
}

#[test]
fn metadata_that_contradicts_itself_is_none() {
    let mut out = [0; TUNNEL_BYTES];
    let options = OptionBytes::of(&OVN).expect("they fit");
    let tunnel = OuterHeader {
        flags: flag::GENEVE | flag::IPV6,
        src: 5,
        dst: 6,
        id: 7,
        options,
        ..OuterHeader::default()
    };
    let len = tunnel.emit(&mut out);
    assert_eq!((len, OuterHeader::parse(&out[..len])), (60, Some(tunnel)));
    assert_eq!(OuterHeader::parse(&out[..len - 1]), None);
    for (at, byte) in [(3, 9), (3, 65), (0, flag::ERSPAN), (0, 0), (0, flag::GBP)] {
        let mut bad = out;
        bad[at] = byte;
        assert_eq!(OuterHeader::parse(&bad), None, "{at} {byte}");
    }
}

fn any_tunnel() -> impl Strategy<Value = OuterHeader> {
    let numbers = (any::<[u8; 3]>(), any::<[u16; 2]>(), any::<(u64, u32)>(), any::<[u128; 2]>());
    (numbers, 0..=OPTIONS_BYTES_MAX / 4, any::<u8>()).prop_map(
        |((first, ports, (id, sender), addresses), words, byte)| {
            let ([flags, tos, ttl], [tp_src, tp_dst], [src, dst]) = (first, ports, addresses);
            let kind = match words {
                0 => 0,
                3 if byte & 1 != 0 => flag::ERSPAN,
                _ => flag::GENEVE,
            };
            let flags = flags & !flag::OPTIONS | kind;
            let bits = if flags & flag::IPV6 != 0 { u128::MAX } else { u128::from(u32::MAX) };
            let (src, dst) = (src & bits, dst & bits);
            let options = OptionBytes::of(&vec![byte; 4 * words]).expect("they fit");
            OuterHeader {
                flags,
                tos,
                ttl,
                tp_src,
                tp_dst,
                id,
                src,
                dst,
                sender,
                is_layer3: byte & 2 != 0,
                options,
            }
        },
    )
}

proptest! {
    #[test]
    fn metadata_is_read_as_it_was_written(tunnel in any_tunnel()) {
        let mut out = [0xaa; TUNNEL_BYTES];
        let len = tunnel.emit(&mut out);
        prop_assert!(len <= TUNNEL_BYTES);
        prop_assert_eq!(OuterHeader::parse(&out[..len]), Some(tunnel));
        prop_assert_eq!(OuterHeader::parse(&out), Some(tunnel), "bytes behind it do not count");
        set_sender(&mut out, 7);
        prop_assert_eq!(OuterHeader::parse(&out), Some(OuterHeader { sender: 7, ..tunnel }));
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200), has_policy: bool) {
        let mut tunnel = OuterHeader::default();
        if let Ok(at) = geneve::read(&bytes, &mut tunnel) {
            prop_assert!(at + INNER_BYTES_MIN <= bytes.len());
            let mut out = [0; geneve::HEADER_BYTES_MAX];
            prop_assert_eq!(geneve::write(&tunnel, &mut out), at);
            prop_assert_eq!(&out[8..at], &bytes[8..at]);
        }
        let mut tunnel = OuterHeader::default();
        if let Ok(at) = vxlan::read(&bytes, has_policy, &mut tunnel) {
            prop_assert!(at + INNER_BYTES_MIN <= bytes.len());
            prop_assert_eq!(&vxlan::write(&tunnel, has_policy)[4..7], &bytes[4..7]);
        }
        let mut tunnel = OuterHeader::default();
        if let Ok(inner) = gre::read(&bytes, &mut tunnel) {
            prop_assert!(is_inside(inner, &bytes));
            let (mut out, mut again) = ([0; gre::HEADER_BYTES_MAX], OuterHeader::default());
            let at = gre::write(&tunnel, inner.ethertype, &mut out);
            let written = [&out[..at], &bytes[inner.at..]].concat();
            prop_assert_eq!((gre::read(&written, &mut again), again), (Ok(Inner { at, ..inner }), tunnel));
        }
        let mut tunnel = OuterHeader::default();
        if let Ok(inner) = vxlan_gpe::read(&bytes, &mut tunnel) {
            prop_assert!(is_inside(inner, &bytes));
            let written = vxlan_gpe::write(&tunnel, inner.ethertype).expect("it has a next protocol");
            prop_assert_eq!((&written[..1], &written[3..7]), (&bytes[..1], &bytes[3..7]));
        }
        let mut tunnel = OuterHeader::default();
        if let Ok(inner) = bareudp::read(&bytes, has_policy, &mut tunnel) {
            prop_assert!(is_inside(inner, &bytes) && inner.at == 0 && tunnel.is_layer3);
            prop_assert!(inner.ethertype.is_some_and(|ethertype| bareudp::takes(ethertype, has_policy)));
        }
        if let Some(tunnel) = OuterHeader::parse(&bytes) {
            let mut out = [0; TUNNEL_BYTES];
            let len = tunnel.emit(&mut out);
            prop_assert_eq!(&out[..len], &bytes[..len]);
        }
    }

    #[test]
    fn any_erspan_header_is_written_as_it_was_read(
        header: [u8; 12], is_type_3: bool, gre_bits in 0..16_u8, bytes in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let [high, low] = erspan::PROTOCOLS[usize::from(is_type_3)].to_be_bytes();
        let version = if is_type_3 { 0x20 } else { 0x10 };
        let words = usize::from(gre_bits >> 3) + usize::from(gre_bits >> 1 & 1) + usize::from(gre_bits & 1);
        let gre = [&[gre_bits << 4, 0, high, low][..], &vec![9; 4 * words]].concat();
        let datagram = [&gre[..], &[version | header[0] & 0xf], &header[1..], &bytes].concat();
        let mut tunnel = OuterHeader::default();
        if let Ok(at) = erspan::read(&datagram, &mut tunnel) {
            prop_assert!(at + INNER_BYTES_MIN <= datagram.len() && tunnel.id <= u64::from(erspan::SESSION_MAX));
            let (mut out, mut again) = ([0; erspan::HEADER_BYTES_MAX], OuterHeader::default());
            let len = erspan::write(&tunnel, ErspanStamp::default(), &mut out).expect("its options are ERSPAN's");
            prop_assert_eq!(erspan::read(&around(&out[..len]), &mut again), Ok(len));
            let told = |tunnel: &OuterHeader| (tunnel.flags, tunnel.id, ErspanOptions::of(tunnel.options.get()));
            prop_assert_eq!(told(&again), told(&tunnel));
        }
    }

    #[test]
    fn geneve_options_of_any_lengths_come_back(units in proptest::collection::vec(0..5_u8, 0..5), kind: u8) {
        let options: Vec<u8> =
            units.iter().flat_map(|units| [vec![1, 2, kind, *units], vec![kind; 4 * usize::from(*units)]].concat()).collect();
        let datagram = geneve((options.len() / 4) as u8, &options);
        let mut tunnel = OuterHeader::default();
        let read = geneve::read(&datagram, &mut tunnel);
        if options.len() > OPTIONS_BYTES_MAX {
            prop_assert_eq!(read, Err(TunnelFault::ManyOptions));
        } else {
            prop_assert_eq!((read, tunnel.options.get()), (Ok(8 + options.len()), &options[..]));
        }
    }
}
