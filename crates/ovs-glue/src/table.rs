//! Which descriptors of the program are whose.

use std::collections::BTreeMap;
use std::os::fd::{IntoRawFd, RawFd};
use std::sync::{Arc, RwLock};

use rustix::io::Errno;

use crate::dial::{self, Place, Wanted};
use crate::diverted::Diverted;

/// linux/netlink.h: protocols.
const ROUTE: i32 = 0;
const NETFILTER: i32 = 12;
const GENERIC: i32 = 16;

/// A netlink socket.
#[derive(Clone, Debug)]
pub(crate) enum Socket {
    /// To the switch.
    Diverted(Arc<Diverted>),
    /// To the kernel, looked at for one request.
    Route,
}

static SOCKETS: RwLock<BTreeMap<RawFd, Socket>> = RwLock::new(BTreeMap::new());

/// A new netlink socket for the switch to answer; `None` if the kernel is to.
pub(crate) fn open(protocol: i32) -> Option<Result<RawFd, Errno>> {
    matches!(protocol, NETFILTER | GENERIC).then(|| divert(protocol.unsigned_abs()))
}

fn divert(protocol: u32) -> Result<RawFd, Errno> {
    let place = Place::of_environment();
    let connected = dial::connect(&place, &Wanted { protocol, port_id: 0, groups: Vec::new() })?;
    let fd = connected.socket.into_raw_fd();
    insert(fd, Socket::Diverted(Arc::new(Diverted::new(fd, place, protocol, connected.port_id))));
    Ok(fd)
}

/// The kernel made this netlink socket.
pub(crate) fn note(fd: RawFd, protocol: i32) {
    if fd >= 0 && protocol == ROUTE {
        insert(fd, Socket::Route);
    }
}

fn insert(fd: RawFd, socket: Socket) {
    if let Ok(mut sockets) = SOCKETS.write() {
        sockets.insert(fd, socket);
    }
}

/// What a descriptor is; `None` for what is none of our business.
pub(crate) fn find(fd: RawFd) -> Option<Socket> {
    SOCKETS.read().ok()?.get(&fd).cloned()
}

/// A descriptor to the switch.
pub(crate) fn diverted(fd: RawFd) -> Option<Arc<Diverted>> {
    match find(fd)? {
        Socket::Diverted(diverted) => Some(diverted),
        Socket::Route => None,
    }
}

/// A descriptor is closed.
pub(crate) fn forget(fd: RawFd) {
    if find(fd).is_some()
        && let Ok(mut sockets) = SOCKETS.write()
    {
        sockets.remove(&fd);
    }
}
