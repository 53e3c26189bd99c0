//! Answers to requests.

use std::ops::ControlFlow;

use lasthop_conntrack::CtRecord;

use super::families::Family;
use crate::attr::Writer;
use crate::bounds::DUMP_BYTES;
use crate::family::{
    CtLimitMessage, DatapathMessage, FlowMessage, MeterMessage, PacketMessage, VportMessage,
};
use crate::message::{self, NetlinkHeader};
use crate::netfilter::{self, TimeoutPolicy, connection};
use crate::refusal::Refusal;
use crate::uapi::{command, nlm};

/// An object in an answer.
#[derive(Debug)]
pub(super) enum Answer {
    Datapath(DatapathMessage),
    Vport(VportMessage),
    Flow(Box<FlowMessage>),
    Packet(Box<PacketMessage>),
    Meter(MeterMessage),
    CtLimit(CtLimitMessage),
    Connection(Box<CtRecord>),
    Timeouts(TimeoutPolicy),
}

impl Answer {
    /// Its family and datapath; for netfilter, its subsystem.
    fn origin(&self) -> Result<(Family, i32), u8> {
        match self {
            Answer::Datapath(message) => Ok((Family::Datapath, message.datapath)),
            Answer::Vport(message) => Ok((Family::Vport, message.datapath)),
            Answer::Flow(message) => Ok((Family::Flow, message.datapath)),
            Answer::Packet(message) => Ok((Family::Packet, message.datapath)),
            Answer::Meter(message) => Ok((Family::Meter, message.datapath)),
            Answer::CtLimit(message) => Ok((Family::CtLimit, message.datapath)),
            Answer::Connection(_) => Err(netfilter::CTNETLINK),
            Answer::Timeouts(_) => Err(netfilter::CTNETLINK_TIMEOUT),
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
            Answer::Connection(record) => connection::encode(writer, record),
            Answer::Timeouts(policy) => policy.encode(writer),
        }
    }

    /// Encodes a message with `command`, for the sender of `request`.
    pub(super) fn message(
        &self,
        request: NetlinkHeader,
        command: u8,
        flags: u16,
    ) -> Result<Vec<u8>, Refusal> {
        match self.origin() {
            Ok((family, datapath)) => {
                let header = NetlinkHeader { kind: family.id(), flags, ..request };
                let command = (command, family.version());
                message::encode_datapath(header, command, datapath, |writer| self.encode(writer))
            }
            Err(subsystem) => {
                let kind = netfilter::kind(subsystem, netfilter::NEW);
                let header = NetlinkHeader { kind, flags, ..request };
                message::encode(header, |writer| self.encode(writer))
            }
        }
    }

    /// Appends it as a message of a dump; breaks if the datagram is full. A message longer than a datagram is sent
    /// alone.
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
