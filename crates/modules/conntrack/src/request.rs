//! Requests to connection tracking about a packet, and its answers.

use lasthop_flow::{Masked, Nat};

use crate::bounds::CtRefusal;
use crate::connection::CtId;
use crate::edit::CtRewrites;
use crate::helper::CtHelper;
use crate::tuple::CtTuple;

/// Whether a connection is remembered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CtCommit {
    /// It is only looked up.
    #[default]
    No,
    /// It is, if it is not yet.
    Yes,
    /// The same; one that began in the other direction is forgotten first.
    Force,
}

/// An action `ct(...)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CtRequest {
    /// Zone.
    pub zone: u16,
    /// Whether the connection is committed. The fields below apply to committed connections only.
    pub commit: CtCommit,
    /// Mark.
    pub mark: Masked<u32>,
    /// Labels and their mask.
    pub labels: ([u8; 16], [u8; 16]),
    /// Helper, attached when the connection has none.
    pub helper: Option<CtHelper>,
    /// Address translation.
    pub nat: Option<Nat>,
    /// Index of the timeout policy of a new connection ([`crate::ConntrackTable::set_policy`]); 0 is the default.
    pub policy: u8,
}

/// The connection tracking fields that a packet carries from action to action: `ct_state` and the others. The default is that of an
/// untracked packet, also after `ct_clear`.
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

/// The answer for a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CtVerdict {
    /// The fields that the packet carries from now on.
    pub metadata: CtMetadata,
    /// How its headers change.
    pub rewrites: CtRewrites,
    /// The reason to drop it: its request could not be met. A datapath may let it pass, untranslated.
    pub refused: Option<CtRefusal>,
    /// Its connection, if it is remembered.
    pub connection: Option<CtId>,
    /// Its connection's helper has to read a line that is not in the image. Nothing was done: call again with an image of the whole
    /// packet, which has at most [`crate::HELPER_IMAGE_BYTES`].
    pub wants_whole: bool,
}
