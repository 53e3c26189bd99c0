//! Reports to the supervisor, from the main thread and from sessions' threads.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use lasthop_foreign::ForeignFd;
use lasthop_vhost::SessionUpdate;
use rustix::event::{PollFd, PollFlags, poll};

use lasthop_api::orders::{Answer, Report, Request, STATE_VERSION};
use lasthop_runtime::fault::{Fault, Kind};
use lasthop_runtime::ipc::{Channel, FRAME_FDS_MAX};
use lasthop_runtime::poller::{Interest, timespec};

/// The sending side of the channel. Reports are never interleaved. Those of the main thread arrive in order, and so do
/// the sessions' updates. While the system refuses the sessions' descriptors, reports of the main thread overtake the
/// updates: another process of this user can cause that for as long as it likes. A reply that must not overtake earlier
/// updates is sent as one of them ([`Self::reply_last`]).
pub(super) struct Reports {
    channel: Mutex<Channel<Report, Request>>,
    /// The same socket, to wait for room in it.
    socket: OwnedFd,
}

/// The result of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flushed {
    /// The supervisor gets all reports, even if this process dies.
    All,
    /// Some reports wait for room in the socket.
    Waiting,
    /// The supervisor is gone.
    Gone,
}

impl Reports {
    /// Makes it on the socket of a channel that does not send any more.
    pub(super) fn new(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let channel = Channel::new(socket.try_clone_to_owned()?.into())?;
        Ok(Self { channel: Mutex::new(channel), socket: socket.try_clone_to_owned()? })
    }

    /// The socket, to wait for room in it.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn channel(&self) -> MutexGuard<'_, Channel<Report, Request>> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn report(&self, report: &Report) {
        // If the supervisor is gone, the next read shows it.
        let _ = self.channel().send(report, None);
    }

    /// Reports an update of a session, or its end.
    pub(super) fn report_of_session(&self, report: &Report) {
        let _ = self.channel().send_patiently(report, None);
    }

    /// Replies that sessions are at rest; this arrives after all their updates.
    pub(super) fn reply_last(&self, id: u64, result: Result<Answer, Fault>) {
        self.report_of_session(&Report::Reply { id, result });
    }

    pub(super) fn reply(&self, id: u64, result: Result<Answer, Fault>) {
        let sent = self.channel().send(&Report::Reply { id, result }, None);
        if sent.is_err_and(|error| error.kind() == io::ErrorKind::InvalidInput) {
            let fault = Fault::new(Kind::Limit, "the answer is too long for the switch's channel");
            self.report(&Report::Reply { id, result: Err(fault) });
        }
    }

    /// Like `report_of_session`, unless reports are waiting: for reports that a front end can cause at any rate.
    pub(super) fn report_if_idle(&self, report: &Report) {
        let mut channel = self.channel();
        if !channel.wants_write() {
            let _ = channel.send_patiently(report, None);
        }
    }

    /// Sends a session's update. A session with a waiting update is not served, so each has at most one here.
    pub(super) fn tell(&self, attachment: u64, SessionUpdate { session, fds }: SessionUpdate) -> Flushed {
        let mut channel = self.channel();
        let all: Vec<u32> = session.fds().collect();
        let mut fds = fds.into_iter().peekable();
        while fds.peek().is_some() {
            let (numbers, fds): (Vec<u32>, Vec<ForeignFd>) = fds.by_ref().take(FRAME_FDS_MAX).unzip();
            let _ = channel.send_patiently(&Report::Keep { attachment, numbers }, fds);
        }
        let session = serde_json::json!({"version": STATE_VERSION, "session": session});
        let sent = channel.send_patiently(&Report::Kept { attachment, session, numbers: all }, None);
        flushed(&channel, &sent)
    }

    /// Sends waiting messages while there is room.
    pub(super) fn flush(&self) -> Flushed {
        let mut channel = self.channel();
        let sent = channel.flush();
        flushed(&channel, &sent)
    }

    pub(super) fn wants_write(&self) -> bool {
        self.channel().wants_write()
    }

    /// Whether the supervisor has read so little that it counts as gone.
    pub(super) fn is_overrun(&self) -> bool {
        self.channel().is_overrun()
    }

    /// Sends all waiting messages, unless the supervisor is gone.
    pub(super) fn flush_all(&self) {
        while self.flush() == Flushed::Waiting {
            let until = self.due().map(|due| due.saturating_duration_since(Instant::now()));
            // The socket has room, and the system refuses: only time helps.
            let mut wanted = PollFd::new(&self.socket, PollFlags::OUT);
            let fds = if until.is_some() { &mut [] } else { std::slice::from_mut(&mut wanted) };
            let _ = poll(fds, until.map(timespec).as_ref());
        }
    }

    /// When to flush without an event.
    pub(super) fn due(&self) -> Option<Instant> {
        self.channel().due()
    }

    /// The events that the main thread waits for.
    pub(super) fn interest(&self) -> Interest {
        self.channel().interest()
    }
}

fn flushed(channel: &Channel<Report, Request>, sent: &io::Result<()>) -> Flushed {
    match sent {
        Err(_) => Flushed::Gone,
        Ok(()) if channel.wants_write() => Flushed::Waiting,
        Ok(()) => Flushed::All,
    }
}
