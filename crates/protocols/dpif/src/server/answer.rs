//! Answers to requests.

use std::ops::ControlFlow;

use super::families::Family;
use crate::attr::Writer;
use crate::bounds::DUMP_BYTES;
use crate::family::{
    CtLimitMessage, DatapathMessage, FlowMessage, MeterMessage, PacketMessage, VportMessage,
};
use crate::message::{self, NetlinkHeader};
use crate::refusal::Refusal;
use crate::uapi::{command, nlm};

/// An object to be told.
#[derive(Debug)]
pub(super) enum Answer {
    Datapath(DatapathMessage),
    Vport(VportMessage),
    Flow(Box<FlowMessage>),
    Packet(Box<PacketMessage>),
    Meter(MeterMessage),
    CtLimit(CtLimitMessage),
}

impl Answer {
    fn family(&self) -> Family {
        match self {
            Answer::Datapath(_) => Family::Datapath,
            Answer::Vport(_) => Family::Vport,
            Answer::Flow(_) => Family::Flow,
            Answer::Packet(_) => Family::Packet,
            Answer::Meter(_) => Family::Meter,
            Answer::CtLimit(_) => Family::CtLimit,
        }
    }

    fn datapath(&self) -> i32 {
        match self {
            Answer::Datapath(message) => message.datapath,
            Answer::Vport(message) => message.datapath,
            Answer::Flow(message) => message.datapath,
            Answer::Packet(message) => message.datapath,
            Answer::Meter(message) => message.datapath,
            Answer::CtLimit(message) => message.datapath,
        }
    }

    fn encode(&self, writer: &mut Writer) {
        match self {
            Answer::Datapath(message) => message.encode(writer),
            Answer::Vport(message) => message.encode(writer),
            Answer::Flow(message) => message.encode(writer),
            Answer::Packet(message) => message.encode(writer),
            Answer::Meter(message) => message.encode(writer),
            Answer::CtLimit(message) => message.encode(writer),
        }
    }

    /// As a message of its own, with `command`, for the sender of `request`.
    pub(super) fn message(
        &self,
        request: NetlinkHeader,
        command: u8,
        flags: u16,
    ) -> Result<Vec<u8>, Refusal> {
        let family = self.family();
        let header = NetlinkHeader { kind: family.id(), flags, ..request };
        message::encode_datapath(header, (command, family.version()), self.datapath(), |writer| {
            self.encode(writer)
        })
    }

    /// As one message of a dump, behind others; breaks if the datagram is full. A message longer than a
    /// datagram goes alone.
    pub(super) fn append_part(&self, request: NetlinkHeader, datagram: &mut Vec<u8>) -> ControlFlow<()> {
        // Values that cannot be encoded were never accepted.
        let bytes = self.message(request, command::NEW, nlm::MULTI).unwrap_or_default();
        if !datagram.is_empty() && datagram.len() + bytes.len() > DUMP_BYTES {
            return ControlFlow::Break(());
        }
        datagram.extend(bytes);
        ControlFlow::Continue(())
    }
}
