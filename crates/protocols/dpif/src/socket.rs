//! The server's sockets: connected SEQPACKET sockets, one for each client, in one `epoll` set that its owner waits for.
//!
//! Nothing here blocks. Output that does not fit a socket waits for room; a client that does not read is not read from
//! either.
//!
//! ```text
//!   epoll ── event ──────> [ clients waiting for a turn, each once ] ── a visit: some messages ──────────> anything left? ── no ──> epoll
//!                              ^                                                                      │ yes
//!                              └──────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A turn ends after a number of messages of all clients together, or after a time. A client that sends without end, in
//! datagrams of any length, delays others by its visits, and other work of the thread by a turn.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use lasthop_foreign::{ForeignFd, Shortage, discard};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno as SystemErrno;
use rustix::net::{RecvFlags, SendFlags};

use crate::bounds::{
    DATAGRAM_BYTES_MAX, DATAGRAMS_PER_VISIT, EVENTS_PER_TURN, MESSAGES_PER_TURN, MESSAGES_PER_VISIT,
    PATIENT_MS_MAX, PEERS_MAX, TURN_MS_MAX,
};
use crate::datapath::Datapath;
use crate::server::{DatapathUpcall, PeerId, Server, Upcalled};
use crate::sys::peer_user;

/// Which users may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Root, the user of the switch, and users with these numbers.
    Users(Vec<u32>),
    /// Any, since the process that passed the connection has checked it.
    Asked,
}

impl Default for Access {
    fn default() -> Self {
        Self::Users(Vec::new())
    }
}

impl Access {
    fn check(&self, socket: &ForeignFd) -> Result<(), Closed> {
        let Self::Users(users) = self else { return Ok(()) };
        let user = peer_user(socket.as_fd())?;
        let own = rustix::process::geteuid().as_raw();
        if user == 0 || user == own || users.contains(&user) { Ok(()) } else { Err(Closed::User(user)) }
    }
}

/// Why a connection is refused or closed.
#[derive(Debug, thiserror::Error)]
pub enum Closed {
    /// A user without access.
    #[error("user {0} may not control the switch; run the client as root or as the switch's user")]
    User(u32),
    /// Too many connections.
    #[error("there are {PEERS_MAX} control connections already; is a client leaking them?")]
    TooMany,
    /// The client broke the protocol.
    #[error(transparent)]
    DisconnectReason(#[from] crate::server::DisconnectReason),
    /// A datagram that is longer than any request.
    #[error("a control client sent a datagram of {0} bytes; at most {DATAGRAM_BYTES_MAX} are taken")]
    TooLong(usize),
    /// File descriptors, which no request has.
    #[error("a control client sent file descriptors, which no request has")]
    Descriptors,
    /// The client hung up.
    #[error("the control client closed the connection")]
    HungUp,
    /// A system call failed.
    #[error("a control connection failed: {0}")]
    Io(#[from] io::Error),
}

impl From<SystemErrno> for Closed {
    fn from(errno: SystemErrno) -> Self {
        match errno {
            SystemErrno::PIPE | SystemErrno::CONNRESET => Closed::HungUp,
            _ => Closed::Io(errno.into()),
        }
    }
}

#[derive(Debug)]
struct Connection {
    socket: ForeignFd,
    interest: EventFlags,
    /// Whether the socket is full; it is written when it has room.
    is_full: bool,
    /// State after a send that failed for lack of memory.
    shortage: Shortage,
    /// When output that waits for later output is sent at latest.
    patient_until: Option<Instant>,
    /// Whether the other end is closed.
    has_hung_up: bool,
    /// Whether it waits for its turn.
    is_queued: bool,
}

impl Drop for Connection {
    /// Shuts the connection down, so that the client sees its end at once: the socket itself is closed after the
    /// descriptors that it sent, which may take long.
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

/// The server and its clients' sockets.
#[derive(Debug)]
pub struct Connections {
    server: Server,
    epoll: OwnedFd,
    connections: BTreeMap<PeerId, Connection>,
    /// Clients with input or unfinished requests.
    turns: VecDeque<PeerId>,
    last: u64,
    access: Access,
    buffer: Vec<u8>,
    /// The system's call, except in tests.
    send: Send,
    now: fn() -> Instant,
}

type Send = fn(BorrowedFd<'_>, &[u8]) -> rustix::io::Result<usize>;

fn send(socket: BorrowedFd<'_>, datagram: &[u8]) -> rustix::io::Result<usize> {
    rustix::net::send(socket, datagram, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

impl Connections {
    /// Makes an empty set of connections.
    ///
    /// # Errors
    /// If there are no file descriptors left.
    pub fn new(server: Server, access: Access) -> io::Result<Self> {
        Ok(Self {
            server,
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            connections: BTreeMap::new(),
            turns: VecDeque::new(),
            last: 0,
            access,
            buffer: vec![0; DATAGRAM_BYTES_MAX],
            send,
            now: Instant::now,
        })
    }

    /// The descriptor to wait for: readable when [`Connections::turn`] has work.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// The server.
    #[must_use]
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// The server, for a restore.
    pub fn server_mut(&mut self) -> &mut Server {
        &mut self.server
    }

    /// Adds a client, whose socket becomes non-blocking.
    ///
    /// # Errors
    /// If the client has no access, or cannot be served.
    pub fn add(&mut self, socket: ForeignFd) -> Result<PeerId, Closed> {
        self.access.check(&socket)?;
        if self.connections.len() >= PEERS_MAX {
            return Err(Closed::TooMany);
        }
        rustix::io::ioctl_fionbio(&socket, true)?;
        self.last += 1;
        let (id, interest) = (PeerId(self.last), EventFlags::IN);
        epoll::add(&self.epoll, &socket, EventData::new_u64(id.0), interest)?;
        let (is_full, shortage, patient_until, has_hung_up, is_queued) = Default::default();
        let connection =
            Connection { socket, interest, is_full, shortage, patient_until, has_hung_up, is_queued };
        self.connections.insert(id, connection);
        Ok(id)
    }

    /// Serves clients with input or with room again: some of them, for a bounded time and number of messages. Returns the
    /// connections that ended, and why. If there is more work ([`Connections::has_more`]), call it again soon.
    ///
    /// # Errors
    /// If epoll fails.
    pub fn turn(&mut self, datapath: &mut dyn Datapath) -> io::Result<Vec<(PeerId, Closed)>> {
        self.listen()?;
        self.end_waits(Instant::now());
        let (mut closed, mut left) = (Vec::new(), MESSAGES_PER_TURN);
        let (by, mut is_time_over) = ((self.now)() + Duration::from_millis(TURN_MS_MAX), false);
        // An unfinished client goes to the end of the queue, and has no second turn in this call.
        for _ in 0..self.turns.len() {
            let Some(id) = self.turns.pop_front_if(|_| left > 0 && !is_time_over) else { break };
            let granted = left.min(MESSAGES_PER_VISIT);
            self.server.grant(granted);
            if let Err(why) = self.visit(id, datapath) {
                self.remove(id);
                closed.push((id, why));
            }
            // A visit without a message counts as one.
            left = left.saturating_sub((granted - self.server.granted()).max(1));
            is_time_over = (self.now)() >= by;
        }
        self.server.report_readers(datapath);
        Ok(closed)
    }

    /// Whether there are requests left for which there will be no event.
    #[must_use]
    pub fn has_more(&self) -> bool {
        !self.turns.is_empty()
    }

    /// When [`Connections::turn`] has work without an event: the system had no memory for a datagram, or output waits
    /// for later output.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        let dues = |connection: &Connection| [connection.shortage.due(), connection.patient_until];
        self.connections.values().flat_map(dues).flatten().min()
    }

    /// Queues clients for which there may be memory again, and those whose output has waited long enough.
    fn end_waits(&mut self, now: Instant) {
        let over = self.connections.iter_mut().filter_map(|(id, connection)| {
            let is_over = connection.shortage.take_over(now);
            connection.is_full &= !is_over;
            let has_waited = connection.patient_until.is_some_and(|until| until <= now);
            (is_over || has_waited).then_some(*id)
        });
        let over: Vec<PeerId> = over.collect();
        over.into_iter().for_each(|id| self.queue(id));
    }

    /// Queues clients with input or with room again.
    fn listen(&mut self) -> io::Result<()> {
        let mut events =
            [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; EVENTS_PER_TURN];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = match epoll::wait(&self.epoll, &mut events, Some(&now)) {
            Err(SystemErrno::INTR) => 0,
            result => result?,
        };
        for event in events.iter().take(count) {
            let id = PeerId(event.data.u64());
            // The kernel's structure is not aligned.
            let flags = event.flags;
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.is_full &= connection.shortage.due().is_some();
                connection.has_hung_up |= flags.contains(EventFlags::HUP);
                self.queue(id);
            }
        }
        Ok(())
    }

    /// Queues a client for a turn, unless it is queued already.
    fn queue(&mut self, id: PeerId) {
        if let Some(connection) = self.connections.get_mut(&id)
            && !std::mem::replace(&mut connection.is_queued, true)
        {
            self.turns.push_back(id);
        }
    }

    /// Reports removed flows once workers have finished their visits, and continues requests for ports whose devices
    /// exist. Returns whether a client still waits.
    pub fn settle(&mut self, datapath: &mut dyn Datapath) -> bool {
        self.server.grant(MESSAGES_PER_VISIT);
        self.server.settle(Instant::now(), datapath);
        self.flush(datapath);
        self.server.is_settling()
    }

    /// Queues an upcall, or counts it as lost. Upcalls in batches are sent by [`Connections::send_batches`].
    pub fn upcall(&mut self, upcall: DatapathUpcall, datapath: &mut dyn Datapath) -> Upcalled {
        let upcalled = self.server.upcall(upcall);
        if upcalled == Upcalled::Queued {
            self.flush(datapath);
        }
        upcalled
    }

    /// Sends the upcalls that were put into batches.
    pub fn send_batches(&mut self, datapath: &mut dyn Datapath) {
        self.flush(datapath);
    }

    /// Removes a datapath; clients are notified.
    pub fn datapath_lost(&mut self, name: &str, datapath: &mut dyn Datapath) {
        self.server.datapath_lost(name, datapath);
        self.flush(datapath);
    }

    /// Removes a port without device or guest; clients are notified.
    pub fn port_lost(&mut self, name: &str, datapath: &mut dyn Datapath) {
        self.server.port_lost(name, datapath);
        self.flush(datapath);
    }

    /// Sends notifications, which no request of the client caused.
    fn flush(&mut self, datapath: &mut dyn Datapath) {
        loop {
            let told = self.server.take_told();
            if told.is_empty() {
                return;
            }
            // A client with room again may continue a request of which others are notified, too.
            for id in told {
                // The turn of an ended client handles its end.
                let _ = self.write(id, datapath).and_then(|()| self.watch(id));
            }
        }
    }

    fn remove(&mut self, id: PeerId) {
        self.server.disconnected(id);
        if let Some(connection) = self.connections.remove(&id) {
            let _ = epoll::delete(&self.epoll, &connection.socket);
        }
    }

    fn visit(&mut self, id: PeerId, datapath: &mut dyn Datapath) -> Result<(), Closed> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        connection.is_queued = false;
        let has_hung_up = connection.has_hung_up;
        self.server.advance(id, datapath);
        self.write(id, datapath)?;
        for _ in 0..DATAGRAMS_PER_VISIT {
            let may_read = self.server.granted() > 0 && self.server.wants_input(id);
            if !may_read || !self.read(id, datapath)? {
                break;
            }
            self.write(id, datapath)?;
        }
        self.flush(datapath);
        // Its requests are done, and it cannot read answers.
        if has_hung_up && !self.server.wants_input(id) && !self.server.has_work(id) {
            return Err(Closed::HungUp);
        }
        self.watch(id)
    }

    /// Reads one datagram; returns false if there is none.
    fn read(&mut self, id: PeerId, datapath: &mut dyn Datapath) -> Result<bool, Closed> {
        let Some(connection) = self.connections.get(&id) else { return Ok(false) };
        let (socket, buffer) = (&connection.socket, self.buffer.as_mut_slice());
        let len = match discard(socket.as_fd(), buffer, RecvFlags::TRUNC, socket.origin()) {
            Err(SystemErrno::AGAIN | SystemErrno::INTR) => return Ok(false),
            Ok((_, true)) => return Err(Closed::Descriptors),
            Ok((0, _)) => return Err(Closed::HungUp),
            result => result?.0,
        };
        let datagram = self.buffer.get(..len).ok_or(Closed::TooLong(len))?.to_vec();
        self.server.received(id, datagram, datapath)?;
        Ok(true)
    }

    /// Sends waiting datagrams while the socket takes them.
    fn write(&mut self, id: PeerId, datapath: &mut dyn Datapath) -> Result<(), Closed> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let until = connection.patient_until.take();
        if self.server.is_patient(id) {
            let now = Instant::now();
            let until = until.unwrap_or(now + Duration::from_millis(PATIENT_MS_MAX));
            if now < until {
                connection.patient_until = Some(until);
                return Ok(());
            }
        }
        while !connection.is_full
            && let Some(datagram) = self.server.output(id)
        {
            match (self.send)(connection.socket.as_fd(), datagram) {
                Err(SystemErrno::AGAIN) => connection.is_full = true,
                Err(SystemErrno::NOBUFS) => {
                    connection.is_full = true;
                    connection.shortage.hit(Instant::now());
                }
                Err(SystemErrno::INTR) => {}
                result => {
                    result?;
                    connection.shortage.end();
                    self.server.sent(id, datapath);
                }
            }
        }
        Ok(())
    }

    /// Registers for the next event: input if requests may be read, room if output waits; queues a turn if a request is
    /// not done.
    fn watch(&mut self, id: PeerId) -> Result<(), Closed> {
        if self.server.has_work(id) {
            self.queue(id);
        }
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let mut interest = EventFlags::empty();
        interest.set(EventFlags::IN, self.server.wants_input(id));
        // When memory is short, the socket looks writable all the time.
        let is_short = connection.shortage.due().is_some();
        let is_patient = connection.patient_until.is_some();
        interest.set(EventFlags::OUT, self.server.output(id).is_some() && !is_short && !is_patient);
        if interest != connection.interest {
            epoll::modify(&self.epoll, &connection.socket, EventData::new_u64(id.0), interest)?;
            connection.interest = interest;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;
    use crate::memory::MemoryDatapath;
    use crate::message::Messages;
    use crate::private::END;
    use crate::talk;

    fn is_readable(fd: BorrowedFd<'_>) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&now)).expect("polled") > 0
    }

    /// A server with one client, and the client's end.
    fn with_a_client() -> (MemoryDatapath, Connections, OwnedFd) {
        let mut connections = Connections::new(Server::new(), Access::Asked).expect("a set");
        let flags = SocketFlags::CLOEXEC;
        let (near, far) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair");
        connections.add(near.into()).expect("a client");
        (MemoryDatapath::new(), connections, far)
    }

    #[test]
    fn a_socket_without_memory_is_left_alone_for_a_while_and_then_tried_again() {
        let (mut datapath, mut connections, far) = with_a_client();
        connections.send = |_, _| Err(SystemErrno::NOBUFS);
        rustix::net::send(&far, &talk::hello(7), SendFlags::NOSIGNAL).expect("sent");
        assert!(connections.turn(&mut datapath).expect("a turn").is_empty());
        for _ in 0..20 {
            let due = connections.due().expect("another try");
            assert!(!connections.has_more() && !is_readable(connections.fd()), "nobody is called before");
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            assert!(connections.turn(&mut datapath).expect("a turn").is_empty());
        }
        connections.send = send;
        while let Some(due) = connections.due() {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            assert!(connections.turn(&mut datapath).expect("a turn").is_empty());
        }
        assert!(is_readable(far.as_fd()), "it is answered");
    }

    #[test]
    fn a_turn_that_takes_long_serves_the_other_clients_in_the_next_ones() {
        thread_local!(static NOW: Cell<Instant> = Cell::new(Instant::now()));
        let (mut datapath, mut connections, first) = with_a_client();
        // Each visit takes as long as a turn may.
        connections.now = || NOW.replace(NOW.get() + Duration::from_millis(TURN_MS_MAX));
        let (near, second) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("a pair");
        connections.add(near.into()).expect("a client");
        for client in [&first, &second] {
            rustix::net::send(client, &talk::hello(0), SendFlags::NOSIGNAL).expect("sent");
        }
        let answered = || [&first, &second].map(|client| is_readable(client.as_fd()));
        assert!(connections.turn(&mut datapath).expect("a turn").is_empty());
        assert_eq!(answered().iter().filter(|is_answered| **is_answered).count(), 1);
        assert!(connections.has_more());
        assert!(connections.turn(&mut datapath).expect("a turn").is_empty());
        assert_eq!(answered(), [true, true]);
        assert!(!connections.has_more());
    }

    /// A datagram's messages, and whether one is an END; `None` if there is no datagram.
    fn read(socket: &OwnedFd) -> Option<(usize, bool)> {
        let mut buffer = [0; 4096];
        let (_, len) = rustix::net::recv(socket, &mut buffer, RecvFlags::DONTWAIT).ok()?;
        let kinds = || Messages::new(&buffer[..len]).map(|message| message.header.kind);
        Some((kinds().count(), kinds().any(|kind| kind == END)))
    }

    #[test]
    fn ends_for_a_client_that_takes_batches_wait_for_their_time_and_not_for_ever() {
        let (mut datapath, mut connections, far) = with_a_client();
        for datagram in [talk::hello(7), talk::batch(), talk::listen(), talk::listen()] {
            rustix::net::send(&far, &datagram, SendFlags::NOSIGNAL).expect("sent");
        }
        let mut heard = Vec::new();
        assert!(connections.turn(&mut datapath).expect("a turn").is_empty());
        loop {
            heard.extend(std::iter::from_fn(|| read(&far)));
            let Some(due) = connections.due() else { break };
            assert!(!is_readable(connections.fd()), "room in the socket is no event meanwhile");
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            assert!(connections.turn(&mut datapath).expect("a turn").is_empty());
        }
        let ends: usize = heard.iter().filter(|(_, has_end)| *has_end).map(|(messages, _)| messages).sum();
        assert_eq!(ends, 3, "{heard:?}");
        // The answers to HELLO and to the three settings.
        assert_eq!(heard.iter().filter(|(_, has_end)| !has_end).count(), 4, "{heard:?}");
        assert!(!is_readable(connections.fd()) && !connections.has_more());
    }
}
