//! Segments of TCP, and frames that look like some: a joined frame can be cut into the frames that came, with the switch's own
//! segmentation.

use lasthop_wire::coalesce::HEAD_BYTES_MAX;
use lasthop_wire::gso::{SEGMENTS_MAX, check};
use lasthop_wire::{Coalesced, Layers, Network, Offload, Segmentation, Sum, TcpSegment};

use crate::headers::checksum_of;
use crate::input::{Input, Seed};

/// Frames of an input.
const FRAMES_MAX: usize = 192;
/// Bits of a frame's first byte: it is raw bytes; another connection's; changed at a place; its checksums are made right afterwards; it is
/// not the next one of its connection.
const RAW: u8 = 1;
const OTHER: u8 = 2;
const EDITED: u8 = 4;
const MENDED: u8 = 8;
const AGAIN: u8 = 16;

/// Panics when something does not hold for a sequence of frames.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut connections = [Connection::new(false), Connection::new(true)];
    let (mut open, mut frames): (Option<Coalesced>, Vec<Vec<u8>>) = (None, Vec::new());
    for _ in 0..FRAMES_MAX {
        if input.is_empty() {
            break;
        }
        let frame = next_frame(&mut input, &mut connections);
        let segment = parsed(&frame);
        if let (Some(coalesced), Some(segment)) = (&mut open, &segment)
            && coalesced.join(segment)
        {
            frames.push(frame);
            continue;
        }
        check_cut(open.take(), &frames);
        (open, frames) = (segment.map(Coalesced::of), vec![frame]);
    }
    check_cut(open, &frames);
}

fn next_frame(input: &mut Input<'_>, connections: &mut [Connection; 2]) -> Vec<u8> {
    let kind = input.u8();
    if kind & RAW != 0 {
        let len = usize::from(input.u8());
        return input.bytes(len).to_vec();
    }
    let connection = &mut connections[usize::from(kind & OTHER != 0)];
    let before = connection.clone();
    let mut frame = connection.next(usize::from(input.u16() % 2000), kind);
    if kind & AGAIN != 0 {
        *connection = before;
    }
    if kind & EDITED != 0 {
        let at = usize::from(input.u8()) % frame.len();
        frame[at] ^= input.u8();
        if kind & MENDED != 0 {
            mend(&mut frame);
        }
    }
    frame
}

/// A frame that may be joined, with its checksum looked at.
fn parsed(frame: &[u8]) -> Option<TcpSegment> {
    let head = &frame[..frame.len().min(HEAD_BYTES_MAX)];
    let segment = TcpSegment::parse(head, frame.len() as u32)?;
    let mut sum = segment.sum_of_headers();
    sum.add(&frame[segment.header_len() as usize..]);
    segment.is_intact(sum).then_some(segment)
}

/// Makes the large frame, cuts it, and compares.
fn check_cut(coalesced: Option<Coalesced>, frames: &[Vec<u8>]) {
    let Some(coalesced) = coalesced.filter(|coalesced| coalesced.count() > 1) else { return };
    assert_eq!(coalesced.count() as usize, frames.len());
    assert!(coalesced.count() <= SEGMENTS_MAX);
    let (head, offload) = coalesced.header();
    let header_len = coalesced.first().header_len() as usize;
    let mut large = head[..header_len].to_vec();
    frames.iter().for_each(|frame| large.extend(&frame[header_len..]));
    let (len, head) = (large.len() as u32, &large[..large.len().min(HEAD_BYTES_MAX)]);
    assert_eq!(check(head, &offload, len), Ok(header_len as u16), "a switch takes it");
    let plan = Segmentation::plan(head, &offload, len).expect("it can be cut");
    assert_eq!(plan.count() as usize, frames.len());
    for (index, frame) in (0..).zip(frames) {
        assert_eq!(cut(&plan, index, head, &large), *frame);
    }
}

fn cut(plan: &Segmentation, index: u32, head: &[u8], large: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; plan.header_len() as usize];
    let Offload { csum_start, csum_offset, .. } = plan.write_header(index, head, &mut bytes);
    let payload = plan.payload(index);
    bytes.extend(&large[payload.start as usize..payload.end as usize]);
    let field = usize::from(csum_start + csum_offset);
    let sum = checksum_of(&bytes[usize::from(csum_start)..]);
    bytes[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// The numbers that a sender counts up.
#[derive(Clone, Debug)]
struct Connection {
    is_ipv6: bool,
    number: u16,
    sequence: u32,
}

impl Connection {
    fn new(is_ipv6: bool) -> Self {
        Self { is_ipv6, number: 0xfff0, sequence: 0xffff_f000 }
    }

    /// The next segment, pushed by the highest bit of `kind`.
    fn next(&mut self, payload_bytes: usize, kind: u8) -> Vec<u8> {
        let mut frame = vec![2; 12];
        let len = 32 + payload_bytes as u16; // TCP with a timestamp
        if self.is_ipv6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(len.to_be_bytes());
            frame.extend([6, 64]);
            frame.extend([0xfc; 32]);
        } else {
            frame.extend([8, 0, 0x45, 0]);
            frame.extend((20 + len).to_be_bytes());
            frame.extend(self.number.to_be_bytes());
            frame.extend([0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        }
        frame.extend([0x14, 0x51, 0x13, 0x89]);
        frame.extend(self.sequence.to_be_bytes());
        let flags = if kind & 0x80 != 0 { 0x18 } else { 0x10 };
        frame.extend([0, 0, 0, 1, 0x80, flags, 1, 0xf6, 0, 0, 0, 0, 1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
        frame.extend((0..payload_bytes).map(|at| at as u8 ^ self.number as u8));
        (self.number, self.sequence) =
            (self.number.wrapping_add(1), self.sequence.wrapping_add(payload_bytes as u32));
        mend(&mut frame);
        frame
    }
}

/// Makes a frame's checksums right, if its headers can be found.
fn mend(frame: &mut [u8]) {
    let Ok(layers) = Layers::parse(frame) else { return };
    let (l3, l4) = (usize::from(layers.l3_offset), usize::from(layers.l4_offset));
    if layers.l3 == Network::Ipv4 {
        frame[l3 + 10..l3 + 12].fill(0);
        let sum = checksum_of(&frame[l3..l4]);
        frame[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
    }
    if frame.len() < l4 + 20 {
        return;
    }
    let mut pseudo = Sum::default();
    pseudo.add(layers.addresses(frame));
    pseudo.add_word(6);
    pseudo.add_word((frame.len() - l4) as u16);
    frame[l4 + 16..l4 + 18].copy_from_slice(&pseudo.partial().to_be_bytes());
    let sum = checksum_of(&frame[l4..]);
    frame[l4 + 16..l4 + 18].copy_from_slice(&sum.to_be_bytes());
}

/// Segments of one connection, of two by turns, and some that cannot be joined.
#[must_use]
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let seed = |frames: &[(u8, u16)]| {
        let mut seed = Seed::default();
        for (kind, len) in frames {
            seed.u8(*kind).u16(*len);
            if kind & EDITED != 0 {
                seed.u8(22).u8(1); // the TTL
            }
        }
        seed.into_bytes()
    };
    let long = [vec![(0, 1400); 50], vec![(0x80, 300)]].concat();
    let turns = [(0, 200), (0, 200), (OTHER, 200), (OTHER, 200), (OTHER, 100), (0, 200), (OTHER, 200)];
    let apart = [
        (0, 200),
        (EDITED, 200),
        (0, 200),
        (EDITED | MENDED, 200),
        (AGAIN, 200),
        (0, 200),
        (0, 300),
        (0x80, 300),
    ];
    vec![
        ("one".into(), seed(&long)),
        ("two-by-turns".into(), seed(&turns)),
        ("some-apart".into(), seed(&apart)),
        ("short".into(), seed(&[(0, 48); 130])),
    ]
}
