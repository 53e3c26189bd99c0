//! UDP datagrams as frames.

use lasthop_wire::{Layers, Sum};

use crate::lab::{FAR_IP, FAR_MAC, GUEST_IP, GUEST_MAC, UDP_PORT};

const UDP: u8 = 17;

/// A datagram from the guest.
pub(crate) fn from_guest(to_mac: [u8; 6], to_ip: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let len = (8 + payload.len()) as u16;
    let mut frame = [&to_mac[..], &GUEST_MAC, &[8, 0, 0x45, 0]].concat();
    frame.extend((20 + len).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, UDP, 0, 0]);
    frame.extend(GUEST_IP);
    frame.extend(to_ip);
    let mut header = Sum::default();
    header.add(&frame[14..34]);
    frame[24..26].copy_from_slice(&header.finish().to_be_bytes());
    frame.extend(UDP_PORT.to_be_bytes());
    frame.extend(UDP_PORT.to_be_bytes());
    frame.extend(len.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    let sum = udp_sum(&frame);
    frame[40..42].copy_from_slice(&sum.to_be_bytes());
    frame
}

pub(crate) fn to_far_end(payload: &[u8]) -> Vec<u8> {
    from_guest(FAR_MAC, FAR_IP, payload)
}

fn udp_sum(frame: &[u8]) -> u16 {
    let len = (frame.len() - 34) as u16;
    let ip = |at: usize| -> [u8; 4] { frame[at..at + 4].try_into().unwrap() };
    let mut sum = Sum::pseudo_v4(ip(26), ip(30), UDP, len);
    sum.add(&frame[34..]);
    sum.finish_udp()
}

/// The payload of a datagram with a correct checksum; `None` for any other frame.
pub(crate) fn datagram(frame: &[u8]) -> Option<&[u8]> {
    let layers = Layers::parse(frame).ok()?;
    if layers.l4_proto != UDP || frame[36..38] != UDP_PORT.to_be_bytes() {
        return None;
    }
    let frame = &frame[..14 + layers.l3_len_bytes as usize];
    let mut cleared = frame.to_vec();
    cleared[40..42].fill(0);
    assert_eq!(udp_sum(&cleared).to_be_bytes(), frame[40..42], "the checksum is wrong");
    Some(&frame[42..])
}

/// A payload of `len` bytes with a number in it.
pub(crate) fn payload(number: u32, len: usize) -> Vec<u8> {
    let mut payload = number.to_be_bytes().to_vec();
    payload.resize(len, number as u8);
    payload
}

/// The number in a payload.
pub(crate) fn number(payload: &[u8]) -> u32 {
    u32::from_be_bytes(payload[..4].try_into().unwrap())
}
