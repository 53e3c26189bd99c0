//! Steps of guests and switch, one after the other.

use lasthop_wire::{Network, Offload};

use crate::headers::{tcp_frame, tcp_offload};
use crate::input::{Input, Seed};

use super::layout::{GUEST, Raw};

/// Last bytes of destination addresses that mean something to the module: to drop, to say nothing, to send two copies.
pub(super) const DROPPED: u8 = 0x55;
pub(super) const FORGOTTEN: u8 = 0xaa;
pub(super) const TWICE: u8 = 0x33;

/// A frame as a guest puts it together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FrameSpec {
    /// Bit 0: IPv6; bits 1 and 2: VLAN tags; bit 3: no offload; bit 4: legacy lengths of zero; bits 5
    /// and 6: the module's verdict.
    pub(super) shape: u8,
    /// Bytes.
    pub(super) payload: u16,
    /// Bytes; 0: not to be segmented.
    pub(super) gso_size: u16,
    /// Added to where the checksum goes.
    pub(super) astray: u8,
}

impl FrameSpec {
    /// Largest payload: as much as a sender may have segmented, and a bit more.
    const PAYLOAD_BYTES: u16 = 0xff80;

    fn decode(input: &mut Input<'_>) -> Self {
        let (shape, payload) = (input.u8(), input.u16() % Self::PAYLOAD_BYTES);
        Self { shape, payload, gso_size: input.u16(), astray: input.u8() }
    }

    fn encode(self, seed: &mut Seed) {
        seed.u8(self.shape).u16(self.payload).u16(self.gso_size).u8(self.astray);
    }

    pub(super) fn offload(self) -> Offload {
        if self.shape & 8 != 0 {
            return Offload::default();
        }
        let offload = tcp_offload(self.l3(), self.tags(), self.gso_size);
        Offload { csum_start: offload.csum_start.wrapping_add(u16::from(self.astray)), ..offload }
    }

    pub(super) fn frame(self) -> Vec<u8> {
        let mut frame = tcp_frame(self.l3(), self.tags(), usize::from(self.payload));
        if self.shape & 16 != 0 {
            let at = 14 + 4 * self.tags() + if self.l3() == Network::Ipv4 { 2 } else { 4 };
            frame[at..at + 2].fill(0);
        }
        frame[5] = [frame[5], DROPPED, FORGOTTEN, TWICE][usize::from(self.shape >> 5 & 3)];
        frame
    }

    fn l3(self) -> Network {
        if self.shape & 1 == 0 { Network::Ipv4 } else { Network::Ipv6 }
    }

    fn tags(self) -> usize {
        usize::from(self.shape >> 1 & 3).min(2)
    }
}

/// The ring and its port, each modulo their number.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    pub(super) port: u8,
    pub(super) queue: u8,
}

impl Place {
    fn decode(input: &mut Input<'_>) -> Self {
        let byte = input.u8();
        Self { port: byte & 1, queue: byte >> 1 & 1 }
    }

    fn encode(self, seed: &mut Seed) {
        seed.u8(self.port | self.queue << 1);
    }
}

/// Pieces of a packet: more than are taken.
const PIECES_MAX: u8 = 80;

#[derive(Clone, Copy, Debug)]
pub(super) enum Step<'a> {
    /// A descriptor of a ring's table; odd `ring`s are transmit rings.
    Descriptor {
        port: u8,
        ring: u8,
        index: u8,
        raw: Raw,
    },
    /// A descriptor of an indirect table.
    TableEntry {
        port: u8,
        table: u8,
        index: u8,
        raw: Raw,
    },
    /// A head is made available.
    Available {
        port: u8,
        ring: u8,
        head: u8,
    },
    /// The available index, without a look behind it.
    AvailableIndex {
        port: u8,
        ring: u8,
        value: u16,
    },
    /// Bytes anywhere but in used rings.
    Bytes {
        port: u8,
        at: u16,
        bytes: &'a [u8],
    },
    /// Receive buffers as a driver posts them.
    Post {
        place: Place,
        count: u8,
        len: u16,
    },
    /// A packet as a driver sends it, cut into this many pieces; many go by an indirect table.
    Send {
        place: Place,
        frame: FrameSpec,
        pieces: u8,
    },
    Visit(Place),
    Drain(Place),
    DrainWaiting,
    /// Time passes.
    Expire {
        ms: u8,
    },
    /// Going to sleep, and not.
    Arm(Place),
    Enable {
        port: u8,
        ring: u8,
        enabled: bool,
    },
    Restart {
        port: u8,
        ring: u8,
    },
    /// Another memory map: both regions, or one of them.
    Memory {
        port: u8,
        regions: u8,
    },
    Capabilities {
        port: u8,
        bits: u8,
    },
    Inject(FrameSpec),
    /// The port goes, and comes back.
    Replace {
        port: u8,
    },
}

impl<'a> Step<'a> {
    const KINDS: u8 = 18;
    const POST: u8 = 5;
    const SEND: u8 = 6;
    const VISIT: u8 = 7;

    pub(super) fn decode(input: &mut Input<'a>) -> Self {
        let kind = input.u8() % Self::KINDS;
        match kind {
            0..=4 => Self::decode_write(kind, input),
            Self::POST => {
                Self::Post { place: Place::decode(input), count: input.u8() % 65, len: input.u16() % 2049 }
            }
            Self::SEND => Self::Send {
                place: Place::decode(input),
                frame: FrameSpec::decode(input),
                pieces: 1 + input.u8() % PIECES_MAX,
            },
            Self::VISIT => Self::Visit(Place::decode(input)),
            8 => Self::Drain(Place::decode(input)),
            9 => Self::DrainWaiting,
            10 => Self::Expire { ms: input.u8() },
            11 => Self::Arm(Place::decode(input)),
            12 => Self::Enable { port: input.u8(), ring: input.u8(), enabled: input.bool() },
            13 => Self::Restart { port: input.u8(), ring: input.u8() },
            14 => Self::Memory { port: input.u8(), regions: input.u8() },
            15 => Self::Capabilities { port: input.u8(), bits: input.u8() },
            16 => Self::Inject(FrameSpec::decode(input)),
            _ => Self::Replace { port: input.u8() },
        }
    }

    /// A guest's writes.
    fn decode_write(kind: u8, input: &mut Input<'a>) -> Self {
        let (port, ring) = (input.u8(), input.u8());
        match kind {
            0 => Self::Descriptor { port, ring, index: input.u8(), raw: decode_raw(input) },
            1 => Self::TableEntry { port, table: ring, index: input.u8(), raw: decode_raw(input) },
            2 => Self::Available { port, ring, head: input.u8() },
            3 => Self::AvailableIndex { port, ring, value: input.u16() },
            _ => Self::Bytes { port, at: input.u16(), bytes: input.bytes(usize::from(ring)) },
        }
    }

    pub(super) fn encode(self, seed: &mut Seed) {
        match self {
            Self::Post { place, count, len } => {
                seed.u8(Self::POST);
                place.encode(seed);
                seed.u8(count).u16(len);
            }
            Self::Send { place, frame, pieces } => {
                seed.u8(Self::SEND);
                place.encode(seed);
                frame.encode(seed);
                seed.u8(pieces - 1);
            }
            Self::Visit(place) => {
                seed.u8(Self::VISIT);
                place.encode(seed);
            }
            Self::DrainWaiting => drop(seed.u8(9)),
            Self::Expire { ms } => drop(seed.u8(10).u8(ms)),
            Self::Memory { port, regions } => drop(seed.u8(14).u8(port).u8(regions)),
            Self::Inject(frame) => {
                seed.u8(16);
                frame.encode(seed);
            }
            _ => unreachable!("no seed needs {self:?}"),
        }
    }
}

/// A descriptor of an address in memory most times, else of a hostile one.
pub(crate) fn decode_raw(input: &mut Input<'_>) -> Raw {
    let (at, len, flags, next) = (input.u16(), input.u16(), input.u8(), input.u8());
    let addr = match flags >> 3 & 7 {
        0..=4 => GUEST + u64::from(at),
        5 => u64::MAX - u64::from(at),
        6 => GUEST - u64::from(at & 0xff),
        _ => u64::from(at) << 48,
    };
    let len = if flags >> 6 == 3 { u32::MAX - u32::from(len) } else { u32::from(len) };
    Raw { addr, len, flags: u16::from(flags & 7), next: u16::from(next) }
}
