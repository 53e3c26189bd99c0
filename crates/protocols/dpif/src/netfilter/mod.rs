//! The part of netfilter's netlink that control planes use for their datapath's connections: ctnetlink (connections)
//! and its timeout policies.
//!
//! ```text
//!    0                 16       17         18          20
//!    | netlink header  | family | version  | resource  | attributes, numbers in network order
//! ```

pub(crate) mod connection;
mod shown;
pub(crate) mod timeout;

use crate::attr::{Attrs, Writer};
use crate::message::NetlinkMessage;
use crate::refusal::Refusal;

pub use connection::ConnectionSelector;
pub use shown::Connection;
pub use timeout::TimeoutPolicy;

/// Subsystems, in the high byte of a type (linux/netfilter/nfnetlink.h).
pub(crate) const CTNETLINK: u8 = 1;
pub(crate) const CTNETLINK_TIMEOUT: u8 = 8;
/// Commands of both (linux/netfilter/nfnetlink_conntrack.h, nfnetlink_cttimeout.h).
pub(crate) const NEW: u8 = 0;
pub(crate) const GET: u8 = 1;
pub(crate) const DELETE: u8 = 2;
/// Address families.
pub(crate) const AF_UNSPEC: u8 = 0;
pub(crate) const AF_INET: u8 = 2;
pub(crate) const AF_INET6: u8 = 10;

/// Computes the type of a message.
pub(crate) fn kind(subsystem: u8, command: u8) -> u16 {
    u16::from_be_bytes([subsystem, command])
}

/// Decodes a request's address family and attributes (`struct nfgenmsg`).
pub(crate) fn open<'a>(message: &NetlinkMessage<'a>) -> Result<(u8, Attrs<'a>), Refusal> {
    let short = Refusal::invalid("the message is too short for a netfilter header");
    let ([family, ..], attrs) = message.body.split_first_chunk::<4>().ok_or(short)?;
    Ok((*family, Attrs::new(attrs)))
}

/// Writes the header of a message.
pub(crate) fn begin(writer: &mut Writer, family: u8) {
    writer.raw(&[family, 0, 0, 0]);
}
