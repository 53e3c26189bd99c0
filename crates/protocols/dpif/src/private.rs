//! Messages that replace system calls. Netlink clients do not need them, since the kernel knows its callers.
//!
//! ```text
//!   client                                         server
//!   HELLO protocol, port id wanted, process  ──>            as socket(2) and bind(2)
//!                                            <──   HELLO port id
//!   JOIN group, LEAVE group, LISTEN on/off   ──>            as setsockopt(2)
//!                                            <──   the same, with an error number
//!   SEE_ALL on/off                           ──>            the same
//!   BATCH on/off                             ──>            the same
//!   RUNS_AHEAD on/off                        ──>            the same
//!   REJOIN group                             ──>            as JOIN, by a client of an earlier switch process
//!                                            <──   the same, with 0, and the group's notifications since then; or
//!                                                  with ENOBUFS: the client has to request everything
//!   request, request, ... in one datagram    ──>
//!                                            <──   answer  (one datagram each)
//!                                            <──   answer
//!                                            <──   END     this datagram is done: no further answer
//!                                                          will come
//! ```
//!
//! A client that wants BATCH gets several misses and ENDs in one datagram. ENDs for it wait a millisecond for other
//! output, so that they do not wake it each time.

use crate::message::{self, NetlinkHeader, NetlinkMessage};

/// Types that no generic family uses.
pub const HELLO: u16 = 0xff01;
/// Join a multicast group.
pub const JOIN: u16 = 0xff02;
/// Leave a multicast group.
pub const LEAVE: u16 = 0xff03;
/// All answers to a request datagram have been sent.
pub const END: u16 = 0xff04;
/// Enable sentences in acknowledgements (NETLINK_EXT_ACK), if the number is not 0.
pub const LISTEN: u16 = 0xff05;
/// Include datapaths of embedded controllers in lists, if the number is not 0. Open vSwitch must not request this,
/// since it deletes every datapath that it finds beside its own.
pub const SEE_ALL: u16 = 0xff06;
/// Join a multicast group in which the client was a member in an earlier switch process.
pub const REJOIN: u16 = 0xff07;

/// Put several misses and ENDs into one datagram, if the number is not 0. Open vSwitch reads one miss from each datagram.
pub const BATCH: u16 = 0xff08;

/// The client's program does not wait for answers to flows and packets, if the number is not 0: it gets the flows that are
/// refused in its brief lists, so that it removes them.
pub const RUNS_AHEAD: u16 = 0xff09;

/// The first message of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Netlink protocol: 16 is generic, 12 netfilter.
    pub protocol: u32,
    /// Requested port id; 0 for any. A client that reconnects requests its former one.
    pub port_id: u32,
    /// Process id, for display.
    pub process: u32,
}

impl Hello {
    /// Encodes the datagram.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        words(HELLO, 0, &[self.protocol, self.port_id, self.process])
    }

    /// Decodes a message.
    #[must_use]
    pub fn decode(message: &NetlinkMessage<'_>) -> Option<Self> {
        let ([protocol, port_id, process], []) = numbers(message, HELLO)? else { return None };
        Some(Self { protocol, port_id, process })
    }
}

/// Encodes a message with one number: the port id in the answer to HELLO, a group, the error number in the answer to
/// JOIN.
#[must_use]
pub fn number(kind: u16, seq: u32, number: u32) -> Vec<u8> {
    words(kind, seq, &[number])
}

/// Decodes the number of such a message.
#[must_use]
pub fn decode_number(message: &NetlinkMessage<'_>, kind: u16) -> Option<u32> {
    let bytes = message.body.first_chunk::<4>().filter(|_| message.header.kind == kind)?;
    Some(u32::from_ne_bytes(*bytes))
}

/// Encodes the datagram after the last answer.
#[must_use]
pub fn end() -> Vec<u8> {
    words(END, 0, &[])
}

fn words(kind: u16, seq: u32, words: &[u32]) -> Vec<u8> {
    let header = NetlinkHeader { kind, seq, ..NetlinkHeader::default() };
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    // Twelve bytes always fit.
    message::encode(header, |writer| writer.raw(&bytes)).unwrap_or_default()
}

/// Decodes three numbers.
fn numbers<'a>(message: &NetlinkMessage<'a>, kind: u16) -> Option<([u32; 3], &'a [u8])> {
    let (bytes, rest) = message.body.split_first_chunk::<12>().filter(|_| message.header.kind == kind)?;
    let mut numbers = [0; 3];
    for (number, bytes) in numbers.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *number = u32::from_ne_bytes(*bytes);
    }
    Some((numbers, rest))
}
