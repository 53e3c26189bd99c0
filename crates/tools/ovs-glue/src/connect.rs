//! Connections to the control socket.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lasthop_dpif::message::{Messages, NetlinkMessage};
use lasthop_dpif::private::{END, HELLO, Hello, JOIN, REJOIN, RUNS_AHEAD, decode_number, number};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use crate::{PATH, WAIT};

/// linux/netlink.h: `NETLINK_GENERIC`, the protocol of requests about datapaths.
pub(crate) const GENERIC: u32 = 16;
/// The pause between two attempts: a starting switch process takes some of these.
const PAUSE: Duration = Duration::from_millis(20);
/// The longest answer to a request of this file, in bytes.
const ANSWER_BYTES: usize = 64;

/// The path of the switch's control socket, and how long to wait for it.
#[derive(Clone, Debug)]
pub(crate) struct ControlSocket {
    pub(crate) path: PathBuf,
    pub(crate) wait: Duration,
}

impl ControlSocket {
    /// Reads both from the environment.
    pub(crate) fn of_environment() -> Self {
        let path = std::env::var_os("LASTHOP_DATAPATH").map_or_else(|| PATH.into(), PathBuf::from);
        Self { path, wait: WAIT }
    }
}

/// The requested properties of a new connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionRequest {
    pub(crate) protocol: u32,
    /// 0 for any.
    pub(crate) port_id: u32,
    pub(crate) groups: Vec<u32>,
    /// Whether the program will not wait for answers.
    pub(crate) runs_ahead: bool,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct SwitchConnection {
    pub(crate) socket: OwnedFd,
    pub(crate) port_id: u32,
    /// Whether notifications of its groups were lost that the switch does not send again.
    pub(crate) has_missed: bool,
    /// Whether the switch knows that the program will not wait for answers.
    pub(crate) runs_ahead: bool,
}

/// Connects; waits if there is no switch process.
pub(crate) fn connect(
    control_socket: &ControlSocket,
    request: &ConnectionRequest,
) -> Result<SwitchConnection, Errno> {
    let deadline = Instant::now() + control_socket.wait;
    loop {
        match attempt(control_socket, request) {
            Ok(connected) => return Ok(connected),
            Err(errno) if Instant::now() >= deadline => {
                report_once(&control_socket.path, errno);
                return Err(Errno::CONNREFUSED);
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// Writes to standard error once: the program reports its own errors afterwards.
fn report_once(path: &Path, errno: Errno) {
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    if IS_SAID.swap(true, Ordering::Relaxed) {
        return;
    }
    let sentence = format!(
        "lasthop: no switch answers at {} ({errno}); start one with `lasthop run`, or name its socket in LASTHOP_DATAPATH\n",
        path.display(),
    );
    // Without standard error the message is lost.
    let _ = std::io::stderr().write_all(sentence.as_bytes());
}

fn attempt(control_socket: &ControlSocket, request: &ConnectionRequest) -> Result<SwitchConnection, Errno> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    // A process that is stopped leaves no room for connections.
    set_socket_timeout(&socket, Timeout::Send, Some(control_socket.wait.max(PAUSE)))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(&control_socket.path)?)?;
    set_socket_timeout(&socket, Timeout::Send, None)?;
    // For the requests of this file. Reads of the program have limits of their own.
    set_socket_timeout(&socket, Timeout::Recv, Some(control_socket.wait.max(PAUSE)))?;
    let hello = Hello { protocol: request.protocol, port_id: request.port_id, process: std::process::id() };
    let port_id = ask(&socket, &hello.encode(), HELLO)?.0;
    let has_missed = match request.groups[..] {
        [] => false,
        [group] => !join_again(&socket, group)?,
        ref groups => groups.iter().try_for_each(|group| join(&socket, *group)).map(|()| true)?,
    };
    let runs_ahead = request.runs_ahead && switch_on(&socket, RUNS_AHEAD)?;
    Ok(SwitchConnection { socket, port_id, has_missed, runs_ahead })
}

fn join(socket: &OwnedFd, group: u32) -> Result<(), Errno> {
    tell(socket, &number(JOIN, 0, group), JOIN).map(drop)
}

/// Joins a group again, on a connection without other requests. Returns whether the switch will send the lost messages,
/// which the program then reads. A switch of an earlier version answers only END.
fn join_again(socket: &OwnedFd, group: u32) -> Result<bool, Errno> {
    rustix::net::send(socket, &number(REJOIN, 0, group), SendFlags::NOSIGNAL)?;
    loop {
        let mut buffer = [0; ANSWER_BYTES];
        let message = receive(socket, &mut buffer)?;
        match message.map(|message| (message.header.kind, decode_number(&message, REJOIN))) {
            Some((_, Some(errno))) => return Ok(errno == 0),
            Some((END, _)) => return join(socket, group).map(|()| false),
            _ => {}
        }
    }
}

/// Switches an option on, on a connection without other requests. Returns false if the switch, of an earlier version, does not
/// know it: then it answers only END.
fn switch_on(socket: &OwnedFd, kind: u16) -> Result<bool, Errno> {
    rustix::net::send(socket, &number(kind, 0, 1), SendFlags::NOSIGNAL)?;
    let mut is_known = false;
    loop {
        let mut buffer = [0; ANSWER_BYTES];
        let message = receive(socket, &mut buffer)?;
        match message.map(|message| (message.header.kind, decode_number(&message, kind))) {
            Some((_, Some(errno))) => is_known = errno == 0,
            Some((END, _)) => return Ok(is_known),
            _ => {}
        }
    }
}

/// Sends a request that stands for a system call; returns whether other messages were discarded meanwhile.
pub(crate) fn tell(socket: impl AsFd, request: &[u8], kind: u16) -> Result<bool, Errno> {
    let (errno, was_skipping) = ask(&socket, request, kind)?;
    let errno = i32::try_from(errno).unwrap_or(0);
    if errno == 0 { Ok(was_skipping) } else { Err(Errno::from_raw_os_error(errno)) }
}

/// Sends a request of our own and reads the number in its answer, and its END.
fn ask(socket: impl AsFd, request: &[u8], kind: u16) -> Result<(u32, bool), Errno> {
    rustix::net::send(&socket, request, SendFlags::NOSIGNAL)?;
    let (mut answer, mut was_skipping) = (None, false);
    loop {
        let mut buffer = [0; ANSWER_BYTES];
        let message = receive(&socket, &mut buffer)?;
        match message.map(|message| (message.header.kind, decode_number(&message, kind))) {
            // HELLO has no END: it comes before there are requests.
            Some((HELLO, Some(number))) => return Ok((number, false)),
            Some((_, Some(number))) => answer = Some(number),
            Some((END, _)) if answer.is_some() => return Ok((answer.unwrap_or(0), was_skipping)),
            Some((END, _)) => {}
            _ => was_skipping = true,
        }
    }
}

fn receive(socket: impl AsFd, buffer: &mut [u8; ANSWER_BYTES]) -> Result<Option<NetlinkMessage<'_>>, Errno> {
    let len = loop {
        match rustix::net::recv(&socket, buffer.as_mut_slice(), RecvFlags::empty()) {
            Err(Errno::INTR) => {}
            Ok((0, _)) => return Err(Errno::CONNRESET),
            result => break result?.0,
        }
    };
    Ok(buffer.get(..len).and_then(|bytes| Messages::new(bytes).next()))
}
