//! Requests to connection tracking, and its verdicts.

use lasthop_flow::{Masked, Nat};

use crate::bounds::CtRefusal;
use crate::connection::CtId;
use crate::edit::CtRewrites;
use crate::helper::CtHelper;
use crate::tuple::CtTuple;

/// Whether a packet's connection is entered into the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CtCommit {
    /// Only look the connection up.
    #[default]
    No,
    /// Enter the connection if it is new.
    Yes,
    /// Same; first remove a connection that began in the other direction.
    Force,
}

/// An action `ct(...)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CtRequest {
    /// The zone.
    pub zone: u16,
    /// Whether the connection is committed. The fields below apply to committed connections only.
    pub commit: CtCommit,
    /// The mark and its mask.
    pub mark: Masked<u32>,
    /// The labels and their mask.
    pub labels: ([u8; 16], [u8; 16]),
    /// Helper, attached when the connection has none.
    pub helper: Option<CtHelper>,
    /// Address translation.
    pub nat: Option<Nat>,
    /// Index of the timeout policy of a new connection ([`crate::ConntrackTable::set_policy`]); 0 is the default.
    pub policy: u8,
}

/// The `ct_*` fields that a packet carries from action to action. The default is an untracked packet, as after
/// `ct_clear`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CtMetadata {
    /// `lasthop_flow::ct_state` bits.
    pub state: u32,
    /// Zone.
    pub zone: u16,
    /// Mark.
    pub mark: u32,
    /// Labels.
    pub labels: [u8; 16],
    /// The tuple of the connection's original direction, or of its master's.
    pub original: Option<CtTuple>,
}

/// The verdict for a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CtVerdict {
    /// The fields that the packet carries from now on.
    pub metadata: CtMetadata,
    /// Changes of its headers.
    pub rewrites: CtRewrites,
    /// The reason to drop the packet: its request failed. A datapath may forward it untranslated instead.
    pub refused: Option<CtRefusal>,
    /// Its connection, if that is in the table.
    pub connection: Option<CtId>,
    /// The connection's helper has to read a line that continues beyond the image. Nothing has changed: call again with
    /// an image of the whole packet, which has at most [`crate::HELPER_IMAGE_BYTES`].
    pub wants_whole: bool,
}
