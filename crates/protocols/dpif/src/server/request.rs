//! A request and its outcome.

use super::answer::Answer;

use super::families::Family;
use crate::attr::Attrs;
use crate::datapath::PeerId;
use crate::datapath::{DatapathId, RemovalId};
use crate::message::{NetlinkHeader, NetlinkMessage};
use crate::refusal::{Errno, Refusal};
use crate::uapi::{command, nlm};

/// A message of a datapath family.
#[derive(Clone, Debug)]
pub(super) struct Request<'a> {
    /// The requesting client.
    pub(super) client: PeerId,
    pub(super) header: NetlinkHeader,
    pub(super) command: u8,
    pub(super) id: DatapathId,
    pub(super) attrs: Attrs<'a>,
    /// Its client finds datapaths of the switch's own controllers in lists.
    pub(super) sees_all: bool,
}

impl<'a> Request<'a> {
    /// Of a client, and whether it finds all datapaths.
    pub(super) fn decode(
        (client, sees_all): (PeerId, bool),
        message: &NetlinkMessage<'a>,
    ) -> Result<Self, Refusal> {
        let generic = message.generic()?;
        let (number, attrs) = generic.datapath()?;
        let (header, command, id) = (message.header, generic.command, DatapathId(number));
        Ok(Self { client, header, command, id, attrs, sees_all })
    }

    pub(super) fn is_dump(&self) -> bool {
        self.command == command::GET && self.header.has(nlm::DUMP)
    }
}

/// The kind of a dump, and where it continues.
#[derive(Clone, Debug)]
pub(super) enum DumpCursor {
    /// Datapaths behind this one, with those of the switch's own controllers or without.
    Datapaths { after: i32, is_all: bool },
    /// Ports from this one on.
    Ports { id: DatapathId, from: u32 },
    /// Flows from this place on, without the omitted fields.
    Flows { id: DatapathId, cursor: u64, omitted: u32 },
    /// Connections from this place on, of a zone or all, with those of the switch's own controllers or without.
    Connections { cursor: u64, zone: Option<u16>, is_all: bool },
    /// Timeout policies behind this name.
    TimeoutPolicies { after: String },
    /// Nothing (more).
    Nothing,
}

/// The outcome of an accepted request.
#[derive(Debug)]
pub(super) enum Outcome {
    /// An acknowledgement, if one is wanted.
    Done,
    /// An object for the requester (GET).
    Object { answer: Answer, command: u8 },
    /// An object for the requester (NLM_F_ECHO), and for its family's group.
    Changed { answer: Answer, command: u8, family: Family },
    /// A flow that was taken out, to be told once its last packets are counted.
    Removed { id: DatapathId, removal: RemovalId, omitted: u32 },
    /// The device of the port with this name is being made: the request will be tried again.
    NotYet { name: String },
    /// Several objects for the requester.
    Dump(DumpCursor),
}

/// A command that a family does not have.
pub(super) fn unknown_command() -> Refusal {
    Refusal::new(Errno::EOPNOTSUPP, "the family has no such command")
}
