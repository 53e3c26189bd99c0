//! Frames that the switch leaves to the tunnel: segments and checksums are those that the switch would have made.

use std::net::UdpSocket;

use lasthop_device::DeviceDropReason;
use lasthop_wire::gso::{SEGMENTS_MAX, TCP_CSUM_OFFSET};
use lasthop_wire::vnet::{
    F_NEEDS_CSUM, GSO_NONE, GSO_SIZE_BYTES_MIN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, UDP_CSUM_OFFSET,
};
use lasthop_wire::{Offload, Segmentation};
use proptest::prelude::*;

use super::long::{ends, port, tunnel_to};
use super::{Tunnel, segment};
use crate::bounds::SEND_SLOT_BYTES;
use crate::sys::set_option;

/// Bytes of the header of Geneve without options.
const TUNNEL_BYTES: usize = 8;
const PART_BYTES: usize = SEND_SLOT_BYTES as usize;

/// A frame with offloads, as a guest sends it.
#[derive(Clone, Debug)]
pub(super) struct Large {
    pub(super) offload: Offload,
    pub(super) bytes: Vec<u8>,
}

/// The properties of a frame.
#[derive(Clone, Debug)]
struct Plan {
    is_ipv6: bool,
    is_udp: bool,
    has_tag: bool,
    option_words: u8,
    flags: u8,
    payload_bytes: usize,
    gso_size: u16,
    seed: u8,
}

fn large(plan: &Plan) -> Large {
    let mut bytes = vec![2; 12];
    if plan.has_tag {
        bytes.extend([0x81, 0, 0, 5]);
    }
    let words = if plan.is_udp { 0 } else { plan.option_words };
    let l4_bytes = if plan.is_udp { 8 } else { 20 + 4 * usize::from(words) };
    let (len, proto) = ((l4_bytes + plan.payload_bytes) as u16, if plan.is_udp { 17 } else { 6 });
    if plan.is_ipv6 {
        bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        bytes.extend(len.to_be_bytes());
        bytes.extend([proto, 64]);
        bytes.extend([0xfc; 31]);
        bytes.push(plan.seed);
    } else {
        bytes.extend([8, 0, 0x45, 0]);
        bytes.extend((20 + len).to_be_bytes());
        bytes.extend([0xff, plan.seed, 0x40, 0, 64, proto, 9, 9, 10, 0, 0, 1, 10, 0, 0, plan.seed]);
    }
    let l4 = bytes.len();
    bytes.extend([0x14, 0x51, 0x13, 0x89]);
    if plan.is_udp {
        bytes.extend(len.to_be_bytes());
        bytes.extend([plan.seed, 7]);
    } else {
        bytes.extend([0xff, 0xff, plan.seed, 0, 0, 0, 0, 1, (5 + words) << 4, plan.flags, 1, 1]);
        bytes.extend([plan.seed, 7, 0, 0]); // any partial sum
        bytes.extend((0..4 * words).map(|_| 1));
    }
    bytes.extend((0..plan.payload_bytes).map(|at| (at as u8).wrapping_mul(plan.seed) ^ (at >> 8) as u8));
    let gso_type = match (plan.is_udp, plan.is_ipv6) {
        (true, _) => GSO_UDP_L4,
        (false, false) => GSO_TCPV4,
        (false, true) => GSO_TCPV6,
    };
    let csum_offset = if plan.is_udp { UDP_CSUM_OFFSET } else { TCP_CSUM_OFFSET };
    let offload = Offload {
        flags: F_NEEDS_CSUM,
        gso_type,
        hdr_len: 0,
        gso_size: plan.gso_size,
        csum_start: l4 as u16,
        csum_offset,
    };
    Large { offload, bytes }
}

/// RFC 1071, word by word.
fn checksum_of(bytes: &[u8]) -> u16 {
    let add = |sum: u16, pair: &[u8]| {
        let word = u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]);
        let (sum, carry) = sum.overflowing_add(word);
        sum + u16::from(carry)
    };
    !bytes.chunks(2).fold(0, add)
}

/// The frame's checksum completed, as a receiver without offloads gets it.
fn completed(frame: &[u8], offload: &Offload) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let (start, field) =
        (usize::from(offload.csum_start), usize::from(offload.csum_start + offload.csum_offset));
    let sum = match checksum_of(&frame[start..]) {
        0 if offload.csum_offset == UDP_CSUM_OFFSET => 0xffff,
        sum => sum,
    };
    frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// The segments that the switch makes of a frame, if it makes any.
pub(super) fn switched(large: &Large) -> Option<Vec<Vec<u8>>> {
    let head = &large.bytes[..large.bytes.len().min(128)];
    let plan = Segmentation::plan(head, &large.offload, large.bytes.len() as u32).ok()?;
    let cut = |index: u32| {
        let mut frame = vec![0; plan.header_len() as usize];
        let offload = plan.write_header(index, head, &mut frame);
        let payload = plan.payload(index);
        frame.extend(&large.bytes[payload.start as usize..payload.end as usize]);
        completed(&frame, &offload)
    };
    Some((0..plan.count()).map(cut).collect())
}

impl Tunnel {
    /// Passes a frame that the tunnel's end has to cut.
    fn pass_large(&mut self, there: &UdpSocket, part_bytes: usize, large: &Large) {
        self.deliver_in(part_bytes, &large.offload, &tunnel_to(port(there)), &large.bytes);
        assert!(self.pass().is_empty());
    }
}

fn world() -> (Tunnel, UdpSocket) {
    let (tunnel, there) = ends();
    set_option(std::os::fd::AsFd::as_fd(&there), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 8 << 20).ok();
    (tunnel, there)
}

/// The next inner frame that arrives at the other host.
fn arrived(there: &UdpSocket) -> Vec<u8> {
    let mut got = vec![0; 1 << 16];
    let len = there.recv(&mut got).expect("a datagram");
    got.truncate(len);
    got.split_off(TUNNEL_BYTES)
}

pub(super) fn tcp(payload_bytes: usize, gso_size: u16) -> Large {
    large(&Plan {
        is_ipv6: false,
        is_udp: false,
        has_tag: false,
        option_words: 3,
        flags: 0x18,
        payload_bytes,
        gso_size,
        seed: 3,
    })
}

fn plans() -> impl Strategy<Value = Plan> {
    let kind = (any::<bool>(), any::<bool>(), any::<bool>(), 0..=10_u8, any::<u8>());
    (kind, 1..20_000_usize, 1..3000_u16, any::<u8>()).prop_map(
        |((is_ipv6, is_udp, has_tag, option_words, flags), payload_bytes, gso_size, seed)| {
            // Some with SYN, RST or URG.
            let flags = if seed % 8 == 0 { flags } else { flags & 0xd9 };
            Plan { is_ipv6, is_udp, has_tag, option_words, flags, payload_bytes, gso_size, seed }
        },
    )
}

/// Passes a frame, whole or to be cut, and compares what arrives with what the switch would have made of it.
fn check_passed(
    tunnel: &mut Tunnel,
    there: &UdpSocket,
    (plan, part_bytes, is_whole): (Plan, usize, bool),
) -> Result<(), TestCaseError> {
    let (mut large, before) = (large(&plan), tunnel.counters);
    if is_whole {
        large.offload.gso_type = GSO_NONE;
    }
    tunnel.pass_large(there, part_bytes, &large);
    let expected = match is_whole {
        true => Some(vec![completed(&large.bytes, &large.offload)]),
        false => switched(&large),
    };
    let lost = tunnel.lost(DeviceDropReason::BadGso) - before.dropped(DeviceDropReason::BadGso);
    prop_assert_eq!(lost, u64::from(expected.is_none()));
    let expected = expected.unwrap_or_default();
    let sent = tunnel.counters.to_device.frames - before.to_device.frames;
    prop_assert_eq!(sent, expected.len() as u64);
    prop_assert_eq!(tunnel.counters.cut - before.cut, expected.len().saturating_sub(1) as u64);
    for segment in expected {
        prop_assert!(arrived(there) == segment, "other bytes");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn segments_are_those_that_the_switch_would_make(
        frames in prop::collection::vec((plans(), 2200..=PART_BYTES, any::<bool>()), 16),
    ) {
        let (mut tunnel, there) = world();
        for frame in frames {
            check_passed(&mut tunnel, &there, frame)?;
        }
    }
}

#[test]
fn a_batch_of_large_and_small_frames_keeps_its_order() {
    let (mut tunnel, there) = world();
    let (large, small) = (tcp(64_000, 1400), segment(1, 100));
    let to = tunnel_to(port(&there));
    for _ in 0..6 {
        tunnel.deliver_in(PART_BYTES, &large.offload, &to, &large.bytes);
        tunnel.deliver_in(PART_BYTES, &Offload::default(), &to, &small);
    }
    while tunnel.counters.from_switch.frames < 12 {
        use crate::Queue;
        tunnel.queue.send(&mut tunnel.pair, &mut tunnel.counters).expect("sent");
        assert!(tunnel.counters.is_conserved());
    }
    assert!(tunnel.pass().is_empty());
    let segments = switched(&large).expect("it can be cut");
    let counters = tunnel.counters;
    assert_eq!((counters.cut, counters.to_device.frames), (6 * 45, 6 * 46 + 6));
    for _ in 0..6 {
        for segment in &segments {
            assert!(arrived(&there) == *segment, "other bytes");
        }
        assert_eq!(arrived(&there), small);
    }
}

#[test]
fn headers_that_a_sound_switch_does_not_write_lose_their_frame() {
    let (mut tunnel, there) = world();
    let good = tcp(10_000, 1000);
    let with = |edit: &dyn Fn(&mut Large)| {
        let mut large = good.clone();
        edit(&mut large);
        large
    };
    let bad = [
        with(&|large| large.offload.gso_size = 0),
        with(&|large| large.offload.gso_size = 1),
        with(&|large| large.offload.gso_size = GSO_SIZE_BYTES_MIN),
        with(&|large| large.offload.gso_type = GSO_TCPV6),
        with(&|large| large.offload.gso_type = 0x40), // fragments
        with(&|large| large.offload.gso_type = 0xff),
        with(&|large| large.offload.csum_start = u16::MAX),
        with(&|large| large.bytes.truncate(40)),
        with(&|large| large.bytes.truncate(0)),
        with(&|large| large.bytes[14] = 0x4f),
        with(&|large| large.bytes[46] = 0x10), // a header of four bytes
        with(&|large| (large.offload.gso_type, large.offload.csum_start) = (0, 1 << 15)),
        with(&|large| (large.offload.gso_type, large.offload.csum_start) = (0, 10)),
    ];
    for (number, large) in (1..).zip(&bad) {
        tunnel.pass_large(&there, PART_BYTES, large);
        let counters = tunnel.counters;
        let lost = tunnel.lost(DeviceDropReason::BadGso);
        assert_eq!((lost, counters.to_device.frames, counters.cut), (number, 0, 0), "{:?}", large.offload);
    }
    // The length of headers is a hint, and nobody takes it.
    for hdr_len in [1, u16::MAX] {
        tunnel.pass_large(&there, PART_BYTES, &with(&|large| large.offload.hdr_len = hdr_len));
        for segment in switched(&good).expect("it can be cut") {
            assert!(arrived(&there) == segment, "other bytes");
        }
    }
}

#[test]
fn the_longest_udp_frame_of_single_bytes_is_bounded() {
    let (mut tunnel, there) = world();
    let of = |payload_bytes: usize| {
        large(&Plan {
            is_ipv6: true,
            is_udp: true,
            has_tag: true,
            option_words: 0,
            flags: 0,
            payload_bytes,
            gso_size: 1,
            seed: 1,
        })
    };
    tunnel.pass_large(&there, PART_BYTES, &of(65_000));
    assert_eq!((tunnel.lost(DeviceDropReason::BadGso), tunnel.counters.to_device.frames), (1, 0));
    let most = of(SEGMENTS_MAX as usize);
    tunnel.pass_large(&there, PART_BYTES, &most);
    let segments = switched(&most).expect("it can be cut");
    assert_eq!(segments.len(), SEGMENTS_MAX as usize);
    for segment in segments {
        assert!(arrived(&there) == segment, "other bytes");
    }
}

#[test]
fn a_segment_that_is_too_long_is_answered_and_the_others_are_sent() {
    let (mut tunnel, there) = world();
    tunnel.hear_from(&there);
    let large = tcp(65_480, 65_430);
    tunnel.deliver_in(PART_BYTES, &large.offload, &tunnel_to(port(&there)), &large.bytes);
    let answers = tunnel.pass();
    let [(_, answer)] = &answers[..] else { panic!("{} answers", answers.len()) };
    let segments = switched(&large).expect("it can be cut");
    assert_eq!(answer.bytes[42..], segments[0][14..14 + answer.bytes.len() - 42]);
    assert_eq!((tunnel.lost(DeviceDropReason::TooLong), tunnel.counters.to_device.frames), (1, 1));
    assert!(arrived(&there) == segments[1], "other bytes");
}

#[test]
fn datagrams_of_a_large_frame_are_sent_one_by_one_where_the_kernel_cuts_no_messages() {
    let (mut tunnel, there) = world();
    // Without checksums there is no UDP_SEGMENT.
    let no_checksums = 101; // linux/udp.h: UDP_NO_CHECK6_TX
    set_option(crate::Queue::fd(&tunnel.queue), libc::IPPROTO_UDP, no_checksums, 1).expect("set");
    set_option(std::os::fd::AsFd::as_fd(&there), libc::IPPROTO_UDP, no_checksums + 1, 1).expect("set");
    let large = tcp(64_000, 1400);
    tunnel.pass_large(&there, PART_BYTES, &large);
    for segment in switched(&large).expect("it can be cut") {
        assert!(arrived(&there) == segment, "other bytes");
    }
}
