//! What is asked of connection tracking for a packet, and what it answers.

use lasthop_flow::{Masked, Nat};

use crate::connection::CtId;
use crate::edit::CtRewrites;
use crate::helper::CtHelper;
use crate::table::CtRefusal;
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
    /// Whether the connection is remembered. What follows counts for remembered ones only.
    pub commit: CtCommit,
    /// Mark.
    pub mark: Masked<u32>,
    /// Labels and their mask.
    pub labels: ([u8; 16], [u8; 16]),
    /// Helper, attached when the connection has none.
    pub helper: Option<CtHelper>,
    /// Address translation.
    pub nat: Option<Nat>,
    /// Index of the timeout policy of a new connection ([`crate::Tracker::set_policy`]); 0 is the default.
    pub policy: u8,
}

/// What a packet carries of connection tracking from action to action: `ct_state` and the others. The default is that of a packet that
/// was not tracked, and what `ct_clear` makes.
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

/// What becomes of a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CtVerdict {
    /// What it carries from now on.
    pub metadata: CtMetadata,
    /// How its headers change.
    pub rewrites: CtRewrites,
    /// Why it should be dropped: it asked for what could not be done. A datapath may let it pass, untranslated.
    pub refused: Option<CtRefusal>,
    /// Its connection, if it is remembered.
    pub connection: Option<CtId>,
}
