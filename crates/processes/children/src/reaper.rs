//! Child processes and their ends, without waiting for any; ends of processes that another supervisor started, by their
//! pidfds; and zombies without a parent, if the supervisor is the first process of a container.
//!
//! ```text
//!   started ── its pidfd is watched ──> readable: it has ended, and is reaped
//!      └─ killed ──> checked after 10 ms, 20 ms, ...: has each thread ended, or is it in an uninterruptible system call (D)?
//!                       └─ seven times in a row: it is stuck, and another process may replace it; it is reaped when it ends
//! ```
//!
//! The standard error of a process is relayed to the log (`log_relay`).
//!
//! A stuck process counts as dead. SIGKILL is pending for each of its threads, so none of them returns to its program,
//! and that program never writes to shared memory again. Its descriptors stay open, so nothing may wait for these to
//! close.
//!
//! The process that holds a dead switch process's memory ends shortly after it (`dataplane/keeper.rs`). Its parent is
//! then the first process, which has to reap it, or it stays a zombie.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::rc::Rc;
use std::time::{Duration, Instant};

use lasthop_foreign::ForeignFd;
use lasthop_runtime::clock::{Pause, earlier};
use lasthop_runtime::fault::{Fault, Kind};
use lasthop_runtime::poller::{Interest, Poller, timespec};
use lasthop_runtime::procfs::{self, Standing};
use libc::SIGSYS;
use log::{error, info};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, waitpid};

use crate::log_relay::LogRelay;
use crate::spawner::{Job, Spawner};

/// Pause before the first check of a killed process; doubles.
const LOOK_PAUSE_MIN: Duration = Duration::from_millis(10);
const LOOK_PAUSE_MAX: Duration = Duration::from_secs(2);
/// Checks in a row that must find it stuck, 1.3 s in all: threads are also in state D while they end, for example while
/// their namespaces are removed.
const STUCK_LOOKS: u32 = 7;
/// Checks of one process, a minute in all. One that is neither stuck nor ended by then is awaited without checks.
const LOOKS_MAX: u32 = 36;
/// Largest number of stuck processes. With as many no other process is started until one of them ends, since each keeps
/// guests' memory.
pub(crate) const STUCK_MAX: usize = 16;

/// When to check a killed process.
#[derive(Clone, Debug)]
pub(crate) struct Looks {
    next: Option<Instant>,
    pause: Pause,
    left: u32,
    /// Number of checks in a row that found it stuck.
    stuck: u32,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Another check will tell.
    Early,
    /// It counts as stuck from now on.
    IsStuck,
    /// It still runs, and there are no further checks.
    IsLast,
}

impl Looks {
    pub(crate) fn begin(now: Instant) -> Self {
        let mut pause = Pause::new(LOOK_PAUSE_MIN, LOOK_PAUSE_MAX);
        Self { next: Some(now + pause.take()), pause, left: LOOKS_MAX, stuck: 0 }
    }

    pub(crate) fn due(&self) -> Option<Instant> {
        self.next
    }

    /// Notes the result of a check.
    pub(crate) fn note(&mut self, is_stuck: bool, now: Instant) -> Look {
        self.left = self.left.saturating_sub(1);
        self.stuck = if is_stuck { self.stuck + 1 } else { 0 };
        let look = match () {
            () if self.stuck >= STUCK_LOOKS => Look::IsStuck,
            () if self.left == 0 => Look::IsLast,
            () => Look::Early,
        };
        self.next = (look == Look::Early).then(|| now + self.pause.take());
        look
    }
}

/// A child whose end is awaited.
#[derive(Debug)]
struct Watched {
    child: Child,
    /// For the log: "the switch process".
    name: &'static str,
    /// Its pidfd, without a copy: a copy would stay in the epoll set after a close here. `None` if the system had no
    /// room for it: then the process is killed, and reaped after checks.
    end: Option<OwnedFd>,
    /// Set once it was killed.
    looks: Option<Looks>,
    status: Option<ExitStatus>,
    is_stuck: bool,
}

impl Watched {
    fn kill(&mut self, now: Instant) {
        // This only fails for a process that has ended.
        let _ = self.child.kill();
        self.looks.get_or_insert_with(|| Looks::begin(now));
    }

    /// Reaps it if it has ended.
    fn is_reaped(&mut self) -> bool {
        if self.status.is_none() {
            // This only fails for a child that other code has reaped, which does not happen.
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status.is_some()
    }

    fn due(&self) -> Option<Instant> {
        self.looks.as_ref().and_then(Looks::due).filter(|_| self.status.is_none())
    }

    /// Checks it if that is due; reports each finding once.
    fn look(&mut self, now: Instant) {
        if self.is_reaped() || self.due().is_none_or(|due| due > now) {
            return;
        }
        let (pid, name) = (self.child.id(), self.name);
        let standing = procfs::standing(pid);
        let Some(looks) = &mut self.looks else { return };
        match (looks.note(matches!(standing, Standing::Stuck(_)), now), standing) {
            (Look::IsStuck, Standing::Stuck(thread)) => {
                self.is_stuck = true;
                error!("{}", stuck_text(name, pid, &thread));
            }
            (Look::IsLast, _) => {
                error!("{name} {pid} was killed and still runs; nothing takes its place before it has ended");
            }
            _ => {}
        }
    }
}

/// A log line about a stuck process: its name, its state, and the meaning of that.
pub(crate) fn stuck_text(name: &str, pid: impl std::fmt::Display, thread: &str) -> String {
    format!(
        "{name} {pid} was killed and cannot end: its thread {thread} waits in a system call that nothing interrupts (D), mostly for a file \
         system that does not answer (FUSE, NFS); it runs no more and another one takes its place; its memory is free once that call returns"
    )
}

/// All watched children.
#[derive(Clone, Debug)]
pub struct Reaper(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    /// It does not matter which of them had an event, since there are few processes.
    events: Poller,
    next_number: Cell<u64>,
    spawner: Spawner,
    relay: RefCell<LogRelay>,
    /// Killed processes that only need to be reaped.
    left: RefCell<Vec<Watched>>,
}

impl Reaper {
    /// Starts the thread that starts processes. There is no child yet.
    pub fn new() -> Result<Self, Fault> {
        Ok(Self(Rc::new(Inner {
            events: Poller::new()?,
            next_number: Cell::new(0),
            spawner: Spawner::start()?,
            relay: RefCell::default(),
            left: RefCell::default(),
        })))
    }

    /// Checks whether another process may be started beside the stuck ones.
    pub(crate) fn check_room(&self) -> Result<(), Fault> {
        let stuck = self.stuck();
        if stuck < STUCK_MAX {
            return Ok(());
        }
        let why = format!(
            "{stuck} processes that were killed cannot end, so no other one is started; end the front ends whose descriptors do not close \
             (the log names their ports), or the server of their file system"
        );
        Err(Fault::new(Kind::Limit, why))
    }

    /// Whether it was killed and has to be reaped here.
    pub(crate) fn is_to_reap(&self, pid: u32) -> bool {
        self.0.left.borrow().iter().any(|left| left.child.id() == pid)
    }

    /// Number of killed processes that are stuck.
    pub fn stuck(&self) -> usize {
        self.0.left.borrow().iter().filter(|left| left.is_stuck).count()
    }

    /// Starts a process with `input` as its standard input. Relays its standard error to the log, and watches for its
    /// end.
    pub(crate) fn start(
        &self,
        name: &'static str,
        job: Job,
        input: BorrowedFd<'_>,
    ) -> io::Result<ChildProcess> {
        let number = self.next_number();
        let errors = self.0.relay.borrow_mut().open(name, number, &self.0.events)?;
        // Reserves the number of a descriptor, so that there is one for the pidfd.
        let room = eventfd(0, EventfdFlags::CLOEXEC)?;
        let child = self.0.spawner.spawn(job, input, errors.as_fd())?;
        drop(room);
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let opened = pid.ok_or_else(|| io::Error::other("no process number")).and_then(|pid| {
            let end = pidfd_open(pid, PidfdFlags::empty())?;
            self.watch(&end).map_err(io::Error::other)?;
            Ok(end)
        });
        let (end, failed) = opened.map_or_else(|error| (None, Some(error)), |end| (Some(end), None));
        let (looks, status, is_stuck) = Default::default();
        let watched = Watched { child, name, end, looks, status, is_stuck };
        let child = ChildProcess { watched: Some(watched), reaper: self.clone() };
        failed.map_or(Ok(child), Err)
    }

    fn next_number(&self) -> u64 {
        let number = self.0.next_number.get() + 1;
        self.0.next_number.set(number);
        number
    }

    fn watch(&self, end: &OwnedFd) -> Result<(), Fault> {
        self.0.events.add(end, self.next_number(), Interest::READ)
    }

    /// Logs the processes' lines of standard error.
    pub fn hear(&self) {
        self.0.relay.borrow_mut().hear();
    }

    /// When to call [`Self::tend`] without an event.
    pub fn due(&self) -> Option<Instant> {
        self.0.left.borrow().iter().map(Watched::due).fold(None, earlier)
    }

    /// Reaps killed processes that have ended, and checks the others.
    pub fn tend(&self, now: Instant) {
        self.0.left.borrow_mut().retain_mut(|left| {
            left.look(now);
            if left.is_stuck && left.status.is_some() {
                info!("{} {}, which was stuck, has ended", left.name, left.child.id());
            }
            left.status.is_none()
        });
    }

    /// Before the supervisor ends, when no guest is served any more: waits up to `patience` until all processes that
    /// are not stuck have ended.
    pub fn await_all(&self, patience: Duration) {
        let until = Instant::now() + patience;
        loop {
            let now = Instant::now();
            self.hear();
            self.tend(now);
            let left = self.0.left.borrow();
            let mut ends: Vec<PollFd<'_>> = left
                .iter()
                .filter(|left| !left.is_stuck)
                .filter_map(|left| Some(PollFd::new(left.end.as_ref()?, PollFlags::IN)))
                .collect();
            if ends.is_empty() || now >= until {
                return;
            }
            let pause = earlier(self.due(), Some(until)).map(|due| due.saturating_duration_since(now));
            let _ = poll(&mut ends, pause.map(timespec).as_ref());
        }
    }
}

impl AsFd for Reaper {
    /// Readable when a process has ended, or written to standard error.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.events.as_fd()
    }
}

/// A child process. A dropped one is killed, and reaped once it has ended.
#[derive(Debug)]
pub(crate) struct ChildProcess {
    /// `None` only while it is dropped.
    watched: Option<Watched>,
    reaper: Reaper,
}

impl ChildProcess {
    fn watched(&self) -> &Watched {
        self.watched.as_ref().expect("only drop takes it")
    }

    fn watched_mut(&mut self) -> &mut Watched {
        self.watched.as_mut().expect("only drop takes it")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.watched().child.id()
    }

    /// Kills it without waiting for its end.
    pub(crate) fn kill(&mut self) {
        self.watched_mut().kill(Instant::now());
    }

    /// Whether it has ended, or is stuck.
    pub(crate) fn is_over(&mut self, now: Instant) -> bool {
        let watched = self.watched_mut();
        watched.look(now);
        watched.status.is_some() || watched.is_stuck
    }

    /// Whether it is stuck, with its descriptors open.
    pub(crate) fn is_stuck(&self) -> bool {
        self.watched().is_stuck
    }

    /// When to call [`Self::is_over`] without an event.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.watched().due().filter(|_| !self.watched().is_stuck)
    }

    /// Whether it was killed, by this process or another one.
    pub(crate) fn was_killed(&self) -> bool {
        self.watched().status.is_none_or(|status| status.signal() == Some(libc::SIGKILL))
    }

    /// How it ended.
    pub(crate) fn end_text(&self) -> String {
        match self.watched().status {
            Some(status) => describe(status),
            None if self.is_stuck() => "was killed, and is stuck in the kernel".to_owned(),
            None => "was killed".to_owned(),
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let Some(mut watched) = self.watched.take() else { return };
        watched.kill(Instant::now());
        if !watched.is_reaped() {
            self.reaper.0.left.borrow_mut().push(watched);
        }
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        // Usually the process itself reports the system call.
        (Some(SIGSYS), _) => "was ended by SIGSYS".to_owned(),
        (Some(signal), _) => {
            let core = if status.core_dumped() { core_text() } else { String::new() };
            format!("was killed by signal {signal}{}{core}", meaning(signal))
        }
        (None, Some(code)) => format!("ended with status {code}"),
        (None, None) => "ended".to_owned(),
    }
}

/// The meaning of a signal that a program causes itself; empty for others.
fn meaning(signal: i32) -> &'static str {
    match signal {
        libc::SIGSEGV => " (SIGSEGV: memory that is not there)",
        libc::SIGBUS => " (SIGBUS: memory whose file is shorter, or which the machine lost)",
        libc::SIGILL => " (SIGILL: an instruction that this CPU does not have)",
        libc::SIGFPE => " (SIGFPE: arithmetic without a result)",
        libc::SIGABRT => " (SIGABRT: it gave up; the log has its last words)",
        libc::SIGTRAP => " (SIGTRAP)",
        _ => "",
    }
}

/// The place of its core dump (core(5)).
fn core_text() -> String {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    match pattern.trim().strip_prefix('|') {
        Some(program) if program.contains("systemd-coredump") => ", with a core: coredumpctl info".to_owned(),
        Some(program) => format!(", with a core for {}", program.split(' ').next().unwrap_or_default()),
        None => format!(", with a core: {}", pattern.trim()),
    }
}

impl Reaper {
    /// Reaps orphans that have ended, if this is the first process. `own` are running children.
    pub fn reap_orphans(&self, own: &[Option<u32>]) {
        if std::process::id() != 1 {
            return;
        }
        let is_own = |pid: &u32| own.contains(&Some(*pid)) || self.is_to_reap(*pid);
        for pid in procfs::children("self").filter(|pid| !is_own(pid)) {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            // A process that still runs is checked again after the next restart.
            let _ = waitpid(pid, WaitOptions::NOHANG);
        }
    }
}

/// How long the last switch process may take to end by itself after its supervisor's end.
const END_PATIENCE: Duration = Duration::from_millis(100);

/// Whether a descriptor is a pidfd (pidfd_open(2)).
pub fn is_process(fd: &ForeignFd) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap_or_default();
    let link = link.to_string_lossy();
    // Since Linux 6.9 they have inodes of their own.
    link == "anon_inode:[pidfd]" || link.starts_with("pidfd:[")
}

/// Kills a process, and waits until it has ended or is stuck: then none of its threads runs its program (`reaper`). No
/// guest is served before that, since two switch processes must never serve the same guest.
pub fn await_end(process: &ForeignFd) -> Result<(), Fault> {
    if ends(process, END_PATIENCE) {
        return Ok(());
    }
    let _ = pidfd_send_signal(process, Signal::KILL);
    let mut looks = Looks::begin(Instant::now());
    while let Some(due) = looks.due() {
        if ends(process, due.saturating_duration_since(Instant::now())) {
            return Ok(());
        }
        let pid = procfs::pid_of(process).unwrap_or_default();
        let standing = procfs::standing(pid);
        let look = looks.note(matches!(standing, Standing::Stuck(_)), Instant::now());
        if let (Look::IsStuck, Standing::Stuck(thread)) = (look, standing) {
            error!("{}", stuck_text("the last supervisor's switch process", pid, &thread));
            return Ok(());
        }
    }
    let why = "the switch process of the last supervisor does not end, though it was killed; guests wait until it has";
    Err(Fault::new(Kind::Internal, why))
}

fn ends(process: &ForeignFd, patience: Duration) -> bool {
    let timeout = Timespec::try_from(patience).ok();
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    poll(&mut fds, timeout.as_ref()).is_ok_and(|count| count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(reaper: &Reaper, line: &str) -> ChildProcess {
        let job = Job { program: "/bin/sh".into(), words: ["-c", line].map(Into::into).to_vec() };
        let input = std::fs::File::open("/dev/null").expect("a file");
        reaper.start("a process", job, input.as_fd()).expect("started")
    }

    #[test]
    fn an_end_is_described_by_signal_or_status() {
        assert_eq!(describe(ExitStatus::from_raw(9)), "was killed by signal 9");
        let crashed = describe(ExitStatus::from_raw(libc::SIGSEGV));
        assert_eq!(crashed, "was killed by signal 11 (SIGSEGV: memory that is not there)");
        let with_core = describe(ExitStatus::from_raw(libc::SIGABRT | 0x80));
        assert!(with_core.contains("its last words), with a core"), "{with_core}");
        assert_eq!(describe(ExitStatus::from_raw(SIGSYS)), "was ended by SIGSYS");
        assert_eq!(describe(ExitStatus::from_raw(3 << 8)), "ended with status 3");
    }

    /// Checks it when due, with results by `is_stuck`, until there are no further checks; returns their number and the
    /// last result.
    fn look_on(is_stuck: impl Fn(u32) -> bool) -> (u32, Look) {
        let mut now = Instant::now();
        let mut looks = Looks::begin(now);
        for count in 1.. {
            now = looks.due().expect("another look");
            let look = looks.note(is_stuck(count), now);
            if looks.due().is_none() {
                return (count, look);
            }
        }
        unreachable!("looks are bounded")
    }

    #[test]
    fn a_process_is_stuck_when_it_is_at_some_looks_in_a_row() {
        assert_eq!(look_on(|_| true), (STUCK_LOOKS, Look::IsStuck));
        assert_eq!(look_on(|count| count != 2), (2 + STUCK_LOOKS, Look::IsStuck));
        assert_eq!(
            look_on(|count| count % STUCK_LOOKS != 0),
            (LOOKS_MAX, Look::IsLast),
            "it runs now and then"
        );
        assert_eq!(look_on(|_| false), (LOOKS_MAX, Look::IsLast));
    }

    fn readable(reaper: &Reaper, timeout: Duration) -> bool {
        let mut fds = [PollFd::new(reaper, PollFlags::IN)];
        poll(&mut fds, Some(&timespec(timeout))).expect("polled") > 0
    }

    #[test]
    fn a_child_that_is_dropped_is_killed_and_reaped_by_its_event() {
        let reaper = Reaper::new().expect("a set");
        let child = start(&reaper, "exec sleep 1000");
        assert!(!readable(&reaper, Duration::ZERO), "it runs");
        let pid = child.pid();
        drop(child);
        // A process that another test is starting has copies of its standard error and of the watched descriptors until
        // exec(2). So either may end first, possibly without an event.
        while reaper.is_to_reap(pid) || reaper.0.relay.borrow().is_open() {
            assert!(readable(&reaper, Duration::from_secs(60)));
            reaper.hear();
            reaper.tend(Instant::now());
        }
        let until = Instant::now() + Duration::from_secs(60);
        while readable(&reaper, Duration::ZERO) {
            assert!(Instant::now() < until, "what is over has events");
        }
        assert!(procfs::text(pid, "stat").is_none(), "it is reaped");
        assert!(reaper.due().is_none());
    }

    #[test]
    fn beside_as_many_stuck_processes_as_there_may_be_no_other_one_is_started() {
        let reaper = Reaper::new().expect("a set");
        for _ in 0..STUCK_MAX {
            reaper.check_room().expect("room for another one");
            let mut child = start(&reaper, "exec sleep 1000");
            // The state that checks find if a file system blocks it.
            let mut watched = child.watched.take().expect("it runs");
            watched.is_stuck = true;
            reaper.0.left.borrow_mut().push(watched);
        }
        let fault = reaper.check_room().expect_err("no room");
        assert_eq!(fault.kind, Kind::Limit);
        assert!(fault.message.starts_with("16 processes that were killed cannot end"), "{fault}");
        reaper.0.left.borrow_mut()[0].kill(Instant::now());
        while reaper.stuck() == STUCK_MAX {
            assert!(readable(&reaper, Duration::from_secs(60)));
            reaper.hear();
            reaper.tend(Instant::now());
        }
        reaper.check_room().expect("room again");
        reaper.0.left.borrow_mut().iter_mut().for_each(|left| {
            left.is_stuck = false;
            left.kill(Instant::now());
        });
        reaper.await_all(Duration::from_secs(60));
    }

    #[test]
    fn a_child_that_ends_is_over_and_says_how() {
        let reaper = Reaper::new().expect("a set");
        let mut child = start(&reaper, "exit 3");
        while !child.is_over(Instant::now()) {
            assert!(readable(&reaper, Duration::from_secs(60)));
            reaper.hear();
        }
        assert!(!child.is_stuck());
        assert_eq!(child.end_text(), "ended with status 3");
    }
}
