//! DHCP: any frame is read or refused; addresses that were read are in the frame.

use lasthop_wire::dhcp::{DhcpMessage, Dhcpv6Message, udp_payload};

use crate::input::{Input, Seed};

/// Panics when something does not hold for a frame, or for the payload of a datagram.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (kind, bytes) = (input.u8(), input.rest());
    match kind & 3 {
        0 => read_frame(bytes),
        1 => read_dhcp(bytes),
        _ => read_dhcpv6(bytes),
    }
}

fn read_frame(frame: &[u8]) {
    let Some(payload) = udp_payload(frame) else { return };
    assert!(payload.len() + 8 + 20 + 14 <= frame.len(), "behind Ethernet, IP and UDP");
    read_dhcp(payload);
    read_dhcpv6(payload);
}

fn read_dhcp(payload: &[u8]) {
    let Some(message) = DhcpMessage::parse(payload) else { return };
    assert!(message.kind != 0 && payload[0] == if message.is_of_client { 1 } else { 2 });
    assert_eq!(message.given.octets(), payload[16..20]);
    let options = &payload[240..];
    let has = |bytes: &[u8]| options.windows(bytes.len()).any(|window| window == bytes);
    assert!(has(&[53, 1, message.kind]));
    if let Some(address) = message.requested {
        assert!(has(&[&[50, 4][..], &address.octets()].concat()));
    }
    if let Some(lease_s) = message.lease_s {
        assert!(has(&[&[51, 4][..], &lease_s.to_be_bytes()].concat()));
    }
}

fn read_dhcpv6(payload: &[u8]) {
    let Some(message) = Dhcpv6Message::parse(payload) else { return };
    assert_eq!((message.kind, message.xid), (payload[0], message.xid & 0xff_ffff));
    // Each address takes 28 bytes with its option.
    assert!(message.addresses().count() * 28 <= payload.len());
    for given in message.addresses() {
        let address = given.address.octets();
        assert!(payload.windows(16).any(|window| window == address));
    }
    let _ = message.has_rapid_commit();
}

/// A request and an acknowledgement, as dhclient and dnsmasq send them, and a Reply of DHCPv6.
#[must_use]
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let dhcp = |op: u8, options: &[u8]| {
        let mut bytes = vec![op, 1, 6, 0, 0x12, 0x34, 0x56, 0x78, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 50];
        bytes.extend([0; 8]);
        bytes.extend([2, 0, 0, 0, 0, 1]);
        bytes.extend([0; 10 + 64 + 128]);
        bytes.extend([99, 130, 83, 99]);
        bytes.extend(options);
        bytes.push(255);
        bytes
    };
    let request = dhcp(1, &[53, 1, 3, 50, 4, 10, 0, 0, 50, 12, 2, b'v', b'm', 55, 3, 1, 3, 6, 0, 0]);
    let ack = dhcp(2, &[53, 1, 5, 54, 4, 10, 0, 0, 1, 51, 4, 0, 0, 14, 16, 1, 4, 255, 255, 255, 0]);
    let mut reply = vec![7, 1, 2, 3, 0, 1, 0, 10, 0, 3, 0, 1, 2, 0, 0, 0, 0, 1, 0, 14, 0, 0];
    reply.extend([0, 3, 0, 46, 0, 0, 0, 1, 0, 0, 0, 60, 0, 0, 0, 96, 0, 5, 0, 30]);
    reply.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x51, 0, 0, 0, 100, 0, 0, 0, 120]);
    reply.extend([0, 13, 0, 2, 0, 0]);
    let length = |bytes: usize| (bytes as u16).to_be_bytes();
    let frame = [
        &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0][..],
        &length(request.len() + 28),
        &[0, 0, 0, 0, 64, 17, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 68, 0, 67],
        &length(request.len() + 8),
        &[0, 0],
        &request,
    ]
    .concat();
    let seed = |kind: u8, bytes: &[u8]| {
        let mut seed = Seed::default();
        seed.u8(kind).bytes(bytes);
        seed.into_bytes()
    };
    vec![
        ("request".into(), seed(1, &request)),
        ("request-frame".into(), seed(0, &frame)),
        ("ack".into(), seed(1, &ack)),
        ("reply".into(), seed(2, &reply)),
    ]
}
