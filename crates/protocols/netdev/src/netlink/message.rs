//! Netlink messages: one request and its answer at a time.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

/// Bytes of `struct nlmsghdr` (netlink(7)).
const HEADER_BYTES: usize = 16;
/// Largest answer in bytes: more than a link with all its attributes has.
const ANSWER_BYTES_MAX: usize = 32 * 1024;
/// `NLM_F_REQUEST`: the reply is an error or the answer itself.
const REQUEST: u16 = 1;
/// `NLM_F_ACK`: success is acknowledged, too.
const ACK: u16 = 4;
/// `NLMSG_ERROR`.
const ERROR: u16 = 2;
/// A nested attribute's bit (`NLA_F_NESTED`).
pub(super) const NESTED: u16 = 0x8000;
/// The nested bit and the bit of network byte order (`NLA_F_NET_BYTEORDER`).
const KIND_FLAGS: u16 = NESTED | 0x4000;

/// A netlink socket with one request at a time.
#[derive(Debug)]
pub(super) struct Netlink(OwnedFd);

impl Netlink {
    /// Opens a socket in the caller's network namespace; rtnetlink without a protocol.
    pub(super) fn open(protocol: Option<Protocol>) -> Result<Self, Errno> {
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
        bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        Ok(Self(socket))
    }

    /// Sends a request, and returns the body of the answer without the netlink header.
    ///
    /// # Errors
    /// The kernel's answer, or `PROTO` for an invalid one.
    pub(super) fn ask(&self, kind: u16, body: &[u8]) -> Result<Vec<u8>, Errno> {
        answer(&self.exchange(kind, REQUEST, body)?)?.ok_or(Errno::PROTO)
    }

    /// Sends a request whose reply is an acknowledgement.
    ///
    /// # Errors
    /// The kernel's answer, or `PROTO` for an invalid one.
    pub(super) fn tell(&self, kind: u16, body: &[u8]) -> Result<(), Errno> {
        answer(&self.exchange(kind, REQUEST | ACK, body)?).map(drop)
    }

    fn exchange(&self, kind: u16, flags: u16, body: &[u8]) -> Result<Vec<u8>, Errno> {
        let mut request = ((HEADER_BYTES + body.len()) as u32).to_ne_bytes().to_vec();
        request.extend(kind.to_ne_bytes());
        request.extend(flags.to_ne_bytes());
        request.extend([0; 8]); // sequence and port: there is one request, and the answer is for its socket
        request.extend(body);
        send(&self.0, &request, SendFlags::empty())?;
        let mut bytes = vec![0; ANSWER_BYTES_MAX];
        let (len, _) = recv(&self.0, bytes.as_mut_slice(), RecvFlags::empty())?;
        bytes.truncate(len);
        Ok(bytes)
    }
}

/// The body of the first message; `None` for an acknowledgement.
fn answer(bytes: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
    let len = u32_at(bytes, 0).ok_or(Errno::PROTO)? as usize;
    let kind = u16_at(bytes, 4).ok_or(Errno::PROTO)?;
    let body = bytes.get(HEADER_BYTES..len).ok_or(Errno::PROTO)?;
    if kind != ERROR {
        return Ok(Some(body.to_vec()));
    }
    match u32_at(body, 0).map(|error| error.cast_signed().wrapping_neg()) {
        Some(0) => Ok(None),
        None => Err(Errno::PROTO),
        Some(error) => Err(Errno::from_raw_os_error(error)),
    }
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Appends an attribute.
pub(super) fn put(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend(((4 + value.len()) as u16).to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// The valid attributes with their kinds.
fn parse(mut attributes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(attributes, 0)?);
        let (kind, value) = (u16_at(attributes, 2)? & !KIND_FLAGS, attributes.get(4..len)?);
        attributes = attributes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The values of all attributes.
pub(super) fn each(attributes: &[u8]) -> impl Iterator<Item = &[u8]> {
    parse(attributes).map(|(_, value)| value)
}

/// The value of the first attribute of `kind`.
pub(super) fn find(attributes: &[u8], kind: u16) -> Option<&[u8]> {
    parse(attributes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// A text attribute without its final NUL.
pub(super) fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).trim_end_matches('\0').to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn attributes_are_found_by_kind() {
        let mut body = Vec::new();
        put(&mut body, 3, b"eth1\0");
        put(&mut body, 7 | 0x8000, &[1, 2, 3, 4]);
        assert_eq!(body.len(), 20);
        assert_eq!(
            (find(&body, 3).map(text), find(&body, 7)),
            (Some("eth1".to_owned()), Some(&[1, 2, 3, 4][..]))
        );
        assert_eq!(find(&body, 4), None);
    }

    #[test]
    fn an_error_is_told_as_such() {
        let mut message = 20_u32.to_ne_bytes().to_vec();
        message.extend([2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        message.extend((-19_i32).to_ne_bytes());
        assert_eq!(answer(&message), Err(Errno::NODEV));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..80), kind in 0_u16..4) {
            let _ = find(&bytes, kind);
            let _ = answer(&bytes);
        }
    }
}
