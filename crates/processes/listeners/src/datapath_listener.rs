//! The control interface's socket: connections to it are passed to the switch process.

use std::path::Path;
use std::time::{Duration, Instant};

use lasthop_foreign::{ForeignFd, Origin};

use lasthop_runtime::fault::Fault;
use lasthop_runtime::poller::{Interest, Poller};

use super::access::SocketAccess;
use super::sockets::ListenSocket;

/// The pause after `accept` failed.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Accepts clients of the control interface.
#[derive(Debug)]
pub struct DatapathListener {
    socket: ListenSocket,
    is_watched: bool,
    /// Without free descriptors, a waiting client would wake us immediately again.
    paused_until: Option<Instant>,
    /// The poller's number for its events.
    source: u64,
}

impl DatapathListener {
    /// Listens at `path`, for our own user and for those that `access` names.
    pub fn open(path: &Path, access: SocketAccess, source: u64) -> Result<Self, Fault> {
        let socket = ListenSocket::bind_sequenced(path, access)?;
        Ok(Self { socket, is_watched: false, paused_until: None, source })
    }

    /// When connections are accepted again.
    pub fn due(&self) -> Option<Instant> {
        self.paused_until
    }

    /// The next connection, if one waits; descriptors sent over it belong to `origin`.
    pub fn accept(&self, origin: &Origin) -> std::io::Result<Option<ForeignFd>> {
        self.socket.accept(origin)
    }

    /// Leaves connecting clients in the queue for a while.
    pub fn pause(&mut self, now: Instant) {
        self.paused_until = Some(now + ACCEPT_PAUSE);
    }

    /// Watches the socket, or leaves connecting clients in the queue.
    pub fn watch(&mut self, poller: &Poller, is_open: bool, now: Instant) {
        self.paused_until.take_if(|until| *until <= now);
        let is_open = is_open && self.paused_until.is_none();
        if self.is_watched == is_open {
            return;
        }
        if is_open {
            self.is_watched = poller.add(&self.socket, self.source, Interest::READ).is_ok();
        } else {
            poller.remove(&self.socket);
            self.is_watched = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

    use super::*;

    #[test]
    fn who_cannot_be_let_in_wakes_nobody_until_the_pause_is_over() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("datapath.sock");
        let mut datapath_listener =
            DatapathListener::open(&path, SocketAccess::OWNER_ALONE, 8).expect("a socket");
        let mut poller = Poller::new().expect("a set");
        let now = Instant::now();
        let client = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("a socket");
        datapath_listener.watch(&poller, true, now);
        connect(&client, &SocketAddrUnix::new(&path).expect("short")).expect("it listens");
        let is_heard = |poller: &mut Poller| !poller.wait(Some(now)).expect("a set").is_empty();
        assert!(is_heard(&mut poller));
        datapath_listener.pause(now);
        datapath_listener.watch(&poller, true, now);
        assert!(!is_heard(&mut poller));
        let due = datapath_listener.due().expect("it goes on");
        datapath_listener.watch(&poller, false, due);
        assert!(!is_heard(&mut poller) && datapath_listener.due().is_none());
        datapath_listener.watch(&poller, true, due);
        assert!(is_heard(&mut poller));
    }
}
