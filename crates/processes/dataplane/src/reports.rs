//! Reports to the supervisor, from the main thread and from the threads of sessions.

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

/// The sending side of the channel. Each report is whole. Those of the main thread arrive in order, and so does the news of sessions.
/// While the system refuses the descriptors of sessions, reports of the main thread go before that news: another process of this user
/// can have that last for as long as it likes. An answer that stands for the news before it is one of the news ([`Self::reply_last`]).
pub(super) struct Reports {
    channel: Mutex<Channel<Report, Request>>,
    /// The same socket, to wait for room in it.
    socket: OwnedFd,
}

/// The fate of reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flushed {
    /// The supervisor has them, even if this process dies.
    All,
    /// Some wait for room in the socket.
    Waiting,
    /// The supervisor is gone.
    Gone,
}

impl Reports {
    /// Over the socket of a channel that does not send any more.
    pub(super) fn new(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let channel = Channel::new(socket.try_clone_to_owned()?.into())?;
        Ok(Self { channel: Mutex::new(channel), socket: socket.try_clone_to_owned()? })
    }

    /// To wait for room in.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn channel(&self) -> MutexGuard<'_, Channel<Report, Request>> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn report(&self, report: &Report) {
        // If the other side is gone, reading says so.
        let _ = self.channel().send(report, None);
    }

    /// News of a session, or of its end.
    pub(super) fn report_of_session(&self, report: &Report) {
        let _ = self.channel().send_patiently(report, None);
    }

    /// An answer that tells that sessions are at rest: it arrives after all that was told of them.
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

    /// As `report_of_session`, unless reports wait: for those that a front end causes as fast as it likes.
    pub(super) fn report_if_idle(&self, report: &Report) {
        let mut channel = self.channel();
        if !channel.wants_write() {
            let _ = channel.send_patiently(report, None);
        }
    }

    /// Sends a session's update. A session with a waiting update is not served before that has left, so each has at most one here.
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

    /// Sends waiting messages, as far as there is room.
    pub(super) fn flush(&self) -> Flushed {
        let mut channel = self.channel();
        let sent = channel.flush();
        flushed(&channel, &sent)
    }

    pub(super) fn wants_write(&self) -> bool {
        self.channel().wants_write()
    }

    /// Whether the supervisor has read so little that it is taken for gone.
    pub(super) fn is_overrun(&self) -> bool {
        self.channel().is_overrun()
    }

    /// Sends all that waits, unless the supervisor is gone.
    pub(super) fn flush_all(&self) {
        while self.flush() == Flushed::Waiting {
            let until = self.due().map(|due| due.saturating_duration_since(Instant::now()));
            // The system has room in the socket, and refuses: only time helps.
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
