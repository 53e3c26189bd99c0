//! Netlink messages, one request and its answer at a time, and their attributes.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

/// Length and kind.
const HEAD_BYTES: usize = 4;
/// A nested attribute's bit (`NLA_F_NESTED`).
pub(super) const NESTED: u16 = 0x8000;
/// The nested bit and the bit of network byte order (`NLA_F_NET_BYTEORDER`).
const KIND_FLAGS: u16 = NESTED | 0x4000;

/// Rounds up to four bytes.
pub(crate) fn aligned(len: usize) -> usize {
    len.next_multiple_of(4)
}

/// The complete attributes in `bytes`.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let head = bytes.first_chunk::<HEAD_BYTES>()?;
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let kind = u16::from_ne_bytes([head[2], head[3]]) & !KIND_FLAGS;
        let value = bytes.get(HEAD_BYTES..len)?;
        bytes = bytes.get(aligned(len)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The value of the first attribute of a kind.
pub(crate) fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// Adds an attribute to a message.
pub(crate) fn put(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let len = (HEAD_BYTES + value.len()) as u16; // values here have 16 bytes at most
    message.extend_from_slice(&len.to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(value);
    message.resize(aligned(message.len()), 0);
}

/// A text attribute without its final NUL.
pub(super) fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).trim_end_matches('\0').to_owned()
}

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_error_is_told_as_such() {
        let mut message = 20_u32.to_ne_bytes().to_vec();
        message.extend([2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        message.extend((-19_i32).to_ne_bytes());
        assert_eq!(answer(&message), Err(Errno::NODEV));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = answer(&bytes);
        }
    }

    #[test]
    fn attributes_are_found_behind_others_of_odd_lengths() {
        let mut bytes = Vec::new();
        put(&mut bytes, 3, b"eth1\0");
        put(&mut bytes, 1, &[2, 0, 0, 0, 0, 1]);
        put(&mut bytes, 4, &1500_u32.to_ne_bytes());
        put(&mut bytes, 7 | NESTED, &[1, 2, 3, 4]);
        assert_eq!(find(&bytes, 3).map(text), Some("eth1".to_owned()));
        assert_eq!(find(&bytes, 4), Some(1500_u32.to_ne_bytes().as_slice()));
        assert_eq!(find(&bytes, 7), Some([1, 2, 3, 4].as_slice()));
        assert_eq!(find(&bytes, 5), None);
        assert_eq!((bytes.len(), attributes(&bytes).count()), (40, 4));
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(attributes(&bytes).count() <= bytes.len() / HEAD_BYTES);
        }
    }
}
