//! The program's netlink descriptors: those to the switch, and those to the kernel.

use std::collections::BTreeMap;
use std::os::fd::{IntoRawFd, RawFd};
use std::sync::{Arc, OnceLock, RwLock};

use rustix::io::Errno;

use crate::ahead::Ahead;
use crate::connect::{self, ConnectionRequest, ControlSocket, GENERIC};
use crate::switch_socket::SwitchSocket;

/// linux/netlink.h: protocols.
const ROUTE: i32 = 0;
const NETFILTER: u32 = 12;

/// A netlink socket.
#[derive(Clone, Debug)]
pub(crate) enum NetlinkSocket {
    /// To the switch.
    Switch(Arc<SwitchSocket>),
    /// To the kernel; its requests are checked for those about tunnel devices.
    Route,
}

/// For all sockets: requests of each wait for those that run ahead.
static AHEAD: OnceLock<Arc<Ahead>> = OnceLock::new();
static SOCKETS: RwLock<BTreeMap<RawFd, NetlinkSocket>> = RwLock::new(BTreeMap::new());

/// Opens a netlink socket to the switch; `None` if the kernel has to answer.
pub(crate) fn open(protocol: i32) -> Option<Result<RawFd, Errno>> {
    let protocol = u32::try_from(protocol).ok()?;
    matches!(protocol, NETFILTER | GENERIC).then(|| open_to_switch(protocol))
}

fn open_to_switch(protocol: u32) -> Result<RawFd, Errno> {
    let control_socket = ControlSocket::of_environment();
    let connected =
        connect::connect(&control_socket, &ConnectionRequest { protocol, ..ConnectionRequest::default() })?;
    let fd = connected.socket.into_raw_fd();
    let ahead = AHEAD.get_or_init(|| Arc::new(Ahead::of_environment(control_socket.clone())));
    let numbers = (protocol, connected.port_id);
    let socket = SwitchSocket::new(fd, control_socket, numbers, Arc::clone(ahead));
    insert(fd, NetlinkSocket::Switch(Arc::new(socket)));
    Ok(fd)
}

/// Notes a netlink socket that the kernel created.
pub(crate) fn note(fd: RawFd, protocol: i32) {
    if fd >= 0 && protocol == ROUTE {
        insert(fd, NetlinkSocket::Route);
    }
}

fn insert(fd: RawFd, socket: NetlinkSocket) {
    if let Ok(mut sockets) = SOCKETS.write() {
        sockets.insert(fd, socket);
    }
}

/// The kind of a descriptor; `None` for others.
pub(crate) fn find(fd: RawFd) -> Option<NetlinkSocket> {
    SOCKETS.read().ok()?.get(&fd).cloned()
}

/// A socket to the switch.
pub(crate) fn switch_socket(fd: RawFd) -> Option<Arc<SwitchSocket>> {
    match find(fd)? {
        NetlinkSocket::Switch(socket) => Some(socket),
        NetlinkSocket::Route => None,
    }
}

/// Removes a closed descriptor.
pub(crate) fn forget(fd: RawFd) {
    if find(fd).is_some()
        && let Ok(mut sockets) = SOCKETS.write()
    {
        sockets.remove(&fd);
    }
}
