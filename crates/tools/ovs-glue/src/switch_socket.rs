//! A netlink socket that is a connection to the switch.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use lasthop_dpif::private::{JOIN, LEAVE, LISTEN, number};
use rustix::io::Errno;

use crate::ahead::Ahead;
use crate::connect::{self, ConnectionRequest, ControlSocket};
use crate::descriptor;
use crate::dump::DumpRequest;
use crate::moved::{self, PortRequest};

/// linux/netlink.h: options of a socket.
const ADD_MEMBERSHIP: i32 = 1;
const DROP_MEMBERSHIP: i32 = 2;
const EXT_ACK: i32 = 11;

/// A datagram from the switch, or the end of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Datagram {
    /// For the program.
    Answer(usize),
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
    /// Number of request datagrams whose END is missing.
    missing: AtomicU32,
    /// Whether something was lost that the program does not know of yet.
    has_lost: AtomicBool,
    /// The last request, if it was about one port.
    port_request: Mutex<Option<PortRequest>>,
    ahead: Arc<Ahead>,
    /// Whether the last datagram runs ahead.
    is_ahead: AtomicBool,
    /// The last request, if it was for a dump.
    dump_request: Mutex<Option<DumpRequest>>,
    /// Whether the program got an answer since the last request.
    has_answers: AtomicBool,
}

impl SwitchSocket {
    pub(crate) fn new(
        fd: RawFd,
        control_socket: ControlSocket,
        (protocol, port_id): (u32, u32),
        ahead: Arc<Ahead>,
    ) -> Self {
        Self {
            fd,
            control_socket,
            protocol,
            port_id: AtomicU32::new(port_id),
            groups: Mutex::default(),
            missing: AtomicU32::new(0),
            has_lost: AtomicBool::new(false),
            port_request: Mutex::default(),
            ahead,
            is_ahead: AtomicBool::new(false),
            dump_request: Mutex::default(),
            has_answers: AtomicBool::new(false),
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
        if let Ok(mut request) = self.dump_request.lock() {
            *request = DumpRequest::of(datagram);
        }
        self.has_answers.store(false, Ordering::Relaxed);
    }

    /// Repeats the request about a port whose answer was outdated. Returns false if the program gets that answer.
    fn ask_again(&self) -> bool {
        let request = self.port_request.lock().ok().and_then(|request| request.clone());
        let Some(request) = request.filter(|request| request.may_repeat(Instant::now())) else {
            return false;
        };
        std::thread::sleep(moved::PAUSE);
        self.send(|| descriptor::send_again(self.fd, &request.datagram)).is_ok()
    }

    /// Sends a datagram whose answers the program need not wait for; `None` if [`Self::send`] has to send it.
    pub(crate) fn send_ahead<'a>(&self, pieces: impl Iterator<Item = &'a [u8]> + Clone) -> Option<usize> {
        let sent = self.ahead.send(pieces)?;
        self.is_ahead.store(true, Ordering::Relaxed);
        Some(sent)
    }

    /// Sends by `send`, after all that runs ahead; reconnects and sends again if the connection is broken. When a program sends a new request it
    /// no longer waits for earlier answers: it may have left an END unread, so nothing is lost.
    pub(crate) fn send(&self, mut send: impl FnMut() -> Result<usize, Errno>) -> Result<usize, Errno> {
        self.ahead.settle()?;
        self.is_ahead.store(false, Ordering::Relaxed);
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

    /// Receives by `receive`, which does not wait. `may_wait` comes from the program's flags; while answers are
    /// missing, this waits for them in any case.
    pub(crate) fn receive(
        &self,
        may_wait: bool,
        mut receive: impl FnMut() -> Result<Datagram, Errno>,
    ) -> Result<usize, Errno> {
        // The last request has no answer, and its END is for `ahead`. Missing answers to earlier ones are left to the next request.
        if self.is_ahead.swap(false, Ordering::Relaxed) && !may_wait {
            return Err(Errno::AGAIN);
        }
        loop {
            if self.has_lost.swap(false, Ordering::Relaxed) {
                return Err(Errno::NOBUFS);
            }
            match receive() {
                Ok(Datagram::Answer(len)) => {
                    self.has_answers.store(true, Ordering::Relaxed);
                    return Ok(len);
                }
                Ok(Datagram::Outdated(_, _)) if self.ask_again() => {}
                Ok(Datagram::Outdated(len, device)) => {
                    moved::forget(device);
                    self.has_answers.store(true, Ordering::Relaxed);
                    return Ok(len);
                }
                Ok(Datagram::End) if self.is_last_end() && !may_wait => return Err(Errno::AGAIN),
                Ok(Datagram::End) => {}
                Ok(Datagram::HungUp) | Err(Errno::CONNRESET) => self.connect_again()?,
                Err(Errno::AGAIN) if self.is_missing() => descriptor::wait(self.fd, true)?,
                Err(Errno::AGAIN) if may_wait => descriptor::wait(self.fd, false)?,
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

    /// Requests an interrupted dump from another switch process. Returns false if there is none, or if it cannot be repeated.
    fn dump_again(&self) -> bool {
        let Ok(request) = self.dump_request.lock() else { return false };
        let has_answers = self.has_answers.load(Ordering::Relaxed);
        let Some(datagram) = request.as_ref().and_then(|request| request.repeated(has_answers)) else {
            return false;
        };
        // The list has the flows that run ahead, as the interrupted one would have had.
        self.ahead.settle().and_then(|()| descriptor::send_again(self.fd, datagram)).is_ok()
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

    /// Connects to another switch process, with the same descriptor, port id and groups. Requests to the old one are lost, but for a
    /// dump.
    fn connect_again(&self) -> Result<(), Errno> {
        let groups = self.groups.lock().map(|groups| groups.clone()).unwrap_or_default();
        let request =
            ConnectionRequest { protocol: self.protocol, port_id: self.port_id(), groups, runs_ahead: false };
        let connected = connect::connect(&self.control_socket, &request)?;
        descriptor::replace(self.fd, &connected.socket)?;
        self.port_id.store(connected.port_id, Ordering::Relaxed);
        let missing = self.missing.swap(0, Ordering::Relaxed);
        // The last request is the dump, so its END is among those that are missing.
        let is_repeated = missing > 0 && self.dump_again();
        self.missing.fetch_add(u32::from(is_repeated), Ordering::Relaxed);
        let has_missed = connected.has_missed || (missing > 0 && !is_repeated);
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
