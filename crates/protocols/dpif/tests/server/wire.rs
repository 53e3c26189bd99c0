//! A client of the server, without a socket.

use std::time::Instant;

use lasthop_dpif::attr::{Attrs, Writer};
use lasthop_dpif::family::{DatapathMessage, FlowMessage, VportKind, VportMessage};
use lasthop_dpif::memory::MemoryDatapath;
use lasthop_dpif::message::{self, Messages, NetlinkHeader};
use lasthop_dpif::private::{END, HELLO, Hello, decode_number};
use lasthop_dpif::server::{Family, PeerId, Server};
use lasthop_flow::{Action, Ethernet, FlowKey, Ufid};

pub(crate) const REQUEST: u16 = 1;
pub(crate) const ACK: u16 = 4;
pub(crate) const ECHO: u16 = 8;
pub(crate) const CREATE: u16 = 0x400;
pub(crate) const DUMP: u16 = 0x300;

pub(crate) const NEW: u8 = 1;
pub(crate) const DEL: u8 = 2;
pub(crate) const GET: u8 = 3;
pub(crate) const SET: u8 = 4;

/// Server, datapath, clients.
#[derive(Default)]
pub(crate) struct Wire {
    pub(crate) server: Server,
    pub(crate) datapath: MemoryDatapath,
    peers: u64,
}

/// The answers to a request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Answers {
    /// Objects: command and body behind the generic header.
    pub(crate) objects: Vec<(u8, Vec<u8>)>,
    /// Error numbers of acknowledgements; 0 for success.
    pub(crate) errors: Vec<i32>,
    pub(crate) has_done: bool,
    pub(crate) datagrams: usize,
}

impl Answers {
    pub(crate) fn attrs<T>(&self, decode: impl Fn(i32, Attrs<'_>) -> T) -> Vec<T> {
        let split = |body: &[u8]| {
            let (number, attrs) = body.split_first_chunk::<4>().expect("a datapath's number");
            decode(i32::from_ne_bytes(*number), Attrs::new(attrs))
        };
        self.objects.iter().map(|(_, body)| split(body)).collect()
    }

    pub(crate) fn flows(&self) -> Vec<FlowMessage> {
        self.attrs(|datapath, attrs| FlowMessage::decode(datapath, attrs).expect("ours"))
    }

    pub(crate) fn datapaths(&self) -> Vec<DatapathMessage> {
        self.attrs(|datapath, attrs| DatapathMessage::decode(datapath, attrs).expect("ours"))
    }

    pub(crate) fn ports(&self) -> Vec<VportMessage> {
        self.attrs(|datapath, attrs| VportMessage::decode(datapath, attrs).expect("ours"))
    }
}

impl Wire {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn client(&mut self) -> PeerId {
        self.client_of(16)
    }

    pub(crate) fn client_of(&mut self, protocol: u32) -> PeerId {
        self.peers += 1;
        let id = PeerId(self.peers);
        let hello = Hello { protocol, port_id: 0, process: 1 };
        self.server.received(id, hello.encode(), &mut self.datapath).expect("a client");
        id
    }

    /// Requests the client's port id, which must be the first request.
    pub(crate) fn port_id(&mut self, id: PeerId) -> u32 {
        let answer = self.next(id).expect("an answer");
        decode_number(&Messages::new(&answer).next().expect("a message"), HELLO).expect("a port id")
    }

    pub(crate) fn next(&mut self, id: PeerId) -> Option<Vec<u8>> {
        let datagram = self.server.output(id)?.to_vec();
        self.server.sent(id, &mut self.datapath);
        Some(datagram)
    }

    /// Sends a datagram and reads everything up to END.
    pub(crate) fn ask(&mut self, id: PeerId, datagram: Vec<u8>) -> Answers {
        self.server.received(id, datagram, &mut self.datapath).expect("in turn");
        self.read(id).expect("END")
    }

    /// Has the server retry unfinished requests.
    pub(crate) fn settle(&mut self) {
        self.settle_at(Instant::now());
    }

    pub(crate) fn settle_at(&mut self, now: Instant) {
        self.server.settle(now, &mut self.datapath);
    }

    /// Reads everything up to END; `None` if there is none.
    pub(crate) fn read(&mut self, id: PeerId) -> Option<Answers> {
        let mut answers = Answers::default();
        while let Some(datagram) = self.next(id) {
            for message in Messages::new(&datagram) {
                match message.header.kind {
                    END => return Some(answers),
                    HELLO => continue,
                    _ => answers.take(&message),
                }
            }
            answers.datagrams += 1;
        }
        None
    }
}

impl Answers {
    fn take(&mut self, message: &message::NetlinkMessage<'_>) {
        if let Some(errno) = message.error() {
            self.errors.push(errno);
        } else if message.is_done() {
            self.has_done = true;
        } else {
            let generic = message.generic().expect("an object");
            self.objects.push((generic.command, generic.body.to_vec()));
        }
    }
}

pub(crate) fn request(
    family: Family,
    command: u8,
    flags: u16,
    datapath: i32,
    fill: impl FnOnce(&mut Writer),
) -> Vec<u8> {
    let header = NetlinkHeader { kind: family.id(), flags: REQUEST | flags, seq: 5, port_id: 0 };
    message::encode_datapath(header, (command, 1), datapath, fill).expect("short")
}

pub(crate) fn new_datapath(name: &str, features: u32) -> Vec<u8> {
    let wanted = DatapathMessage {
        name: Some(name.to_owned()),
        upcall_port_id: Some(0),
        user_features: Some(features),
        ..DatapathMessage::default()
    };
    request(Family::Datapath, NEW, ECHO | ACK, 0, |writer| wanted.encode(writer))
}

pub(crate) fn new_port(name: &str, number: Option<u32>, upcall_port_ids: Vec<u32>) -> Vec<u8> {
    let wanted = VportMessage {
        number,
        kind: Some(VportKind::Netdev),
        name: Some(name.to_owned()),
        upcall_port_ids: Some(upcall_port_ids),
        ..VportMessage::default()
    };
    request(Family::Vport, NEW, ECHO | ACK, 1, |writer| wanted.encode(writer))
}

/// A different flow for each number.
pub(crate) fn flow(number: u32, actions: Vec<Action>) -> FlowMessage {
    let mut ufid = [0; 16];
    ufid[..4].copy_from_slice(&number.to_ne_bytes());
    FlowMessage {
        datapath: 1,
        key: Some(FlowKey {
            recirc_id: Some(number),
            ethernet: Some(Ethernet::default()),
            ..FlowKey::default()
        }),
        actions: Some(actions),
        ufid: Some(Ufid(ufid)),
        ..FlowMessage::default()
    }
}

pub(crate) fn flow_request(command: u8, flags: u16, flow: &FlowMessage) -> Vec<u8> {
    request(Family::Flow, command, flags, 1, |writer| flow.encode(writer))
}
