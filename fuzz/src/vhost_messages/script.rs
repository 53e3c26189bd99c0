//! The steps of a front end, one after the other.

use lasthop_vhost::message::{FLAG_NEED_REPLY, FLAG_REPLY, VERSION, VhostMessage};

use crate::input::{Input, Seed};

use super::files::Kind;
use super::side::FDS_MAX;

/// Words of a body: a table of more regions than there may be.
const WORDS_MAX: u8 = 48;
/// Addresses near this one are frequent, so that rings find their memory.
pub(super) const USER: u64 = 0x7000_0000;
pub(super) enum Step<'a> {
    /// The device takes as many heads of a ring before it stops.
    Progress(u16),
    /// The device refuses to start rings, or not.
    Reluctant(bool),
    /// A file becomes shorter or longer, mapped or not.
    Truncate { file: u8, bytes: u64 },
    /// Bytes on the socket.
    Garbage(&'a [u8]),
    /// A message; on a socket it is cut there.
    Message { message: VhostMessage, kinds: Vec<Kind>, cut: usize },
}

impl<'a> Step<'a> {
    const KINDS: u8 = 16;
    const PROGRESS: u8 = 12;
    const CUT: u8 = 1;

    pub(super) fn decode(input: &mut Input<'a>) -> Self {
        let kind = input.u8() % Self::KINDS;
        match kind {
            Self::PROGRESS => Self::Progress(input.u16()),
            13 => Self::Reluctant(input.bool()),
            14 => Self::Truncate { file: input.u8(), bytes: u64::from(input.u16()) << 8 },
            15 => {
                let count = usize::from(input.u8());
                Self::Garbage(input.bytes(count))
            }
            _ => {
                let cut = if kind == Self::CUT { usize::from(input.u8()) } else { usize::MAX };
                let (request, flags) = (u32::from(input.u8()), input.u8());
                let body = body(input);
                let fds = usize::from(input.u8()) % (FDS_MAX + 1);
                let kinds = (0..fds).map(|_| Kind::decode(input)).collect();
                Self::Message {
                    message: VhostMessage { request, flags: message_flags(flags), body },
                    kinds,
                    cut,
                }
            }
        }
    }
}

fn message_flags(bits: u8) -> u32 {
    let need_reply = if bits & 1 != 0 { FLAG_NEED_REPLY } else { 0 };
    let reply = if bits & 0x30 == 0x30 { FLAG_REPLY } else { 0 };
    VERSION | need_reply | reply
}

/// A body of words, most of them numbers as messages have them.
fn body(input: &mut Input<'_>) -> Vec<u8> {
    let words = input.u8() % (WORDS_MAX + 1);
    let mut body = Vec::new();
    for _ in 0..words {
        let tag = input.u8();
        let value = match tag & 0xf {
            0 => u64::from(input.u8()),
            1 => u64::from(input.u16()) << 12,
            2 => input.u64(),
            3 => 1 << (input.u8() % 64),
            4 => USER + (u64::from(input.u16()) << 4),
            5 => u64::MAX - u64::from(input.u8()),
            6 => u64::from(input.u32()),
            7 => USER + u64::from(input.u16()),
            8 => {
                body.push(input.u8());
                continue;
            }
            _ => 0,
        };
        let width = if tag & 0x80 != 0 { 4 } else { 8 };
        body.extend(&value.to_ne_bytes()[..width]);
    }
    body
}

/// Writes a message for `Step::decode`.
pub(super) fn encode_message(seed: &mut Seed, request: u32, flags: u8, body: &[u8], kinds: &[Kind]) {
    let (words, rest) = body.as_chunks::<8>();
    seed.u8(0).u8(request as u8).u8(flags).u8((words.len() + rest.len()) as u8);
    for word in words {
        encode_word(seed, u64::from_ne_bytes(*word));
    }
    for byte in rest {
        seed.u8(8).u8(*byte);
    }
    seed.u8(kinds.len() as u8);
    kinds.iter().for_each(|kind| kind.encode(seed));
}

/// The shortest way that `body` knows, so that changes of a byte mean something.
fn encode_word(seed: &mut Seed, value: u64) {
    match value {
        0..=0xff => seed.u8(0).u8(value as u8),
        USER..=0x700f_fff0 if value.is_multiple_of(16) => seed.u8(4).u16(((value - USER) >> 4) as u16),
        0x1000..=0x0fff_f000 if value.is_multiple_of(4096) => seed.u8(1).u16((value >> 12) as u16),
        _ => seed.u8(2).u64(value),
    };
}

/// Writes a step that makes rings take heads.
pub(super) fn encode_progress(seed: &mut Seed, heads: u16) {
    seed.u8(Step::PROGRESS).u16(heads);
}

/// Tests, which `tests/targets.rs` runs.
#[expect(missing_docs, reason = "their names say it")]
pub mod checks {
    use super::*;

    pub fn a_message_is_read_as_it_was_written() {
        let body = [
            &7_u64.to_ne_bytes()[..],
            &(USER + 0x4000).to_ne_bytes(),
            &u64::MAX.to_ne_bytes(),
            &[1, 2, 3, 4],
        ];
        let mut seed = Seed::default();
        encode_message(&mut seed, 9, 1, &body.concat(), &[Kind::Event, Kind::Disk]);
        let bytes = seed.into_bytes();
        let mut input = Input::new(&bytes);
        let Step::Message { message, kinds, .. } = Step::decode(&mut input) else { panic!("a message") };
        assert_eq!(message, VhostMessage { request: 9, flags: 9, body: body.concat() });
        assert_eq!((kinds, input.is_empty()), (vec![Kind::Event, Kind::Disk], true));
    }
}
