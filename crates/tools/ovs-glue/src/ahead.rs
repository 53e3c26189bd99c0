//! Requests that threads of ovs-vswitchd do not wait for: the flows and packets by which they answer upcalls.
//!
//! Such a thread sends datagrams of some five upcalls, and reads after each whether something was refused. The kernel knows that
//! when its system call ends. Here it would mean two changes of the thread that runs, for each datagram. So these datagrams go to
//! the switch by a connection of their own, one for the process, and the thread continues at once.
//!
//! ```text
//!   handler ── install flow F ──> [ connection of all handlers: some datagrams, in order ] ──> switch
//!      │ returns at once                                         ^                 <── END, refusal ──┘
//!   revalidator ── change flow F ── waits until all have ended ──┘ ── its own connection ──> switch
//! ```
//!
//! **Order.** A flow counts as open before the call that sends it returns ([`Ahead::send`]). Every other request waits, before it
//! is sent, until no datagram is open ([`Ahead::settle`]). So a thread that knows of a flow, from the thread that sent it, finds
//! it in the switch, as in the kernel. Open datagrams of several threads are in one queue, so their order is that of the calls.
//!
//! **Bounds.** At most [`AHEAD_MAX`] datagrams of [`DATAGRAM_BYTES_MAX`] are open; the next one waits for the first. The switch
//! never waits for its clients, so a wait ends, or fails after [`WAIT`](crate::WAIT). Then all threads that wait here fail, and for
//! some time the threads that answer upcalls wait on connections of their own, as others do.
//!
//! **Refusals** are too late for the thread that sent the flow. The switch repeats them to ovs-vswitchd's revalidators, within
//! half a second (`server/refused_flows.rs` in `lasthop-dpif`). After a refusal for another reason than EEXIST, which is usual,
//! requests are waited for, for some time: then OVS hears of refusals as from the kernel.
//!
//! **End of the switch process.** The next one gets the flows that were not confirmed, in order, before any other request. It gets
//! none of the packets: the last one may have sent them.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lasthop_dpif::message::{HEADER_BYTES, Messages, NetlinkMessage};
use lasthop_dpif::private::END;
use lasthop_dpif::server::Family;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};

use crate::connect::{self, ConnectionRequest, ControlSocket, GENERIC};

/// Open datagrams of all threads: a thread sends some ten for the 64 upcalls that it takes at a time.
pub(crate) const AHEAD_MAX: usize = 16;
/// Bytes of such a datagram. OVS sends more than a page at once only if one request is that long.
const DATAGRAM_BYTES_MAX: usize = 4096;
/// How long all answers are waited for after a refusal that is unusual.
const CAREFUL: Duration = Duration::from_secs(10);
/// Flows that may be refused as existing, in a time: the switch remembers many times as many until OVS hears of them.
const REFUSED_MAX: u32 = 1024;
const REFUSED_TIME: Duration = Duration::from_secs(1);
/// The variable with the most open datagrams; 0 makes all threads wait.
const VARIABLE: &str = "LASTHOP_AHEAD";
/// linux/netlink.h: `NLM_F_ACK`, `NLM_F_ECHO`.
const ANSWERED_FLAGS: u16 = 4 | 8;
/// linux/openvswitch.h: `OVS_FLOW_CMD_NEW`, `OVS_PACKET_CMD_EXECUTE`, `OVS_FLOW_ATTR_PROBE`, `OVS_FLOW_ATTR_UFID`.
const FLOW_NEW: u8 = 1;
const PACKET_EXECUTE: u8 = 3;
const FLOW_PROBE: u16 = 8;
const FLOW_UFID: u16 = 9;
/// Bytes of an answer that say enough: an error and the header of its request.
const ANSWER_BYTES: usize = 64;
const EXISTS: i32 = Errno::EXIST.raw_os_error();

thread_local! {
    /// Whether this thread answers upcalls. Others want to know what is refused: they try out the datapath's features.
    static ANSWERS_UPCALLS: Cell<bool> = const { Cell::new(false) };
}

/// Notes the type of a message that the program receives.
pub(crate) fn note_received(kind: u16) {
    if kind == Family::Packet.id() {
        ANSWERS_UPCALLS.set(true);
    }
}

/// The connection of the program's threads that run ahead.
#[derive(Debug)]
pub(crate) struct Ahead {
    channel: Mutex<Channel>,
    /// Number of open datagrams.
    open: AtomicUsize,
    /// Number of threads that wait until none is open.
    #[cfg(test)]
    pub(crate) waiting: AtomicUsize,
}

#[derive(Debug)]
struct Channel {
    control_socket: ControlSocket,
    max: usize,
    /// The process that uses the connection: a child of it needs another one.
    process: u32,
    connection: Option<OwnedFd>,
    /// Whether the connection's switch tells OVS later which flows it refused; one of an earlier version does not.
    tells_refusals: bool,
    /// Datagrams without an END, in order: their flows, which another switch process gets.
    open: VecDeque<Vec<u8>>,
    /// Memory of former ones.
    spare: Vec<Vec<u8>>,
    /// Until when answers are waited for.
    careful_until: Option<Instant>,
    /// Refusals since a time.
    refused: (Option<Instant>, u32),
    /// When a wait for the switch failed last.
    failed: Option<Instant>,
}

impl Ahead {
    pub(crate) fn new(control_socket: ControlSocket, max: usize) -> Self {
        let channel = Channel {
            control_socket,
            max: max.min(AHEAD_MAX),
            process: 0,
            connection: None,
            tells_refusals: false,
            open: VecDeque::new(),
            spare: Vec::new(),
            careful_until: None,
            refused: (None, 0),
            failed: None,
        };
        Self {
            channel: Mutex::new(channel),
            open: AtomicUsize::new(0),
            #[cfg(test)]
            waiting: AtomicUsize::new(0),
        }
    }

    /// Reads the variable.
    pub(crate) fn of_environment(control_socket: ControlSocket) -> Self {
        let number = std::env::var(VARIABLE).ok().and_then(|number| number.parse().ok());
        Self::new(control_socket, number.unwrap_or(AHEAD_MAX))
    }

    fn channel(&self) -> MutexGuard<'_, Channel> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a datagram of these pieces without a wait for its answers, if that is right for this thread and these requests; returns
    /// its length. `None`: the caller has to send it, and to wait.
    pub(crate) fn send<'a>(&self, pieces: impl Iterator<Item = &'a [u8]> + Clone) -> Option<usize> {
        if !ANSWERS_UPCALLS.get() || !may_run_ahead(pieces.clone()) {
            return None;
        }
        let since = Instant::now();
        let mut channel = self.channel();
        let sent = channel.send(pieces, since);
        // Before another thread can learn from this one that it was sent.
        self.open.store(channel.open.len(), Ordering::Release);
        sent
    }

    /// Waits until the switch has done all that runs ahead. Every request that does not run ahead calls it before it is sent.
    pub(crate) fn settle(&self) -> Result<(), Errno> {
        if self.open.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let since = Instant::now();
        #[cfg(test)]
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut channel = self.channel();
        let settled = channel.settle(since);
        self.open.store(channel.open.len(), Ordering::Release);
        #[cfg(test)]
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        settled
    }

    #[cfg(test)]
    pub(crate) fn open_count(&self) -> usize {
        self.channel().open.len()
    }
}

impl Channel {
    /// `since`: when the thread began to wait.
    fn send<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]> + Clone, since: Instant) -> Option<usize> {
        self.leave_parent();
        if self.max == 0 || self.careful_until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        // One of an earlier version may have been replaced meanwhile.
        if self.connection.is_none() || !self.tells_refusals {
            self.connect(since).ok().filter(|()| self.tells_refusals)?;
        }
        self.make_room(since).ok()?;
        let slices: Vec<_> = pieces.clone().map(IoSlice::new).collect();
        let len = loop {
            match self.send_to_switch(&slices) {
                Ok(len) => break len,
                // Its buffer is full, which is room again with the next END.
                Err(Errno::AGAIN | Errno::NOBUFS) if !self.open.is_empty() => {
                    self.receive(since, true).ok()?
                }
                Err(Errno::PIPE | Errno::CONNRESET) => self.connect(since).ok()?,
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
            if !self.tells_refusals {
                return None;
            }
        };
        let mut flows = self.spare.pop().unwrap_or_default();
        flows.clear();
        pieces.filter(|piece| is_flow(piece)).for_each(|piece| flows.extend_from_slice(piece));
        self.open.push_back(flows);
        Some(len)
    }

    /// A child has copies of its parent's descriptor and open datagrams, which are the parent's business.
    fn leave_parent(&mut self) {
        if self.process != std::process::id() {
            (self.process, self.connection) = (std::process::id(), None);
            self.open.clear();
        }
    }

    fn send_to_switch(&self, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let connection = self.connection.as_ref().ok_or(Errno::NOTCONN)?;
        send_now(connection, slices)
    }

    /// Reads ENDs: those that are there, if many datagrams are open, and one if too many are.
    fn make_room(&mut self, since: Instant) -> Result<(), Errno> {
        if self.open.len() <= self.max / 2 {
            return Ok(());
        }
        while !self.open.is_empty() {
            match self.receive(since, self.open.len() >= self.max) {
                Err(Errno::AGAIN) => return Ok(()),
                result => result?,
            }
        }
        Ok(())
    }

    fn settle(&mut self, since: Instant) -> Result<(), Errno> {
        self.leave_parent();
        while !self.open.is_empty() {
            if self.failed.is_some_and(|failed| failed > since) {
                return Err(Errno::CONNREFUSED);
            }
            self.receive(since, true)?;
        }
        Ok(())
    }

    /// Reads one answer; fails with EAGAIN if there is none and `waits` is false, with ETIMEDOUT if none comes.
    fn receive(&mut self, since: Instant, waits: bool) -> Result<(), Errno> {
        if waits && since.elapsed() > self.control_socket.wait {
            return Err(self.fail(Errno::TIMEDOUT));
        }
        let flags = if waits { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        let mut buffer = [0; ANSWER_BYTES];
        let received = match &self.connection {
            Some(connection) => rustix::net::recv(connection, buffer.as_mut_slice(), flags),
            None => Err(Errno::NOTCONN),
        };
        match received {
            Ok((0, _)) | Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => self.connect(since),
            Ok((len, _)) => {
                self.note(buffer.get(..len).unwrap_or_default());
                Ok(())
            }
            Err(Errno::INTR) => Ok(()),
            Err(Errno::AGAIN) if waits => Err(self.fail(Errno::TIMEDOUT)),
            Err(errno) => Err(errno),
        }
    }

    /// Notes an END or a refusal.
    fn note(&mut self, datagram: &[u8]) {
        let Some(message) = Messages::new(datagram).next() else { return };
        if message.header.kind == END {
            self.spare.extend(self.open.pop_front());
        } else if let Some(errno) = message.error().filter(|errno| *errno > 0) {
            self.refused(errno, is_about_flow(&message), Instant::now());
        }
    }

    fn refused(&mut self, errno: i32, is_flow: bool, now: Instant) {
        let (since, count) = self.refused;
        let is_recent = since.is_some_and(|since| now < since + REFUSED_TIME);
        self.refused = if is_recent { (since, count + 1) } else { (Some(now), 1) };
        if !is_flow || errno != EXISTS {
            self.careful_until = Some(now + CAREFUL);
        } else if self.refused.1 > REFUSED_MAX {
            self.careful_until = Some(now + REFUSED_TIME);
        }
    }

    /// Threads that answer upcalls wait for the switch themselves from now on, beside each other, and those that wait here fail.
    fn fail(&mut self, errno: Errno) -> Errno {
        let now = Instant::now();
        (self.failed, self.careful_until) = (Some(now), Some(now + CAREFUL));
        errno
    }

    /// Connects to the present switch process, and sends it the flows that another one has not confirmed.
    fn connect(&mut self, since: Instant) -> Result<(), Errno> {
        self.read_last_answers();
        self.open.retain(|flows| !flows.is_empty());
        if since.elapsed() > self.control_socket.wait {
            return Err(self.fail(Errno::TIMEDOUT));
        }
        let request =
            ConnectionRequest { protocol: GENERIC, runs_ahead: true, ..ConnectionRequest::default() };
        let connected = connect::connect(&self.control_socket, &request).map_err(|errno| self.fail(errno))?;
        self.tells_refusals = connected.runs_ahead;
        if !connected.runs_ahead {
            self.careful_until = Some(Instant::now() + CAREFUL);
        }
        if self.open.iter().all(|flows| send_now(&connected.socket, &[IoSlice::new(flows)]).is_ok()) {
            self.connection = Some(connected.socket);
        }
        // Otherwise that process has ended, or there is no memory for its buffer: the next read connects again.
        Ok(())
    }

    /// Reads what the last switch process sent before its end: those requests are done. The error of the connection comes first.
    fn read_last_answers(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        let mut buffer = [0; ANSWER_BYTES];
        loop {
            match rustix::net::recv(&connection, buffer.as_mut_slice(), RecvFlags::DONTWAIT) {
                Ok((0, _)) => return,
                Ok((len, _)) => self.note(buffer.get(..len).unwrap_or_default()),
                Err(Errno::PIPE | Errno::CONNRESET | Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }
}

/// Sends a datagram without a wait.
fn send_now(connection: &OwnedFd, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(connection, slices, &mut SendAncillaryBuffer::default(), flags)
}

/// Whether a thread that answers upcalls may continue before the switch has done these requests: there are only flows with names
/// and packets, few bytes, and no answer is requested.
fn may_run_ahead<'a>(pieces: impl Iterator<Item = &'a [u8]> + Clone) -> bool {
    let len_bytes: usize = pieces.clone().map(<[u8]>::len).sum();
    let mut pieces = pieces.peekable();
    len_bytes <= DATAGRAM_BYTES_MAX && pieces.peek().is_some() && pieces.all(is_plain)
}

/// Whether a piece is such a request, and one request only, as OVS sends them.
fn is_plain(piece: &[u8]) -> bool {
    let mut messages = Messages::new(piece);
    let Some(message) = messages.next().filter(|message| message.header.flags & ANSWERED_FLAGS == 0) else {
        return false;
    };
    let Ok(generic) = message.generic() else { return false };
    let kind = message.header.kind;
    let is_known = match generic.command {
        FLOW_NEW if kind == Family::Flow.id() => {
            let Ok((_, attrs)) = generic.datapath() else { return false };
            let has = |wanted| attrs.clone().flatten().any(|attr| attr.kind == wanted);
            has(FLOW_UFID) && !has(FLOW_PROBE)
        }
        PACKET_EXECUTE => kind == Family::Packet.id(),
        _ => false,
    };
    is_known && messages.next().is_none()
}

/// Whether a request is about a flow.
fn is_flow(piece: &[u8]) -> bool {
    Messages::new(piece).next().is_some_and(|message| message.header.kind == Family::Flow.id())
}

/// Whether an answer is about a flow; it repeats the request's header.
fn is_about_flow(answer: &NetlinkMessage<'_>) -> bool {
    let kind = answer.body.get(8..10).filter(|_| answer.body.len() >= 4 + HEADER_BYTES);
    kind == Some(&Family::Flow.id().to_ne_bytes())
}

#[cfg(test)]
mod tests;
