//! The server's sockets: connected SEQPACKET sockets, one for each client, in one `epoll` set that its owner waits for.
//!
//! Nothing here waits. A socket that takes no more is written to when it has room; one whose client does not read is not
//! read from either.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno as SystemErrno;
use rustix::net::{RecvFlags, SendFlags};

use crate::bounds::{DATAGRAM_BYTES_MAX, DATAGRAMS_PER_TURN, EVENTS_PER_TURN, PEERS_MAX};
use crate::datapath::Datapath;
use crate::server::{PeerId, Server, Upcall, Upcalled};
use crate::sys::peer_user;

/// Which users may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Root, the user that the switch runs as, and those with these numbers.
    Users(Vec<u32>),
    /// Whoever handed the connection over has asked already.
    Asked,
}

impl Default for Access {
    fn default() -> Self {
        Self::Users(Vec::new())
    }
}

impl Access {
    fn check(&self, socket: &OwnedFd) -> Result<(), Closed> {
        let Self::Users(users) = self else { return Ok(()) };
        let user = peer_user(socket.as_fd())?;
        let own = rustix::process::geteuid().as_raw();
        if user == 0 || user == own || users.contains(&user) { Ok(()) } else { Err(Closed::User(user)) }
    }
}

/// Why a connection is not taken, or is closed.
#[derive(Debug, thiserror::Error)]
pub enum Closed {
    /// Not one of those who may.
    #[error("user {0} may not control the switch; run the client as root or as the switch's user")]
    User(u32),
    /// More than there may be.
    #[error("there are {PEERS_MAX} control connections already; is a client leaking them?")]
    TooMany,
    /// It broke the protocol.
    #[error(transparent)]
    Goodbye(#[from] crate::server::Goodbye),
    /// A datagram that is longer than any request.
    #[error("a control client sent a datagram of {0} bytes; at most {DATAGRAM_BYTES_MAX} are taken")]
    TooLong(usize),
    /// It hung up.
    #[error("the control client closed the connection")]
    HungUp,
    /// The system failed.
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
    socket: OwnedFd,
    interest: EventFlags,
    /// The socket took no more; it is written to when it says so.
    is_full: bool,
}

/// The server and its clients' sockets.
#[derive(Debug)]
pub struct Connections {
    server: Server,
    epoll: OwnedFd,
    connections: BTreeMap<PeerId, Connection>,
    last: u64,
    access: Access,
    buffer: Vec<u8>,
}

impl Connections {
    /// Without clients.
    ///
    /// # Errors
    /// When there are no file descriptors left.
    pub fn new(server: Server, access: Access) -> io::Result<Self> {
        Ok(Self {
            server,
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            connections: BTreeMap::new(),
            last: 0,
            access,
            buffer: vec![0; DATAGRAM_BYTES_MAX],
        })
    }

    /// What to wait for: readable when [`Connections::turn`] has something to do.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// The server.
    #[must_use]
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// The server, to be restored.
    pub fn server_mut(&mut self) -> &mut Server {
        &mut self.server
    }

    /// A client connected. Its socket is made non-blocking.
    ///
    /// # Errors
    /// When it may not, or cannot be served.
    pub fn add(&mut self, socket: OwnedFd) -> Result<PeerId, Closed> {
        self.access.check(&socket)?;
        if self.connections.len() >= PEERS_MAX {
            return Err(Closed::TooMany);
        }
        rustix::io::ioctl_fionbio(&socket, true)?;
        self.last += 1;
        let (id, interest) = (PeerId(self.last), EventFlags::IN);
        epoll::add(&self.epoll, &socket, EventData::new_u64(id.0), interest)?;
        self.connections.insert(id, Connection { socket, interest, is_full: false });
        Ok(id)
    }

    /// Serves clients that have something to say, or room again: some of them, and not too much of each. Returns
    /// connections that ended, and why.
    ///
    /// # Errors
    /// When the set cannot be waited for.
    pub fn turn(&mut self, datapath: &mut dyn Datapath) -> io::Result<Vec<(PeerId, Closed)>> {
        let mut events =
            [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; EVENTS_PER_TURN];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = match epoll::wait(&self.epoll, &mut events, Some(&now)) {
            Err(SystemErrno::INTR) => 0,
            result => result?,
        };
        let mut closed = Vec::new();
        for event in events.iter().take(count) {
            let id = PeerId(event.data.u64());
            // The kernel's structure has no alignment.
            let flags = event.flags;
            let has_hung_up = flags.contains(EventFlags::HUP);
            if let Err(why) = self.serve(id, has_hung_up, datapath) {
                self.remove(id);
                closed.push((id, why));
            }
        }
        Ok(closed)
    }

    /// Tells of flows that were taken out, once workers have finished what they were at, and goes on with ports whose devices
    /// are there; returns whether somebody waits for more of either.
    pub fn settle(&mut self, datapath: &mut dyn Datapath) -> bool {
        self.server.settle(Instant::now(), datapath);
        self.flush(datapath);
        self.server.is_settling()
    }

    /// Tells the control plane of a packet, or counts that it could not be told.
    pub fn upcall(&mut self, upcall: Upcall, datapath: &mut dyn Datapath) -> Upcalled {
        let upcalled = self.server.upcall(upcall);
        if upcalled == Upcalled::Queued {
            self.flush(datapath);
        }
        upcalled
    }

    /// The device or guest of a port is gone, and the port with it: clients are told.
    pub fn port_lost(&mut self, name: &str, datapath: &mut dyn Datapath) {
        self.server.port_lost(name, datapath);
        self.flush(datapath);
    }

    /// Sends what the server has for its clients for other reasons than a request of their own: notifications.
    fn flush(&mut self, datapath: &mut dyn Datapath) {
        loop {
            let told = self.server.take_told();
            if told.is_empty() {
                return;
            }
            // Who gets room may go on with a request that others are told of, too.
            for id in told {
                // One that ended is found out about in its turn.
                let _ = self.write(id, datapath).and_then(|()| self.watch(id));
            }
        }
    }

    fn remove(&mut self, id: PeerId) {
        self.server.disconnected(id);
        if let Some(connection) = self.connections.remove(&id) {
            // Gone with its descriptor in any case.
            let _ = epoll::delete(&self.epoll, &connection.socket);
        }
    }

    fn serve(&mut self, id: PeerId, has_hung_up: bool, datapath: &mut dyn Datapath) -> Result<(), Closed> {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.is_full = false;
        }
        self.write(id, datapath)?;
        for _ in 0..DATAGRAMS_PER_TURN {
            if !self.server.wants_input(id) || !self.read(id, datapath)? {
                break;
            }
            self.write(id, datapath)?;
        }
        self.flush(datapath);
        // What it asked before is done; what it would be told nobody hears.
        if has_hung_up && !self.server.wants_input(id) {
            return Err(Closed::HungUp);
        }
        self.watch(id)
    }

    /// Takes one datagram; false when there is none.
    fn read(&mut self, id: PeerId, datapath: &mut dyn Datapath) -> Result<bool, Closed> {
        let Some(connection) = self.connections.get(&id) else { return Ok(false) };
        let received = rustix::net::recv(&connection.socket, self.buffer.as_mut_slice(), RecvFlags::TRUNC);
        let len = match received {
            Err(SystemErrno::AGAIN | SystemErrno::INTR) => return Ok(false),
            Ok((_, 0)) => return Err(Closed::HungUp),
            result => result?.1,
        };
        let datagram = self.buffer.get(..len).ok_or(Closed::TooLong(len))?.to_vec();
        self.server.received(id, datagram, datapath)?;
        Ok(true)
    }

    /// Sends what waits, as far as the socket takes it.
    fn write(&mut self, id: PeerId, datapath: &mut dyn Datapath) -> Result<(), Closed> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        while !connection.is_full
            && let Some(datagram) = self.server.output(id)
        {
            match rustix::net::send(&connection.socket, datagram, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Err(SystemErrno::AGAIN | SystemErrno::NOBUFS) => connection.is_full = true,
                Err(SystemErrno::INTR) => {}
                result => {
                    result?;
                    self.server.sent(id, datapath);
                }
            }
        }
        Ok(())
    }

    /// Waits for what can go on: requests if they may be read, room if something waits for it.
    fn watch(&mut self, id: PeerId) -> Result<(), Closed> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let mut interest = EventFlags::empty();
        interest.set(EventFlags::IN, self.server.wants_input(id));
        interest.set(EventFlags::OUT, self.server.output(id).is_some());
        if interest != connection.interest {
            epoll::modify(&self.epoll, &connection.socket, EventData::new_u64(id.0), interest)?;
            connection.interest = interest;
        }
        Ok(())
    }
}
