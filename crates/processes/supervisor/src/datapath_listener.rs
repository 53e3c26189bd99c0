//! The control interface's socket: connections to it are the switch process's.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use lasthop_foreign::Origin;

use lasthop_api::orders::Order;
use lasthop_runtime::fault::Fault;
use lasthop_runtime::log::say_of_others;
use lasthop_runtime::poller::{Interest, Poller};

use super::Supervisor;
use super::access::Access;
use super::question::OrderPurpose;
use super::sockets::ListenSocket;
use super::source::Source;

/// Connections that are taken in a row; then others are served.
const PER_TURN_MAX: usize = 64;
/// Pause before connections are taken again after that failed.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Where clients of the control interface come in.
#[derive(Debug)]
pub(super) struct DatapathListener {
    socket: ListenSocket,
    is_watched: bool,
    /// Without descriptors, a waiting client would wake us at once, again and again.
    paused_until: Option<Instant>,
}

impl DatapathListener {
    /// Listens at `path`, for our own user and for those that `access` names.
    pub(super) fn open(path: &Path, access: Access) -> Result<Self, Fault> {
        let socket = ListenSocket::bind_sequenced(path, access)?;
        Ok(Self { socket, is_watched: false, paused_until: None })
    }

    /// When connections are taken again.
    pub(super) fn due(&self) -> Option<Instant> {
        self.paused_until
    }

    /// Leaves connecting clients in the queue for a while.
    fn pause(&mut self, now: Instant) {
        self.paused_until = Some(now + ACCEPT_PAUSE);
    }

    /// Watches the socket, or leaves connecting clients in the queue.
    fn watch(&mut self, poller: &Poller, is_open: bool, now: Instant) {
        self.paused_until.take_if(|until| *until <= now);
        let is_open = is_open && self.paused_until.is_none();
        if self.is_watched == is_open {
            return;
        }
        if is_open {
            self.is_watched =
                poller.add(&self.socket, Source::DatapathListener.into(), Interest::READ).is_ok();
        } else {
            poller.remove(&self.socket);
            self.is_watched = false;
        }
    }
}

impl Supervisor {
    /// Whether there is a switch process to have clients, and none is about to take its place.
    fn takes_clients(&self) -> bool {
        self.process.is_up() && self.upgrade.is_none()
    }

    /// Takes connections while there is a switch process to have them.
    pub(super) fn watch_datapath_listener(&mut self) {
        let is_open = self.takes_clients();
        if let Some(datapath_listener) = &mut self.datapath_listener {
            datapath_listener.watch(&self.poller, is_open, Instant::now());
        }
    }

    /// Hands over the clients that have connected. They wait while there is no switch process to have them, also if they were heard
    /// together with its end.
    pub(super) fn let_in(&mut self) {
        if !self.takes_clients() {
            return;
        }
        for _ in 0..PER_TURN_MAX {
            let Some(datapath_listener) = &mut self.datapath_listener else { return };
            match datapath_listener.socket.accept(&Origin::new("a control client")) {
                Ok(Some(connection)) => {
                    if let Err(error) = self.lent.keep(&connection, &self.poller) {
                        say_of_others!(Warning: "refused a control connection: {error}");
                        continue;
                    }
                    let pid = lasthop_engine::peer_process(connection.as_fd());
                    let number =
                        self.order_with(Order::Connect, vec![connection], OrderPurpose::Restored, None);
                    self.control_clients.add(number, pid);
                }
                Ok(None) => return,
                Err(error) => {
                    say_of_others!(Warning: "cannot take a control connection: {error}; trying again in a second");
                    return datapath_listener.pause(Instant::now());
                }
            }
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
        let mut datapath_listener = DatapathListener::open(&path, Access::OWNER_ALONE).expect("a socket");
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
