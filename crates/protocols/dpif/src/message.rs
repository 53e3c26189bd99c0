//! Netlink messages: a header of 16 bytes, for generic families four more, for datapath families the datapath's number.
//!
//! ```text
//!    0     4      6       8     12    16    17        18   20            24
//!    | len | type | flags | seq | pid | cmd | version | -- | dp_ifindex  | attributes ...     next: at a multiple of 4
//!    `---------- nlmsghdr -----------' `-- genlmsghdr -----' `ovs_header'
//! ```

use crate::attr::{Attrs, Writer};
use crate::refusal::{Errno, Refusal};
use crate::uapi::{ack_attr, nlm, nlmsg};

/// Bytes of a message's header.
pub const HEADER_BYTES: usize = 16;
const GENERIC_BYTES: usize = 4;
const OVS_BYTES: usize = 4;

/// The header of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetlinkHeader {
    /// A family's number, or one of netlink's own types.
    pub kind: u16,
    /// `NLM_F_*`.
    pub flags: u16,
    /// Number that answers repeat.
    pub seq: u32,
    /// Port id of the requester.
    pub port_id: u32,
}

impl NetlinkHeader {
    fn encode(self, len: u32) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&self.flags.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.seq.to_ne_bytes());
        bytes[12..].copy_from_slice(&self.port_id.to_ne_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEADER_BYTES]) -> (u32, Self) {
        let [l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3, p @ ..] = *bytes;
        let header = Self {
            kind: u16::from_ne_bytes([k0, k1]),
            flags: u16::from_ne_bytes([f0, f1]),
            seq: u32::from_ne_bytes([s0, s1, s2, s3]),
            port_id: u32::from_ne_bytes(p),
        };
        (u32::from_ne_bytes([l0, l1, l2, l3]), header)
    }

    /// Whether all of `flags` are set.
    #[must_use]
    pub fn has(&self, flags: u16) -> bool {
        self.flags & flags == flags
    }
}

/// One message of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetlinkMessage<'a> {
    /// Its header.
    pub header: NetlinkHeader,
    /// The bytes behind the header.
    pub body: &'a [u8],
}

/// A message's body in a generic family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generic<'a> {
    /// The command.
    pub command: u8,
    /// Version of the family.
    pub version: u8,
    /// The bytes behind that header.
    pub body: &'a [u8],
}

impl<'a> NetlinkMessage<'a> {
    /// The generic netlink message in it.
    ///
    /// # Errors
    /// EINVAL if it is too short.
    pub fn generic(&self) -> Result<Generic<'a>, Refusal> {
        let short = Refusal::invalid("the message is too short for a generic netlink header");
        let (header, body) = self.body.split_first_chunk::<GENERIC_BYTES>().ok_or(short)?;
        Ok(Generic { command: header[0], version: header[1], body })
    }

    /// The positive error number of an error message; 0 for an acknowledgement.
    #[must_use]
    pub fn error(&self) -> Option<i32> {
        let number = self.body.first_chunk::<4>().filter(|_| self.header.kind == nlmsg::ERROR)?;
        Some(i32::from_ne_bytes(*number).wrapping_neg())
    }

    /// The sentence of an error message.
    #[must_use]
    pub fn error_text(&self) -> Option<String> {
        let tail =
            self.body.get(4 + HEADER_BYTES..).filter(|_| self.header.has(nlm::ACK_TLVS | nlm::CAPPED))?;
        let text = Attrs::new(tail).flatten().find(|attr| attr.kind == ack_attr::MSG)?;
        text.string(usize::MAX).ok()
    }

    /// Whether it ends a dump.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.header.kind == nlmsg::DONE
    }
}

impl<'a> Generic<'a> {
    /// The datapath's number and the attributes.
    ///
    /// # Errors
    /// EINVAL if it is too short.
    pub fn datapath(&self) -> Result<(i32, Attrs<'a>), Refusal> {
        let short = Refusal::invalid("the message is too short to name a datapath");
        let (number, attrs) = self.body.split_first_chunk::<OVS_BYTES>().ok_or(short)?;
        Ok((i32::from_ne_bytes(*number), Attrs::new(attrs)))
    }
}

/// Iterates over the messages of a datagram. As in the kernel, a message that claims more bytes than are left ends it
/// silently.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Messages<'a> {
    /// Starts at the first message.
    #[must_use]
    pub fn new(datagram: &'a [u8]) -> Self {
        Self { rest: datagram }
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = NetlinkMessage<'a>;

    fn next(&mut self) -> Option<NetlinkMessage<'a>> {
        let rest = std::mem::take(&mut self.rest);
        let (len, header) = NetlinkHeader::decode(rest.first_chunk()?);
        let len = usize::try_from(len).ok()?;
        let body = rest.get(HEADER_BYTES..len)?;
        self.rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(NetlinkMessage { header, body })
    }
}

/// Encodes a message of netlink's own, or of a family that is not generic.
///
/// # Errors
/// EMSGSIZE if an attribute or the message is too long.
pub fn encode(header: NetlinkHeader, fill: impl FnOnce(&mut Writer)) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::new();
    append(&mut bytes, header, fill)?;
    Ok(bytes)
}

/// Appends such a message to a datagram, at a multiple of four bytes. One that cannot be encoded leaves no byte there.
///
/// # Errors
/// As [`encode`].
pub fn append(
    datagram: &mut Vec<u8>,
    header: NetlinkHeader,
    fill: impl FnOnce(&mut Writer),
) -> Result<(), Refusal> {
    let (before, start) = (datagram.len(), datagram.len().next_multiple_of(4));
    datagram.resize(start + HEADER_BYTES, 0);
    let mut writer = Writer::new(std::mem::take(datagram));
    fill(&mut writer);
    let (bytes, result) = writer.into_parts();
    *datagram = bytes;
    let result = result.and_then(|()| {
        let len = u32::try_from(datagram.len() - start).map_err(|_| Refusal::from(Errno::EMSGSIZE))?;
        datagram[start..start + HEADER_BYTES].copy_from_slice(&header.encode(len));
        Ok(())
    });
    if result.is_err() {
        datagram.truncate(before);
    }
    result
}

/// Encodes a message of a generic family.
///
/// # Errors
/// As [`encode`].
pub fn encode_generic(
    header: NetlinkHeader,
    command: u8,
    version: u8,
    fill: impl FnOnce(&mut Writer),
) -> Result<Vec<u8>, Refusal> {
    encode(header, |writer| {
        put_generic(writer, (command, version));
        fill(writer);
    })
}

fn put_generic(writer: &mut Writer, (command, version): (u8, u8)) {
    writer.raw(&[command, version, 0, 0]);
}

/// Encodes a message about a datapath, for tests; others append it to a datagram.
///
/// # Errors
/// As [`encode`].
pub fn encode_datapath(
    header: NetlinkHeader,
    (command, version): (u8, u8),
    datapath: i32,
    fill: impl FnOnce(&mut Writer),
) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::new();
    append_datapath(&mut bytes, header, (command, version), datapath, fill)?;
    Ok(bytes)
}

/// Appends a message about a datapath, as [`append`] does.
///
/// # Errors
/// As [`encode`].
pub fn append_datapath(
    datagram: &mut Vec<u8>,
    header: NetlinkHeader,
    version: (u8, u8),
    datapath: i32,
    fill: impl FnOnce(&mut Writer),
) -> Result<(), Refusal> {
    append(datagram, header, |writer| {
        put_generic(writer, version);
        writer.raw(&datapath.to_ne_bytes());
        fill(writer);
    })
}

/// Encodes the acknowledgement or error for `request`; `is_extended` if the client set NETLINK_EXT_ACK.
#[must_use]
pub fn acknowledgement(
    request: NetlinkHeader,
    len_bytes: u32,
    result: Result<(), Refusal>,
    is_extended: bool,
) -> Vec<u8> {
    let refusal = result.err();
    let text = refusal.map(|refusal| refusal.why).filter(|why| is_extended && !why.is_empty());
    let mut header = NetlinkHeader { kind: nlmsg::ERROR, flags: nlm::CAPPED, ..request };
    if text.is_some() {
        header.flags |= nlm::ACK_TLVS;
    }
    let answer = encode(header, |writer| {
        writer.raw(&refusal.map_or(0, |refusal| -refusal.errno.0).to_ne_bytes());
        writer.raw(&request.encode(len_bytes));
        if let Some(text) = text {
            writer.put_string(ack_attr::MSG, text);
        }
    });
    // The only attribute is a sentence of ours, so this cannot fail.
    answer.unwrap_or_default()
}

/// Encodes the end of a dump.
#[must_use]
pub fn done(request: NetlinkHeader, result: Result<(), Refusal>) -> Vec<u8> {
    let header = NetlinkHeader { kind: nlmsg::DONE, flags: nlm::MULTI, ..request };
    let number = result.err().map_or(0, |refusal| -refusal.errno.0);
    encode(header, |writer| writer.raw(&number.to_ne_bytes())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: NetlinkHeader = NetlinkHeader { kind: 0x20, flags: nlm::REQUEST, seq: 7, port_id: 9 };

    #[test]
    fn messages_of_a_datagram_come_one_after_the_other() {
        let one = encode_datapath(REQUEST, (3, 2), 5, |writer| writer.put(1, &[1])).expect("short");
        let two = done(REQUEST, Ok(()));
        let datagram = [one, two].concat();
        let messages: Vec<_> = Messages::new(&datagram).collect();
        assert_eq!(messages.len(), 2);
        let generic = messages[0].generic().expect("long enough");
        let (datapath, attrs) = generic.datapath().expect("long enough");
        assert_eq!((generic.command, generic.version, datapath, attrs.count()), (3, 2, 5, 1));
        assert!(messages[1].is_done());
        assert_eq!(Messages::new(&datagram[..datagram.len() - 1]).count(), 1, "the second is cut");
    }

    #[test]
    fn a_message_that_cannot_be_encoded_leaves_the_datagram_as_it_was() {
        let mut datagram = vec![7; 5];
        let long = vec![0; 65_536];
        assert!(append(&mut datagram, REQUEST, |writer| writer.put(1, &long)).is_err());
        assert_eq!(datagram, [7; 5]);
        append(&mut datagram, REQUEST, |writer| writer.put(1, &[9])).expect("short");
        assert_eq!((&datagram[..8], datagram.len()), (&[7, 7, 7, 7, 7, 0, 0, 0][..], 8 + HEADER_BYTES + 8));
        let message = Messages::new(&datagram[8..]).next().expect("one");
        assert_eq!((message.header, message.body), (REQUEST, &[5, 0, 1, 0, 9, 0, 0, 0][..]));
    }

    #[test]
    fn a_refusal_has_its_number_and_on_request_its_sentence() {
        let refused = Err(Refusal::invalid("no"));
        for (is_extended, text) in [(false, None), (true, Some("no".to_owned()))] {
            let bytes = acknowledgement(REQUEST, 24, refused, is_extended);
            let message = Messages::new(&bytes).next().expect("one");
            assert_eq!((message.error(), message.error_text(), message.header.seq), (Some(22), text, 7));
        }
        let bytes = acknowledgement(REQUEST, 24, Ok(()), true);
        let message = Messages::new(&bytes).next().expect("one");
        assert_eq!((message.error(), message.error_text()), (Some(0), None));
        assert_eq!(bytes.len(), HEADER_BYTES + 4 + HEADER_BYTES, "capped");
    }

    #[test]
    fn invalid_messages_are_skipped() {
        assert_eq!(Messages::new(&[0; 15]).count(), 0);
        assert_eq!(Messages::new(&[0; 16]).count(), 0, "shorter than its own header");
        assert_eq!(
            NetlinkMessage { header: REQUEST, body: &[1] }.generic().map_err(|r| r.errno),
            Err(Errno::EINVAL)
        );
    }
}
