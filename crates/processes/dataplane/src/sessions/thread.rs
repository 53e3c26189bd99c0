//! The thread of one session: does all work on a front end's behalf; no other thread waits for it.
//!
//! ```text
//!   waits for:  its front end ── a turn: messages, rings, memory ── update ──> the supervisor ── rests
//!               its doorbell ── link, end, rest, from the main thread; stopped rings, from workers
//!               room for an update that is not sent: until then the front end is not served
//!               the end of a pause, if it took too much time
//!               closes of its descriptors, if too many are pending
//! ```

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use lasthop_engine::PortDevice;
use lasthop_foreign::ForeignFd;
use lasthop_vhost::{Session, SessionEnd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::setpriority_process;
use rustix::time::{ClockId, clock_gettime};

use lasthop_api::orders::Report;
use lasthop_runtime::hangs::Turns;
use lasthop_runtime::poller::timespec;

use super::super::reports::{Flushed, Reports};
use super::{Shared, SharedStage, Stage};

/// Factor by which a slow write is charged: no other thread gets the CPU meanwhile, not even a worker.
const SLOW_WRITE_SHARE: u32 = 20;
/// Its work for the hang watch.
const WORK: &str = "its front end's messages";
/// Niceness of the thread of a front end that keeps it busy. Workers and other guests' threads leave it idle time, or a
/// tenth of a CPU that they fully use.
const NICENESS: i32 = 10;
/// Pause between two checks for closed descriptors, while too many are pending.
const CLOSES_PAUSE: Duration = Duration::from_millis(10);

/// Why a thread woke up.
#[derive(Clone, Copy, Default)]
struct Woken {
    /// The front end's socket is readable, or writable for waiting replies.
    front_end: bool,
    /// The front end hung up while it had to wait.
    is_hung_up: bool,
    /// There is room for an update.
    room: bool,
}

/// The state of a session's update for the supervisor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UpdateState {
    Delivered,
    Waiting,
    /// The supervisor is gone.
    Lost,
}

pub(super) struct SessionThread {
    pub(super) port: String,
    pub(super) attachment: u64,
    pub(super) shared: Arc<Shared>,
    pub(super) reports: Arc<Reports>,
    pub(super) stage: Arc<SharedStage>,
    pub(super) turns: Arc<Turns>,
    socket: Arc<ForeignFd>,
    news: UpdateState,
    /// The state of the link that the front end was told last.
    link_told: bool,
    /// The last refusal, as reported.
    refused: Option<String>,
    /// Whether its thread has a lower priority, for good: the kernel lets no thread raise its own.
    gives_way: bool,
    /// Dropped when the session is freed, which disconnects the receiver.
    over: Sender<Infallible>,
}

/// The further parts of a thread.
pub(super) struct ThreadParts {
    pub(super) reports: Arc<Reports>,
    pub(super) stage: Arc<SharedStage>,
    pub(super) turns: Arc<Turns>,
    pub(super) over: Sender<Infallible>,
}

impl SessionThread {
    pub(super) fn new(
        (port, attachment): (String, u64),
        shared: Arc<Shared>,
        socket: Arc<ForeignFd>,
        ThreadParts { reports, stage, turns, over }: ThreadParts,
    ) -> Self {
        let link_told = shared.is_link_up.load(Ordering::SeqCst);
        let (news, refused, gives_way) = (UpdateState::Delivered, None, false);
        Self {
            port,
            attachment,
            shared,
            reports,
            stage,
            turns,
            socket,
            news,
            link_told,
            refused,
            gives_way,
            over,
        }
    }

    /// Serves the session to its end. A panic ends the process, even in a build that unwinds: the state of the guest's
    /// rings is unknown.
    pub(super) fn run(mut self) {
        let _bomb = PanicGuard;
        let why = loop {
            let woken = self.wait();
            if self.shared.is_unwanted.load(Ordering::SeqCst) {
                break None;
            }
            if woken.is_hung_up {
                break Some(SessionEnd::HungUp.to_string());
            }
            if let Some(why) = self.act(woken) {
                break Some(why);
            }
        };
        self.end();
        let Self { port: name, attachment, reports, over, shared, socket, .. } = self;
        // Before the supervisor is told: the next guest may come at once.
        drop((socket, over));
        why.into_iter().for_each(|why| {
            reports.report_of_session(&Report::Detached { name: name.clone(), attachment, why });
        });
        // A switch that comes to rest waits for this: otherwise the supervisor would have a successor continue the
        // session.
        drop(shared);
        // After this no thread waits for room for it.
        reports.flush_all();
    }

    fn wait(&self) -> Woken {
        let pause = self.shared.allowance().pause(Instant::now());
        let is_let = self.is_let();
        let origin = self.socket.origin();
        let closes = (origin.is_full() && !origin.is_overdue()).then_some(CLOSES_PAUSE);
        let pause = pause.max(closes);
        let is_served = self.news == UpdateState::Delivered && pause.is_none() && is_let;
        // The socket has room, and the system refuses the update.
        let refused_until = self.reports.due().filter(|_| self.news == UpdateState::Waiting);
        let mut polled = vec![PollFd::new(&self.shared.doorbell, PollFlags::IN)];
        let mut timeout = None;
        if is_served {
            let mut wanted = PollFlags::IN;
            wanted.set(PollFlags::OUT, self.shared.wants_write.load(Ordering::SeqCst));
            polled.push(PollFd::new(&self.socket, wanted));
        } else if let Some(due) = refused_until {
            timeout = Some(timespec(due.saturating_duration_since(Instant::now())));
        } else if self.news == UpdateState::Waiting {
            polled.push(PollFd::from_borrowed_fd(self.reports.socket(), PollFlags::OUT));
        } else if is_let {
            // It is not read, but its end has to be noticed, since the next front end may come.
            polled.push(PollFd::new(&self.socket, PollFlags::empty()));
            timeout = pause.map(timespec);
        }
        if poll(&mut polled, timeout.as_ref()).is_err() {
            return Woken::default();
        }
        let happened = polled.get(1).is_some_and(|fd| !fd.revents().is_empty());
        if !polled[0].revents().is_empty() {
            self.shared.clear_doorbell();
        }
        let is_room = happened && self.news == UpdateState::Waiting;
        let is_hung_up = happened && !is_served && !is_room;
        Woken { front_end: happened && is_served, is_hung_up, room: is_room || refused_until.is_some() }
    }

    /// Whether the session may be served in the present stage.
    fn is_let(&self) -> bool {
        match self.stage.get() {
            Stage::Serving => true,
            Stage::Quiescing => !self.shared.is_resting.load(Ordering::SeqCst),
            Stage::AtRest => false,
        }
    }

    /// Does a turn. Returns why the session has ended, if it has.
    fn act(&mut self, woken: Woken) -> Option<String> {
        let shared = Arc::clone(&self.shared);
        let mut session = shared.session();
        let session = session.as_mut()?;
        if woken.room {
            self.flush(session);
        }
        self.report_stop(session);
        // The switch may have been told to rest meanwhile; the thread that holds the session respects that.
        let is_let = self.is_let();
        let link_is_up = self.shared.is_link_up.load(Ordering::SeqCst);
        let is_served = woken.front_end && is_let;
        if !is_served && link_is_up == self.link_told {
            return None;
        }
        let turns = Arc::clone(&self.turns);
        let _turn = turns.begin(WORK);
        if link_is_up != self.link_told {
            self.link_told = link_is_up;
            session.set_link(link_is_up);
        }
        is_served.then(|| self.serve(session)).flatten()
    }

    fn serve(&mut self, session: &mut Session<PortDevice>) -> Option<String> {
        let (began, changes) = (cpu_time(), session.device().changes());
        self.shared.is_resting.store(false, Ordering::SeqCst);
        let ended = session.ready().err().map(|end| end.to_string());
        let changes = session.device().changes() - changes;
        let closing = self.socket.origin().take_spent();
        let writing = session.take_slow_writes().saturating_mul(SLOW_WRITE_SHARE);
        let taken = cpu_time().saturating_sub(began) + closing + writing;
        self.charge(taken, changes);
        if ended.is_some() {
            return ended;
        }
        self.report_refusal(session);
        self.tell(session);
        self.shared.publish(session);
        None
    }

    /// Charges a turn. A session that takes much gets a lower priority than all other threads until its end.
    fn charge(&mut self, taken: Duration, changes: u64) {
        let now = Instant::now();
        let mut allowance = self.shared.allowance();
        allowance.charge(now, taken, changes);
        if !self.gives_way && allowance.is_immodest(now) {
            drop(allowance);
            self.gives_way = setpriority_process(None, NICENESS).is_ok();
        }
    }

    /// Sends the session's update; a successor continues from it.
    fn tell(&mut self, session: &mut Session<PortDevice>) {
        let flushed =
            session.update().map_or(Flushed::All, |update| self.reports.tell(self.attachment, update));
        self.told(session, flushed);
    }

    fn flush(&mut self, session: &Session<PortDevice>) {
        let flushed = self.reports.flush();
        self.told(session, flushed);
        self.shared.publish(session);
    }

    fn told(&mut self, session: &Session<PortDevice>, flushed: Flushed) {
        self.news = match flushed {
            Flushed::All => UpdateState::Delivered,
            Flushed::Waiting => UpdateState::Waiting,
            Flushed::Gone => UpdateState::Lost,
        };
        if self.news == UpdateState::Delivered {
            session.rest();
        }
    }

    /// Logs the last refusal, unless it equals the one before. A VMM may cause refusals at any rate.
    fn report_refusal(&mut self, session: &Session<PortDevice>) {
        let last = session.refusals().last.as_ref().map(ToString::to_string);
        if last != self.refused {
            self.refused.clone_from(&last);
            let name = self.port.clone();
            last.into_iter().for_each(|why| {
                self.reports.report_if_idle(&Report::Refused { name: name.clone(), why, is_stopped: false });
            });
        }
    }

    /// Reports rings that workers stopped, each time once.
    fn report_stop(&self, session: &mut Session<PortDevice>) {
        if let Some(why) = session.device().take_stop() {
            let (name, why) = (self.port.clone(), format!("its rings are stopped: {why}"));
            self.reports.report_if_idle(&Report::Refused { name, why, is_stopped: true });
        }
    }

    /// Ends the session: stops its rings, unmaps its memory, closes its connection. Only the next guest of the vnic
    /// waits for that, and is charged for it: otherwise reconnecting with much memory would cost nothing.
    fn end(&self) {
        let Some(mut session) = self.shared.session().take() else { return };
        let _turn = self.turns.begin(WORK);
        let (began, changes) = (cpu_time(), session.device().change_count());
        let before = changes.load(Ordering::Relaxed);
        drop(session);
        let changes = changes.load(Ordering::Relaxed) - before;
        let taken = cpu_time().saturating_sub(began) + self.socket.origin().take_spent();
        self.shared.allowance().charge(Instant::now(), taken, changes);
    }
}

struct PanicGuard;

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// The CPU time of this thread. Waiting is not charged: others have the CPU meanwhile.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
