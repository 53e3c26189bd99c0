//! Frames that name their sender and receiver, from which all their bytes follow.

use std::sync::LazyLock;

use lasthop_wire::Offload;
use lasthop_wire::vnet::{F_NEEDS_CSUM, GSO_TCPV4};

use lasthop_rig::random::Random;

/// The receiver of a frame for all guests.
pub(crate) const ALL: u8 = 0xff;
/// The longest frame without segmentation, in bytes.
pub(crate) const PLAIN_BYTES_MAX: usize = 9000;
/// The longest frame, in bytes: its IPv4 length field has the maximum.
pub(crate) const TSO_BYTES_MAX: usize = 14 + 0xffff;
/// The shortest frame with segments, in bytes; each segment is shorter.
pub(crate) const TSO_BYTES_MIN: usize = 2000;
const ETHERNET_BYTES: usize = 14;
/// Bytes of Ethernet, IPv4 and TCP headers without options.
const TCP_BYTES: usize = 54;
/// Bytes of a frame's description of itself, after its headers.
const TALE_BYTES: usize = 20;
/// IEEE 802: for experiments.
const EXPERIMENTAL: [u8; 2] = [0x88, 0xb5];
const IPV4: [u8; 2] = [0x08, 0x00];
/// Start positions of frames in the pattern.
const PATTERN_STARTS: u64 = 4093;

static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut random = Random::new(1);
    (0..TSO_BYTES_MAX + PATTERN_STARTS as usize).map(|_| random.next() as u8).collect()
});

/// The description of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tale {
    /// A guest, or [`ALL`].
    pub(crate) to: u8,
    pub(crate) from: u8,
    /// The sender's queue pair.
    pub(crate) queue: u8,
    /// The payload bytes of its segments; 0: no segmentation.
    pub(crate) segment_bytes: u16,
    /// The sender's life, by number.
    pub(crate) life: u32,
    /// The frame's number within that life.
    pub(crate) number: u32,
    pub(crate) len_bytes: u32,
}

/// The address of guest `number`.
pub(crate) fn mac(number: u8) -> [u8; 6] {
    if number == ALL { [0xff; 6] } else { [0x02, 0, 0, 0, 0, number] }
}

/// Whether a frame is TCP: a complete one, or a segment.
pub(crate) fn is_tcp(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&IPV4)
}

impl Tale {
    fn headers(&self) -> Vec<u8> {
        let mut frame = [mac(self.to), mac(self.from)].concat();
        if self.segment_bytes == 0 {
            frame.extend(EXPERIMENTAL);
            return frame;
        }
        let ip_bytes = (self.len_bytes as usize - ETHERNET_BYTES) as u16; // at most TSO_BYTES_MAX
        frame.extend(IPV4);
        frame.extend([0x45, 0]);
        frame.extend(ip_bytes.to_be_bytes());
        frame.extend([0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, self.from, 10, 0, 0, self.to]);
        frame.extend([0x30, 0x39, 0x14, 0x51]);
        frame.extend(self.number.to_be_bytes());
        frame.extend([0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
        frame
    }

    /// The whole frame.
    pub(crate) fn frame(&self) -> Vec<u8> {
        let mut frame = self.headers();
        frame.extend([self.to, self.from, self.queue, 0]);
        frame.extend(u32::from(self.segment_bytes).to_be_bytes());
        frame.extend([self.life, self.number, self.len_bytes].map(u32::to_be_bytes).concat());
        let start = (u64::from(self.number) * 31 % PATTERN_STARTS) as usize;
        let rest = self.len_bytes as usize - frame.len();
        frame.extend(&PATTERN[start..start + rest]);
        frame
    }

    /// The offloads that the sender leaves to others.
    pub(crate) fn offload(&self) -> Offload {
        match self.segment_bytes {
            0 => Offload::default(),
            gso_size => Offload {
                flags: F_NEEDS_CSUM,
                gso_type: GSO_TCPV4,
                hdr_len: TCP_BYTES as u16,
                gso_size,
                csum_start: 34,
                csum_offset: 16,
            },
        }
    }

    /// A frame's description of itself, valid or not.
    pub(crate) fn parse(frame: &[u8]) -> Option<Self> {
        let at = if is_tcp(frame) { TCP_BYTES } else { ETHERNET_BYTES };
        let tale = frame.get(at..at + TALE_BYTES)?;
        let word = |at: usize| u32::from_be_bytes([tale[at], tale[at + 1], tale[at + 2], tale[at + 3]]);
        let (life, number, len_bytes) = (word(8), word(12), word(16));
        let segment_bytes = word(4) as u16;
        Some(Self { to: tale[0], from: tale[1], queue: tale[2], segment_bytes, life, number, len_bytes })
    }

    /// The description of a frame whose bytes are all as its sender made them.
    pub(crate) fn of_whole(frame: &[u8]) -> Result<Self, String> {
        let tale = Self::parse(frame).ok_or_else(|| format!("a frame of {} bytes", frame.len()))?;
        let least = TCP_BYTES + TALE_BYTES;
        if tale.len_bytes as usize != frame.len() || (tale.segment_bytes > 0 && frame.len() < least) {
            return Err(format!("{} bytes came of {tale:?}", frame.len()));
        }
        let sent = tale.frame();
        if sent == frame {
            return Ok(tale);
        }
        match sent.iter().zip(frame).position(|(sent, came)| sent != came) {
            None => Err(format!("{} bytes, were {}, in {tale:?}", frame.len(), sent.len())),
            Some(at) => Err(format!("byte {at} is {:#x}, was {:#x}, in {tale:?}", frame[at], sent[at])),
        }
    }
}
