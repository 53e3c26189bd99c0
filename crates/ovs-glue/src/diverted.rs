//! One netlink socket that is a connection to the switch.

use std::os::fd::RawFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use lasthop_control::private::{JOIN, LEAVE, LISTEN, number};
use rustix::io::Errno;

use crate::dial::{self, Place, Wanted};
use crate::sys;

/// linux/netlink.h: options of a socket.
const ADD_MEMBERSHIP: i32 = 1;
const DROP_MEMBERSHIP: i32 = 2;
const EXT_ACK: i32 = 11;

/// What came from the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Datagram {
    /// For the program.
    Answer(usize),
    /// All answers to one of its datagrams have come.
    End,
    /// The switch closed the connection.
    HungUp,
}

/// A socket of the program's.
#[derive(Debug)]
pub(crate) struct Diverted {
    fd: RawFd,
    place: Place,
    protocol: u32,
    port_id: AtomicU32,
    groups: Mutex<Vec<u32>>,
    /// Request datagrams whose END has not come.
    missing: AtomicU32,
    /// Something was lost that the program has not been told of.
    has_lost: AtomicBool,
}

impl Diverted {
    pub(crate) fn new(fd: RawFd, place: Place, protocol: u32, port_id: u32) -> Self {
        Self {
            fd,
            place,
            protocol,
            port_id: AtomicU32::new(port_id),
            groups: Mutex::default(),
            missing: AtomicU32::new(0),
            has_lost: AtomicBool::new(false),
        }
    }

    pub(crate) fn port_id(&self) -> u32 {
        self.port_id.load(Ordering::Relaxed)
    }

    /// Sends by `send`; again after a new connection, if the old one is broken. A program that asks anew waits for no answer to what
    /// it asked before: it may have left an END unread, and nothing is lost.
    pub(crate) fn send(&self, mut send: impl FnMut() -> Result<usize, Errno>) -> Result<usize, Errno> {
        loop {
            match send() {
                Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => {
                    self.missing.store(0, Ordering::Relaxed);
                    self.connect_again()?;
                }
                Ok(len) => {
                    self.missing.fetch_add(1, Ordering::Relaxed);
                    return Ok(len);
                }
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Receives by `receive`, which does not wait. `may_wait` is what the program said; while answers are missing, they are
    /// waited for in any case.
    pub(crate) fn receive(
        &self,
        may_wait: bool,
        mut receive: impl FnMut() -> Result<Datagram, Errno>,
    ) -> Result<usize, Errno> {
        loop {
            if self.has_lost.swap(false, Ordering::Relaxed) {
                return Err(Errno::NOBUFS);
            }
            match receive() {
                Ok(Datagram::Answer(len)) => return Ok(len),
                Ok(Datagram::End) if self.is_last_end() && !may_wait => return Err(Errno::AGAIN),
                Ok(Datagram::End) => {}
                Ok(Datagram::HungUp) | Err(Errno::CONNRESET) => self.connect_again()?,
                Err(Errno::AGAIN) if self.is_missing() => sys::wait(self.fd, true)?,
                Err(Errno::AGAIN) if may_wait => sys::wait(self.fd, false)?,
                Err(errno) => return Err(errno),
            }
        }
    }

    fn is_missing(&self) -> bool {
        self.missing.load(Ordering::Relaxed) > 0
    }

    fn is_last_end(&self) -> bool {
        let minus_one = |missing: u32| missing.checked_sub(1);
        self.missing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, minus_one).unwrap_or(0) <= 1
    }

    /// `setsockopt` at netlink's level. Options that mean nothing here succeed.
    pub(crate) fn set_option(&self, option: i32, value: u32) -> Result<(), Errno> {
        let kind = match option {
            ADD_MEMBERSHIP => JOIN,
            DROP_MEMBERSHIP => LEAVE,
            EXT_ACK => LISTEN,
            _ => return Ok(()),
        };
        let has_skipped = dial::tell(sys::borrow(self.fd), &number(kind, 0, value), kind)?;
        self.has_lost.fetch_or(has_skipped, Ordering::Relaxed);
        if let Ok(mut groups) = self.groups.lock() {
            groups.retain(|group| kind == LISTEN || *group != value);
            if kind == JOIN {
                groups.push(value);
            }
        }
        Ok(())
    }

    /// The switch process is another one: the same descriptor, port id and groups. What was asked of the old one is lost.
    fn connect_again(&self) -> Result<(), Errno> {
        let groups = self.groups.lock().map(|groups| groups.clone()).unwrap_or_default();
        let wanted = Wanted { protocol: self.protocol, port_id: self.port_id(), groups };
        let connected = dial::connect(&self.place, &wanted)?;
        sys::replace(self.fd, &connected.socket)?;
        self.port_id.store(connected.port_id, Ordering::Relaxed);
        let has_missed = self.missing.swap(0, Ordering::Relaxed) > 0 || connected.has_missed;
        self.has_lost.store(has_missed, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
#[path = "../tests/stock/rig.rs"]
#[expect(dead_code, reason = "programs are for the other tests")]
mod rig;
#[cfg(test)]
mod tests;
