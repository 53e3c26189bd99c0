use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use lasthop_dpif::datapath::{DatapathId, Port};
use lasthop_dpif::family::{FlowMessage, PacketMessage, VportKind};
use lasthop_dpif::memory::MemoryDatapath;
use lasthop_dpif::message::{self, Messages, NetlinkHeader};
use lasthop_dpif::private::{END, end};
use lasthop_dpif::server::{DatapathRecord, Family, Server};
use lasthop_dpif::talk::DpifRequest;
use lasthop_dpif::{Errno as Refused, Refusal};
use lasthop_flow::{FlowKey, Ufid};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};

use super::rig::Rig;
use super::*;
use crate::open_requests;

const REQUEST: u16 = 1;
const DUMP: u16 = 0x300;

/// A program's socket, with the calls that `sys` makes for it.
struct Program {
    // Open as long as `socket` uses the descriptor.
    fd: OwnedFd,
    socket: SwitchSocket,
}

impl Program {
    fn new(rig: &Rig) -> Self {
        let control_socket = ControlSocket { path: rig.socket(), wait: Duration::from_secs(20) };
        let request = ConnectionRequest { protocol: 16, port_id: 0, groups: Vec::new() };
        let connected = connect::connect(&control_socket, &request).expect("a server");
        let socket = SwitchSocket::new(connected.socket.as_raw_fd(), control_socket, 16, connected.port_id);
        Self { fd: connected.socket, socket }
    }

    /// A program, and the other end of its connection; the next server process will be the rig's.
    fn with_a_server_by_hand(rig: &Rig) -> (Self, OwnedFd) {
        let control_socket = ControlSocket { path: rig.socket(), wait: Duration::from_secs(20) };
        let (near, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("a pair");
        set_socket_timeout(&near, Timeout::Recv, Some(connect::RECEIVE_WAIT)).expect("a socket");
        let socket = SwitchSocket::new(near.as_raw_fd(), control_socket, 16, 7);
        (Self { fd: near, socket }, far)
    }

    fn send(&self, datagram: &[u8]) -> Result<usize, Errno> {
        self.send_or_keep(datagram, None)
    }

    fn send_or_keep(&self, datagram: &[u8], copy: Option<Vec<u8>>) -> Result<usize, Errno> {
        self.socket.send(copy, || rustix::net::send(&self.fd, datagram, SendFlags::NOSIGNAL))
    }

    /// Answers upcalls, as a thread that has received one.
    fn answer(&self, datagram: &[u8]) -> Result<usize, Errno> {
        open_requests::note_upcall(Family::Packet.id());
        let copy = open_requests::unwaited_copy([datagram].into_iter());
        assert!(copy.is_some(), "it need not be waited for");
        self.send_or_keep(datagram, copy)
    }

    /// As `recvmsg` with MSG_DONTWAIT.
    fn receive(&self) -> Result<Vec<u8>, Errno> {
        self.receive_as(Datagram::Answer)
    }

    /// Receives, and classifies each answer by `classify`.
    fn receive_as(&self, mut classify: impl FnMut(usize) -> Datagram) -> Result<Vec<u8>, Errno> {
        let mut buffer = vec![0; 65_536];
        let received = self.socket.receive(false, |waits| {
            let flags = if waits { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
            let (len, _) = rustix::net::recv(&self.fd, buffer.as_mut_slice(), flags)?;
            Ok(match Messages::new(&buffer[..len]).next() {
                None => Datagram::HungUp,
                Some(message) if message.header.kind == END => Datagram::End,
                Some(message) if open_requests::refuses_flow(&message) => Datagram::RefusedFlow(len),
                Some(_) => classify(len),
            })
        });
        received.map(|len| buffer[..len].to_vec())
    }
}

/// A dump of all datapaths; an empty one is one message.
fn dump() -> Vec<u8> {
    let header = NetlinkHeader { kind: Family::Datapath.id(), flags: REQUEST | DUMP, seq: 1, port_id: 0 };
    message::encode_datapath(header, (3, 2), 0, |_| {}).expect("short")
}

#[test]
fn nothing_is_there_only_when_nothing_comes() {
    let rig = Rig::new();
    let program = Program::new(&rig);
    assert_eq!(program.receive(), Err(Errno::AGAIN), "nothing was asked");
    for _ in 0..100 {
        program.send(&dump()).expect("it takes it");
        let answer = program.receive().expect("it is waited for, whatever the flags say");
        assert!(Messages::new(&answer).next().is_some_and(|message| message.is_done()));
    }
    // A hundred unsolicited ENDs are discarded.
    assert_eq!(program.receive(), Err(Errno::AGAIN));
    assert_eq!(program.socket.open().len(), 0);
}

/// OVS asks once where a port's device is, at the moment when it moves.
#[test]
fn a_port_is_asked_about_again_while_the_answer_is_outdated() {
    let rig = Rig::new();
    let program = Program::new(&rig);
    let request = crate::moved::tests::request(0);
    program.socket.remember(&request);
    program.send(&request).expect("it takes it");
    let mut answers = 0;
    let received = program.receive_as(|len| {
        answers += 1;
        if answers < 4 { Datagram::Outdated(len, 80_001) } else { Datagram::Answer(len) }
    });
    assert!(received.is_ok());
    assert_eq!(answers, 4);
    assert_eq!(program.receive(), Err(Errno::AGAIN), "one answer was due");
    assert_eq!(program.socket.open().len(), 0);
}

#[test]
fn an_outdated_answer_is_better_than_none() {
    let rig = Rig::new();
    let program = Program::new(&rig);
    let request = crate::moved::tests::request(0);
    program.socket.remember(&request);
    program.send(&request).expect("it takes it");
    assert!(program.receive_as(|len| Datagram::Outdated(len, 80_002)).is_ok(), "after some seconds");
    program.socket.remember(&dump());
    program.send(&dump()).expect("it takes it");
    assert!(program.receive_as(|len| Datagram::Outdated(len, 80_003)).is_ok(), "it can be no port's");
}

#[test]
fn another_server_process_is_the_same_to_the_program() {
    let mut rig = Rig::new();
    let program = Program::new(&rig);
    let port_id = program.socket.port_id();
    rig.restart_after(|| ());
    program.send(&dump()).expect("the new one takes it");
    assert!(program.receive().is_ok());
    assert_eq!(program.socket.port_id(), port_id);
}

#[test]
fn what_may_have_been_lost_is_told_as_netlink_tells_it() {
    let mut rig = Rig::new();
    let program = Program::new(&rig);
    let group = Family::Vport.group().expect("it has one");
    program.socket.set_option(ADD_MEMBERSHIP, group).expect("a group");
    program.socket.set_option(EXT_ACK, 1).expect("an option");
    rig.restart_after(|| ());
    assert_eq!(program.receive(), Err(Errno::NOBUFS), "notifications");
    assert_eq!(program.receive(), Err(Errno::AGAIN), "once");
    assert_eq!(*program.socket.groups.lock().expect("no thread panics"), [group]);
}

/// OVS reads a dump only up to its last answer; the next request was executed once and must not be executed again.
#[test]
fn an_end_that_was_not_read_is_no_loss() {
    let mut rig = Rig::new();
    let program = Program::new(&rig);
    program.send(&dump()).expect("it takes it");
    assert!(program.receive().is_ok());
    assert_eq!(program.socket.open().len(), 1, "the END is there still");
    rig.restart_after(|| ());
    program.send(&dump()).expect("the new one takes it");
    assert!(program.receive().is_ok(), "it was told of a loss");
}

/// OVS warns about lost notifications, and asks for all ports.
#[test]
fn members_of_a_group_hear_what_became_of_ports_meanwhile() {
    let mut rig = Rig::new();
    let program = Program::new(&rig);
    let group = Family::Vport.group().expect("it has one");
    program.socket.set_option(ADD_MEMBERSHIP, group).expect("a group");
    let (mut records, _) = rig.end();
    let port = |number: u32, name: &str| Port {
        number,
        name: name.to_owned(),
        kind: VportKind::Netdev,
        options: None,
        upcall_port_ids: vec![0],
    };
    let ports = [(0, port(0, "ovs-system")), (1, port(1, "p1"))];
    let record = DatapathRecord { ports: ports.into(), ..DatapathRecord::named("ovs-system") };
    records.insert(DatapathId(7), record);
    let (mut server, mut datapath) = (Server::new(), MemoryDatapath::new());
    server.restore(records, &mut datapath);
    server.port_lost("p1", &mut datapath);
    rig.start(server, datapath, Vec::new());
    let told = loop {
        match program.receive() {
            Err(Errno::AGAIN) => std::thread::sleep(Duration::from_millis(1)),
            told => break told.expect("a notification, and no error"),
        }
    };
    let message = Messages::new(&told).next().expect("a message");
    assert_eq!(message.generic().expect("of a family").command, 2, "OVS_VPORT_CMD_DEL");
    assert_eq!(program.receive(), Err(Errno::AGAIN), "once");
}

#[test]
fn a_program_that_asks_waits_for_the_next_server_process() {
    let mut rig = Rig::new();
    let program = Program::new(&rig);
    std::thread::scope(|scope| {
        let (asks, asked) = std::sync::mpsc::channel();
        let program = &program;
        let caller = scope.spawn(move || {
            asked.recv().expect("the server is gone");
            program.send(&dump()).and_then(|_| program.receive())
        });
        rig.restart_after(|| {
            asks.send(()).expect("somebody waits");
            std::thread::sleep(Duration::from_millis(50));
        });
        assert!(caller.join().expect("it does not panic").is_ok());
    });
}

#[test]
fn without_a_server_there_is_no_connection() {
    let rig = Rig::new();
    let control_socket = ControlSocket { path: rig.socket().with_extension("none"), wait: Duration::ZERO };
    let request = ConnectionRequest { protocol: 16, port_id: 0, groups: Vec::new() };
    assert_eq!(connect::connect(&control_socket, &request).map(drop), Err(Errno::CONNREFUSED));
}

/// A request to install a flow in datapath 7.
fn flow(number: u32) -> Vec<u8> {
    let flow = FlowMessage {
        datapath: 7,
        ufid: Some(Ufid(u128::from(number).to_ne_bytes())),
        key: Some(FlowKey { in_port: Some(number), ether_type: Some(0x9999), ..FlowKey::default() }),
        actions: Some(Vec::new()),
        ..FlowMessage::default()
    };
    DpifRequest::FlowNew(flow).encode(number, 7).expect("short")
}

/// A request to send a packet.
fn packet() -> Vec<u8> {
    let packet = PacketMessage {
        datapath: 7,
        packet: vec![0; 60],
        actions: Some(Vec::new()),
        ..PacketMessage::default()
    };
    DpifRequest::Execute(Box::new(packet)).encode(9, 7).expect("short")
}

fn tell(far: &OwnedFd, datagram: &[u8]) {
    rustix::net::send(far, datagram, SendFlags::NOSIGNAL).expect("room");
}

#[test]
fn a_thread_that_answers_upcalls_does_not_wait_for_the_switch() {
    let rig = Rig::new();
    let (program, far) = Program::with_a_server_by_hand(&rig);
    for number in 0..UNWAITED_MAX {
        program.answer(&flow(number as u32)).expect("it takes it");
        assert_eq!(program.receive(), Err(Errno::AGAIN), "nothing is refused so far");
    }
    program.answer(&flow(99)).expect("it takes it");
    assert!(program.socket.is_waited_for(), "the switch is far behind");
    tell(&far, &end());
    assert_eq!(program.receive(), Err(Errno::AGAIN));
    assert_eq!(program.socket.open().len(), UNWAITED_MAX);
    // Another request is answered after these.
    program.send(&dump()).expect("it takes it");
    assert!(program.socket.is_waited_for());
    (0..UNWAITED_MAX).for_each(|_| tell(&far, &end()));
    tell(&far, &dump());
    assert_eq!(program.receive(), Ok(dump()));
    tell(&far, &end());
    assert_eq!(program.receive(), Err(Errno::AGAIN));
    assert_eq!(program.socket.open().len(), 0);
}

#[test]
fn other_threads_and_other_requests_wait() {
    let copy = |datagram: &[u8]| open_requests::unwaited_copy([datagram].into_iter());
    assert_eq!(copy(&flow(1)), None, "it may try out a feature");
    open_requests::note_upcall(Family::Packet.id());
    assert_eq!(copy(&flow(1)), Some(flow(1)));
    assert_eq!(copy(&dump()), None);
    let mut acknowledged = flow(1);
    acknowledged[6] |= 4;
    assert_eq!(copy(&acknowledged), None);
    assert_eq!(copy(&[flow(1), dump()].concat()), None, "it has another one");
    let pieces = [flow(1), packet(), flow(2)];
    let flows = open_requests::unwaited_copy(pieces.iter().map(Vec::as_slice));
    assert_eq!(flows, Some([flow(1), flow(2)].concat()), "a packet that was sent is not sent again");
    assert_eq!(copy(&packet()), Some(Vec::new()));
    let many = vec![flow(1); 100];
    assert_eq!(
        open_requests::unwaited_copy(many.iter().map(Vec::as_slice)),
        None,
        "they are too long to keep"
    );
}

#[test]
fn after_a_refused_flow_answers_are_waited_for() {
    let rig = Rig::new();
    let (program, far) = Program::with_a_server_by_hand(&rig);
    program.answer(&flow(1)).expect("it takes it");
    let header = Messages::new(&flow(1)).next().expect("a request").header;
    let refusal = message::acknowledgement(header, 0, Err(Refusal::from(Refused::ENOSPC)), false);
    tell(&far, &refusal);
    tell(&far, &end());
    assert_eq!(program.receive(), Ok(refusal), "the program is told");
    assert_eq!(program.receive(), Err(Errno::AGAIN));
    program.answer(&flow(2)).expect("it takes it");
    assert!(program.socket.is_waited_for());
}

#[test]
fn the_next_server_process_gets_what_the_last_one_has_not_done() {
    let mut rig = Rig::new();
    let (mut records, mut datapath) = rig.end();
    records.insert(DatapathId(7), DatapathRecord::named("dp7"));
    let mut server = Server::new();
    server.restore(records, &mut datapath);
    rig.start(server, datapath, Vec::new());
    let (program, far) = Program::with_a_server_by_hand(&rig);
    for number in 1..=3 {
        program.answer(&flow(number)).expect("it takes it");
    }
    // It had read only one of them: the connection ends with an error.
    rustix::net::recv(&far, [0; 4096].as_mut_slice(), RecvFlags::empty()).expect("a request");
    tell(&far, &end());
    drop(far);
    assert_eq!(program.receive(), Err(Errno::AGAIN), "the program misses nothing");
    program.send(&dump()).expect("it takes it");
    let answer = program.receive().expect("behind the flows");
    assert!(
        Messages::new(&answer).next().is_some_and(|message| message.error().is_none()),
        "none is refused"
    );
    let (_, datapath) = rig.end();
    assert_eq!(datapath.flow_count(DatapathId(7)), 2);
}
