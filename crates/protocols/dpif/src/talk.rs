//! Requests and replies for a client that never blocks: encodes requests, decodes replies.
//!
//! ```text
//!   Requests: number, message, message, ... ──> one datagram        DpifReply <── one message of a datagram from the switch
//! ```

use lasthop_flow::{FlowStats, Ufid};

use crate::attr::{Attrs, Writer};
use crate::family::{
    DatapathMessage, FlowMessage, FlowParts, MeterMessage, PacketMessage, VportMessage, counters_in,
};
use crate::message::{self, Messages, NetlinkHeader, NetlinkMessage};
use crate::private::{self, BATCH, END, HELLO, Hello, JOIN, LISTEN, SEE_ALL, decode_number};
use crate::refusal::Refusal;
use crate::server::Family;
use crate::uapi::{command, flow, meter, nlm, packet, protocol};

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub enum DpifRequest {
    /// A datapath, by name or number.
    Datapath(DatapathMessage),
    /// List all datapaths.
    Datapaths,
    /// Make a datapath; the reply has its state.
    DatapathNew(DatapathMessage),
    /// Change a datapath.
    DatapathSet(DatapathMessage),
    /// List all ports of a datapath.
    Ports(i32),
    /// Make a port; the reply has its state.
    PortNew(VportMessage),
    /// Change a port.
    PortSet(VportMessage),
    /// Remove a port.
    PortDel(VportMessage),
    /// List all flows of a datapath, or only their names and counters.
    Flows {
        /// The datapath.
        datapath: i32,
        /// Whether to omit keys, masks and actions.
        is_brief: bool,
    },
    /// Install a new flow; [`append_flow_new`] needs no copy of it.
    FlowNew(FlowMessage),
    /// Change a flow's actions.
    FlowSet(FlowMessage),
    /// Remove a flow; without name and key, all flows.
    FlowDel(FlowMessage),
    /// Make or change a meter.
    MeterSet(MeterMessage),
    /// Remove a meter.
    MeterDel(MeterMessage),
    /// Execute actions for a packet.
    Execute(Box<PacketMessage>),
}

/// A message from the switch.
#[derive(Clone, Debug, PartialEq)]
pub enum DpifReply {
    /// The connection's port id.
    Hello(u32),
    /// All replies to the oldest pending datagram have come.
    End,
    /// A request was refused.
    Refused {
        /// Number of the request.
        seq: u32,
        /// `errno` of the refusal.
        errno: i32,
        /// Its sentence, if the client requested sentences.
        why: Option<String>,
    },
    /// A datapath.
    Datapath(u32, Box<DatapathMessage>),
    /// A port: a reply to the request of this number, or a notification if it is 0.
    Port(u32, Box<VportMessage>),
    /// A flow: a reply to the request of this number, or a notification if it is 0.
    Flow(u32, Box<FlowMessage>),
    /// The name and the counters of a flow: a part of the reply to a brief request of this number.
    Counters(u32, Ufid, FlowStats),
    /// A miss.
    Miss(Box<PacketMessage>),
    /// A miss in this datapath that cannot be decoded.
    BadMiss(i32),
    /// Any other message, without a use here: acknowledgements, ends of lists, notifications.
    Nothing,
}

/// The first datagram of a connection, which requests a port id: this one, or any if it is 0.
#[must_use]
pub fn hello(port_id: u32) -> Vec<u8> {
    Hello { protocol: protocol::GENERIC, port_id, process: std::process::id() }.encode()
}

/// The second datagram: requests sentences with refusals.
#[must_use]
pub fn listen() -> Vec<u8> {
    private::number(LISTEN, 0, 1)
}

/// For clients other than Open vSwitch: lists include datapaths of embedded controllers.
#[must_use]
pub fn see_all() -> Vec<u8> {
    private::number(SEE_ALL, 0, 1)
}

/// Requests misses and ENDs in batches. A server of an earlier version ignores it, and sends a datagram for each.
#[must_use]
pub fn batch() -> Vec<u8> {
    private::number(BATCH, 0, 1)
}

/// Requests notifications of other clients' changes in this family.
#[must_use]
pub fn watch(family: Family) -> Vec<u8> {
    private::number(JOIN, 0, family.group().unwrap_or(0))
}

impl DpifRequest {
    /// Encodes the request with its number.
    ///
    /// # Errors
    /// EMSGSIZE if it is too long for one.
    pub fn encode(&self, seq: u32, port_id: u32) -> Result<Vec<u8>, Refusal> {
        let mut bytes = Vec::new();
        self.append(&mut bytes, seq, port_id)?;
        Ok(bytes)
    }

    /// Appends the request with its number to a datagram, at a multiple of four bytes.
    ///
    /// # Errors
    /// As [`Self::encode`]; the datagram is as before then.
    pub fn append(&self, datagram: &mut Vec<u8>, seq: u32, port_id: u32) -> Result<(), Refusal> {
        let (family, command, flags) = self.kind();
        let header = NetlinkHeader { kind: family.id(), flags: nlm::REQUEST | flags, seq, port_id };
        let version = (command, family.version());
        message::append_datapath(datagram, header, version, self.datapath(), |writer| self.fill(writer))
    }

    fn kind(&self) -> (Family, u8, u16) {
        match self {
            Self::Datapath(_) => (Family::Datapath, command::GET, 0),
            Self::Datapaths => (Family::Datapath, command::GET, nlm::DUMP),
            Self::DatapathNew(_) => (Family::Datapath, command::NEW, nlm::ECHO),
            Self::DatapathSet(_) => (Family::Datapath, command::SET, 0),
            Self::Ports(_) => (Family::Vport, command::GET, nlm::DUMP),
            Self::PortNew(_) => (Family::Vport, command::NEW, nlm::ECHO),
            Self::PortSet(_) => (Family::Vport, command::SET, 0),
            Self::PortDel(_) => (Family::Vport, command::DEL, 0),
            Self::Flows { .. } => (Family::Flow, command::GET, nlm::DUMP),
            Self::FlowNew(_) => (Family::Flow, command::NEW, nlm::CREATE),
            Self::FlowSet(_) => (Family::Flow, command::SET, 0),
            Self::FlowDel(_) => (Family::Flow, command::DEL, 0),
            Self::MeterSet(_) => (Family::Meter, meter::SET, 0),
            Self::MeterDel(_) => (Family::Meter, meter::DEL, 0),
            Self::Execute(_) => (Family::Packet, packet::EXECUTE, 0),
        }
    }

    fn datapath(&self) -> i32 {
        match self {
            Self::Datapath(wanted) | Self::DatapathNew(wanted) | Self::DatapathSet(wanted) => wanted.datapath,
            Self::PortNew(wanted) | Self::PortSet(wanted) | Self::PortDel(wanted) => wanted.datapath,
            Self::FlowNew(wanted) | Self::FlowSet(wanted) | Self::FlowDel(wanted) => wanted.datapath,
            Self::MeterSet(wanted) | Self::MeterDel(wanted) => wanted.datapath,
            Self::Execute(wanted) => wanted.datapath,
            Self::Ports(datapath) | Self::Flows { datapath, .. } => *datapath,
            Self::Datapaths => 0,
        }
    }

    fn fill(&self, writer: &mut Writer) {
        match self {
            Self::Datapath(wanted) | Self::DatapathNew(wanted) | Self::DatapathSet(wanted) => {
                wanted.encode(writer);
            }
            Self::PortNew(wanted) | Self::PortSet(wanted) | Self::PortDel(wanted) => wanted.encode(writer),
            Self::FlowNew(wanted) | Self::FlowSet(wanted) | Self::FlowDel(wanted) => wanted.encode(writer),
            Self::MeterSet(wanted) | Self::MeterDel(wanted) => wanted.encode(writer),
            Self::Execute(wanted) => wanted.encode(writer),
            Self::Flows { is_brief: true, .. } => {
                let omitted = Some(flow::OMIT_KEY | flow::OMIT_MASK | flow::OMIT_ACTIONS);
                FlowMessage { omitted, ..FlowMessage::default() }.encode(writer);
            }
            Self::Datapaths | Self::Ports(_) | Self::Flows { .. } => {}
        }
    }
}

/// Appends a request to install a new flow, as [`DpifRequest::FlowNew`] is appended.
///
/// # Errors
/// As [`DpifRequest::append`].
pub fn append_flow_new(
    datagram: &mut Vec<u8>,
    seq: u32,
    port_id: u32,
    datapath: i32,
    flow: &FlowParts<'_>,
) -> Result<(), Refusal> {
    let flags = nlm::REQUEST | nlm::CREATE;
    let header = NetlinkHeader { kind: Family::Flow.id(), flags, seq, port_id };
    let version = (command::NEW, Family::Flow.version());
    message::append_datapath(datagram, header, version, datapath, |writer| flow.encode(writer))
}

/// Decodes the messages of a datagram in order.
pub fn read(datagram: &[u8]) -> impl Iterator<Item = DpifReply> {
    Messages::new(datagram).map(|message| told(&message))
}

fn told(message: &NetlinkMessage<'_>) -> DpifReply {
    let NetlinkHeader { kind, seq, .. } = message.header;
    if kind == END {
        return DpifReply::End;
    }
    if let Some(port_id) = decode_number(message, HELLO) {
        return DpifReply::Hello(port_id);
    }
    match message.error() {
        Some(0) => return DpifReply::Nothing,
        Some(errno) => return DpifReply::Refused { seq, errno, why: message.error_text() },
        None => {}
    }
    let generic = message.generic().ok();
    let about = generic.and_then(|generic| Some((generic.command, generic.datapath().ok()?)));
    let object = |(command, (datapath, attrs))| object(kind, seq, command, datapath, attrs);
    about.and_then(object).unwrap_or(DpifReply::Nothing)
}

fn object(kind: u16, seq: u32, command: u8, datapath: i32, attrs: Attrs<'_>) -> Option<DpifReply> {
    Some(match Family::of(kind)? {
        Family::Datapath => {
            DpifReply::Datapath(seq, Box::new(DatapathMessage::decode(datapath, attrs).ok()?))
        }
        Family::Vport => DpifReply::Port(seq, Box::new(VportMessage::decode(datapath, attrs).ok()?)),
        Family::Flow if let Some((ufid, stats)) = counters_in(attrs.clone()) => {
            DpifReply::Counters(seq, ufid, stats)
        }
        Family::Flow => DpifReply::Flow(seq, Box::new(FlowMessage::decode(datapath, attrs).ok()?)),
        Family::Packet if command == packet::MISS => {
            let mut packet = Box::new(PacketMessage { datapath, ..PacketMessage::default() });
            match packet.read(attrs) {
                Ok(()) => DpifReply::Miss(packet),
                Err(_) => DpifReply::BadMiss(datapath),
            }
        }
        Family::Packet | Family::Meter | Family::CtLimit => return None,
    })
}

#[cfg(test)]
mod tests {
    use lasthop_flow::{Action, FlowKey, Match};

    use super::*;

    #[test]
    fn a_flow_is_requested_alike_with_and_without_a_copy() {
        let matches = Match { key: FlowKey { in_port: Some(7), ..FlowKey::default() }, mask: None };
        let (ufid, actions) = (Some(Ufid([3; 16])), vec![Action::Output(5)]);
        let mut appended = Vec::new();
        let parts = FlowParts::of(ufid, &matches, &actions);
        append_flow_new(&mut appended, 9, 8, 2, &parts).expect("short");
        let (key, actions) = (Some(matches.key), Some(actions));
        let copied = FlowMessage { datapath: 2, ufid, key, actions, ..FlowMessage::default() };
        assert_eq!(DpifRequest::FlowNew(copied).encode(9, 8), Ok(appended));
    }

    #[test]
    fn counters_are_read_alone_and_from_nothing_else() {
        let stats = FlowStats { packets: 3, bytes: 180, used_ms: 9, tcp_flags: 2 };
        let brief = FlowMessage { ufid: Some(Ufid([3; 16])), stats: Some(stats), ..FlowMessage::default() };
        let read = |message: &FlowMessage| {
            let mut writer = Writer::default();
            message.encode(&mut writer);
            counters_in(Attrs::new(&writer.finish().expect("short")))
        };
        assert_eq!(read(&brief), Some((Ufid([3; 16]), stats)));
        let unused = FlowMessage { stats: None, ..brief.clone() };
        assert_eq!(read(&unused), Some((Ufid([3; 16]), FlowStats::default())));
        assert_eq!(read(&FlowMessage { actions: Some(Vec::new()), ..brief.clone() }), None);
        assert_eq!(read(&FlowMessage { ufid: None, ..brief }), None);
    }

    #[test]
    fn requests_and_answers_round_trip() {
        use crate::memory::MemoryDatapath;
        use crate::server::{PeerId, Server};

        let (mut server, mut datapath) = (Server::new(), MemoryDatapath::new());
        let mut say = |bytes: Vec<u8>| {
            server.received(PeerId(1), bytes, &mut datapath).expect("a good client");
            let mut heard = Vec::new();
            while let Some(answer) = server.output(PeerId(1)) {
                heard.extend(read(answer));
                server.sent(PeerId(1), &mut datapath);
            }
            heard
        };
        let DpifReply::Hello(port_id) = say(hello(0))[0] else { panic!("no port id") };
        say(listen());
        let wanted = |name: &str| DatapathMessage {
            name: Some(name.to_owned()),
            upcall_port_id: Some(0),
            ..DatapathMessage::default()
        };
        let heard = say(DpifRequest::DatapathNew(wanted("red")).encode(1, port_id).expect("short"));
        assert!(
            matches!(&heard[..], [DpifReply::Datapath(1, made), DpifReply::End] if made.datapath == 1),
            "{heard:?}"
        );
        let heard = say(DpifRequest::DatapathNew(wanted("red")).encode(2, port_id).expect("short"));
        assert!(matches!(
            &heard[..],
            [DpifReply::Refused { seq: 2, errno: 17, why: Some(_) }, DpifReply::End]
        ));
        let heard = say(DpifRequest::Ports(1).encode(3, port_id).expect("short"));
        assert!(
            matches!(&heard[..], [DpifReply::Port(3, port), DpifReply::Nothing, DpifReply::End] if port.number == Some(0))
        );
    }
}
