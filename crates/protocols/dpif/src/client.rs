//! The client's side: sends requests and receives answers, for which it does not wait without end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{io, mem, thread};

use lasthop_foreign::Shortage;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use crate::attr::Attrs;
use crate::family::{DatapathMessage, FlowMessage, PacketMessage, VportMessage};
use crate::message::{self, Messages, NetlinkHeader, NetlinkMessage};
use crate::netfilter::{self, Connection, connection};
use crate::private::{END, HELLO, Hello, decode_number};
use crate::refusal::{Errno, Refusal};
use crate::talk::{self, DpifRequest};
use crate::uapi::{nlm, protocol};

/// Bytes of the largest accepted datagram: a packet of 64 KiB and its key.
const DATAGRAM_BYTES_MAX: usize = 128 * 1024;

/// Longest wait without any answer, like that of other commands. A long dump has many answers.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause between two looks whether to wait on.
const LOOK_PAUSE: Duration = Duration::from_secs(2);

/// Repeats a call while it ends after a pause, or the system has no memory for it, but not beyond `until` or once it is vain.
fn patiently<T>(
    until: Instant,
    is_vain: impl Fn() -> bool,
    mut call: impl FnMut() -> rustix::io::Result<T>,
) -> Result<T, ClientError> {
    use rustix::io::Errno;
    let mut shortage = Shortage::default();
    loop {
        match call() {
            Err(Errno::AGAIN) if Instant::now() >= until || is_vain() => return Err(ClientError::Late),
            Err(Errno::NOBUFS) if Instant::now() < until => thread::sleep(shortage.hit(Instant::now())),
            // A time limit makes signals interrupt the call.
            Err(Errno::AGAIN | Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
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
    /// No answer came in time. The connection is of no use any more.
    #[error("the switch does not answer")]
    Late,
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

/// A blocking connection: each call sends one request and waits for its last answer.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    path: PathBuf,
    is_vain: fn(&Path) -> bool,
    port_id: u32,
    seq: u32,
    buffer: Vec<u8>,
}

impl Client {
    /// Connects to the control socket at `path`.
    ///
    /// # Errors
    /// If no server listens there, or one with another protocol; if it does not answer.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        Self::connect_unless(path, |_| false)
    }

    /// Like [`Self::connect`]; no call waits on for an answer once `is_vain` tells that it is vain to wait at this path.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn connect_unless(path: &Path, is_vain: fn(&Path) -> bool) -> Result<Self, ClientError> {
        Self::dial(path, is_vain)?.begin(protocol::GENERIC)
    }

    /// Like [`Self::connect_unless`], for requests about connections ([`Self::connections`]) and no others.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn connect_netfilter(path: &Path, is_vain: fn(&Path) -> bool) -> Result<Self, ClientError> {
        Self::dial(path, is_vain)?.begin(protocol::NETFILTER)
    }

    /// Makes a client of a connected socket.
    ///
    /// # Errors
    /// If the other end uses another protocol, or does not answer.
    pub fn new(socket: OwnedFd) -> Result<Self, ClientError> {
        Self::of(socket, Path::new(""), |_| false)?.begin(protocol::GENERIC)
    }

    fn of(socket: OwnedFd, path: &Path, is_vain: fn(&Path) -> bool) -> Result<Self, ClientError> {
        set_socket_timeout(&socket, Timeout::Send, Some(LOOK_PAUSE))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(LOOK_PAUSE))?;
        let buffer = vec![0; DATAGRAM_BYTES_MAX];
        Ok(Self { socket, path: path.to_owned(), is_vain, port_id: 0, seq: 0, buffer })
    }

    /// Connections wait in a queue; when that is full, connect blocks, too.
    fn dial(path: &Path, is_vain: fn(&Path) -> bool) -> Result<Self, ClientError> {
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let (client, address) = (Self::of(socket, path, is_vain)?, SocketAddrUnix::new(path)?);
        client.patiently(|| rustix::net::connect(&client.socket, &address))?;
        Ok(client)
    }

    fn patiently<T>(&self, call: impl FnMut() -> rustix::io::Result<T>) -> Result<T, ClientError> {
        patiently(Instant::now() + PATIENCE, || (self.is_vain)(&self.path), call)
    }

    fn begin(mut self, protocol: u32) -> Result<Self, ClientError> {
        self.send(&Hello { protocol, port_id: 0, process: std::process::id() }.encode())?;
        let answer = self.answer()?;
        let port_id = Messages::new(&answer).next().and_then(|message| decode_number(&message, HELLO));
        self.port_id = port_id.ok_or(ClientError::WrongAnswer("connecting"))?;
        self.transact("listening to sentences", &talk::listen())?;
        // An older version may not know this request; it lists all datapaths anyway.
        self.transact("asking for all datapaths", &talk::see_all())?;
        Ok(self)
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
        self.patiently(|| rustix::net::send(&self.socket, datagram, SendFlags::NOSIGNAL)).map(drop)
    }

    /// The next datagram, of any kind. It may be long in coming: misses and notifications are no answers.
    ///
    /// # Errors
    /// When the connection ends.
    pub fn receive(&mut self) -> Result<Vec<u8>, ClientError> {
        loop {
            match self.answer() {
                Err(ClientError::Late) => {}
                result => return result,
            }
        }
    }

    /// The next datagram, if the switch owes one.
    fn answer(&mut self) -> Result<Vec<u8>, ClientError> {
        let mut buffer = mem::take(&mut self.buffer);
        let received =
            self.patiently(|| rustix::net::recv(&self.socket, buffer.as_mut_slice(), RecvFlags::empty()));
        self.buffer = buffer;
        match received?.0 {
            0 => Err(ClientError::HungUp),
            bytes => Ok(self.buffer.get(..bytes).unwrap_or_default().to_vec()),
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
            let datagram = self.answer()?;
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

    /// Sends a request and reads all objects in the answer, from as many datagrams as it takes.
    fn ask<T>(
        &mut self,
        what: &'static str,
        request: &DpifRequest,
        decode: impl Fn(i32, Attrs<'_>) -> Result<T, Refusal>,
    ) -> Result<Vec<T>, ClientError> {
        self.seq = self.seq.wrapping_add(1);
        let answers = self.answers(what, request.encode(self.seq, self.port_id))?;
        let read = |message: NetlinkMessage<'_>| {
            let (datapath, attrs) = message.generic().ok()?.datapath().ok()?;
            decode(datapath, attrs).ok()
        };
        objects(&answers).map(|message| read(message).ok_or(ClientError::WrongAnswer(what))).collect()
    }

    fn tell(&mut self, what: &'static str, request: &DpifRequest) -> Result<(), ClientError> {
        self.ask(what, request, |_, _| Ok(())).map(drop)
    }

    fn answers(
        &mut self,
        what: &'static str,
        request: Result<Vec<u8>, Refusal>,
    ) -> Result<Vec<Vec<u8>>, ClientError> {
        let request =
            request.map_err(|refusal| ClientError::Refused { what, errno: refusal.errno.0, why: None });
        self.transact(what, &request?)
    }

    /// All datapaths.
    ///
    /// # Errors
    /// When the switch refuses, and when the connection ends.
    pub fn datapaths(&mut self) -> Result<Vec<DatapathMessage>, ClientError> {
        self.ask("listing datapaths", &DpifRequest::Datapaths, DatapathMessage::decode)
    }

    /// Makes a datapath, and returns its state.
    ///
    /// # Errors
    /// When the switch refuses, and when the connection ends.
    pub fn datapath_add(&mut self, wanted: &DatapathMessage) -> Result<DatapathMessage, ClientError> {
        const WHAT: &str = "making a datapath";
        let told = self.ask(WHAT, &DpifRequest::DatapathNew(wanted.clone()), DatapathMessage::decode)?;
        told.into_iter().next().ok_or(ClientError::WrongAnswer(WHAT))
    }

    /// Changes a datapath. No program of ours does so: it is for control planes, and for tests.
    ///
    /// # Errors
    /// When the switch refuses, and when the connection ends.
    pub fn datapath_set(&mut self, wanted: &DatapathMessage) -> Result<(), ClientError> {
        self.tell("changing a datapath", &DpifRequest::DatapathSet(wanted.clone()))
    }

    /// All ports of a datapath.
    ///
    /// # Errors
    /// When the switch refuses, and when the connection ends.
    pub fn ports(&mut self, datapath: i32) -> Result<Vec<VportMessage>, ClientError> {
        self.ask("listing ports", &DpifRequest::Ports(datapath), VportMessage::decode)
    }

    /// Makes a port, and returns its state.
    ///
    /// # Errors
    /// When the switch refuses, and when the connection ends.
    pub fn port_add(&mut self, wanted: &VportMessage) -> Result<VportMessage, ClientError> {
        const WHAT: &str = "making a port";
        let told = self.ask(WHAT, &DpifRequest::PortNew(wanted.clone()), VportMessage::decode)?;
        told.into_iter().next().ok_or(ClientError::WrongAnswer(WHAT))
    }

    /// Removes a port from its datapath. No program of ours does so: it is for control planes that add ports by [`Self::port_add`].
    ///
    /// # Errors
    /// When the switch refuses, and when the connection ends.
    pub fn port_remove(&mut self, wanted: &VportMessage) -> Result<(), ClientError> {
        self.tell("removing a port", &DpifRequest::PortDel(wanted.clone()))
    }

    /// All flows of a datapath.
    ///
    /// # Errors
    /// When the switch refuses, and when the connection ends.
    pub fn flows(&mut self, datapath: i32) -> Result<Vec<FlowMessage>, ClientError> {
        self.ask("listing flows", &DpifRequest::Flows { datapath, is_brief: false }, FlowMessage::decode)
    }

    /// Installs a flow; an existing one is an error.
    ///
    /// # Errors
    /// When the switch refuses, and when the connection ends.
    pub fn flow_add(&mut self, flow: &FlowMessage) -> Result<(), ClientError> {
        self.tell("installing a flow", &DpifRequest::FlowNew(flow.clone()))
    }

    /// Removes a flow; without name and key, all flows.
    ///
    /// # Errors
    /// When the switch refuses, and when the connection ends.
    pub fn flow_remove(&mut self, flow: &FlowMessage) -> Result<(), ClientError> {
        self.tell("removing a flow", &DpifRequest::FlowDel(flow.clone()))
    }

    /// Executes actions for a packet.
    ///
    /// # Errors
    /// When the switch refuses, and when the connection ends.
    pub fn execute(&mut self, packet: &PacketMessage) -> Result<(), ClientError> {
        self.tell("executing", &DpifRequest::Execute(Box::new(packet.clone())))
    }

    /// All connections, or those of a zone.
    ///
    /// # Errors
    /// When the switch refuses, and when the connection ends.
    pub fn connections(&mut self, zone: Option<u16>) -> Result<Vec<Connection>, ClientError> {
        const WHAT: &str = "listing connections";
        let answers = self.ask_netfilter(WHAT, (netfilter::GET, nlm::DUMP), zone)?;
        let read = |message: NetlinkMessage<'_>| {
            netfilter::open(&message).and_then(|(_, attrs)| Connection::decode(attrs))
        };
        objects(&answers).map(|message| read(message).map_err(|_| ClientError::WrongAnswer(WHAT))).collect()
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
        self.seq = self.seq.wrapping_add(1);
        let (kind, flags) = (netfilter::kind(netfilter::CTNETLINK, command), nlm::REQUEST | flags);
        let header = NetlinkHeader { kind, flags, seq: self.seq, port_id: self.port_id };
        self.answers(what, message::encode(header, |writer| connection::encode_request(writer, zone)))
    }
}

/// The objects of an answer.
fn objects(answers: &[Vec<u8>]) -> impl Iterator<Item = NetlinkMessage<'_>> {
    answers.iter().flat_map(|answer| Messages::new(answer)).filter(|message| !message.is_done())
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn a_request_that_there_is_no_memory_for_is_tried_again_and_not_for_ever() {
        let (now, mut tries) = (Instant::now(), 0);
        let mut short_of = |count, until| {
            tries = 0;
            patiently(
                until,
                || false,
                || {
                    tries += 1;
                    if tries > count { Ok(tries) } else { Err(Errno::NOBUFS) }
                },
            )
        };
        assert!(matches!(short_of(3, now + PATIENCE), Ok(4)));
        assert!(matches!(short_of(usize::MAX, now), Err(ClientError::Io(_))));
        assert!(matches!(patiently(now, || false, || Err::<(), _>(Errno::PIPE)), Err(ClientError::HungUp)));
    }

    #[test]
    fn an_answer_is_awaited_for_a_time_unless_that_is_vain() {
        let (now, mut pauses) = (Instant::now(), 0);
        let mut answered_after = |count, until, is_vain: bool| {
            pauses = 0;
            patiently(
                until,
                || is_vain,
                || {
                    pauses += 1;
                    if pauses > count { Ok(pauses) } else { Err(Errno::AGAIN) }
                },
            )
        };
        assert!(matches!(answered_after(3, now + PATIENCE, false), Ok(4)));
        assert!(matches!(answered_after(3, now + PATIENCE, true), Err(ClientError::Late)));
        assert!(matches!(answered_after(3, now, false), Err(ClientError::Late)));
        assert!(matches!(answered_after(0, now, true), Ok(1)), "an answer that is there is taken");
    }
}
