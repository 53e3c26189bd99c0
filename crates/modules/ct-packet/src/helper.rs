//! Helpers: protocols whose data announces other connections.

mod ftp;

pub use ftp::{FtpAddress, write_address};

use lasthop_wire::headers::PROTO_UDP;

use crate::packet::PacketImage;
use crate::tuple::{CtTuple, Direction, IpBytes};

/// Bytes of a packet that the image must have for a helper to read it; longer packets are not read.
pub const HELPER_IMAGE_BYTES: usize = 1600;

/// The helper of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CtHelper {
    /// File transfer (RFC 959, RFC 2428): active and passive.
    Ftp,
    /// Trivial file transfer (RFC 1350).
    Tftp,
}

impl CtHelper {
    /// Finds a helper by its name in OVS and ctnetlink.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "ftp" => Some(Self::Ftp),
            "tftp" => Some(Self::Tftp),
            _ => None,
        }
    }

    /// The helper as a number; 0 for none.
    #[inline]
    #[must_use]
    pub fn number(helper: Option<Self>) -> u8 {
        match helper {
            None => 0,
            Some(Self::Ftp) => 1,
            Some(Self::Tftp) => 2,
        }
    }

    /// Reads [`Self::number`].
    #[inline]
    #[must_use]
    pub fn of_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Ftp),
            2 => Some(Self::Tftp),
            _ => None,
        }
    }

    /// The name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ftp => "ftp",
            Self::Tftp => "tftp",
        }
    }
}

/// A connection that a packet announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announced {
    /// The address that the sender announces; `None` for its own.
    pub address: Option<IpBytes>,
    /// The port.
    pub port: u16,
    /// The text of the announcement, if NAT may have to replace it.
    pub written: Option<FtpAddress>,
}

/// Whether a packet seems to announce a connection in a line that continues beyond its image, and is short enough to be
/// read as a whole.
#[must_use]
pub fn is_cut_short(helper: CtHelper, packet: &PacketImage<'_>, direction: Direction) -> bool {
    helper == CtHelper::Ftp
        && packet.end().is_some_and(|end| end > packet.head.len() && end <= HELPER_IMAGE_BYTES)
        && ftp::begins_announcement(packet, direction)
}

/// The connection that a packet announces, in this helper's protocol.
#[must_use]
pub fn announced(
    helper: CtHelper,
    packet: &PacketImage<'_>,
    tuple: &CtTuple,
    direction: Direction,
) -> Option<Announced> {
    match helper {
        CtHelper::Ftp => ftp::announced(packet, tuple, direction),
        CtHelper::Tftp => tftp_announced(packet, tuple, direction),
    }
}

/// Of the header of UDP, and the operations of TFTP.
const UDP_BYTES: usize = 8;
const READ_REQUEST: u16 = 1;
const WRITE_REQUEST: u16 = 2;

/// TFTP: the server answers a request to the client's own port, from another one (RFC 1350, 4).
fn tftp_announced(packet: &PacketImage<'_>, tuple: &CtTuple, direction: Direction) -> Option<Announced> {
    let is_request = tuple.proto == PROTO_UDP
        && direction == Direction::Original
        && matches!(packet.word(packet.l4() + UDP_BYTES)?, READ_REQUEST | WRITE_REQUEST);
    is_request.then_some(Announced { address: None, port: tuple.src_port, written: None })
}
