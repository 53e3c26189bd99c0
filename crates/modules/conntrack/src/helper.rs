//! Helpers: protocols whose data announces other connections.

mod ftp;
mod tftp;

pub(crate) use ftp::{FtpAddress, write_address};

use crate::packet::PacketImage;
use crate::tuple::{CtTuple, Direction, IpBytes};

/// Bytes of a packet that its image should have if its connection has a helper: one that is longer is not looked into.
pub const HELPER_IMAGE_BYTES: usize = 1600;

/// A helper that a connection may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CtHelper {
    /// File transfer (RFC 959, RFC 2428): active and passive.
    Ftp,
    /// Trivial file transfer (RFC 1350).
    Tftp,
}

impl CtHelper {
    /// By the name that OVS and ctnetlink have for it.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "ftp" => Some(Self::Ftp),
            "tftp" => Some(Self::Tftp),
            _ => None,
        }
    }

    /// As a number; 0 is none.
    #[inline]
    pub(crate) fn number(helper: Option<Self>) -> u8 {
        match helper {
            None => 0,
            Some(Self::Ftp) => 1,
            Some(Self::Tftp) => 2,
        }
    }

    /// From [`Self::number`].
    #[inline]
    pub(crate) fn of_number(number: u8) -> Option<Self> {
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
pub(crate) struct Announced {
    /// Where the sender of the packet awaits it; none: at its own address.
    pub(crate) address: Option<IpBytes>,
    pub(crate) port: u16,
    /// How it is written, if NAT may have to write another one.
    pub(crate) written: Option<FtpAddress>,
}

/// Whether a packet seems to announce a connection in a line that ends behind its image, and is short enough to be read as a whole.
pub(crate) fn is_cut_short(helper: CtHelper, packet: &PacketImage<'_>, direction: Direction) -> bool {
    helper == CtHelper::Ftp
        && packet.end().is_some_and(|end| end > packet.head.len() && end <= HELPER_IMAGE_BYTES)
        && ftp::begins_announcement(packet, direction)
}

/// The connection that a packet announces, as this helper reads the packet.
pub(crate) fn announced(
    helper: CtHelper,
    packet: &PacketImage<'_>,
    tuple: &CtTuple,
    direction: Direction,
) -> Option<Announced> {
    match helper {
        CtHelper::Ftp => ftp::announced(packet, tuple, direction),
        CtHelper::Tftp => tftp::announced(packet, tuple, direction),
    }
}
