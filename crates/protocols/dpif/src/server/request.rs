//! A request and its outcome.

use super::answer::Answer;

use super::families::Family;
use crate::attr::Attrs;
use crate::datapath::PeerId;
use crate::datapath::{DatapathId, RemovalId};
use crate::message::{Messages, NetlinkHeader, NetlinkMessage};
use crate::refusal::{Errno, Refusal};
use crate::uapi::{command, nlm};
use lasthop_flow::Ufid;

/// A client's request datagram, from the first message that is not served yet.
#[derive(Debug)]
pub(super) struct RequestDatagram {
    bytes: Vec<u8>,
    /// Bytes of served messages.
    served: usize,
}

impl RequestDatagram {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, served: 0 }
    }

    /// The next message; `None` once all are served.
    pub(super) fn first(&self) -> Option<NetlinkMessage<'_>> {
        Messages::new(self.bytes.get(self.served..)?).next()
    }

    /// Notes that the next message, of `len` bytes, is served.
    pub(super) fn skip(&mut self, len: usize) {
        self.served = self.served.saturating_add(len.next_multiple_of(4));
    }
}

/// A message of a datapath family.
#[derive(Clone, Debug)]
pub(super) struct Request<'a> {
    /// The requesting client.
    pub(super) client: PeerId,
    pub(super) header: NetlinkHeader,
    pub(super) command: u8,
    pub(super) id: DatapathId,
    pub(super) attrs: Attrs<'a>,
    /// Whether the client's lists include datapaths of embedded controllers.
    pub(super) sees_all: bool,
    /// Whether the client's program does not wait for an answer.
    pub(super) runs_ahead: bool,
}

impl<'a> Request<'a> {
    /// Decodes a client's request.
    pub(super) fn decode(
        (client, sees_all, runs_ahead): (PeerId, bool, bool),
        message: &NetlinkMessage<'a>,
    ) -> Result<Self, Refusal> {
        let generic = message.generic()?;
        let (number, attrs) = generic.datapath()?;
        let (header, command, id) = (message.header, generic.command, DatapathId(number));
        Ok(Self { client, header, command, id, attrs, sees_all, runs_ahead })
    }

    pub(super) fn is_dump(&self) -> bool {
        self.command == command::GET && self.header.has(nlm::DUMP)
    }
}

/// The kind of a dump, and where it continues.
#[derive(Clone, Debug)]
pub(super) enum DumpCursor {
    /// Datapaths after this one; `is_all` includes those of embedded controllers.
    Datapaths { after: i32, is_all: bool },
    /// Ports from this one on.
    Ports { id: DatapathId, from: u32 },
    /// Flows from this place on, without the omitted fields.
    Flows { id: DatapathId, cursor: u64, omitted: u32 },
    /// Refused flows of a brief list after this one.
    RefusedFlows { id: DatapathId, after: Option<Ufid> },
    /// Connections from this place on, of a zone or all; `is_all` includes those of embedded controllers.
    Connections { cursor: u64, zone: Option<u16>, is_all: bool },
    /// Timeout policies after this name.
    TimeoutPolicies { after: String },
    /// Nothing, or nothing more.
    Nothing,
}

/// The outcome of an accepted request.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Acknowledge the request, if requested.
    Done,
    /// An object for the requester (GET).
    Object { answer: Answer, command: u8 },
    /// An object for the requester (NLM_F_ECHO), and for its family's group.
    Changed { answer: Answer, command: u8, family: Family },
    /// A removed flow, to be reported once its last packets are counted.
    Removed { id: DatapathId, removal: RemovalId, omitted: u32 },
    /// The device of the port with this name is being made: retry the request.
    NotYet { name: String },
    /// Several objects for the requester.
    Dump(DumpCursor),
    /// All flows are removed, some at a time.
    Flush(DatapathId),
}

/// The refusal for a command that a family does not have.
pub(super) fn unknown_command() -> Refusal {
    Refusal::new(Errno::EOPNOTSUPP, "the family has no such command")
}
