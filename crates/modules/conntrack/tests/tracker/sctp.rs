//! SCTP: handshake, tags, end.

use lasthop_conntrack::{CtProtocol, CtRecord, SctpState};
use lasthop_flow::NatSource;

use crate::bench::{Bench, EST, INVALID, NEW, REPLY, Records, commit, nat, natted};
use crate::frames::{SCTP, at, frame, ip};

const CLIENT: &str = "10.0.0.1:5000";
const SERVER: &str = "10.0.0.2:6000";

/// CRC-32C, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let one = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ ((crc & 1) * 0x82f6_3b78))
    };
    !bytes.iter().fold(u32::MAX, one)
}

fn chunk(kind: u8, flags: u8, value: &[u8]) -> Vec<u8> {
    let len = (4 + value.len()) as u16;
    [&[kind, flags], &len.to_be_bytes()[..], value].concat()
}

fn packet(src: &str, dst: &str, tag: u32, chunks: &[Vec<u8>]) -> Vec<u8> {
    let (src, dst) = (at(src), at(dst));
    let mut l4 = [src.port().to_be_bytes(), dst.port().to_be_bytes()].concat();
    l4.extend(tag.to_be_bytes());
    l4.extend([0; 4]);
    chunks.iter().for_each(|chunk| l4.extend(chunk));
    let crc = crc32c(&l4);
    l4[8..12].copy_from_slice(&crc.to_le_bytes());
    frame(&ip(src.ip(), dst.ip(), SCTP, &l4))
}

fn init(kind: u8, tag: u32) -> Vec<u8> {
    chunk(kind, 0, &[&tag.to_be_bytes()[..], &[0; 12]].concat())
}

fn record(bench: &Bench) -> CtRecord {
    bench.tracker.next_record(0, bench.now_ms).expect("a connection").1
}

fn state(bench: &Bench) -> SctpState {
    let CtProtocol::Sctp { state, .. } = record(bench).protocol else { panic!("no SCTP") };
    state
}

fn established() -> Bench {
    let mut bench = Bench::default();
    assert_eq!(bench.state(&packet(CLIENT, SERVER, 0, &[init(1, 0x11)]), &commit()), NEW);
    assert_eq!(bench.state(&packet(SERVER, CLIENT, 0x11, &[init(2, 0x22)]), &commit()), REPLY);
    assert_eq!(state(&bench), SctpState::CookieWait);
    assert_eq!(bench.state(&packet(CLIENT, SERVER, 0x22, &[chunk(10, 0, b"cook")]), &commit()), EST);
    assert_eq!(bench.state(&packet(SERVER, CLIENT, 0x11, &[chunk(11, 0, b"")]), &commit()), REPLY);
    bench
}

#[test]
fn an_association_from_init_to_shutdown() {
    let mut bench = established();
    assert_eq!((state(&bench), record(&bench).is_assured), (SctpState::Established, true));
    assert_eq!(record(&bench).left_ms, 432_000_000);
    let CtProtocol::Sctp { tags, .. } = record(&bench).protocol else { panic!("no SCTP") };
    assert_eq!(tags, [0x22, 0x11]);
    assert_eq!(bench.state(&packet(CLIENT, SERVER, 0x22, &[chunk(0, 3, &[0; 16])]), &commit()), EST);
    assert_eq!(bench.state(&packet(CLIENT, SERVER, 0x22, &[chunk(7, 0, &[0; 4])]), &commit()), EST);
    assert_eq!(state(&bench), SctpState::ShutdownSent);
    assert_eq!(bench.state(&packet(SERVER, CLIENT, 0x11, &[chunk(8, 0, b"")]), &commit()), REPLY);
    assert_eq!(bench.state(&packet(CLIENT, SERVER, 0x22, &[chunk(14, 0, b"")]), &commit()), EST);
    assert_eq!((state(&bench), record(&bench).left_ms), (SctpState::Closed, 10_000));
}

#[test]
fn packets_with_other_tags_are_invalid() {
    let mut bench = established();
    assert_eq!(bench.state(&packet(CLIENT, SERVER, 0x23, &[chunk(0, 3, &[0; 16])]), &commit()), INVALID);
    assert_eq!(bench.state(&packet(SERVER, CLIENT, 0x33, &[chunk(6, 0, b"")]), &commit()), INVALID);
    assert_eq!(bench.state(&packet(CLIENT, SERVER, 5, &[init(1, 0x77)]), &commit()), INVALID);
    assert_eq!(state(&bench), SctpState::Established);
    assert_eq!(bench.state(&packet(SERVER, CLIENT, 0x11, &[chunk(6, 0, b"")]), &commit()), REPLY);
    assert_eq!(state(&bench), SctpState::Closed);
}

#[test]
fn a_chunk_that_begins_no_association_is_invalid() {
    for chunks in [
        vec![],
        vec![chunk(6, 0, b"")],
        vec![chunk(11, 0, b"")],
        vec![chunk(0, 3, &[0; 16])],
        vec![init(1, 1), init(1, 1)],
        vec![chunk(0, 3, &[0; 16]), chunk(10, 0, b"")],
        vec![vec![1, 0, 0, 0]],
        vec![init(1, 0x11)[..6].to_vec()],
    ] {
        assert_eq!(
            Bench::default().state(&packet(CLIENT, SERVER, 0, &chunks), &commit()),
            INVALID,
            "{chunks:?}"
        );
    }
}

#[test]
fn the_checksum_follows_translated_ports() {
    let mut bench = Bench::default();
    let request = nat(NatSource::Src, ("192.0.2.1", ""), Some((7000, 7000)));
    let check = |frame: &[u8]| {
        let mut l4 = frame[34..].to_vec();
        let crc: [u8; 4] = l4[8..12].try_into().expect("four bytes");
        l4[8..12].fill(0);
        assert_eq!(u32::from_le_bytes(crc), crc32c(&l4));
    };
    let (_, out) = bench.pass(&packet(CLIENT, SERVER, 0, &[init(1, 0x11)]), &request);
    assert_eq!(crate::frames::ends(&out), (at("192.0.2.1:7000"), at(SERVER)));
    check(&out);
    let (_, back) = bench.pass(&packet(SERVER, "192.0.2.1:7000", 0x11, &[init(2, 0x22)]), &natted());
    assert_eq!(crate::frames::ends(&back), (at(SERVER), at(CLIENT)));
    check(&back);
}
