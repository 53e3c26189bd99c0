//! Frames of many TCP connections, for measurements.

use std::ops::Range;

use lasthop_conntrack::{
    ConntrackTable, CtBounds, CtCommit, CtMetadata, CtRequest, PacketImage, UnusualVerdict, UsualPacket4,
};
use lasthop_flow::{Nat, NatRange, NatSource, ct_state::INVALID};
use lasthop_wire::Offload;

/// Bytes of a frame: 14, 20, 20, and 10 of payload.
pub(crate) const FRAME_BYTES: usize = 64;
const SYN: u8 = 2;
const ACK: u8 = 0x10;

/// Milliseconds, by the clock of all measurements.
pub(crate) const NOW_MS: u64 = 1_000_000;

/// A segment from the client of connection `number` to its server, or back. Its checksum is left to the receiver.
fn frame(number: u32, is_reply: bool, flags: u8) -> [u8; FRAME_BYTES] {
    let mut frame = [0; FRAME_BYTES];
    let [a, b, c, d] = number.to_be_bytes();
    let (client, server) = ([10, b, c, d], [192, 0, 2, a + 1]);
    let (src, dst) = if is_reply { (server, client) } else { (client, server) };
    let (sport, dport) = if is_reply { (80_u16, 40_000_u16) } else { (40_000, 80) };
    frame[..16].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0]);
    frame[16..18].copy_from_slice(&50_u16.to_be_bytes());
    frame[22..24].copy_from_slice(&[64, 6]);
    frame[26..30].copy_from_slice(&src);
    frame[30..34].copy_from_slice(&dst);
    frame[34..36].copy_from_slice(&sport.to_be_bytes());
    frame[36..38].copy_from_slice(&dport.to_be_bytes());
    frame[38..42].copy_from_slice(&u32::from(flags & SYN == 0).to_be_bytes());
    frame[42..46].copy_from_slice(&u32::from(flags & ACK != 0).to_be_bytes());
    frame[46..50].copy_from_slice(&[0x50, flags, 0x20, 0]);
    frame
}

/// A data segment of an established connection.
pub(crate) fn segment(number: u32, is_reply: bool) -> [u8; FRAME_BYTES] {
    frame(number, is_reply, ACK)
}

/// The first segment of a connection.
pub(crate) fn syn(number: u32) -> [u8; FRAME_BYTES] {
    let mut syn = frame(number, false, SYN);
    // Nothing behind the header.
    syn[16..18].copy_from_slice(&40_u16.to_be_bytes());
    syn
}

/// A datagram of another connection for each number, whose checksum is left out.
#[allow(dead_code)]
pub(crate) fn datagram(number: u32) -> [u8; FRAME_BYTES] {
    let mut datagram = frame(0, false, SYN);
    datagram[23] = 17;
    datagram[34..38].copy_from_slice(&number.to_be_bytes());
    datagram[38..54].fill(0);
    datagram[39] = 30;
    datagram
}

/// The way of a first datagram through `ct` and its commit.
#[allow(dead_code)]
pub(crate) fn begin(table: &ConntrackTable, frame: &[u8]) {
    let (zone, offload) = (table.usual_zone(0, false, NOW_MS), Offload::default());
    let usual = UsualPacket4::of(frame, &offload).expect("IPv4");
    assert_eq!(zone.track::<false, _>(&usual, || FRAME_BYTES as u32), None);
    let verdict = zone.track_unusual::<false, _>(&usual, FRAME_BYTES as u32);
    let Some(UnusualVerdict::Begins(tuples)) = verdict else { panic!("{verdict:?}") };
    if zone.commit((&usual, &tuples), (FRAME_BYTES as u32, 1), &commit(0)).is_none() {
        // Another connection has the same hash.
        table.track(&image(frame), &CtMetadata::default(), &commit(0), NOW_MS);
    }
}

/// `ct(commit)`.
pub(crate) fn commit(zone: u16) -> CtRequest {
    CtRequest { zone, commit: CtCommit::Yes, ..CtRequest::default() }
}

/// `ct(commit,nat(src=192.0.2.200))`.
#[allow(dead_code)]
pub(crate) fn snat() -> CtRequest {
    let ip_min = Some([192, 0, 2, 200].into());
    let range = NatRange { ip_min, ..NatRange::default() };
    CtRequest { nat: Some(Nat { source: Some(NatSource::Src), range, ..Nat::default() }), ..commit(0) }
}

/// The image of a frame.
pub(crate) fn image(frame: &[u8]) -> PacketImage<'_> {
    let offload = Offload { flags: lasthop_wire::vnet::F_DATA_VALID, ..Offload::default() };
    PacketImage::parse(frame, frame.len() as u32, offload, 1).expect("TCP")
}

/// A table with this number of established connections, committed by a request.
pub(crate) fn established(connections: u32, request: &CtRequest) -> ConntrackTable {
    let bounds = CtBounds { port_connections_max: 1 << 20, ..CtBounds::default() };
    let table = ConntrackTable::new(bounds, NOW_MS);
    establish(&table, 0..connections, request);
    table
}

/// Establishes these connections, after those with smaller numbers.
pub(crate) fn establish(table: &ConntrackTable, connections: Range<u32>, request: &CtRequest) {
    for number in connections.clone() {
        let mut answer = frame(number, true, SYN | ACK);
        answer[16..18].copy_from_slice(&40_u16.to_be_bytes());
        if request.nat.is_some() {
            // Towards the address that the source is translated to.
            answer[30..34].copy_from_slice(&[192, 0, 2, 200]);
        }
        for segment in [syn(number), answer, segment(number, false)] {
            let verdict = table.track(&image(&segment), &CtMetadata::default(), request, NOW_MS);
            assert_eq!((verdict.refused, verdict.metadata.state & INVALID), (None, 0));
        }
    }
    assert_eq!(table.len(), connections.end);
}
