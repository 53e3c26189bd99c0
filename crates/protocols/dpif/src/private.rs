//! Messages in place of system calls: netlink clients do not need them, since the kernel knows its callers.
//!
//! ```text
//!   client                                         server
//!   HELLO protocol, port id wanted, process  ──>            as socket(2) and bind(2)
//!                                            <──   HELLO port id
//!   JOIN group, LEAVE group, LISTEN on/off   ──>            as setsockopt(2)
//!                                            <──   the same, with an error number
//!   SEE_ALL on/off                           ──>            likewise
//!   REJOIN group                             ──>            as JOIN, by a client of an earlier switch process
//!                                            <──   the same, with 0, and what became of the group's ports since then; or
//!                                                  with ENOBUFS: the client has to ask for everything
//!   request, request, ... in one datagram    ──>
//!                                            <──   answer  (one datagram each)
//!                                            <──   answer
//!                                            <──   END     this datagram is done: what a client would have waited
//!                                                          for is here, or will not come
//! ```

use crate::message::{self, NetlinkHeader, NetlinkMessage};

/// Types that no generic family gets.
pub const HELLO: u16 = 0xff01;
/// Becomes a member of a multicast group.
pub const JOIN: u16 = 0xff02;
/// Is one no more.
pub const LEAVE: u16 = 0xff03;
/// Everything that a request datagram was answered with has come.
pub const END: u16 = 0xff04;
/// Wants sentences in acknowledgements (NETLINK_EXT_ACK), if the number is not 0.
pub const LISTEN: u16 = 0xff05;
/// The client wants datapaths of the switch's own controllers in lists, if the number is not 0. Open vSwitch
/// never asks for this: it deletes every datapath that it finds beside its own.
pub const SEE_ALL: u16 = 0xff06;
/// Becomes a member of a multicast group that it was a member of in an earlier switch process.
pub const REJOIN: u16 = 0xff07;

/// The first message of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Netlink protocol: 16 is generic, 12 netfilter.
    pub protocol: u32,
    /// Port id wanted; 0 is any. A client that comes back asks for the one that it had.
    pub port_id: u32,
    /// Process id, for display.
    pub process: u32,
}

impl Hello {
    /// The datagram.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        words(HELLO, 0, &[self.protocol, self.port_id, self.process])
    }

    /// From a datagram's message.
    #[must_use]
    pub fn decode(message: &NetlinkMessage<'_>) -> Option<Self> {
        let ([protocol, port_id, process], []) = numbers(message, HELLO)? else { return None };
        Some(Self { protocol, port_id, process })
    }
}

/// A message of one number: the port id in answer to HELLO, a group, the error number in answer to JOIN.
#[must_use]
pub fn number(kind: u16, seq: u32, number: u32) -> Vec<u8> {
    words(kind, seq, &[number])
}

/// The number of such a message.
#[must_use]
pub fn decode_number(message: &NetlinkMessage<'_>, kind: u16) -> Option<u32> {
    let bytes = message.body.first_chunk::<4>().filter(|_| message.header.kind == kind)?;
    Some(u32::from_ne_bytes(*bytes))
}

/// The datagram behind the last answer.
#[must_use]
pub fn end() -> Vec<u8> {
    words(END, 0, &[])
}

fn words(kind: u16, seq: u32, words: &[u32]) -> Vec<u8> {
    let header = NetlinkHeader { kind, seq, ..NetlinkHeader::default() };
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    // Twelve bytes are not too long.
    message::encode(header, |writer| writer.raw(&bytes)).unwrap_or_default()
}

/// Three numbers.
fn numbers<'a>(message: &NetlinkMessage<'a>, kind: u16) -> Option<([u32; 3], &'a [u8])> {
    let (bytes, rest) = message.body.split_first_chunk::<12>().filter(|_| message.header.kind == kind)?;
    let mut numbers = [0; 3];
    for (number, bytes) in numbers.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *number = u32::from_ne_bytes(*bytes);
    }
    Some((numbers, rest))
}
