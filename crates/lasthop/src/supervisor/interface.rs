//! The control interface's socket: connections to it are the switch process's.

use std::path::Path;

use crate::fault::Fault;
use crate::log::say_of_others;
use crate::orders::Order;
use crate::poller::{Interest, Poller};

use super::Supervisor;
use super::access::Access;
use super::orders::What;
use super::sockets::ListenSocket;
use super::source::Source;

/// Connections that are taken in a row; then others are served.
const PER_TURN_MAX: usize = 64;

/// Where clients of the control interface come in.
#[derive(Debug)]
pub(super) struct Entrance {
    socket: ListenSocket,
    is_watched: bool,
}

impl Entrance {
    /// Listens at `path`, for our own user and for those whom `access` names.
    pub(super) fn open(path: &Path, access: Access) -> Result<Self, Fault> {
        Ok(Self { socket: ListenSocket::bind_sequenced(path, access)?, is_watched: false })
    }

    /// Watches the socket, or leaves those who connect waiting.
    fn watch(&mut self, poller: &Poller, is_open: bool) {
        if self.is_watched == is_open {
            return;
        }
        if is_open {
            self.is_watched = poller.add(&self.socket, Source::Interface.into(), Interest::READ).is_ok();
        } else {
            poller.remove(&self.socket);
            self.is_watched = false;
        }
    }
}

impl Supervisor {
    /// Takes connections while there is a switch process to have them.
    pub(super) fn watch_entrance(&mut self) {
        let is_open = self.lives.is_up() && self.upgrade.is_none();
        if let Some(entrance) = &mut self.entrance {
            entrance.watch(&self.poller, is_open);
        }
    }

    /// Hands those who came over.
    pub(super) fn let_in(&mut self) {
        for _ in 0..PER_TURN_MAX {
            let Some(entrance) = &self.entrance else { return };
            match entrance.socket.accept() {
                Ok(Some(connection)) => {
                    self.order_with(Order::Connect, vec![connection.into()], What::Restored, None);
                }
                Ok(None) => return,
                Err(error) => {
                    say_of_others!("cannot take a control connection: {error}");
                    return;
                }
            }
        }
    }
}
