use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use lasthop_dpif::datapath::{DatapathId, Port};
use lasthop_dpif::family::VportKind;
use lasthop_dpif::memory::MemoryDatapath;
use lasthop_dpif::message::{self, Messages, NetlinkHeader};
use lasthop_dpif::private::END;
use lasthop_dpif::server::{DatapathRecord, Family, Server};
use rustix::net::{RecvFlags, SendFlags};

use super::rig::Rig;
use super::*;
use crate::ahead::AHEAD_MAX;

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
        let request = ConnectionRequest { protocol: 16, ..ConnectionRequest::default() };
        let connected = connect::connect(&control_socket, &request).expect("a server");
        let ahead = Arc::new(Ahead::new(control_socket.clone(), AHEAD_MAX));
        let numbers = (16, connected.port_id);
        let socket = SwitchSocket::new(connected.socket.as_raw_fd(), control_socket, numbers, ahead);
        Self { fd: connected.socket, socket }
    }

    fn send(&self, datagram: &[u8]) -> Result<usize, Errno> {
        self.socket.send(|| rustix::net::send(&self.fd, datagram, SendFlags::NOSIGNAL))
    }

    /// As `recvmsg` with MSG_DONTWAIT.
    fn receive(&self) -> Result<Vec<u8>, Errno> {
        self.receive_as(Datagram::Answer)
    }

    /// Receives, and classifies each answer by `classify`.
    fn receive_as(&self, mut classify: impl FnMut(usize) -> Datagram) -> Result<Vec<u8>, Errno> {
        let mut buffer = vec![0; 65_536];
        let received = self.socket.receive(false, || {
            let (len, _) = rustix::net::recv(&self.fd, buffer.as_mut_slice(), RecvFlags::DONTWAIT)?;
            Ok(match Messages::new(&buffer[..len]).next() {
                None => Datagram::HungUp,
                Some(message) if message.header.kind == END => Datagram::End,
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
    assert_eq!(program.socket.missing.load(Ordering::Relaxed), 0);
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
    assert_eq!(program.socket.missing.load(Ordering::Relaxed), 0);
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

/// OVS would warn, and know nothing of its flows in that round.
#[test]
fn a_dump_that_was_not_answered_is_asked_of_the_next_process() {
    for has_unread_end in [false, true] {
        let mut rig = Rig::new();
        let program = Program::new(&rig);
        if has_unread_end {
            program.send(&dump()).expect("it takes it");
            program.receive().expect("an answer");
        }
        rig.stop_serving();
        program.socket.remember(&dump());
        program.send(&dump()).expect("it is in the connection's buffer");
        rig.restart_after(|| ());
        let answer = program.receive().expect("the new process's answer");
        assert!(Messages::new(&answer).next().is_some_and(|message| message.is_done()));
        assert_eq!(program.receive(), Err(Errno::AGAIN));
        assert_eq!(program.socket.missing.load(Ordering::Relaxed), 0);
    }
}

/// OVS reads a dump only up to its last answer; the next request was executed once and must not be executed again.
#[test]
fn an_end_that_was_not_read_is_no_loss() {
    let mut rig = Rig::new();
    let program = Program::new(&rig);
    program.send(&dump()).expect("it takes it");
    assert!(program.receive().is_ok());
    assert_eq!(program.socket.missing.load(Ordering::Relaxed), 1, "the END is there still");
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
    let request = ConnectionRequest { protocol: 16, ..ConnectionRequest::default() };
    assert_eq!(connect::connect(&control_socket, &request).map(drop), Err(Errno::CONNREFUSED));
}
