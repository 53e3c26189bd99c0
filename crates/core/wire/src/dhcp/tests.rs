use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// A DHCP message as RFC 2131 has it, with other options before its own.
fn written(message: &DhcpMessage, others: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = vec![if message.is_of_client { 1 } else { 2 }, 1, 6, 0];
    bytes.extend(message.xid.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(message.client.octets());
    bytes.extend(message.given.octets());
    bytes.extend([0; 8]);
    bytes.extend(message.client_mac);
    bytes.extend([0; 10 + 64 + 128]);
    bytes.extend(COOKIE);
    let mut add = |code: u8, data: &[u8]| {
        bytes.extend([code, data.len() as u8]);
        bytes.extend(data);
        bytes.push(PAD);
    };
    others.iter().for_each(|(code, data)| add(*code, data));
    add(MESSAGE_TYPE, &[message.kind]);
    message.requested.iter().for_each(|address| add(REQUESTED_ADDRESS, &address.octets()));
    message.lease_s.iter().for_each(|lease_s| add(LEASE_TIME, &lease_s.to_be_bytes()));
    bytes.push(END);
    bytes
}

fn option(code: u16, data: &[u8]) -> Vec<u8> {
    [&code.to_be_bytes()[..], &(data.len() as u16).to_be_bytes(), data].concat()
}

/// An association with these addresses, each with a status code.
fn association(addresses: &[(GivenAddress, u16)]) -> Vec<u8> {
    let mut inside = vec![0; IA_NA_BYTES];
    for (given, status) in addresses {
        let times = [[0; 4], given.valid_s.to_be_bytes()].concat();
        let status = option(STATUS, &status.to_be_bytes());
        inside.extend(option(IA_ADDRESS, &[&given.address.octets()[..], &times, &status].concat()));
    }
    option(IA_NA, &inside)
}

fn given() -> impl Strategy<Value = GivenAddress> {
    (any::<u128>(), any::<u32>()).prop_map(|(bits, valid_s)| GivenAddress { address: bits.into(), valid_s })
}

prop_compose! {
    fn message()(
        is_of_client: bool,
        kind in 1_u8..=255,
        xid: u32,
        client_mac: [u8; 6],
        addresses: (u32, u32),
        requested: Option<u32>,
        lease_s: Option<u32>,
    ) -> DhcpMessage {
        let (client, given) = (addresses.0.into(), addresses.1.into());
        let requested = requested.map(Ipv4Addr::from);
        DhcpMessage { is_of_client, kind, xid, client_mac, client, given, requested, lease_s }
    }
}

proptest! {
    #[test]
    fn a_written_message_is_read(message in message(), others in vec((100_u8..200, vec(any::<u8>(), 0..40)), 0..4)) {
        let bytes = written(&message, &others);
        prop_assert_eq!(DhcpMessage::parse(&bytes), Some(message));
        // Cut anywhere in its mandatory part, it is none.
        prop_assert_eq!(DhcpMessage::parse(&bytes[..FIXED_BYTES]), None);
    }

    #[test]
    fn a_written_message_of_dhcpv6_is_read(
        kind: u8,
        xid in 0_u32..1 << 24,
        is_rapid: bool,
        addresses in vec(vec((given(), 0_u16..2), 0..4), 0..4),
    ) {
        let mut bytes = xid.to_be_bytes().to_vec();
        bytes[0] = kind;
        bytes.extend(option(1, &[0, 3, 0, 1, 2, 0, 0, 0, 0, 1]));
        addresses.iter().for_each(|own| bytes.extend(association(own)));
        bytes.extend(option(IA_NA + 1, &[7; 4]));
        if is_rapid {
            bytes.extend(option(RAPID_COMMIT, &[]));
        }
        let message = Dhcpv6Message::parse(&bytes).expect("a message");
        prop_assert_eq!((message.kind, message.xid, message.has_rapid_commit()), (kind, xid, is_rapid));
        let good = addresses.iter().flatten().filter(|(_, status)| *status == 0).map(|(given, _)| *given);
        prop_assert!(message.addresses().eq(good));
        let failed = [&bytes[..], &option(STATUS, &[0, 4])].concat();
        let failed = Dhcpv6Message::parse(&failed).expect("a message");
        prop_assert_eq!(failed.addresses().count(), 0, "a message with an error gives none");
        // One byte more or less is in no option.
        let longer = [&bytes[..], &[0]].concat();
        prop_assert_eq!(Dhcpv6Message::parse(&longer), None);
        prop_assert_eq!(Dhcpv6Message::parse(&bytes[..bytes.len() - 1]), None);
    }

    #[test]
    fn no_bytes_panic(
        bytes in vec(any::<u8>(), 0..400),
        options in vec(any::<u8>(), 0..80),
        message in message(),
    ) {
        let _ = udp_payload(&bytes);
        let _ = DhcpMessage::parse(&bytes);
        let head = written(&message, &[]);
        let _ = DhcpMessage::parse(&[&head[..FIXED_BYTES], &options].concat());
        for payload in [&bytes, &[&[7, 0, 0, 1, 0, 3, 0, options.len() as u8][..], &options].concat()] {
            if let Some(message) = Dhcpv6Message::parse(payload) {
                let _ = (message.addresses().count(), message.has_rapid_commit());
            }
        }
    }
}

#[test]
fn options_of_a_wrong_length_are_refused() {
    let message = DhcpMessage {
        is_of_client: false,
        kind: DHCPACK,
        xid: 1,
        client_mac: [2, 0, 0, 0, 0, 1],
        client: Ipv4Addr::UNSPECIFIED,
        given: Ipv4Addr::new(10, 0, 0, 5),
        requested: None,
        lease_s: Some(60),
    };
    for (code, data) in [(LEASE_TIME, vec![0; 8]), (LEASE_TIME, vec![1]), (MESSAGE_TYPE, vec![])] {
        assert_eq!(DhcpMessage::parse(&written(&message, &[(code, data)])), None, "{code}");
    }
    let mut overlong = written(&message, &[]);
    let end = overlong.len() - 1;
    overlong.splice(end.., [120, 9, 1]);
    assert_eq!(DhcpMessage::parse(&overlong), None, "it passes the end");
    let kindless = DhcpMessage { kind: 0, ..message };
    assert_eq!(DhcpMessage::parse(&written(&kindless, &[])), None);
    let mut wide = written(&message, &[]);
    wide[2] = 16;
    assert_eq!(DhcpMessage::parse(&wide), None, "not of Ethernet");
}

#[test]
fn a_short_address_of_dhcpv6_is_refused() {
    let short =
        option(IA_NA, &[&[0; IA_NA_BYTES][..], &option(IA_ADDRESS, &[0; IA_ADDRESS_BYTES - 1])].concat());
    assert_eq!(Dhcpv6Message::parse(&[&[REPLY, 0, 0, 1][..], &short].concat()), None);
}

#[test]
fn the_payload_is_what_udp_says() {
    let builder = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
    let mut frame = Vec::new();
    builder.udp(68, 67).write(&mut frame, b"request").expect("a datagram");
    let whole = [&frame[..], &[0; 20]].concat();
    assert_eq!(udp_payload(&whole), Some(&b"request"[..]), "without padding");
    assert_eq!(udp_payload(&frame[..frame.len() - 1]), None, "cut short");
    let mut fragment = frame.clone();
    fragment[20] = 0x20;
    assert_eq!(udp_payload(&fragment), None);
    frame[39] = 7;
    assert_eq!(udp_payload(&frame), None, "shorter than its header");
}
