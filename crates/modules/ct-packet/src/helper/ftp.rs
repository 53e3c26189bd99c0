//! FTP: commands and answers that announce a data connection (RFC 959, 4.1.2; RFC 2428).
//!
//! ```text
//!   client   PORT 10,0,0,1,4,1            EPRT |1|10.0.0.1|1025|      EPRT |2|fd00::1|1025|
//!   server   227 ... (10,0,0,2,4,1)       229 ... (|||1025|)
//! ```
//!
//! A line counts if it is complete and begins its segment. Numbers are bounded, so a replacement never exceeds
//! [`crate::SPLICE_BYTES`].

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use arrayvec::{ArrayString, ArrayVec};
use lasthop_wire::headers::PROTO_TCP;

use super::Announced;
use crate::edit::SPLICE_BYTES;
use crate::packet::PacketImage;
use crate::tuple::{CtTuple, Direction, IpBytes};

/// Longest number that is parsed, in digits.
const DIGITS_MAX: usize = 5;
/// Longest address that is parsed, in characters: an IPv6 address.
const ADDRESS_CHARACTERS_MAX: usize = 45;

/// The text of an address in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FtpAddress {
    /// Offset in the frame of the bytes to replace.
    pub at: usize,
    /// Their number.
    pub len: usize,
    form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// h1,h2,h3,h4,p1,p2
    Numbers,
    /// |family|address|port|
    Extended,
    /// |||port|
    PortOnly,
}

/// A reader of a line.
#[derive(Clone, Copy)]
struct Cursor<'a> {
    line: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn peek(&self) -> Option<u8> {
        self.line.get(self.at).copied()
    }

    fn skip(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn skip_word(&mut self, word: &[u8]) -> Option<()> {
        let found = self.line.get(self.at..self.at + word.len())?;
        found.eq_ignore_ascii_case(word).then(|| self.at += word.len())
    }

    fn skip_until(&mut self, is_it: impl Fn(u8) -> bool) -> Option<()> {
        let rest = self.line.get(self.at..)?;
        self.at += rest.iter().position(|byte| is_it(*byte))?;
        Some(())
    }

    fn number(&mut self) -> Option<u32> {
        let rest = self.line.get(self.at..)?;
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 || digits > DIGITS_MAX {
            return None;
        }
        self.at += digits;
        Some(rest[..digits].iter().fold(0, |number, digit| number * 10 + u32::from(digit - b'0')))
    }

    /// Reads the bytes up to `end`, and skips `end`.
    fn until(&mut self, end: u8) -> Option<&'a [u8]> {
        let from = self.at;
        self.skip_until(|byte| byte == end)?;
        let found = self.line.get(from..self.at)?;
        self.at += 1;
        Some(found)
    }
}

/// Whether the payload in a segment's image begins like a line that announces a data connection.
pub(super) fn begins_announcement(packet: &PacketImage<'_>, direction: Direction) -> bool {
    const WORD_BYTES: usize = 4;
    let begins: [&[u8]; 2] = match direction {
        Direction::Original => [b"PORT", b"EPRT"],
        Direction::Reply => [b"227 ", b"229 "],
    };
    let is_readable = packet.layers.l4_proto == PROTO_TCP && !packet.offload.is_gso();
    let Some(words) = packet.head.get(packet.l4() + 12).filter(|_| is_readable) else { return false };
    let start = packet.l4() + usize::from(words >> 4) * 4;
    // The whole payload has to be in the image, since the bytes behind the line may have to move.
    let word = packet.head.get(start..start + WORD_BYTES);
    word.is_some_and(|word| begins.iter().any(|begin| word.eq_ignore_ascii_case(begin)))
}

/// The data connection that a segment announces.
pub(super) fn announced(
    packet: &PacketImage<'_>,
    tuple: &CtTuple,
    direction: Direction,
) -> Option<Announced> {
    if tuple.proto != PROTO_TCP || packet.offload.is_gso() {
        return None;
    }
    let start = packet.l4() + usize::from(packet.head.get(packet.l4() + 12)? >> 4) * 4;
    let payload = packet.head.get(start..packet.end()?)?;
    let end = payload.iter().position(|byte| matches!(byte, b'\r' | b'\n'))?;
    let found = match direction {
        Direction::Original => command(&payload[..end]),
        Direction::Reply => answer(&payload[..end]),
    };
    let (mut written, address, port) = found?;
    written.at += start;
    if port == 0 || address.is_some_and(|address| address.is_ipv6() != tuple.is_ipv6) {
        return None;
    }
    Some(Announced { address: address.map(IpBytes::from), port, written: Some(written) })
}

type Found = (FtpAddress, Option<IpAddr>, u16);

fn command(line: &[u8]) -> Option<Found> {
    let mut cursor = Cursor { line, at: 0 };
    if cursor.skip_word(b"PORT ").is_some() {
        return numbers(&mut cursor);
    }
    cursor.skip_word(b"EPRT ")?;
    extended(&mut cursor)
}

fn answer(line: &[u8]) -> Option<Found> {
    let mut cursor = Cursor { line, at: 0 };
    if cursor.skip_word(b"227 ").is_some() {
        cursor.skip_until(|byte| byte.is_ascii_digit())?;
        return numbers(&mut cursor);
    }
    cursor.skip_word(b"229 ")?;
    cursor.until(b'(')?;
    let at = cursor.at;
    let delimiter = cursor.peek()?;
    (0..3).try_for_each(|_| cursor.skip(delimiter))?;
    let port = u16::try_from(cursor.number()?).ok()?;
    cursor.skip(delimiter)?;
    Some((FtpAddress { at, len: cursor.at - at, form: Form::PortOnly }, None, port))
}

fn numbers(cursor: &mut Cursor<'_>) -> Option<Found> {
    let at = cursor.at;
    let mut bytes = [0; 6];
    for (index, byte) in bytes.iter_mut().enumerate() {
        if index > 0 {
            cursor.skip(b',')?;
        }
        *byte = u8::try_from(cursor.number()?).ok()?;
    }
    let [a, b, c, d, high, low] = bytes;
    let written = FtpAddress { at, len: cursor.at - at, form: Form::Numbers };
    Some((written, Some(Ipv4Addr::new(a, b, c, d).into()), u16::from_be_bytes([high, low])))
}

fn extended(cursor: &mut Cursor<'_>) -> Option<Found> {
    let at = cursor.at;
    let delimiter = cursor.peek()?;
    cursor.skip(delimiter)?;
    let family = cursor.number()?;
    cursor.skip(delimiter)?;
    let text = cursor.until(delimiter).filter(|text| text.len() <= ADDRESS_CHARACTERS_MAX)?;
    let text = std::str::from_utf8(text).ok()?;
    let address = match family {
        1 => text.parse::<Ipv4Addr>().ok()?.into(),
        2 => text.parse::<Ipv6Addr>().ok()?.into(),
        _ => return None,
    };
    let port = u16::try_from(cursor.number()?).ok()?;
    cursor.skip(delimiter)?;
    Some((FtpAddress { at, len: cursor.at - at, form: Form::Extended }, Some(address), port))
}

/// Writes another address and port in the same form.
#[must_use]
pub fn write_address(written: &FtpAddress, address: IpAddr, port: u16) -> Option<ArrayVec<u8, SPLICE_BYTES>> {
    let mut text = ArrayString::<SPLICE_BYTES>::new();
    let [high, low] = port.to_be_bytes();
    match (written.form, address) {
        (Form::Numbers, IpAddr::V4(address)) => {
            let [a, b, c, d] = address.octets();
            write!(text, "{a},{b},{c},{d},{high},{low}").ok()?;
        }
        (Form::Numbers, IpAddr::V6(_)) => return None,
        (Form::Extended, address) => {
            write!(text, "|{}|{address}|{port}|", if address.is_ipv4() { 1 } else { 2 }).ok()?;
        }
        (Form::PortOnly, _) => write!(text, "|||{port}|").ok()?,
    }
    text.bytes().collect::<ArrayVec<u8, SPLICE_BYTES>>().into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(line: &str, direction: Direction) -> Option<(Option<IpAddr>, u16, String)> {
        let found = match direction {
            Direction::Original => command(line.as_bytes()),
            Direction::Reply => answer(line.as_bytes()),
        };
        let (written, address, port) = found?;
        Some((address, port, line[written.at..written.at + written.len].to_owned()))
    }

    #[test]
    fn commands_and_answers_of_all_four_kinds_are_read() {
        use Direction::{Original, Reply};
        let v4 = Some(IpAddr::from([10, 0, 0, 1]));
        let v6 = Some("fd00::1".parse().expect("an address"));
        assert_eq!(of("PORT 10,0,0,1,4,1", Original), Some((v4, 1025, "10,0,0,1,4,1".into())));
        assert_eq!(of("port 10,0,0,1,4,1", Original), Some((v4, 1025, "10,0,0,1,4,1".into())));
        assert_eq!(of("EPRT |1|10.0.0.1|99|", Original), Some((v4, 99, "|1|10.0.0.1|99|".into())));
        assert_eq!(of("EPRT !2!fd00::1!99!", Original), Some((v6, 99, "!2!fd00::1!99!".into())));
        let passive = "227 Entering Passive Mode (10,0,0,1,4,1).";
        assert_eq!(of(passive, Reply), Some((v4, 1025, "10,0,0,1,4,1".into())));
        assert_eq!(of("227 =10,0,0,1,4,1", Reply), Some((v4, 1025, "10,0,0,1,4,1".into())));
        assert_eq!(of("229 Extended (|||1025|)", Reply), Some((None, 1025, "|||1025|".into())));
        for (line, direction) in [
            ("PORT 10,0,0,1,4,1", Reply),
            (passive, Original),
            ("PORT 10,0,0,256,4,1", Original),
            ("PORT 10,0,0,1,4", Original),
            ("PORT 10,0,0,1,4,000001", Original),
            ("EPRT |1|fd00::1|99|", Original),
            ("EPRT |3|10.0.0.1|99|", Original),
            ("EPRT |1|10.0.0.1|65536|", Original),
            ("EPRT |1|10.0.0.1|99", Original),
            ("229 Extended (||1025|)", Reply),
            ("", Original),
        ] {
            assert_eq!(of(line, direction), None, "{line}");
        }
    }

    proptest! {
        #[test]
        fn written_values_are_read_again(address: u32, wide: u128, port in 1..=u16::MAX) {
            let (v4, v6) = (IpAddr::from(Ipv4Addr::from(address)), IpAddr::from(Ipv6Addr::from(wide)));
            for (start, form, address) in [("PORT ", Form::Numbers, v4), ("EPRT ", Form::Extended, v4), ("EPRT ", Form::Extended, v6)] {
                let written = FtpAddress { at: 0, len: 0, form };
                let text = write_address(&written, address, port).expect("it fits");
                let line = format!("{start}{}", String::from_utf8_lossy(&text));
                prop_assert_eq!(of(&line, Direction::Original), Some((Some(address), port, line[5..].to_owned())));
            }
        }

        #[test]
        fn any_line_is_survived(line: Vec<u8>) {
            let _ = (command(&line), answer(&line));
            let _ = (command(&[b"PORT ", &line[..]].concat()), answer(&[b"229 (", &line[..]].concat()));
        }
    }
}
