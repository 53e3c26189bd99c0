//! Answers to requests.

use std::ops::ControlFlow;

use lasthop_conntrack::CtRecord;

use super::families::Family;
use crate::attr::Writer;
use crate::bounds::DUMP_BYTES;
use crate::family::{CtLimitMessage, DatapathMessage, FlowMessage, MeterMessage, VportMessage};
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
        let mut bytes = Vec::new();
        self.append(&mut bytes, request, command, flags)?;
        Ok(bytes)
    }

    fn append(
        &self,
        datagram: &mut Vec<u8>,
        request: NetlinkHeader,
        command: u8,
        flags: u16,
    ) -> Result<(), Refusal> {
        match self.origin() {
            Ok((family, datapath)) => {
                let header = NetlinkHeader { kind: family.id(), flags, ..request };
                let command = (command, family.version());
                message::append_datapath(datagram, header, command, datapath, |writer| self.encode(writer))
            }
            Err(subsystem) => {
                let kind = netfilter::kind(subsystem, netfilter::NEW);
                let header = NetlinkHeader { kind, flags, ..request };
                message::append(datagram, header, |writer| self.encode(writer))
            }
        }
    }

    /// Appends it as a message of a dump ([`append_part`]).
    pub(super) fn append_part(&self, request: NetlinkHeader, datagram: &mut Vec<u8>) -> ControlFlow<()> {
        append_part(datagram, |datagram| self.append(datagram, request, command::NEW, nlm::MULTI))
    }
}

/// Appends a message of a dump; breaks if the datagram is full. A message longer than a datagram is sent alone.
pub(super) fn append_part(
    datagram: &mut Vec<u8>,
    append: impl FnOnce(&mut Vec<u8>) -> Result<(), Refusal>,
) -> ControlFlow<()> {
    let before = datagram.len();
    // Values that cannot be encoded were never accepted.
    let _ = append(datagram);
    if before > 0 && datagram.len() > DUMP_BYTES {
        datagram.truncate(before);
        return ControlFlow::Break(());
    }
    ControlFlow::Continue(())
}
