//! The clients of the datapath socket; the switch process serves their connections.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Instant;

use log::warn;

use lasthop_foreign::{ForeignFd, Origin};

use lasthop_api::orders::Order;
use lasthop_api::report::ControlClient;
use lasthop_listeners::{ControlClients, DatapathListener, LentConnections, SocketAccess};
use lasthop_runtime::fault::Fault;
use lasthop_runtime::poller::Poller;

use super::question::OrderPurpose;
use super::source::Source;
use super::switch_process::SwitchProcess;

/// Connections that are accepted in a row; then other clients are served.
const PER_TURN_MAX: usize = 64;

/// The socket, until the switch ends, and the connections that the switch process has.
#[derive(Debug)]
pub(super) struct DatapathClients {
    listener: Option<DatapathListener>,
    connected: ControlClients,
    /// A copy of each connection, including those for captures.
    lent: LentConnections,
}

impl DatapathClients {
    /// Listens at `path`, for this user and those in `access`.
    pub(super) fn open(path: &Path, access: SocketAccess) -> Result<Self, Fault> {
        let listener = Some(DatapathListener::open(path, access, Source::DatapathListener.into())?);
        Ok(Self {
            listener,
            connected: ControlClients::default(),
            lent: LentConnections::new(|number| Source::LentConnections(number).into()),
        })
    }

    /// Closes the socket.
    pub(super) fn close(&mut self) {
        self.listener = None;
    }

    /// When connections are accepted again.
    pub(super) fn due(&self) -> Option<Instant> {
        self.listener.as_ref().and_then(DatapathListener::due)
    }

    /// Accepts connections while `is_open`; otherwise they wait in the queue.
    pub(super) fn watch(&mut self, is_open: bool, poller: &Poller) {
        if let Some(listener) = &mut self.listener {
            listener.watch(poller, is_open, Instant::now());
        }
    }

    /// Passes on the clients that have connected.
    pub(super) fn accept(&mut self, switch: &mut SwitchProcess, poller: &Poller) {
        for _ in 0..PER_TURN_MAX {
            let Some(listener) = &mut self.listener else { return };
            match listener.accept(&Origin::new("a control client")) {
                Ok(Some(connection)) => {
                    if let Err(error) = self.lent.keep(&connection, poller) {
                        warn!(limited = true; "refused a control connection: {error}");
                        continue;
                    }
                    let pid = lasthop_engine::peer_process(connection.as_fd());
                    let number =
                        switch.order_with(Order::Connect, vec![connection], OrderPurpose::Restored, None);
                    self.connected.add(number, pid);
                }
                Ok(None) => return,
                Err(error) => {
                    warn!(limited = true; "cannot take a control connection: {error}; trying again in a second");
                    return listener.pause(Instant::now());
                }
            }
        }
    }

    /// Keeps a copy of a connection that the switch process gets.
    pub(super) fn keep(&mut self, connection: &ForeignFd, poller: &Poller) -> std::io::Result<()> {
        self.lent.keep(connection, poller)
    }

    /// Forgets a connection that has ended.
    pub(super) fn forget(&mut self, number: u32, poller: &Poller) {
        self.lent.forget(number, poller);
    }

    /// Ends all clients' connections, since the switch process has ended.
    pub(super) fn end_all(&mut self, poller: &Poller) {
        self.lent.end_all(poller);
    }

    /// The processes of these connections, each once, with its first connection.
    pub(super) fn of(&self, numbers: &[u64]) -> Vec<ControlClient> {
        self.connected.of(numbers)
    }
}
