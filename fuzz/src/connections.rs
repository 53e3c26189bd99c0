//! Any packets in any order through connection tracking: no panic, states that make sense, checksums that stay right, bounds
//! that hold.
//!
//! A table's secrets are random, and with them the ports of translations: assertions hold for any of them.

use lasthop_conntrack::{
    ConntrackTable, CtBounds, CtCommit, CtHelper, CtMetadata, CtRefusal, CtRequest, CtVerdict, PacketImage,
};
use lasthop_flow::{Masked, Nat, NatRange, NatSource, ct_state};
use lasthop_wire::vnet::F_DATA_VALID;
use lasthop_wire::{Layers, Network, Offload};

use crate::headers::checksum_of;
use crate::input::{Input, Seed};

/// Connections that there may be: few, so that some have to go.
const CONNECTIONS_MAX: u32 = 12;
/// Packets of an input.
const STEPS_MAX: usize = 64;

/// A packet and its request.
struct Step<'a> {
    request: CtRequest,
    frame: &'a [u8],
    /// Where the image ends.
    image: usize,
    offload: Offload,
    in_port: u16,
    /// The same packet again, with the metadata of the first look.
    goes_on: bool,
    pause_ms: u64,
}

impl<'a> Step<'a> {
    fn decode(input: &mut Input<'a>) -> Self {
        let (how, what, where_) = (input.u8(), input.u8(), input.u8());
        let pause_ms = u64::from(input.u8()) << (how >> 5);
        let cut = usize::from(input.u8());
        let len = usize::from(input.u16());
        let frame = input.bytes(len);
        let commit = [CtCommit::Yes, CtCommit::No, CtCommit::Force, CtCommit::Yes][usize::from(how & 3)];
        let helper = [None, None, Some(CtHelper::Ftp), Some(CtHelper::Tftp)][usize::from(how >> 2 & 3)];
        let mark = Masked { value: u32::from(what), mask: 0xf0 };
        let request = CtRequest {
            zone: u16::from(where_ >> 7),
            commit,
            mark,
            helper,
            nat: nat(what),
            ..CtRequest::default()
        };
        let flags = if how & 16 == 0 { F_DATA_VALID } else { 0 };
        let image = if cut == 0 { frame.len() } else { cut.min(frame.len()) };
        let offload = Offload { flags, ..Offload::default() };
        let (in_port, goes_on) = (u16::from(where_ & 3), where_ & 4 != 0);
        Self { request, frame, image, offload, in_port, goes_on, pause_ms }
    }
}

/// A translation by its number.
fn nat(number: u8) -> Option<Nat> {
    let source = match number & 3 {
        0 => return None,
        1 => Some(NatSource::Src),
        2 => Some(NatSource::Dst),
        _ => None,
    };
    let ip_min = match number >> 2 & 3 {
        0 => None,
        1 => Some([192, 0, 2, 1].into()),
        2 => Some([0, 0, 0, 0].into()),
        _ => Some([0xfd00_u16, 0, 0, 0, 0, 0, 0, 9].into()),
    };
    let ports = (number & 16 != 0).then_some((5000, 5000 + u16::from(number >> 5)));
    let range =
        NatRange { ip_min, ip_max: None, proto_min: ports.map(|p| p.0), proto_max: ports.map(|p| p.1) };
    Some(Nat {
        source,
        range,
        is_random: number & 32 != 0,
        is_hashed: number & 64 != 0,
        is_persistent: false,
    })
}

/// Panics when something does not hold for a sequence of packets.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let bounds = CtBounds {
        connections_max: CONNECTIONS_MAX,
        port_connections_max: 8,
        zone_connections_max: Some(10),
    };
    let (table, mut now_ms) = (ConntrackTable::new(bounds, 0), 0);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        let step = Step::decode(&mut input);
        now_ms += step.pause_ms;
        track(&table, &step, now_ms);
        assert!(table.len() <= CONNECTIONS_MAX && table.zone(0).1 <= 10 && table.port_connections(0) <= 8);
        table.sweep(now_ms, 8);
    }
    let counters = table.counters();
    assert_eq!(
        counters.created,
        u64::from(table.len()) + counters.expired + counters.evicted + counters.deleted
    );
    // Nothing lives for longer than a week.
    now_ms += 7 * 86_400_000;
    while !table.sweep(now_ms, 4096) {}
    assert!(table.is_empty() && table.zone(0).1 == 0 && table.zone(1).1 == 0);
}

fn track(table: &ConntrackTable, step: &Step<'_>, now_ms: u64) {
    let image = &step.frame[..step.image];
    let Ok(packet) = PacketImage::parse(image, step.frame.len() as u32, step.offload, step.in_port) else {
        return;
    };
    let verdict = table.track(&packet, &CtMetadata::default(), &step.request, now_ms);
    check(step, image, &verdict);
    if !step.goes_on || verdict.refused.is_some() || verdict.rewrites.splice.is_some() {
        return;
    }
    let image = verdict.rewrites.applied(image);
    let Ok(packet) = PacketImage::parse(&image, step.frame.len() as u32, step.offload, step.in_port) else {
        panic!("what was translated is no packet any more");
    };
    let again = table.track(&packet, &verdict.metadata, &step.request, now_ms);
    let nat_bits = ct_state::SRC_NAT | ct_state::DST_NAT;
    assert!(again.rewrites.is_empty() || verdict.metadata.state & nat_bits == 0, "it was translated twice");
    assert_eq!(again.metadata.state & ct_state::INVALID, verdict.metadata.state & ct_state::INVALID);
}

fn check(step: &Step<'_>, image: &[u8], verdict: &CtVerdict) {
    let state = verdict.metadata.state;
    let has = |bit: u32| state & bit != 0;
    assert!(has(ct_state::TRACKED) && verdict.metadata.zone == step.request.zone);
    if has(ct_state::INVALID) {
        assert_eq!((state, &verdict.metadata.original), (ct_state::TRACKED | ct_state::INVALID, &None));
        assert!(verdict.rewrites.is_empty() && verdict.connection.is_none() && verdict.refused.is_none());
        return;
    }
    assert!(has(ct_state::NEW) != has(ct_state::ESTABLISHED) || has(ct_state::RELATED), "{state:#x}");
    assert!(!has(ct_state::NEW) || !has(ct_state::REPLY), "{state:#x}");
    assert!(verdict.metadata.original.is_some());
    let is_bound =
        matches!(verdict.refused, None | Some(CtRefusal::NotInImage)) || step.request.commit != CtCommit::No;
    assert!(is_bound, "{:?} without a commit", verdict.refused);
    for patch in verdict.rewrites.patches() {
        assert!(usize::from(patch.at) >= 14 && usize::from(patch.at) + patch.bytes().len() <= image.len());
    }
    let is_translated = has(ct_state::SRC_NAT) || has(ct_state::DST_NAT);
    assert!(!is_translated || step.request.nat.is_some());
    if image.len() == step.frame.len() {
        compare_sums(image, &verdict.rewrites.applied(image));
    }
}

/// Checksums that were right are right.
fn compare_sums(before: &[u8], after: &[u8]) {
    let (Some((header, whole)), Some(found)) = (sums(before), sums(after)) else { return };
    assert!(!header || found.0, "the IPv4 header's checksum");
    assert!(!whole || found.1, "the transport checksum");
}

/// Whether the checksums of an IPv4 header, and of the transport packet, are right; none: they cannot be told.
fn sums(frame: &[u8]) -> Option<(bool, bool)> {
    let layers = Layers::parse(frame).ok().filter(|layers| layers.has_l4 && !layers.is_source_routed)?;
    let (l3, l4) = (usize::from(layers.l3_offset), usize::from(layers.l4_offset));
    let end = if layers.l3_len_bytes == 0 { frame.len() } else { l3 + layers.l3_len_bytes as usize };
    let l4_packet = frame.get(l4..end)?;
    let header = layers.l3 == Network::Ipv6 || {
        let options = l3 + usize::from(frame[l3] & 0xf) * 4;
        checksum_of(frame.get(l3..options)?) == 0
    };
    let mut bytes = Vec::new();
    if layers.l4_proto != 1 {
        bytes.extend(layers.addresses(frame));
        bytes.extend((l4_packet.len() as u32).to_be_bytes());
        bytes.extend([0, 0, 0, layers.l4_proto]);
    }
    bytes.extend(l4_packet);
    Some((header, matches!(layers.l4_proto, 1 | 6 | 17 | 58) && checksum_of(&bytes) == 0))
}

/// An IPv4 frame with right checksums; `at` is where the transport protocol has its own.
fn frame([src, dst]: [[u8; 4]; 2], proto: u8, mut l4: Vec<u8>, at: usize) -> Vec<u8> {
    let mut summed = Vec::new();
    if proto != 1 {
        summed.extend([src, dst].concat());
        summed.extend([0, proto]);
        summed.extend((l4.len() as u16).to_be_bytes());
    }
    summed.extend(&l4);
    let sum = checksum_of(&summed);
    l4[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    let len = ((20 + l4.len()) as u16).to_be_bytes();
    let mut packet = vec![0x45, 0, len[0], len[1], 0, 1, 0x40, 0, 64, proto, 0, 0];
    packet.extend([src, dst].concat());
    let sum = checksum_of(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0][..], &packet, &l4].concat()
}

const CLIENT: [u8; 4] = [10, 0, 0, 1];
const SERVER: [u8; 4] = [10, 0, 0, 2];
const MAPPED: [u8; 4] = [192, 0, 2, 1];

fn tcp(ends: [[u8; 4]; 2], ports: [u16; 2], (flags, seq, ack): (u8, u32, u32), payload: &[u8]) -> Vec<u8> {
    let mut l4 = ports.map(u16::to_be_bytes).concat();
    l4.extend([seq, ack].map(u32::to_be_bytes).concat());
    l4.extend([0x50, flags, 0x20, 0, 0, 0, 0, 0]);
    l4.extend(payload);
    frame(ends, 6, l4, 16)
}

fn udp(ends: [[u8; 4]; 2], ports: [u16; 2], payload: &[u8]) -> Vec<u8> {
    let mut l4 = ports.map(u16::to_be_bytes).concat();
    l4.extend(((8 + payload.len()) as u16).to_be_bytes());
    l4.extend([0, 0]);
    l4.extend(payload);
    frame(ends, 17, l4, 6)
}

fn unreachable(about: &[u8]) -> Vec<u8> {
    let l4 = [&[3, 3, 0, 0, 0, 0, 0, 0], &about[14..]].concat();
    let to = [about[26], about[27], about[28], about[29]];
    frame([SERVER, to], 1, l4, 2)
}

/// Packets with their requests.
fn sequence(steps: &[([u8; 3], Vec<u8>)]) -> Vec<u8> {
    let mut seed = Seed::default();
    for ([how, what, where_], frame) in steps {
        seed.u8(*how).u8(*what).u8(*where_).u8(1).u8(0).u16(frame.len() as u16).bytes(frame);
    }
    seed.into_bytes()
}

/// Connections as real hosts have them.
#[must_use]
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let (out, back) = ([CLIENT, SERVER], [SERVER, CLIENT]);
    let (mapped, there, here) = ([SERVER, MAPPED], [4000, 21], [21, 4000]);
    let plain = [0, 0, 0];
    // ct(commit,nat(src=192.0.2.1)), with FTP's helper.
    let helped = [8, 5, 4];
    let port = b"PORT 10,0,0,1,200,1\r\n";
    let question = udp(out, [3000, 53], b"question");
    let translated = udp([MAPPED, SERVER], [3000, 53], b"question");
    vec![
        (
            "tcp".into(),
            sequence(&[
                (plain, tcp(out, there, (2, 1000, 0), b"")),
                (plain, tcp(back, here, (0x12, 5000, 1001), b"")),
                (plain, tcp(out, there, (0x10, 1001, 5001), b"data")),
                (plain, tcp(back, here, (0x11, 5001, 1005), b"")),
                (plain, tcp(out, there, (0x11, 1005, 5002), b"")),
                (plain, tcp(back, here, (0x10, 5002, 1006), b"")),
                (plain, tcp(out, there, (4, 1006, 0), b"")),
            ]),
        ),
        (
            "ftp-translated".into(),
            sequence(&[
                (helped, tcp(out, there, (2, 1000, 0), b"")),
                (helped, tcp(mapped, here, (0x12, 5000, 1001), b"")),
                (helped, tcp(out, there, (0x10, 1001, 5001), port)),
                (helped, tcp(mapped, here, (0x10, 5001, 1022), b"200 ok\r\n")),
                (helped, tcp(mapped, [20, 51201], (2, 1, 0), b"")),
                (helped, tcp(out, there, (0x10, 1022, 5009), b"QUIT\r\n")),
            ]),
        ),
        (
            "error-translated".into(),
            sequence(&[
                (helped, question.clone()),
                (helped, unreachable(&translated)),
                (helped, udp(mapped, [53, 3000], b"answer")),
                ([2, 3, 0], udp(mapped, [53, 3000], b"answer")),
            ]),
        ),
        (
            "tftp-echo-sctp".into(),
            sequence(&[
                ([12, 0, 0], udp(out, [3001, 69], b"\0\x01file\0octet\0")),
                (plain, udp(back, [7000, 3001], b"\0\x03\0\x01data")),
                (helped, frame(out, 1, vec![8, 0, 0, 0, 0, 7, 0, 1], 2)),
                (
                    plain,
                    frame(
                        out,
                        132,
                        [&[0, 5, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 20][..], &[1; 16]].concat(),
                        8,
                    ),
                ),
            ]),
        ),
    ]
}

/// Tests, which `tests/targets.rs` runs.
#[expect(missing_docs, reason = "their names say it")]
pub mod checks {
    use super::*;

    pub fn seeds_are_what_they_say() {
        for (name, bytes) in seeds() {
            let mut input = Input::new(&bytes);
            let (table, mut states) = (ConntrackTable::new(CtBounds::default(), 0), Vec::new());
            while !input.is_empty() {
                let step = Step::decode(&mut input);
                let packet = PacketImage::parse(step.frame, step.frame.len() as u32, step.offload, 0);
                let packet = packet.expect("a packet");
                let verdict = table.track(&packet, &CtMetadata::default(), &step.request, 0);
                states.push(verdict.metadata.state & (ct_state::INVALID | ct_state::RELATED));
            }
            assert!(states.iter().all(|state| state & ct_state::INVALID == 0), "{name}: {states:x?}");
            assert_eq!(states.iter().any(|state| *state != 0), name != "tcp", "{name}: {states:x?}");
            run(&bytes);
        }
    }
}
