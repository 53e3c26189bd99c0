//! A netlink socket that is a connection to the switch.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use lasthop_dpif::private::{END, JOIN, LEAVE, LISTEN, number};
use rustix::io::Errno;

use crate::connect::{self, ConnectionRequest, ControlSocket};
use crate::descriptor;
use crate::moved::{self, PortRequest};
use crate::open_requests::{OpenRequests, UNWAITED_MAX};

/// linux/netlink.h: options of a socket.
const ADD_MEMBERSHIP: i32 = 1;
const DROP_MEMBERSHIP: i32 = 2;
const EXT_ACK: i32 = 11;

/// A datagram from the switch, or the end of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Datagram {
    /// For the program.
    Answer(usize),
    /// For the program: a flow is refused.
    RefusedFlow(usize),
    /// For the program, but older than the kernel's state of a port's device: bytes, and the device's index.
    Outdated(usize, u32),
    /// All answers to one of its datagrams have come.
    End,
    /// The switch closed the connection.
    HungUp,
}

/// A socket of the program.
#[derive(Debug)]
pub(crate) struct SwitchSocket {
    fd: RawFd,
    control_socket: ControlSocket,
    protocol: u32,
    port_id: AtomicU32,
    groups: Mutex<Vec<u32>>,
    /// Requests whose END is missing.
    open: Mutex<OpenRequests>,
    /// Whether something was lost that the program does not know of yet.
    has_lost: AtomicBool,
    /// The last request, if it was about one port.
    port_request: Mutex<Option<PortRequest>>,
}

impl SwitchSocket {
    pub(crate) fn new(fd: RawFd, control_socket: ControlSocket, protocol: u32, port_id: u32) -> Self {
        Self {
            fd,
            control_socket,
            protocol,
            port_id: AtomicU32::new(port_id),
            groups: Mutex::default(),
            open: Mutex::default(),
            has_lost: AtomicBool::new(false),
            port_request: Mutex::default(),
        }
    }

    pub(crate) fn port_id(&self) -> u32 {
        self.port_id.load(Ordering::Relaxed)
    }

    /// Remembers parts of a datagram that may have to be sent again.
    pub(crate) fn remember(&self, datagram: &[u8]) {
        if let Ok(mut request) = self.port_request.lock() {
            *request = PortRequest::of(datagram, Instant::now());
        }
    }

    /// Repeats the request about a port whose answer was outdated. Returns false if the program gets that answer.
    fn ask_again(&self) -> bool {
        let request = self.port_request.lock().ok().and_then(|request| request.clone());
        let Some(request) = request.filter(|request| request.may_repeat(Instant::now())) else {
            return false;
        };
        std::thread::sleep(moved::PAUSE);
        self.send(None, || descriptor::send_again(self.fd, &request.datagram)).is_ok()
    }

    fn open(&self) -> MutexGuard<'_, OpenRequests> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends by `send`; reconnects and sends again if the connection is broken. When a program sends a new request it
    /// no longer waits for earlier answers: it may have left an END unread, so nothing is lost. `copy` is the datagram if its
    /// answer need not be waited for.
    pub(crate) fn send(
        &self,
        copy: Option<Vec<u8>>,
        mut send: impl FnMut() -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        loop {
            match send() {
                Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => self.connect_again(false)?,
                Ok(len) => {
                    let mut open = self.open();
                    let copy = copy.filter(|_| open.is_confident(Instant::now()));
                    open.sent(copy);
                    return Ok(len);
                }
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Receives by `receive`, which waits a little if its argument is true ([`connect::RECEIVE_WAIT`]): most answers come by
    /// then, in one system call. `may_wait` comes from the program's flags; while answers are missing, this waits for them in
    /// any case.
    pub(crate) fn receive(
        &self,
        may_wait: bool,
        mut receive: impl FnMut(bool) -> Result<Datagram, Errno>,
    ) -> Result<usize, Errno> {
        loop {
            if self.has_lost.swap(false, Ordering::Relaxed) {
                return Err(Errno::NOBUFS);
            }
            match receive(may_wait || self.is_waited_for()) {
                Ok(Datagram::Answer(len)) => return Ok(len),
                Ok(Datagram::RefusedFlow(len)) => {
                    self.open().refused(Instant::now());
                    return Ok(len);
                }
                Ok(Datagram::Outdated(_, _)) if self.ask_again() => {}
                Ok(Datagram::Outdated(len, device)) => {
                    moved::forget(device);
                    return Ok(len);
                }
                Ok(Datagram::End) if self.is_last_end() && !may_wait => return Err(Errno::AGAIN),
                Ok(Datagram::End) => {}
                Ok(Datagram::HungUp) | Err(Errno::CONNRESET) => self.connect_again(true)?,
                Err(Errno::AGAIN) if self.is_waited_for() => descriptor::wait(self.fd, true)?,
                Err(Errno::AGAIN) if may_wait => descriptor::wait(self.fd, false)?,
                Err(errno) => return Err(errno),
            }
        }
    }

    fn is_waited_for(&self) -> bool {
        self.open().is_waited_for()
    }

    fn is_last_end(&self) -> bool {
        let mut open = self.open();
        open.ended();
        open.len() == 0
    }

    /// `setsockopt` at netlink's level. Options without a meaning here succeed.
    pub(crate) fn set_option(&self, option: i32, value: u32) -> Result<(), Errno> {
        let kind = match option {
            ADD_MEMBERSHIP => JOIN,
            DROP_MEMBERSHIP => LEAVE,
            EXT_ACK => LISTEN,
            _ => return Ok(()),
        };
        let has_skipped = connect::tell(descriptor::borrow(self.fd), &number(kind, 0, value), kind)?;
        self.has_lost.fetch_or(has_skipped, Ordering::Relaxed);
        if let Ok(mut groups) = self.groups.lock() {
            groups.retain(|group| kind == LISTEN || *group != value);
            if kind == JOIN {
                groups.push(value);
            }
        }
        Ok(())
    }

    /// Connects to another switch process, with the same descriptor, port id and groups. It gets the requests to the old one that
    /// the program does not wait for; others are lost, and the program is told if it waits for an answer.
    fn connect_again(&self, is_waiting: bool) -> Result<(), Errno> {
        self.read_last_ends();
        let groups = self.groups.lock().map(|groups| groups.clone()).unwrap_or_default();
        let request = ConnectionRequest { protocol: self.protocol, port_id: self.port_id(), groups };
        let connected = connect::connect(&self.control_socket, &request)?;
        descriptor::replace(self.fd, &connected.socket)?;
        self.port_id.store(connected.port_id, Ordering::Relaxed);
        let (unwaited, has_lost) = self.open().take();
        self.has_lost.store(is_waiting && has_lost || connected.has_missed, Ordering::Relaxed);
        for datagram in unwaited {
            // If that process ends as well, the next call finds out, and the next one gets it.
            let _ = descriptor::send_again(self.fd, &datagram);
            self.open().sent(Some(datagram));
        }
        Ok(())
    }

    /// Reads the ENDs that the old switch process sent before its end: their requests are done. The error of the connection comes
    /// before them.
    fn read_last_ends(&self) {
        for _ in 0..2 * UNWAITED_MAX {
            match descriptor::next_kind(self.fd) {
                Ok(Some(END)) => self.open().ended(),
                Ok(Some(_)) | Err(Errno::PIPE | Errno::CONNRESET) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
#[path = "../tests/stock/rig.rs"]
#[expect(dead_code, reason = "programs are for the other tests")]
mod rig;
#[cfg(test)]
mod tests;
