//! The control socket and its clients.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use log::warn;

use lasthop_foreign::{ForeignFd, Origin};

use lasthop_runtime::clock::earlier;
use lasthop_runtime::fault::{Fault, Kind};
use lasthop_runtime::poller::{Interest, Poller};

use super::access::SocketAccess;
use super::client::Client;
use super::sockets::ListenSocket;

/// The most clients; a program needs one connection. A further one replaces an idle one.
const CLIENTS_MAX: usize = 16;
/// Places in addition for root and our own user: others may keep all of the former busy.
const OWNERS_MAX: usize = 4;
/// Connections that are accepted in a row; then others are served. The poller reports the rest again.
const PER_TURN_MAX: usize = 64;
/// Pause after `accept` failed for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// The poller's numbers for events of the control socket and of clients.
#[derive(Clone, Copy, Debug)]
pub struct ApiSources {
    /// The socket.
    pub socket: u64,
    /// A client.
    pub client: fn(u32) -> u64,
}

/// A request line and the number of its client.
pub type RequestLine = (u32, Vec<u8>);

/// All connections to the control socket.
#[derive(Debug)]
pub(crate) struct Control {
    socket: ListenSocket,
    clients: BTreeMap<u32, Client>,
    /// Numbers are not reused, so that a late answer never reaches another client.
    next: u32,
    /// No `accept` before this time.
    paused_until: Option<Instant>,
    sources: ApiSources,
}

impl Control {
    /// Listens at `path`, for our own user and for those that `access` names. `kept` is the socket of the previous
    /// supervisor.
    pub(crate) fn open(
        path: &Path,
        access: SocketAccess,
        kept: Option<ListenSocket>,
        sources: ApiSources,
    ) -> Result<Self, Fault> {
        let socket = match kept {
            Some(kept) => {
                access.apply(Some(SocketAccess::OF_A_GROUP), path)?;
                kept
            }
            None => ListenSocket::bind(path, access)?,
        };
        Ok(Self { socket, clients: BTreeMap::new(), next: 0, paused_until: None, sources })
    }

    /// The socket, and device and inode of its file.
    pub(crate) fn listening(&self) -> Option<(&ListenSocket, (u64, u64))> {
        Some((&self.socket, self.socket.file()?))
    }

    /// Leaves the socket file to the next supervisor.
    pub(crate) fn leave_socket(&mut self) {
        self.socket.leave();
    }

    /// Accepts new clients: some of them, if there are many.
    pub(crate) fn accept(&mut self, poller: &Poller) {
        for _ in 0..PER_TURN_MAX {
            let socket = match self.socket.accept(&Origin::new("a control client")) {
                Ok(Some(socket)) => socket,
                Ok(None) => return,
                Err(error) => return self.pause(&error, poller),
            };
            let Ok(mut client) = Client::new(socket) else { continue };
            if !self.has_room(client.is_owner, poller) {
                warn!(limited = true; "refused a control client, there are {CLIENTS_MAX} already");
                client.refuse(too_many());
                continue;
            }
            self.next += 1;
            if poller.add(&client, (self.sources.client)(self.next), Interest::READ).is_ok() {
                self.clients.insert(self.next, client);
            }
        }
    }

    /// Without free descriptors a waiting client would wake us immediately again.
    fn pause(&mut self, error: &std::io::Error, poller: &Poller) {
        warn!(limited = true; "cannot take a control client: {error}; trying again in a second");
        let nothing = Interest { read: false, write: false };
        if poller.modify(&self.socket, self.sources.socket, nothing).is_ok() {
            self.paused_until = Some(Instant::now() + ACCEPT_PAUSE);
        }
    }

    /// Whether one more client may connect. If necessary, drops clients that have gone without a request, or the one
    /// that was idle longest. An owner is evicted for an owner only.
    fn has_room(&mut self, is_owner: bool, poller: &Poller) -> bool {
        if self.clients.len() >= CLIENTS_MAX {
            self.leave(poller, Client::is_gone);
        }
        if self.clients.len() >= CLIENTS_MAX {
            let idle = self.clients.iter().filter(|(_, client)| is_owner || !client.is_owner);
            let idle = idle.filter_map(|(number, client)| Some((client.idle_since()?, *number)));
            if let Some((_, number)) = idle.min() {
                warn!(limited = true; "a control client that asks for nothing makes room for another one");
                self.hand_over(number, poller);
            }
        }
        self.clients.len() < CLIENTS_MAX + if is_owner { OWNERS_MAX } else { 0 }
    }

    /// Reads from a client and returns the line to serve now. A client that has gone keeps its place until all of its lines
    /// are executed.
    pub(crate) fn read(&mut self, number: u32, is_over: bool, poller: &Poller) -> Option<RequestLine> {
        let client = self.clients.get_mut(&number)?;
        if client.read().is_err() || is_over {
            client.leave();
        }
        self.proceed(number, poller)
    }

    /// Sends the answer to a client's request.
    pub(crate) fn answer(&mut self, number: u32, line: Vec<u8>) {
        if let Some(client) = self.clients.get_mut(&number) {
            client.answer(line);
        }
    }

    /// Duplicates a client's connection; `None` if it has gone.
    pub(crate) fn share(&self, number: u32) -> Option<std::io::Result<ForeignFd>> {
        self.clients.get(&number).and_then(Client::share)
    }

    /// Whether a client may also choose which programs run here.
    pub(crate) fn is_owner(&self, number: u32) -> bool {
        self.clients.get(&number).is_some_and(|client| client.is_owner)
    }

    /// Ends our part of a client's connection, which another process serves from now on.
    pub(crate) fn hand_over(&mut self, number: u32, poller: &Poller) {
        if let Some(client) = self.clients.remove(&number) {
            poller.remove(&client); // it would stay in the set, as there is a copy
        }
    }

    /// Drops those clients. The switch may have a copy of a connection.
    fn leave(&mut self, poller: &Poller, is_over: impl Fn(&Client) -> bool) {
        let over = self.clients.iter().filter(|(_, client)| is_over(client)).map(|(number, _)| *number);
        let over: Vec<u32> = over.collect();
        over.into_iter().for_each(|number| self.hand_over(number, poller));
    }

    /// Writes as much as possible to a client, and takes its next line.
    pub(crate) fn proceed(&mut self, number: u32, poller: &Poller) -> Option<RequestLine> {
        let client = self.clients.get_mut(&number)?;
        client.write(Instant::now());
        let line = client.next_line();
        // The line may have been too long, which causes an answer.
        client.write(Instant::now());
        if client.is_over(Instant::now()) || self.watch(number, poller).is_err() {
            self.hand_over(number, poller);
        }
        Some((number, line?))
    }

    fn watch(&self, number: u32, poller: &Poller) -> Result<(), Fault> {
        let Some(client) = self.clients.get(&number) else { return Ok(()) };
        if client.has_left() {
            poller.remove(client); // the end of a connection is always reported
            return Ok(());
        }
        poller.modify(client, (self.sources.client)(number), client.interest())
    }

    /// Drops clients that do not read, and accepts new ones again after a pause.
    pub(crate) fn expire(&mut self, now: Instant, poller: &Poller) {
        self.leave(poller, |client| client.due().is_some_and(|due| due <= now));
        if self.paused_until.take_if(|until| *until <= now).is_some() {
            // Fails only without memory, when more than this fails.
            let _ = poller.modify(&self.socket, self.sources.socket, Interest::READ);
        }
    }

    /// When [`Self::expire`] has something to do.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.clients.values().map(Client::due).fold(self.paused_until, earlier)
    }
}

fn too_many() -> Fault {
    let why = format!(
        "the switch serves {CLIENTS_MAX} control clients already; end one of them, or try again later"
    );
    Fault::new(Kind::Limit, why)
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::sockets::connect_to;

    const SOURCES: ApiSources = ApiSources { socket: 0, client: |number| number.into() };

    #[test]
    fn clients_that_connect_without_end_are_taken_some_at_a_time() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("control.sock");
        let mut control = Control::open(&path, SocketAccess::OWNER_ALONE, None, SOURCES).expect("bound");
        let mut poller = Poller::new().expect("a set");
        poller.add(&control, SOURCES.socket, Interest::READ).expect("watched");
        let _clients: Vec<_> =
            (0..PER_TURN_MAX + 10).map(|_| connect_to(&path).expect("connected")).collect();
        let mut waits = || {
            let events = poller.wait(Some(Instant::now())).expect("a set");
            events.iter().any(|event| event.source == SOURCES.socket)
        };
        assert!(waits());
        control.accept(&Poller::new().expect("a set"));
        assert_eq!(control.next as usize, PER_TURN_MAX);
        assert!(waits(), "the rest is reported again");
        control.accept(&Poller::new().expect("a set"));
        assert_eq!(control.next as usize, PER_TURN_MAX + 10);
        assert!(!waits());
    }

    #[test]
    fn a_client_that_is_gone_keeps_its_place_until_its_lines_are_executed() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("control.sock");
        let mut control = Control::open(&path, SocketAccess::OWNER_ALONE, None, SOURCES).expect("bound");
        let mut poller = Poller::new().expect("a set");
        let mut client = std::os::unix::net::UnixStream::connect(&path).expect("connected");
        control.accept(&poller);
        client.write_all(b"one\ntwo\n").expect("written");
        drop(client);
        assert_eq!(control.read(1, true, &poller), Some((1, b"one".to_vec())));
        assert_eq!(control.proceed(1, &poller), None, "the first one is under way");
        assert!(poller.wait(Some(Instant::now())).expect("a set").is_empty(), "its end is known");
        control.answer(1, b"1\n".to_vec());
        assert!(control.share(1).is_none() && control.clients.len() == 1);
        assert_eq!(control.proceed(1, &poller), Some((1, b"two".to_vec())));
        control.answer(1, Vec::new());
        assert_eq!(control.proceed(1, &poller), None);
        assert!(control.clients.is_empty());
    }
}
