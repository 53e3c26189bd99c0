use proptest::prelude::*;

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
    assert_eq!((len, OuterHeader::parse(&out[..len])), (56, Some(tunnel)));
    assert_eq!(OuterHeader::parse(&out[..len - 1]), None);
    for (at, byte) in [(3, 9), (3, 65), (0, flag::GENEVE | flag::GBP), (0, 0), (0, flag::GBP)] {
        let mut bad = out;
        bad[at] = byte;
        assert_eq!(OuterHeader::parse(&bad), None, "{at} {byte}");
    }
}

fn any_tunnel() -> impl Strategy<Value = OuterHeader> {
    let numbers = (any::<[u8; 3]>(), any::<[u16; 2]>(), any::<u64>(), any::<[u128; 2]>());
    (numbers, 0..=OPTIONS_BYTES_MAX / 4, any::<u8>()).prop_map(
        |((first, ports, id, addresses), words, byte)| {
            let ([flags, tos, ttl], [tp_src, tp_dst], [src, dst]) = (first, ports, addresses);
            let flags = flags & !(flag::GENEVE | flag::GBP) | if words > 0 { flag::GENEVE } else { 0 };
            let bits = if flags & flag::IPV6 != 0 { u128::MAX } else { u128::from(u32::MAX) };
            let (src, dst) = (src & bits, dst & bits);
            let options = OptionBytes::of(&vec![byte; 4 * words]).expect("they fit");
            OuterHeader { flags, tos, ttl, tp_src, tp_dst, id, src, dst, options }
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
        if let Some(tunnel) = OuterHeader::parse(&bytes) {
            let mut out = [0; TUNNEL_BYTES];
            let len = tunnel.emit(&mut out);
            prop_assert_eq!(&out[..len], &bytes[..len]);
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
