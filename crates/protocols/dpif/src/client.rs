//! The client's side: sends requests and receives answers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use lasthop_foreign::Shortage;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use crate::attr::{Attrs, Writer};
use crate::family::{DatapathMessage, FlowMessage, PacketMessage, VportMessage};
use crate::message::{self, Messages, NetlinkHeader, NetlinkMessage};
use crate::netfilter::{self, Connection, connection};
use crate::private::{END, HELLO, Hello, decode_number};
use crate::refusal::{Errno, Refusal};
use crate::server::Family;
use crate::talk;
use crate::uapi::{command, nlm, protocol};

/// Bytes of the largest accepted datagram: a packet of 64 KiB and its key.
const DATAGRAM_BYTES_MAX: usize = 128 * 1024;

/// Attempts to send a request while the system has no memory for it: they take half a second or more.
const TRIES_MAX: usize = 12;

/// Retries while the system has no memory, after growing pauses.
fn insist(mut send: impl FnMut() -> rustix::io::Result<usize>) -> rustix::io::Result<usize> {
    let mut shortage = Shortage::default();
    for _ in 1..TRIES_MAX {
        match send() {
            Err(rustix::io::Errno::NOBUFS) => std::thread::sleep(shortage.hit(Instant::now())),
            result => return result,
        }
    }
    send()
}

/// Why a call to the switch failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The switch refused the request.
    #[error("{what}: {}{}", Errno(*.errno), .why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default())]
    Refused {
        /// The request.
        what: &'static str,
        /// Its number.
        errno: i32,
        /// The reason, as a sentence.
        why: Option<String>,
    },
    /// The switch sent something that is no answer.
    #[error("{0}: the switch answered with something else; is it of another version?")]
    WrongAnswer(&'static str),
    /// The switch closed the connection.
    #[error("the switch closed the control connection")]
    HungUp,
    /// A system call failed.
    #[error("the control connection failed: {0}")]
    Io(#[from] io::Error),
}

impl From<rustix::io::Errno> for ClientError {
    fn from(errno: rustix::io::Errno) -> Self {
        match errno {
            rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET => Self::HungUp,
            _ => Self::Io(errno.into()),
        }
    }
}

fn dial(path: &Path) -> Result<OwnedFd, ClientError> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// A blocking connection: each call sends one request and waits for its last answer.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    port_id: u32,
    seq: u32,
    buffer: Vec<u8>,
}

impl Client {
    /// Connects to the control socket at `path`.
    ///
    /// # Errors
    /// If no server listens there, or one with another protocol.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        Self::new(dial(path)?)
    }

    /// Makes a client of a connected socket.
    ///
    /// # Errors
    /// If the other end uses another protocol.
    pub fn new(socket: OwnedFd) -> Result<Self, ClientError> {
        Self::begin(socket, protocol::GENERIC)
    }

    /// Connects to the control socket at `path`, for requests about connections ([`Self::connections`]) and no others.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn connect_netfilter(path: &Path) -> Result<Self, ClientError> {
        Self::begin(dial(path)?, protocol::NETFILTER)
    }

    fn begin(socket: OwnedFd, protocol: u32) -> Result<Self, ClientError> {
        let mut client = Self { socket, port_id: 0, seq: 0, buffer: vec![0; DATAGRAM_BYTES_MAX] };
        client.send(&Hello { protocol, port_id: 0, process: std::process::id() }.encode())?;
        let answer = client.receive()?;
        let message = Messages::new(&answer).next();
        let port_id = message.and_then(|message| decode_number(&message, HELLO));
        client.port_id = port_id.ok_or(ClientError::WrongAnswer("connecting"))?;
        client.transact("listening to sentences", &talk::listen())?;
        // An older version may not know this request; it lists all datapaths anyway.
        client.transact("asking for all datapaths", &talk::see_all())?;
        Ok(client)
    }

    /// The port id, which misses have to name to arrive here.
    #[must_use]
    pub fn port_id(&self) -> u32 {
        self.port_id
    }

    /// The socket, to wait for notifications and misses.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn send(&self, datagram: &[u8]) -> Result<(), ClientError> {
        insist(|| rustix::net::send(&self.socket, datagram, SendFlags::NOSIGNAL))?;
        Ok(())
    }

    /// The next datagram, of any kind.
    ///
    /// # Errors
    /// When the connection ends.
    pub fn receive(&mut self) -> Result<Vec<u8>, ClientError> {
        let (len, _) = rustix::net::recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::empty())?;
        match self.buffer.get(..len) {
            Some([]) | None => Err(ClientError::HungUp),
            Some(datagram) => Ok(datagram.to_vec()),
        }
    }

    /// Sends a datagram of requests and returns all answers.
    ///
    /// # Errors
    /// When the switch refuses one of them, and when the connection ends.
    pub fn transact(&mut self, what: &'static str, requests: &[u8]) -> Result<Vec<Vec<u8>>, ClientError> {
        self.send(requests)?;
        let (mut answers, mut refused) = (Vec::new(), None);
        loop {
            let datagram = self.receive()?;
            let Some(first) = Messages::new(&datagram).next() else { continue };
            if first.header.kind == END {
                return refused.map_or(Ok(answers), Err);
            }
            match first.error() {
                Some(0) => {}
                Some(errno) => refused = Some(ClientError::Refused { what, errno, why: first.error_text() }),
                None => answers.push(datagram),
            }
        }
    }

    fn header(&mut self, kind: u16, flags: u16) -> NetlinkHeader {
        self.seq = self.seq.wrapping_add(1);
        NetlinkHeader { kind, flags: nlm::REQUEST | flags, seq: self.seq, port_id: self.port_id }
    }

    /// Sends a request and reads all objects in the answer, from as many datagrams as it takes.
    fn ask<T>(
        &mut self,
        what: &'static str,
        (family, command, flags): (Family, u8, u16),
        datapath: i32,
        fill: impl FnOnce(&mut Writer),
        decode: impl Fn(i32, Attrs<'_>) -> Option<T>,
    ) -> Result<Vec<T>, ClientError> {
        let header = self.header(family.id(), flags);
        let request = message::encode_datapath(header, (command, family.version()), datapath, fill);
        let request =
            request.map_err(|refusal| ClientError::Refused { what, errno: refusal.errno.0, why: None })?;
        let answers = self.transact(what, &request)?;
        let messages =
            answers.iter().flat_map(|answer| Messages::new(answer)).filter(|message| !message.is_done());
        let read = |message: NetlinkMessage<'_>| {
            let (datapath, attrs) = message.generic().ok()?.datapath().ok()?;
            decode(datapath, attrs)
        };
        messages.map(|message| read(message).ok_or(ClientError::WrongAnswer(what))).collect()
    }

    /// All datapaths.
    ///
    /// # Errors
    /// When the switch refuses, and when the connection ends.
    pub fn datapaths(&mut self) -> Result<Vec<DatapathMessage>, ClientError> {
        let how = (Family::Datapath, command::GET, nlm::DUMP);
        self.ask(
            "listing datapaths",
            how,
            0,
            |_| {},
            |datapath, attrs| DatapathMessage::decode(datapath, attrs).ok(),
        )
    }

    /// Makes or changes a datapath, and returns its new state.
    ///
    /// # Errors
    /// When the switch refuses, and when the connection ends.
    pub fn datapath_put(
        &mut self,
        wanted: &DatapathMessage,
        is_new: bool,
    ) -> Result<DatapathMessage, ClientError> {
        let (what, command) = match is_new {
            true => ("making a datapath", command::NEW),
            false => ("changing a datapath", command::SET),
        };
        let how = (Family::Datapath, command, nlm::ECHO | nlm::ACK);
        let decode = |datapath, attrs: Attrs<'_>| DatapathMessage::decode(datapath, attrs).ok();
        let told = self.ask(what, how, wanted.datapath, |writer| wanted.encode(writer), decode)?;
        told.into_iter().next().ok_or(ClientError::WrongAnswer(what))
    }

    /// All ports of a datapath.
    ///
    /// # Errors
    /// When the switch refuses, and when the connection ends.
    pub fn ports(&mut self, datapath: i32) -> Result<Vec<VportMessage>, ClientError> {
        let how = (Family::Vport, command::GET, nlm::DUMP);
        self.ask(
            "listing ports",
            how,
            datapath,
            |_| {},
            |datapath, attrs| VportMessage::decode(datapath, attrs).ok(),
        )
    }

    /// Makes a port, and returns its state.
    ///
    /// # Errors
    /// When the switch refuses, and when the connection ends.
    pub fn port_add(&mut self, wanted: &VportMessage) -> Result<VportMessage, ClientError> {
        const WHAT: &str = "making a port";
        let how = (Family::Vport, command::NEW, nlm::ECHO | nlm::ACK);
        let decode = |datapath, attrs: Attrs<'_>| VportMessage::decode(datapath, attrs).ok();
        let told = self.ask(WHAT, how, wanted.datapath, |writer| wanted.encode(writer), decode)?;
        told.into_iter().next().ok_or(ClientError::WrongAnswer(WHAT))
    }

    /// Removes a port from its datapath. No program of ours does so: it is for control planes that add ports by [`Self::port_add`].
    ///
    /// # Errors
    /// When the switch refuses, and when the connection ends.
    pub fn port_remove(&mut self, wanted: &VportMessage) -> Result<(), ClientError> {
        let how = (Family::Vport, command::DEL, nlm::ACK);
        self.ask("removing a port", how, wanted.datapath, |writer| wanted.encode(writer), |_, _| Some(()))
            .map(drop)
    }

    /// All flows of a datapath.
    ///
    /// # Errors
    /// When the switch refuses, and when the connection ends.
    pub fn flows(&mut self, datapath: i32) -> Result<Vec<FlowMessage>, ClientError> {
        let how = (Family::Flow, command::GET, nlm::DUMP);
        self.ask(
            "listing flows",
            how,
            datapath,
            |_| {},
            |datapath, attrs| FlowMessage::decode(datapath, attrs).ok(),
        )
    }

    /// Installs a flow; an existing one is an error.
    ///
    /// # Errors
    /// When the switch refuses, and when the connection ends.
    pub fn flow_add(&mut self, flow: &FlowMessage) -> Result<(), ClientError> {
        let how = (Family::Flow, command::NEW, nlm::CREATE | nlm::ACK);
        self.ask("installing a flow", how, flow.datapath, |writer| flow.encode(writer), |_, _| Some(()))
            .map(drop)
    }

    /// Removes a flow, and returns its last state; without name and key it removes all flows, and returns nothing.
    ///
    /// # Errors
    /// When the switch refuses, and when the connection ends.
    pub fn flow_remove(&mut self, flow: &FlowMessage) -> Result<Option<FlowMessage>, ClientError> {
        let how = (Family::Flow, command::DEL, nlm::ECHO | nlm::ACK);
        let decode = |datapath, attrs: Attrs<'_>| FlowMessage::decode(datapath, attrs).ok();
        let told = self.ask("removing a flow", how, flow.datapath, |writer| flow.encode(writer), decode)?;
        Ok(told.into_iter().next())
    }

    /// Executes actions for a packet.
    ///
    /// # Errors
    /// When the switch refuses, and when the connection ends.
    pub fn execute(&mut self, packet: &PacketMessage) -> Result<(), ClientError> {
        let how = (Family::Packet, crate::uapi::packet::EXECUTE, nlm::ACK);
        self.ask("executing", how, packet.datapath, |writer| packet.encode(writer), |_, _| Some(())).map(drop)
    }

    /// All connections, or those of a zone.
    ///
    /// # Errors
    /// When the switch refuses, and when the connection ends.
    pub fn connections(&mut self, zone: Option<u16>) -> Result<Vec<Connection>, ClientError> {
        const WHAT: &str = "listing connections";
        let answers = self.ask_netfilter(WHAT, (netfilter::GET, nlm::DUMP), zone)?;
        let messages =
            answers.iter().flat_map(|answer| Messages::new(answer)).filter(|message| !message.is_done());
        let read = |message: NetlinkMessage<'_>| {
            netfilter::open(&message).and_then(|(_, attrs)| Connection::decode(attrs))
        };
        messages.map(|message| read(message).map_err(|_| ClientError::WrongAnswer(WHAT))).collect()
    }

    /// Removes all connections, or those of a zone.
    ///
    /// # Errors
    /// When the switch refuses, and when the connection ends.
    pub fn connections_flush(&mut self, zone: Option<u16>) -> Result<(), ClientError> {
        self.ask_netfilter("ending connections", (netfilter::DELETE, nlm::ACK), zone).map(drop)
    }

    fn ask_netfilter(
        &mut self,
        what: &'static str,
        (command, flags): (u8, u16),
        zone: Option<u16>,
    ) -> Result<Vec<Vec<u8>>, ClientError> {
        let header = self.header(netfilter::kind(netfilter::CTNETLINK, command), flags);
        let request = message::encode(header, |writer| connection::encode_request(writer, zone));
        let refused = |refusal: Refusal| ClientError::Refused { what, errno: refusal.errno.0, why: None };
        self.transact(what, &request.map_err(refused)?)
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn a_request_that_there_is_no_memory_for_is_tried_again_and_not_for_ever() {
        let mut tries = 0;
        let mut short_of = |count| {
            tries = 0;
            insist(|| {
                tries += 1;
                if tries > count { Ok(5) } else { Err(Errno::NOBUFS) }
            })
        };
        assert_eq!(short_of(3), Ok(5));
        assert_eq!(short_of(usize::MAX), Err(Errno::NOBUFS));
        assert_eq!(tries, TRIES_MAX);
        assert_eq!(insist(|| Err(Errno::PIPE)), Err(Errno::PIPE));
    }
}
