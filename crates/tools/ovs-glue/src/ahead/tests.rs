use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

use lasthop_dpif::family::{FlowMessage, PacketMessage};
use lasthop_dpif::message;
use lasthop_dpif::private::{HELLO, RUNS_AHEAD, end, number};
use lasthop_dpif::talk::DpifRequest;
use lasthop_dpif::{Errno as Refused, Refusal};
use lasthop_flow::{FlowKey, Ufid};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::*;
use crate::switch_socket::SwitchSocket;

/// The kind of a connection that a switch by hand expects.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expected {
    Program,
    Ahead,
    /// One whose switch does not know of such connections.
    AheadOfOld,
}

/// A switch whose answers the test sends. It greets the expected connections by itself.
struct HandSwitch {
    directory: tempfile::TempDir,
    greeted: Receiver<OwnedFd>,
    greeter: JoinHandle<()>,
}

impl HandSwitch {
    fn expecting(expected: &[Expected]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let kind = SocketType::SEQPACKET;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
        let listener = listener.expect("a socket");
        let address = SocketAddrUnix::new(directory.path().join("s")).expect("short");
        rustix::net::bind(&listener, &address).expect("free");
        rustix::net::listen(&listener, 16).expect("bound");
        let (greets, greeted) = channel();
        let expected = expected.to_vec();
        let greeter = std::thread::spawn(move || {
            for expected in expected {
                let far = rustix::net::accept_with(&listener, SocketFlags::CLOEXEC).expect("a connection");
                hear(&far);
                tell(&far, &number(HELLO, 0, 7));
                if expected != Expected::Program {
                    hear(&far);
                }
                if expected == Expected::Ahead {
                    tell(&far, &number(RUNS_AHEAD, 0, 0));
                }
                if expected != Expected::Program {
                    tell(&far, &end());
                }
                greets.send(far).expect("a test");
            }
        });
        Self { directory, greeted, greeter }
    }

    fn control_socket(&self) -> ControlSocket {
        ControlSocket { path: self.directory.path().join("s"), wait: Duration::from_secs(20) }
    }

    fn ahead(&self) -> Arc<Ahead> {
        Arc::new(Ahead::new(self.control_socket(), AHEAD_MAX))
    }

    /// The far end of the next connection.
    fn far(&self) -> OwnedFd {
        self.greeted.recv().expect("a connection")
    }

    /// All expected connections have come.
    fn end(self) {
        self.greeter.join().expect("no panic");
    }
}

fn tell(far: &OwnedFd, datagram: &[u8]) {
    rustix::net::send(far, datagram, SendFlags::NOSIGNAL).expect("room");
}

/// The next datagram.
fn hear(far: &OwnedFd) -> Vec<u8> {
    let mut buffer = vec![0; 65_536];
    let (len, _) = rustix::net::recv(far, buffer.as_mut_slice(), RecvFlags::empty()).expect("a datagram");
    buffer.truncate(len);
    buffer
}

fn is_readable(far: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(far.as_fd(), PollFlags::IN)], Some(&now)).expect("polled") > 0
}

fn flow_message(number: u32) -> FlowMessage {
    FlowMessage {
        datapath: 7,
        ufid: Some(Ufid(u128::from(number).to_ne_bytes())),
        key: Some(FlowKey { in_port: Some(number), ether_type: Some(0x9999), ..FlowKey::default() }),
        actions: Some(Vec::new()),
        ..FlowMessage::default()
    }
}

/// A request to install a flow.
fn flow(number: u32) -> Vec<u8> {
    DpifRequest::FlowNew(flow_message(number)).encode(number, 7).expect("short")
}

/// A request to remove it.
fn removal(number: u32) -> Vec<u8> {
    let mut request = flow(number);
    request[16] = 2;
    request
}

/// A request to send a packet.
fn packet() -> Vec<u8> {
    let (packet, actions) = (vec![0; 60], Some(Vec::new()));
    let packet = PacketMessage { datapath: 7, packet, actions, ..PacketMessage::default() };
    DpifRequest::Execute(Box::new(packet)).encode(9, 7).expect("short")
}

fn refusal(request: &[u8], errno: Refused) -> Vec<u8> {
    let header = Messages::new(request).next().expect("a request").header;
    message::acknowledgement(header, 0, Err(Refusal::from(errno)), false)
}

/// Sends as a thread that has received an upcall.
fn answer(ahead: &Ahead, pieces: &[Vec<u8>]) -> Option<usize> {
    note_received(Family::Packet.id());
    ahead.send(pieces.iter().map(Vec::as_slice))
}

/// A socket of the program, and its far end.
fn program(switch: &HandSwitch, ahead: &Arc<Ahead>) -> (OwnedFd, SwitchSocket, OwnedFd) {
    let request = ConnectionRequest { protocol: GENERIC, ..ConnectionRequest::default() };
    let connected = connect::connect(&switch.control_socket(), &request).expect("a switch");
    let (fd, numbers) = (connected.socket.as_raw_fd(), (GENERIC, 7));
    let socket = SwitchSocket::new(fd, switch.control_socket(), numbers, Arc::clone(ahead));
    (connected.socket, socket, switch.far())
}

/// A revalidator may know of a flow as soon as the call of the handler has returned.
#[test]
fn a_request_of_another_thread_does_not_overtake_a_flow() {
    let switch = HandSwitch::expecting(&[Expected::Program, Expected::Ahead]);
    let ahead = switch.ahead();
    let (fd, socket, far) = program(&switch, &ahead);
    assert_eq!(answer(&ahead, &[flow(1)]), Some(flow(1).len()), "it does not wait");
    let far_ahead = switch.far();
    std::thread::scope(|scope| {
        let revalidator = scope.spawn(|| {
            let send = || rustix::net::send(&fd, &removal(1), SendFlags::NOSIGNAL);
            socket.send(send).expect("it is sent");
        });
        // The switch is slow with the flow: it begins when the other request waits for it, or is there.
        while ahead.waiting.load(Ordering::SeqCst) == 0 {
            assert!(!is_readable(&far), "the removal is there before the flow is done");
            std::thread::yield_now();
        }
        assert_eq!(hear(&far_ahead), flow(1));
        assert!(!is_readable(&far), "the flow is not done");
        tell(&far_ahead, &end());
        revalidator.join().expect("no panic");
        assert_eq!(hear(&far), removal(1));
    });
    assert_eq!(ahead.open_count(), 0);
    switch.end();
}

#[test]
fn a_thread_that_answers_upcalls_reads_that_no_answer_comes() {
    let switch = HandSwitch::expecting(&[Expected::Program, Expected::Ahead]);
    let ahead = switch.ahead();
    let (fd, socket, _far) = program(&switch, &ahead);
    // As after a switch process that stood still: no END of this one comes.
    let send = || rustix::net::send(&fd, &removal(9), SendFlags::NOSIGNAL);
    socket.send(send).expect("it is sent");
    note_received(Family::Packet.id());
    assert!(socket.send_ahead([flow(1).as_slice(), &packet()].into_iter()).is_some());
    let read = socket.receive(false, || panic!("it asks the kernel"));
    assert_eq!(read, Err(Errno::AGAIN), "the program takes both as done");
    assert_eq!(hear(&switch.far()), [flow(1), packet()].concat());
    switch.end();
}

#[test]
fn a_thread_is_ahead_by_a_bounded_number_of_datagrams() {
    let switch = HandSwitch::expecting(&[Expected::Ahead]);
    let ahead = switch.ahead();
    for number in 0..AHEAD_MAX as u32 {
        assert!(answer(&ahead, &[flow(number)]).is_some());
    }
    assert_eq!(ahead.open_count(), AHEAD_MAX);
    let far = switch.far();
    tell(&far, &end());
    assert!(answer(&ahead, &[flow(99)]).is_some());
    assert_eq!(ahead.open_count(), AHEAD_MAX, "it waited for the END of the first one");
    (0..AHEAD_MAX).for_each(|_| tell(&far, &end()));
    assert_eq!(ahead.settle(), Ok(()));
    assert_eq!(ahead.open_count(), 0);
    switch.end();
}

#[test]
fn other_threads_and_other_requests_wait() {
    let switch = HandSwitch::expecting(&[]);
    let ahead = switch.ahead();
    assert_eq!(ahead.send([flow(1).as_slice()].into_iter()), None, "it may try out a feature");
    let runs = |pieces: &[Vec<u8>]| may_run_ahead(pieces.iter().map(Vec::as_slice));
    assert!(runs(&[flow(1)]) && runs(&[packet()]) && runs(&[flow(1), packet(), flow(2), packet()]));
    assert!(!runs(&[]) && !runs(&[vec![0; 20]]) && !runs(&[removal(1)]) && !runs(&[flow(1), removal(1)]));
    for flag in ANSWERED_FLAGS.to_ne_bytes().into_iter().filter(|byte| *byte != 0) {
        let mut answered = flow(1);
        answered[6] |= flag;
        assert!(!runs(&[answered]));
    }
    assert!(!runs(&[[flow(1), flow(2)].concat()]), "OVS sends no such piece");
    for message in
        [FlowMessage { ufid: None, ..flow_message(1) }, FlowMessage { is_probe: true, ..flow_message(1) }]
    {
        assert!(!runs(&[DpifRequest::FlowNew(message).encode(1, 7).expect("short")]));
    }
    assert!(!runs(&vec![flow(1); 100]), "they are too long to keep");
    switch.end();
}

#[test]
fn with_the_variable_of_zero_or_an_older_switch_all_threads_wait() {
    let switch = HandSwitch::expecting(&[Expected::AheadOfOld]);
    assert_eq!(answer(&Ahead::new(switch.control_socket(), 0), &[flow(1)]), None);
    let ahead = switch.ahead();
    assert_eq!(answer(&ahead, &[flow(1)]), None);
    assert_eq!(answer(&ahead, &[flow(1)]), None, "and it is not asked each time");
    assert_eq!(ahead.settle(), Ok(()));
    switch.end();
}

#[test]
fn after_an_unusual_refusal_answers_are_waited_for() {
    for (errno, request, is_usual) in [
        (Refused::EEXIST, flow(1), true),
        (Refused::ENOSPC, flow(1), false),
        (Refused::EEXIST, packet(), false),
    ] {
        let switch = HandSwitch::expecting(&[Expected::Ahead]);
        let ahead = switch.ahead();
        assert!(answer(&ahead, std::slice::from_ref(&request)).is_some());
        let far = switch.far();
        tell(&far, &refusal(&request, errno));
        tell(&far, &end());
        assert_eq!(ahead.settle(), Ok(()));
        assert_eq!(answer(&ahead, &[flow(2)]).is_some(), is_usual, "{errno}");
        switch.end();
    }
}

#[test]
fn after_many_usual_refusals_answers_are_waited_for() {
    let switch = HandSwitch::expecting(&[]);
    let (ahead, now) = (switch.ahead(), Instant::now());
    let mut channel = ahead.channel();
    for part in 0..3 {
        for _ in 0..REFUSED_MAX {
            channel.refused(EXISTS, true, now + part * REFUSED_TIME);
        }
        assert_eq!(channel.careful_until, None);
    }
    channel.refused(EXISTS, true, now + 2 * REFUSED_TIME);
    assert!(channel.careful_until.is_some());
}

#[test]
fn the_next_switch_process_gets_the_flows_that_were_not_confirmed_and_no_packet() {
    let switch = HandSwitch::expecting(&[Expected::Ahead, Expected::Ahead]);
    let ahead = switch.ahead();
    for number in 1..=3 {
        assert!(answer(&ahead, &[flow(number), packet()]).is_some());
    }
    assert!(answer(&ahead, &[packet()]).is_some());
    // It has read one: the connection ends with an error, before the END.
    let far = switch.far();
    hear(&far);
    tell(&far, &end());
    drop(far);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| ahead.settle());
        let far = switch.far();
        assert_eq!((hear(&far), hear(&far)), (flow(2), flow(3)));
        assert!(!is_readable(&far), "a packet that may have been sent is not sent again");
        tell(&far, &end());
        assert!(!waits.is_finished(), "one is not done");
        tell(&far, &end());
        assert_eq!(waits.join().expect("no panic"), Ok(()));
        // The connection stays.
        assert!(answer(&ahead, &[flow(4)]).is_some());
        assert_eq!(hear(&far), flow(4));
    });
    switch.end();
}

#[test]
fn after_an_outage_these_flows_come_before_those_of_a_thread_that_comes_first() {
    let switch = HandSwitch::expecting(&[Expected::Ahead]);
    let control_socket = ControlSocket { wait: Duration::from_millis(50), ..switch.control_socket() };
    let ahead = Ahead::new(control_socket, AHEAD_MAX);
    assert!(answer(&ahead, &[flow(1), packet()]).is_some());
    drop(switch.far());
    switch.end();
    assert_eq!(ahead.settle(), Err(Errno::CONNREFUSED));
    assert_eq!(answer(&ahead, &[flow(2)]), None, "it waits on a connection of its own");
    let switch = HandSwitch::expecting(&[Expected::Ahead]);
    {
        let mut channel = ahead.channel();
        (channel.control_socket, channel.careful_until) = (switch.control_socket(), None);
    }
    assert!(answer(&ahead, &[flow(3)]).is_some());
    let far = switch.far();
    assert_eq!((hear(&far), hear(&far)), (flow(1), flow(3)));
    (0..2).for_each(|_| tell(&far, &end()));
    assert_eq!(ahead.settle(), Ok(()));
    assert!(!is_readable(&far));
    switch.end();
}

#[test]
fn an_older_switch_process_gets_these_flows_and_threads_wait_for_it() {
    let switch = HandSwitch::expecting(&[Expected::Ahead, Expected::AheadOfOld, Expected::Ahead]);
    let ahead = switch.ahead();
    assert!(answer(&ahead, &[flow(1), packet()]).is_some());
    drop(switch.far());
    assert_eq!(answer(&ahead, &[flow(2)]), None, "it would not hear of a refusal");
    let far = switch.far();
    assert_eq!(hear(&far), flow(1));
    tell(&far, &end());
    assert_eq!(ahead.settle(), Ok(()));
    assert_eq!(answer(&ahead, &[flow(3)]), None);
    ahead.channel().careful_until = None;
    assert!(answer(&ahead, &[flow(4)]).is_some(), "a newer one is found later");
    assert_eq!(hear(&switch.far()), flow(4));
    switch.end();
}

#[test]
fn without_a_switch_requests_that_wait_fail() {
    let switch = HandSwitch::expecting(&[Expected::Ahead]);
    let control_socket = ControlSocket { wait: Duration::from_millis(50), ..switch.control_socket() };
    let ahead = Ahead::new(control_socket, AHEAD_MAX);
    assert!(answer(&ahead, &[flow(1)]).is_some());
    let far = switch.far();
    assert_eq!(ahead.settle(), Err(Errno::TIMEDOUT), "it hangs");
    assert_eq!(ahead.open_count(), 1, "it may yet do it");
    drop(far);
    switch.end();
    assert_eq!(ahead.settle(), Err(Errno::CONNREFUSED), "it is gone");
    assert_eq!(answer(&ahead, &[flow(2)]), None);
}
