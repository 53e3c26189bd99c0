//! Joined segments: cut again they have the same bytes as before, and as many are joined as a naive model can join.

use lasthop_wire::coalesce::HEAD_BYTES_MAX;
use lasthop_wire::gso::check;
use lasthop_wire::{Coalesced, Layers, Network, Offload, Segmentation, Sum, TcpSegment};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::packets::{Packet, tcp_packet};

/// Bytes of payload that a connection sends at most: more than a large frame holds.
const PAYLOAD_BYTES_MAX: usize = 80_000;

/// A frame as it leaves: a lone one as it came, a large one with its metadata.
#[derive(Clone, Debug)]
struct Out {
    bytes: Vec<u8>,
    offload: Offload,
}

fn parsed(frame: &[u8]) -> Option<TcpSegment> {
    let segment = TcpSegment::parse(&frame[..frame.len().min(HEAD_BYTES_MAX)], frame.len() as u32)?;
    let mut sum = segment.sum_of_headers();
    sum.add(&frame[segment.header_len() as usize..]);
    segment.is_intact(sum).then_some(segment)
}

fn large(coalesced: &Coalesced, frames: &[Vec<u8>]) -> Out {
    let (head, offload) = coalesced.header();
    let len = coalesced.first().header_len() as usize;
    let payloads = frames.iter().flat_map(|frame| frame[len..].iter().copied());
    Out { bytes: head[..len].iter().copied().chain(payloads).collect(), offload }
}

/// Joins as the driver does: a segment to the one before.
fn coalesce(frames: &[Vec<u8>]) -> Vec<Out> {
    let (mut out, mut open): (Vec<Out>, Option<(Coalesced, usize)>) = (Vec::new(), None);
    let mut finish = |open: Option<(Coalesced, usize)>, end: usize| match open {
        Some((coalesced, first)) if coalesced.count() > 1 => out.push(large(&coalesced, &frames[first..end])),
        Some((_, first)) => out.push(Out { bytes: frames[first].clone(), offload: Offload::default() }),
        None => {}
    };
    for (at, frame) in frames.iter().enumerate() {
        let segment = parsed(frame);
        if let (Some((coalesced, _)), Some(segment)) = (&mut open, &segment)
            && coalesced.join(segment)
        {
            continue;
        }
        finish(open.take(), at);
        match segment {
            Some(segment) => open = Some((Coalesced::of(segment), at)),
            None => finish(Some((Coalesced::of(any_segment()), at)), at + 1),
        }
    }
    finish(open, frames.len());
    out
}

/// Stands for a frame that is none.
fn any_segment() -> TcpSegment {
    parsed(&connection(&base(), &[1])[0]).expect("it is one")
}

/// Cuts with the switch's own segmentation, and completes checksums.
fn cut(out: &Out) -> Vec<Vec<u8>> {
    if !out.offload.is_gso() {
        return vec![out.bytes.clone()];
    }
    let len = out.bytes.len() as u32;
    let head = &out.bytes[..out.bytes.len().min(HEAD_BYTES_MAX)];
    assert_eq!(check(head, &out.offload, len), Ok(out.offload.hdr_len));
    let plan = Segmentation::plan(head, &out.offload, len).expect("a switch takes it");
    let segment = |index| {
        let mut bytes = vec![0; plan.header_len() as usize];
        let offload = plan.write_header(index, head, &mut bytes);
        let payload = plan.payload(index);
        bytes.extend(&out.bytes[payload.start as usize..payload.end as usize]);
        complete(&mut bytes, usize::from(offload.csum_start));
        bytes
    };
    (0..plan.count()).map(segment).collect()
}

/// Completes the partial checksum of TCP at `l4_offset`.
fn complete(frame: &mut [u8], l4_offset: usize) {
    let mut sum = Sum::default();
    sum.add(&frame[l4_offset..]);
    frame[l4_offset + 16..l4_offset + 18].copy_from_slice(&sum.finish().to_be_bytes());
}

/// Makes the checksums of any frame right.
fn mend(frame: &mut [u8]) {
    let Ok(layers) = Layers::parse(frame) else { return };
    let (l3, l4) = (usize::from(layers.l3_offset), usize::from(layers.l4_offset));
    if layers.l3 == Network::Ipv4 {
        frame[l3 + 10..l3 + 12].fill(0);
        let mut sum = Sum::default();
        sum.add(&frame[l3..l4]);
        frame[l3 + 10..l3 + 12].copy_from_slice(&sum.finish().to_be_bytes());
    }
    if frame.len() < l4 + 20 {
        return;
    }
    let mut pseudo = Sum::default();
    pseudo.add(layers.addresses(frame));
    pseudo.add_word(6);
    pseudo.add_word((frame.len() - l4) as u16);
    frame[l4 + 16..l4 + 18].copy_from_slice(&pseudo.partial().to_be_bytes());
    complete(frame, l4);
}

/// A packet of a connection: headers without options of IP, and only ACK set.
fn plain(packet: Packet) -> Option<Packet> {
    let mut packet = packet;
    let layers = Layers::parse(&packet.bytes).ok()?;
    let len = match layers.l3 {
        Network::Ipv4 => 20,
        Network::Ipv6 => 40,
    };
    packet.bytes[packet.l4_offset + 13] = 0x10;
    (packet.l3_offset <= 18 && packet.l4_offset == packet.l3_offset + len).then_some(packet)
}

fn base() -> Packet {
    let mut bytes = vec![2; 14 + 20 + 20];
    bytes[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    bytes[16..24].copy_from_slice(&[0, 0, 0xff, 0xff, 0x40, 0, 64, 6]);
    bytes[38..42].copy_from_slice(&[0xff, 0xff, 0xff, 0]);
    bytes[46..54].copy_from_slice(&[0x50, 0x10, 1, 1, 0, 0, 0, 0]);
    Packet { bytes, l3_offset: 14, l4_offset: 34, payload_offset: 54 }
}

/// The packets that a connection sends with these lengths of payload.
fn connection(packet: &Packet, lens: &[usize]) -> Vec<Vec<u8>> {
    let Packet { bytes, l3_offset: l3, l4_offset: l4, payload_offset } = packet;
    let at = |from: usize| u32::from_be_bytes(bytes[from..from + 4].try_into().expect("four bytes"));
    let (id, mut sequence) = ((at(l3 + 4) >> 16) as u16, at(l4 + 4));
    let frame = |(number, len): (usize, &usize)| {
        let mut frame = bytes[..*payload_offset].to_vec();
        frame.extend((0..*len).map(|byte| (byte * 7 + number) as u8));
        let rest = frame.len() - l3;
        if l4 - l3 == 20 {
            frame[l3 + 2..l3 + 4].copy_from_slice(&(rest as u16).to_be_bytes());
            frame[l3 + 4..l3 + 6].copy_from_slice(&id.wrapping_add(number as u16).to_be_bytes());
        } else {
            frame[l3 + 4..l3 + 6].copy_from_slice(&((rest - 40) as u16).to_be_bytes());
        }
        frame[l4 + 4..l4 + 8].copy_from_slice(&sequence.to_be_bytes());
        sequence = sequence.wrapping_add(*len as u32);
        mend(&mut frame);
        frame
    };
    lens.iter().enumerate().map(frame).collect()
}

/// Whether these frames can be one: the naive way, by making it and cutting it again.
fn naively(frames: &[Vec<u8>]) -> bool {
    let Some(segments) = frames.iter().map(|frame| parsed(frame)).collect::<Option<Vec<_>>>() else {
        return false;
    };
    let layers = Layers::parse(&frames[0]).expect("it was parsed");
    let (l3, l4) = (usize::from(layers.l3_offset), usize::from(layers.l4_offset));
    let header_len = segments[0].header_len() as usize;
    let mut bytes = frames[0][..header_len].to_vec();
    frames.iter().for_each(|frame| bytes.extend(frame.get(header_len..).unwrap_or_default()));
    let (rest, gso_type) = match layers.l3 {
        Network::Ipv4 => (bytes.len() - l3, 1),
        Network::Ipv6 => (bytes.len() - l4, 4),
    };
    if bytes.len() - l3 > 65_535 || frames[0].len() - header_len < 48 || frames.len() > 128 {
        return false;
    }
    let field = if gso_type == 1 { l3 + 2 } else { l3 + 4 };
    bytes[field..field + 2].copy_from_slice(&(rest as u16).to_be_bytes());
    bytes[l4 + 13] |= frames[frames.len() - 1].get(l4 + 13).unwrap_or(&0) & 8;
    let offload = Offload {
        flags: 1,
        gso_type,
        hdr_len: header_len as u16,
        gso_size: (frames[0].len() - header_len) as u16,
        csum_start: l4 as u16,
        csum_offset: 16,
    };
    cut(&Out { bytes, offload }) == frames
}

/// The number of frames that remain if each joins the one before wherever that can be undone.
fn naive_count(frames: &[Vec<u8>]) -> usize {
    let (mut count, mut first) = (0, 0);
    for end in 1..=frames.len() {
        if end == frames.len() || !naively(&frames[first..=end]) {
            (count, first) = (count + 1, end);
        }
    }
    count
}

fn check_all(frames: &[Vec<u8>]) -> Vec<Out> {
    let out = coalesce(frames);
    let again: Vec<_> = out.iter().flat_map(cut).collect();
    assert_eq!(again, frames);
    assert!(out.iter().all(|out| out.bytes.len() <= 14 + 4 + 65_535));
    out
}

#[test]
fn segments_of_a_connection_become_one_frame() {
    let out = check_all(&connection(&base(), &[1400, 1400, 1400, 300]));
    let [out] = &out[..] else { panic!("{} frames", out.len()) };
    let told = (out.offload.gso_type, out.offload.gso_size, out.offload.hdr_len, out.offload.csum_start);
    assert_eq!((told, out.bytes.len()), ((1, 1400, 54, 34), 54 + 4500));
}

#[test]
fn a_shorter_segment_and_a_push_are_the_last_ones() {
    let counts = |lens: &[usize]| check_all(&connection(&base(), lens)).len();
    assert_eq!((counts(&[500, 400, 400]), counts(&[400, 500, 500])), (2, 2));
    assert_eq!((counts(&[47, 47]), counts(&[48, 1, 1])), (2, 2), "too short to be cut again");
    let mut frames = connection(&base(), &[500; 4]);
    frames[1][47] |= 8;
    mend(&mut frames[1]);
    let out = check_all(&frames);
    assert_eq!((out.len(), out[0].bytes[47], out[1].bytes[47]), (2, 0x18, 0x10));
}

#[test]
fn a_large_frame_is_bounded_by_its_length_and_its_segments() {
    assert_eq!(check_all(&connection(&base(), &[1400; 47])).len(), 2);
    assert_eq!(check_all(&connection(&base(), &[50; 128])).len(), 1);
    assert_eq!(check_all(&connection(&base(), &[50; 129])).len(), 2);
}

#[test]
fn each_byte_of_the_headers_counts() {
    for at in 0..54 {
        for bit in 0..8 {
            let mut frames = connection(&base(), &[500; 2]);
            frames[1][at] ^= 1 << bit;
            check_all(&frames);
            mend(&mut frames[1]);
            let is_push = at == 47 && bit == 3;
            let is_mended = matches!(at, 24 | 25 | 50 | 51);
            assert_eq!(check_all(&frames).len(), if is_push || is_mended { 1 } else { 2 }, "{at} {bit}");
        }
    }
}

#[test]
fn a_wrong_checksum_keeps_a_segment_apart() {
    for (at, frames_left) in [(24, 3), (50, 3), (100, 3)] {
        let mut frames = connection(&base(), &[500; 3]);
        frames[1][at] ^= 1;
        assert_eq!(check_all(&frames).len(), frames_left, "{at}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn cut_again_they_are_what_they_were(
        packet in tcp_packet(1).prop_filter_map("options of IP", plain),
        (size, count, lens) in (20..3000_usize, 1..60_usize, vec((any::<Index>(), 1..3000_usize), 0..3)),
        pushed in vec(any::<Index>(), 0..3),
        edits in vec((any::<Index>(), any::<Index>(), 1..=255_u8, any::<bool>()), 0..4),
    ) {
        let mut sizes = vec![size; count.min(PAYLOAD_BYTES_MAX / size).max(1)];
        for (at, len) in lens {
            let at = at.index(sizes.len());
            sizes[at] = len;
        }
        let mut frames = connection(&packet, &sizes);
        for at in pushed {
            let at = at.index(frames.len());
            frames[at][packet.l4_offset + 13] |= 8;
            mend(&mut frames[at]);
        }
        for (frame, at, change, is_mended) in edits {
            let frame = frame.index(frames.len());
            // Most of them in headers.
            let len = if is_mended { packet.payload_offset } else { frames[frame].len() };
            let at = at.index(len);
            frames[frame][at] ^= change;
            if is_mended {
                mend(&mut frames[frame]);
            }
        }
        prop_assert_eq!(check_all(&frames).len(), naive_count(&frames));
    }

    #[test]
    fn connections_keep_their_order(
        packets in vec(tcp_packet(1).prop_filter_map("options of IP", plain), 2..4),
        turns in vec((any::<Index>(), 1..6_usize), 1..12),
    ) {
        let mut sent: Vec<_> = packets.iter().map(|packet| connection(packet, &[200; 80]).into_iter()).collect();
        let mut frames = Vec::new();
        for (which, count) in turns {
            let which = which.index(sent.len());
            frames.extend(sent[which].by_ref().take(count));
        }
        check_all(&frames);
    }

    #[test]
    fn any_bytes_are_survived(
        frames in vec(vec(any::<u8>(), 0..200), 0..6),
        copied in vec((any::<Index>(), any::<Index>()), 0..6),
    ) {
        let mut frames = frames;
        let model = connection(&base(), &[60, 60]);
        for (frame, at) in copied {
            // A start of sound headers, then anything.
            let (Some(last), model) = (frames.last_mut(), &model[frame.index(2)]) else { break };
            let len = at.index(model.len()).min(last.len());
            last[..len].copy_from_slice(&model[..len]);
        }
        check_all(&frames);
    }
}
