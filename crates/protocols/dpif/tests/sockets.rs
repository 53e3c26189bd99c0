//! The server behind real sockets, with clients that call, stall, hang up and send too much.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use lasthop_dpif::bounds::{MESSAGES_PER_TURN, MESSAGES_PER_VISIT};
use lasthop_dpif::client::{Client, ClientError};
use lasthop_dpif::datapath::{Datapath as _, DatapathId};
use lasthop_dpif::family::{DatapathMessage, FlowMessage, PacketMessage, VportKind, VportMessage};
use lasthop_dpif::memory::MemoryDatapath;
use lasthop_dpif::message::Messages;
use lasthop_dpif::server::{DatapathUpcall, Family, Server, UpcallKind};
use lasthop_dpif::socket::{Access, Connections};
use lasthop_dpif::talk;
use lasthop_flow::{Action, Ethernet, FlowKey, Ufid};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};

/// A test's task for the server's thread.
enum Errand {
    Add(OwnedFd),
    Upcalls(Box<DatapathUpcall>, usize),
}

/// A server in a thread, which ends when this is dropped.
struct Served {
    errands: Option<Sender<Errand>>,
    wake: Option<OwnedFd>,
    closed: Receiver<String>,
    thread: Option<JoinHandle<u64>>,
}

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair")
}

impl Served {
    fn new() -> Self {
        let (errands, errand) = channel();
        let (closes, closed) = channel();
        let (woken, wake) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe");
        let thread = std::thread::spawn(move || serve(&errand, &woken, &closes));
        Self { errands: Some(errands), wake: Some(wake), closed, thread: Some(thread) }
    }

    fn send(&self, errand: Errand) {
        self.errands.as_ref().expect("it runs").send(errand).expect("it runs");
        rustix::io::write(self.wake.as_ref().expect("it runs"), &[0]).expect("a pipe");
    }

    fn socket(&self) -> OwnedFd {
        let (ours, theirs) = pair();
        self.send(Errand::Add(theirs));
        ours
    }

    fn client(&self) -> Client {
        Client::new(self.socket()).expect("a server")
    }

    /// Returns the number of misses without a reader.
    fn end(&mut self) -> u64 {
        (self.errands, self.wake) = (None, None);
        self.thread.take().expect("it runs").join().expect("it does not panic")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.end();
        }
    }
}

fn serve(errands: &Receiver<Errand>, woken: &OwnedFd, closes: &Sender<String>) -> u64 {
    let mut datapath = MemoryDatapath::new();
    let mut connections = Connections::new(Server::new(), Access::default()).expect("an epoll set");
    loop {
        let (wake, set) = (woken.as_fd(), connections.fd());
        let mut fds =
            [PollFd::from_borrowed_fd(wake, PollFlags::IN), PollFd::from_borrowed_fd(set, PollFlags::IN)];
        let at_once = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, connections.has_more().then_some(&at_once)).expect("two descriptors");
        if fds[0].revents().contains(PollFlags::IN) {
            let mut byte = [0];
            rustix::io::read(woken, byte.as_mut_slice()).expect("a pipe");
            match errands.recv() {
                Ok(Errand::Add(socket)) => drop(connections.add(socket.into()).expect("it may")),
                Ok(Errand::Upcalls(upcall, count)) => {
                    for _ in 0..count {
                        let _ = connections.upcall((*upcall).clone(), &mut datapath);
                    }
                }
                Err(_) => {}
            }
        } else if !fds[0].revents().is_empty() {
            return connections.server().records().values().map(|record| record.lost).sum();
        }
        for (_, why) in connections.turn(&mut datapath).expect("an epoll set") {
            // The test may have ended.
            let _ = closes.send(why.to_string());
        }
    }
}

fn make_datapath(client: &mut Client, port_ids: Vec<u32>) -> i32 {
    let wanted = DatapathMessage {
        name: Some("dp0".to_owned()),
        upcall_port_id: Some(0),
        user_features: Some(9),
        per_cpu_port_ids: Some(port_ids),
        ..DatapathMessage::default()
    };
    client.datapath_add(&wanted).expect("it is new").datapath
}

fn vport(datapath: i32, name: &str) -> VportMessage {
    VportMessage {
        datapath,
        kind: Some(VportKind::Netdev),
        name: Some(name.to_owned()),
        upcall_port_ids: Some(vec![0]),
        ..VportMessage::default()
    }
}

fn flow(datapath: i32, number: u32) -> FlowMessage {
    let mut ufid = [0; 16];
    ufid[..4].copy_from_slice(&number.to_ne_bytes());
    let key = FlowKey { recirc_id: Some(number), ethernet: Some(Ethernet::default()), ..FlowKey::default() };
    let actions = Some(vec![Action::Output(1)]);
    FlowMessage { datapath, key: Some(key), actions, ufid: Some(Ufid(ufid)), ..FlowMessage::default() }
}

fn miss(datapath: i32, worker: usize) -> DatapathUpcall {
    let key = FlowKey { in_port: Some(1), ..FlowKey::default() };
    let message = PacketMessage { datapath, packet: vec![7; 1500], key, ..PacketMessage::default() };
    DatapathUpcall { kind: UpcallKind::Miss, port: 1, worker, message }
}

#[test]
fn a_client_can_act_as_a_controller() {
    let served = Served::new();
    let mut client = served.client();
    let datapath = make_datapath(&mut client, Vec::new());
    let port = vport(datapath, "vm1");
    assert_eq!(client.port_add(&port).expect("it is new").number, Some(1));
    let refused = client.port_add(&port).expect_err("it is there");
    assert!(matches!(refused, ClientError::Refused { errno: 17, .. }), "{refused}");
    assert!(refused.to_string().contains("there is a port of that name"), "{refused}");
    assert_eq!(client.ports(datapath).expect("a datapath").len(), 2);
    for number in 0..2000 {
        client.flow_add(&flow(datapath, number)).expect("another one");
    }
    assert_eq!(client.flows(datapath).expect("a datapath").len(), 2000);
    client.flow_remove(&flow(datapath, 5)).expect("it is there");
    assert_eq!(client.datapaths().expect("some")[0].stats.expect("told").flows, 1999);
    let nothing = FlowMessage { datapath, ..FlowMessage::default() };
    client.flow_remove(&nothing).expect("all of them");
    assert_eq!(client.flows(datapath).expect("a datapath").len(), 0);
    let packet = PacketMessage {
        datapath,
        packet: vec![0; 60],
        actions: Some(Vec::new()),
        ..PacketMessage::default()
    };
    client.execute(&packet).expect("a packet");
}

#[test]
fn others_ports_are_heard_of() {
    let served = Served::new();
    let (mut watcher, mut actor) = (served.client(), served.client());
    watcher.transact("watching ports", &talk::watch(Family::Vport)).expect("a group");
    let datapath = make_datapath(&mut actor, Vec::new());
    actor.port_add(&vport(datapath, "vm1")).expect("it is new");
    let told = watcher.receive().expect("a notification");
    let message = Messages::new(&told).next().expect("a message");
    let (_, attrs) = message.generic().expect("generic").datapath().expect("of a datapath");
    assert_eq!(VportMessage::decode(datapath, attrs).expect("a port").name.as_deref(), Some("vm1"));
}

#[test]
fn a_client_that_does_not_read_misses_loses_only_its_own() {
    const MISSES: usize = 5000;
    let mut served = Served::new();
    let (stalled, mut reader, mut other) = (served.client(), served.client(), served.client());
    let datapath = make_datapath(&mut other, vec![stalled.port_id(), reader.port_id()]);
    served.send(Errand::Upcalls(Box::new(miss(datapath, 0)), MISSES));
    for number in 0..100 {
        other.flow_add(&flow(datapath, number)).expect("the server goes on");
    }
    served.send(Errand::Upcalls(Box::new(miss(datapath, 1)), 10));
    for _ in 0..10 {
        let told = reader.receive().expect("a miss");
        let (_, attrs) =
            Messages::new(&told).next().expect("one").generic().expect("generic").datapath().expect("of one");
        assert_eq!(PacketMessage::decode(datapath, attrs).expect("a packet").packet.len(), 1500);
    }
    drop(stalled);
    let lost = served.end();
    assert!(lost > 0 && (lost as usize) < MISSES, "{lost} of {MISSES}");
}

#[test]
fn a_client_with_another_protocol_is_disconnected() {
    let served = Served::new();
    let stranger = served.socket();
    rustix::net::send(&stranger, b"GET / HTTP/1.1\r\n\r\n", SendFlags::NOSIGNAL).expect("a socket");
    let mut byte = [0];
    let (len, _) =
        rustix::net::recv(&stranger, byte.as_mut_slice(), rustix::net::RecvFlags::empty()).expect("its end");
    assert_eq!(len, 0);
    assert!(served.closed.recv().expect("why").contains("HELLO"));
    let mut client = served.client();
    assert_eq!(client.datapaths().expect("others are served").len(), 0);
}

#[test]
fn an_unread_dump_delays_no_other_client() {
    let served = Served::new();
    let mut other = served.client();
    let datapath = make_datapath(&mut other, Vec::new());
    for number in 0..5000 {
        other.flow_add(&flow(datapath, number)).expect("another one");
    }
    let lazy = served.client();
    let header = lasthop_dpif::message::NetlinkHeader { kind: 0x22, flags: 0x301, seq: 1, port_id: 0 };
    let dump = lasthop_dpif::message::encode_datapath(header, (3, 1), datapath, |_| {}).expect("short");
    rustix::net::send(lazy.fd(), &dump, SendFlags::NOSIGNAL).expect("a socket");
    assert_eq!(other.flows(datapath).expect("the server goes on").len(), 5000);
    let mut seen = 0;
    let mut buffer = vec![0; 65_536];
    loop {
        let (len, _) = rustix::net::recv(lazy.fd(), buffer.as_mut_slice(), rustix::net::RecvFlags::empty())
            .expect("more");
        let messages: Vec<_> = Messages::new(&buffer[..len]).collect();
        seen += messages.iter().filter(|message| !message.is_done() && message.header.kind == 0x22).count();
        if messages.iter().any(lasthop_dpif::message::NetlinkMessage::is_done) {
            break;
        }
    }
    assert_eq!(seen, 5000);
}

/// A connection after its HELLO, and the number of the datapath that it made.
fn greeted(connections: &mut Connections, datapath: &mut MemoryDatapath) -> OwnedFd {
    let (ours, theirs) = pair();
    connections.add(theirs.into()).expect("it may");
    rustix::net::send(
        &ours,
        &lasthop_dpif::private::Hello { protocol: 16, port_id: 0, process: 0 }.encode(),
        SendFlags::NOSIGNAL,
    )
    .expect("a socket");
    connections.turn(datapath).expect("an epoll set");
    received(&ours).expect("an answer");
    ours
}

fn received(socket: &OwnedFd) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 65_536];
    let (len, _) = rustix::net::recv(socket, buffer.as_mut_slice(), rustix::net::RecvFlags::DONTWAIT).ok()?;
    Some(buffer[..len].to_vec())
}

fn flow_request(datapath: i32, number: u32) -> Vec<u8> {
    let header = lasthop_dpif::message::NetlinkHeader { kind: 0x22, flags: 0x401, seq: number, port_id: 0 };
    let wanted = flow(datapath, number);
    lasthop_dpif::message::encode_datapath(header, (1, 1), datapath, |writer| wanted.encode(writer))
        .expect("short")
}

#[test]
fn a_client_that_sends_without_end_is_bounded_per_turn() {
    const FLOODERS: usize = 20;
    const FLOWS: usize = 200;
    let mut datapath = MemoryDatapath::new();
    let mut connections = Connections::new(Server::new(), Access::default()).expect("an epoll set");
    let flooders: Vec<_> = (0..FLOODERS).map(|_| greeted(&mut connections, &mut datapath)).collect();
    let other = greeted(&mut connections, &mut datapath);
    let made = DatapathMessage { name: Some("dp0".to_owned()), ..DatapathMessage::default() };
    let header = lasthop_dpif::message::NetlinkHeader { kind: 0x20, flags: 0x9, seq: 1, port_id: 0 };
    let make = lasthop_dpif::message::encode_datapath(header, (1, 2), 0, |writer| {
        DatapathMessage { upcall_port_id: Some(0), ..made.clone() }.encode(writer)
    })
    .expect("short");
    rustix::net::send(&other, &make, SendFlags::NOSIGNAL).expect("a socket");
    connections.turn(&mut datapath).expect("an epoll set");
    while received(&other).is_some() {}
    let id = connections.server().records().keys().next().expect("it is made").0;
    let flow_count = |datapath: &MemoryDatapath| datapath.stats(DatapathId(id)).0.flows as usize;
    for (at, flooder) in flooders.iter().enumerate() {
        let flood: Vec<u8> =
            (0..FLOWS).flat_map(|number| flow_request(id, (at * FLOWS + number) as u32)).collect();
        rustix::net::send(flooder, &flood, SendFlags::NOSIGNAL).expect("a socket");
    }
    rustix::net::send(&other, &make, SendFlags::NOSIGNAL).expect("a socket");
    let (mut before, mut answered, mut turns) = (0, None, 0);
    while flow_count(&datapath) < FLOODERS * FLOWS {
        connections.turn(&mut datapath).expect("an epoll set");
        turns += 1;
        assert!(turns <= FLOODERS * FLOWS, "{before} flows");
        let now = flow_count(&datapath);
        assert!(now - before <= MESSAGES_PER_TURN, "{} messages in a turn", now - before);
        before = now;
        answered = answered.or(received(&other).map(|_| turns));
    }
    let everybody_once = (FLOODERS * MESSAGES_PER_VISIT).div_ceil(MESSAGES_PER_TURN) + 1;
    assert!(answered.is_some_and(|turn| turn <= everybody_once), "{answered:?} of {turns} turns");
    assert!(!connections.has_more() || connections.turn(&mut datapath).is_ok());
}

#[test]
fn requests_sent_before_hanging_up_are_done() {
    let served = Served::new();
    let mut other = served.client();
    let datapath = make_datapath(&mut other, Vec::new());
    let hasty = served.client();
    let header = lasthop_dpif::message::NetlinkHeader { kind: 0x22, flags: 0x401, seq: 1, port_id: 0 };
    let wanted = flow(datapath, 1);
    let request =
        lasthop_dpif::message::encode_datapath(header, (1, 1), datapath, |writer| wanted.encode(writer));
    rustix::net::send(hasty.fd(), &request.expect("short"), SendFlags::NOSIGNAL).expect("a socket");
    drop(hasty);
    assert!(served.closed.recv().expect("why").contains("closed"));
    assert_eq!(other.flows(datapath).expect("a datapath").len(), 1);
}

#[test]
fn a_client_that_hangs_up_amid_its_answers_is_closed() {
    let served = Served::new();
    let mut other = served.client();
    let datapath = make_datapath(&mut other, Vec::new());
    for number in 0..5000 {
        other.flow_add(&flow(datapath, number)).expect("another one");
    }
    let lazy = served.client();
    let header = lasthop_dpif::message::NetlinkHeader { kind: 0x22, flags: 0x301, seq: 1, port_id: 0 };
    let dump = lasthop_dpif::message::encode_datapath(header, (3, 1), datapath, |_| {}).expect("short");
    rustix::net::send(lazy.fd(), &dump, SendFlags::NOSIGNAL).expect("a socket");
    assert_eq!(other.datapaths().expect("others are served").len(), 1);
    drop(lazy);
    assert!(served.closed.recv().expect("why").contains("closed"));
}
