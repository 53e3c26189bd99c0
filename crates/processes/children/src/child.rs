//! A child process, which is restarted when it ends.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use lasthop_foreign::{ForeignFd, Origin};
use log::{error, info, warn};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Serialize;
use serde::de::DeserializeOwned;

use lasthop_api::report::Ended;
use lasthop_api::settings::{HugePages, ReceiveSteering, SwitchSettings};
use lasthop_api::{CONTROLLER_ROLE, DRIVER_ROLE, SWITCH_ROLE};
use lasthop_runtime::clock::Pause;
use lasthop_runtime::fault::Fault;
use lasthop_runtime::ipc::Channel;
use lasthop_runtime::logging;
use lasthop_runtime::poller::{Interest, Poller};
use lasthop_runtime::sandbox::{self, Layer};

use crate::program::{ChildProgram, is_shortage};
use crate::reaper::{ChildProcess, Reaper};
use crate::spawner::Job;

/// Pause before a process that died is restarted; doubles.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A process that lived this long started properly.
const SOUND_LIFE: Duration = Duration::from_secs(10);
/// A process that lived this long is restarted at once: that is at most four times a second.
const SHORT_LIFE: Duration = Duration::from_millis(250);

/// The properties of a kind of process.
#[derive(Clone, Debug)]
pub struct ChildRole {
    /// For the log: "the switch process".
    pub name: &'static str,
    /// The hidden subcommand and its options.
    pub words: Vec<OsString>,
}

impl ChildRole {
    /// The process that moves packets between guests.
    pub fn switch_process(settings: &SwitchSettings) -> Self {
        let workers = settings.workers.0.to_string();
        let mut words: Vec<String> =
            [SWITCH_ROLE, "--module", settings.module.as_str(), "--workers", &workers]
                .map(str::to_owned)
                .into();
        if let Some(cpus) = &settings.cpus {
            words.extend(["--cpus".to_owned(), cpus.to_string()]);
        }
        if let Some(entries) = &settings.fdb_entries {
            words.extend(["--fdb-entries".to_owned(), entries.0.to_string()]);
        }
        // Older programs do not know this option, and their switch has the controller process.
        if let Some(controller) = settings.controller.filter(|controller| !controller.is_default()) {
            words.extend(["--controller".to_owned(), controller.to_string()]);
        }
        if let Some(mode) = settings.fail_mode {
            words.extend(["--fail-mode".to_owned(), mode.to_string()]);
        }
        if let Some(upcalls) = settings.upcalls {
            words.extend(["--upcalls".to_owned(), upcalls.to_string()]);
        }
        if settings.receive_steering == ReceiveSteering::Off {
            words.extend(["--receive-steering", "off"].map(str::to_owned));
        }
        if settings.huge_pages == HugePages::Off {
            words.extend(["--huge-pages", "off"].map(str::to_owned));
        }
        if let Some(cpus) = &settings.helper_cpus {
            words.extend(["--helper-cpus".to_owned(), cpus.to_string()]);
        }
        if let Some(offload) = settings.offload {
            words.extend(["--offload".to_owned(), offload.to_string()]);
        }
        words.extend(["--hysteresis-us".to_owned(), settings.hysteresis.to_string()]);
        words.extend(poll_cpus(settings));
        words.extend(["--sandbox".to_owned(), settings.sandbox.as_str().to_owned()]);
        Self::new("the switch process", words)
    }

    /// The process that moves packets between the switch and devices.
    pub fn driver(settings: &SwitchSettings) -> Self {
        let hysteresis = settings.hysteresis.to_string();
        let words = [DRIVER_ROLE, "--hysteresis-us", &hysteresis, "--sandbox", settings.sandbox.as_str()];
        Self::new("the driver process", words.map(str::to_owned).into_iter().chain(poll_cpus(settings)))
    }

    /// The process that decides for switches of module flow.
    pub fn controller(settings: &SwitchSettings) -> Self {
        let words = [CONTROLLER_ROLE, "--sandbox", settings.sandbox.as_str()];
        Self::new("the controller process", words.map(str::to_owned))
    }

    fn new(name: &'static str, words: impl IntoIterator<Item = String>) -> Self {
        let words = words.into_iter().chain(logging::options());
        Self { name, words: words.map(OsString::from).collect() }
    }
}

/// The words for CPUs on which threads busy-poll, if they are not the usual ones: older programs do not know them.
fn poll_cpus(settings: &SwitchSettings) -> impl Iterator<Item = String> {
    let words = settings.busy_poll_cpus.is_any().then_some(["--busy-poll-cpus", "any"]);
    words.into_iter().flatten().map(str::to_owned)
}

/// Why a process was not started.
#[derive(Debug)]
enum StartFault {
    /// Something is short; another program would lack it, too.
    Shortage(Fault),
    /// The program does not run.
    Program(Fault),
}

impl StartFault {
    fn new(role: &ChildRole, program: &ChildProgram, error: std::io::Error) -> Self {
        let what = match program.is_own() {
            true => format!("start {}", role.name),
            false => format!("start {} from {program}", role.name),
        };
        let kind = if is_shortage(&error) { Self::Shortage } else { Self::Program };
        kind(Fault::internal(&what, error))
    }

    fn fault(self) -> Fault {
        match self {
            Self::Shortage(fault) | Self::Program(fault) => fault,
        }
    }
}

/// A running process that gets `Out` and sends `In`.
#[derive(Debug)]
pub struct RunningChild<Out, In> {
    child: ChildProcess,
    started: Instant,
    /// The connection to it.
    pub channel: Channel<Out, In>,
    /// The channel is full: also wait for room.
    is_full: bool,
    /// The channel is at its end, and not watched any more.
    is_silent: bool,
    /// Its pidfd, which never names another process; `None` if the system has no room for it.
    handle: Option<OwnedFd>,
    /// Its last message, if it could not continue.
    pub last_words: Option<String>,
    /// Its sandbox, once it reported that.
    pub sandbox: Option<Vec<Layer>>,
}

impl<Out: Serialize, In: DeserializeOwned> RunningChild<Out, In> {
    /// Starts it, with one end of a socket pair as its standard input.
    fn start(role: &ChildRole, program: &ChildProgram, reaper: &Reaper) -> Result<Self, StartFault> {
        reaper.check_room().map_err(StartFault::Shortage)?;
        let failed = |error| StartFault::new(role, program, error);
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let ours = ForeignFd::new(ours.into(), &Origin::new(role.name));
        let channel = Channel::new(ours).map_err(failed)?;
        let job = Job { program: program.start_path(), words: role.words.clone() };
        let child = reaper.start(role.name, job, theirs.as_fd()).map_err(failed)?;
        let pid = i32::try_from(child.pid()).ok().and_then(Pid::from_raw);
        let handle = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let started = Instant::now();
        Ok(Self {
            child,
            started,
            channel,
            is_full: false,
            is_silent: false,
            handle,
            last_words: None,
            sandbox: None,
        })
    }

    /// Reads its messages with their descriptors; returns whether the channel is at its end.
    pub fn hear(&mut self) -> (Vec<(In, Vec<ForeignFd>)>, std::io::Result<bool>) {
        let _ = self.channel.flush();
        let is_open = self.channel.receive();
        let heard = std::iter::from_fn(|| self.channel.take());
        let heard = heard.map(|(message, fds)| (message, fds.unwrap_or_default())).collect();
        (heard, is_open.map(|is_open| !is_open))
    }

    /// Watches the channel under the number `source`, also for room while messages wait.
    pub fn watch(&mut self, poller: &Poller, source: u64) {
        if self.is_silent {
            return;
        }
        let _ = self.channel.flush(); // if the other side is gone, reading says so
        if self.channel.is_overrun() {
            self.last_words.get_or_insert_with(|| "it did not read its orders".to_owned());
            return self.fall_silent(poller);
        }
        let interest = self.channel.interest();
        // This only fails for lack of memory; the next turn tries again.
        if interest.write != self.is_full && poller.modify(&self.channel, source, interest).is_ok() {
            self.is_full = interest.write;
        }
    }
}

impl<Out, In> RunningChild<Out, In> {
    /// The number of the process.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Kills it without waiting for its end.
    pub fn kill(&mut self) {
        self.child.kill();
    }

    /// Whether it has ended, or was killed and is stuck.
    pub fn is_over(&mut self, now: Instant) -> bool {
        self.child.is_over(now)
    }

    /// When to call [`Self::is_over`] without an event.
    pub fn end_due(&self) -> Option<Instant> {
        self.child.due()
    }

    /// Ignores its later messages: only its end is still awaited.
    fn fall_silent(&mut self, poller: &Poller) {
        if !std::mem::replace(&mut self.is_silent, true) {
            poller.remove(&self.channel);
            self.kill();
        }
    }

    fn end_text(&mut self) -> String {
        let how = self.child.end_text();
        match self.last_words.take() {
            Some(words) => format!("{how}: {words}"),
            None => how,
        }
    }
}

/// A process over all its restarts.
#[derive(Debug)]
pub struct RestartingChild<Out, In> {
    role: ChildRole,
    reaper: Reaper,
    program: ChildProgram,
    current: Option<RunningChild<Out, In>>,
    /// When the next one starts, if there is none.
    next: Option<Instant>,
    pause: Pause,
    /// Whether the last one lived too short.
    is_hasty: bool,
    starts: u64,
    /// How and when the last one ended.
    last_end: Option<(String, Instant)>,
    /// Whether it was killed, and did not end by itself.
    was_killed: bool,
}

impl<Out: Serialize, In: DeserializeOwned> RestartingChild<Out, In> {
    /// Not started yet.
    pub fn new(role: ChildRole, reaper: &Reaper) -> Self {
        Self {
            role,
            reaper: reaper.clone(),
            program: ChildProgram::own(),
            current: None,
            next: None,
            pause: Pause::new(PAUSE_MIN, PAUSE_MAX),
            is_hasty: false,
            starts: 0,
            last_end: None,
            was_killed: false,
        }
    }

    /// The name of the kind of process, for the log.
    pub(crate) fn name(&self) -> &'static str {
        self.role.name
    }

    /// The running process.
    pub fn pid(&self) -> Option<u32> {
        self.current.as_ref().map(RunningChild::pid)
    }

    /// The pidfd of the running process.
    pub fn handle(&self) -> Option<&OwnedFd> {
        self.current.as_ref()?.handle.as_ref()
    }

    /// How long it has been running.
    pub fn up(&self) -> Option<Duration> {
        self.current.as_ref().map(|process| process.started.elapsed())
    }

    /// The sandbox of the running process.
    pub fn sandbox(&self) -> Option<&[Layer]> {
        self.current.as_ref()?.sandbox.as_deref()
    }

    /// Sets how the next process is started.
    pub fn set_role(&mut self, role: ChildRole) {
        self.role = role;
    }

    /// Number of starts; it differs for each of its processes.
    pub fn starts(&self) -> u64 {
        self.starts
    }

    /// Number of restarts.
    pub fn restarts(&self) -> u64 {
        self.starts.saturating_sub(1)
    }

    /// How the last one ended, and how long ago.
    pub fn last_end(&self) -> Option<Ended> {
        let told = |(how, when): &(String, Instant)| Ended {
            why: how.clone(),
            ago_ms: when.elapsed().as_millis() as u64,
        };
        self.last_end.as_ref().map(told)
    }

    /// The running process.
    pub fn current(&mut self) -> Option<&mut RunningChild<Out, In>> {
        self.current.as_mut()
    }

    /// Whether a process is running.
    pub fn is_up(&self) -> bool {
        self.current.is_some()
    }

    /// When to call [`Self::start`].
    pub fn due(&self) -> Option<Instant> {
        self.next
    }

    /// Starts it, and watches its channel under the number `source`. If its program does not run, this one replaces it.
    pub fn start(&mut self, poller: &Poller, source: u64) -> Result<&mut RunningChild<Out, In>, Fault> {
        self.next = None;
        let process = match RunningChild::start(&self.role, &self.program, &self.reaper) {
            Err(StartFault::Program(fault)) if !self.program.is_own() => {
                error!("{fault}; starting it from the supervisor's own program");
                self.use_own_program();
                RunningChild::start(&self.role, &self.program, &self.reaper)
            }
            started => started,
        };
        let process = process.map_err(StartFault::fault)?;
        self.starts += 1;
        let process = self.current.insert(process);
        poller.add(&process.channel, source, Interest::READ)?;
        Ok(process)
    }

    /// Like [`Self::start`], and logs it. A failed start is repeated after a pause.
    pub fn start_or_plan(&mut self, poller: &Poller, source: u64) {
        match self.start(poller, source).map(|process| process.pid()) {
            Ok(pid) => {
                let again = if self.restarts() > 0 { " again" } else { "" };
                info!("{} is running{again}, as process {pid}", self.role.name);
            }
            Err(fault) => self.retry(&fault),
        }
    }

    /// Plans another start after a `fault`.
    pub fn retry(&mut self, fault: &Fault) {
        self.reap();
        // A failed start is never repeated without a pause.
        self.is_hasty = true;
        let pause_ms = self.plan().as_millis();
        error!("{fault}; trying again in {pause_ms} ms");
    }

    /// Sends an order to the running process, if there is one.
    pub fn send(&mut self, order: &Out, fds: Vec<ForeignFd>) {
        if let Some(process) = &mut self.current {
            // A channel fails when its other end is gone, which reading shows.
            let _ = process.channel.send(order, fds);
        }
    }

    /// Like [`Self::send`], for an order that later ones may overtake while the system refuses its descriptors.
    pub fn send_patiently(&mut self, order: &Out, fds: Vec<ForeignFd>) {
        if let Some(process) = &mut self.current {
            let _ = process.channel.send_patiently(order, fds);
        }
    }

    /// Reads the messages of the process with their descriptors. Ends a process that has closed its channel or sends
    /// invalid messages.
    pub fn hear(&mut self, poller: &Poller) -> Vec<(In, Vec<ForeignFd>)> {
        let Some(process) = self.current.as_mut().filter(|process| !process.is_silent) else {
            return Vec::new();
        };
        let (heard, is_over) = process.hear();
        let is_over = is_over.unwrap_or_else(|error| {
            warn!("{} sent an invalid message: {error}", self.role.name);
            true
        });
        if is_over {
            process.fall_silent(poller);
        }
        heard
    }

    /// Whether the process is over, and all its messages are read. Then call `reap`.
    pub fn is_over(&mut self, now: Instant) -> bool {
        self.current.as_mut().is_some_and(|process| process.is_over(now))
    }

    /// When to call [`Self::is_over`] without an event.
    pub fn end_due(&self) -> Option<Instant> {
        self.current.as_ref().and_then(RunningChild::end_due)
    }

    /// Whether the process has sent its last message.
    pub fn is_silent(&self) -> bool {
        self.current.as_ref().is_none_or(|process| process.is_silent)
    }

    /// Kills the process, and ignores its later messages.
    pub fn silence(&mut self, poller: &Poller) {
        if let Some(process) = &mut self.current {
            process.fall_silent(poller);
        }
    }

    /// When its channel has work without an event.
    pub fn channel_due(&self) -> Option<Instant> {
        self.current.as_ref()?.channel.due()
    }

    /// Watches its channel under the number `source`, also for room while messages wait.
    pub fn watch(&mut self, poller: &Poller, source: u64) {
        if let Some(process) = &mut self.current {
            process.watch(poller, source);
        }
    }

    /// Notes the sandbox of the process.
    pub fn note_sandbox(&mut self, layers: Vec<Layer>) {
        // Restarted processes have the same one.
        if self.restarts() == 0 {
            info!("sandbox of {}: {}", self.role.name, sandbox::summary(&layers));
        }
        if let Some(process) = &mut self.current {
            process.sandbox = Some(layers);
        }
    }

    /// Notes why the process cannot continue, in its own words.
    pub fn note_last_words(&mut self, words: String) {
        if let Some(process) = &mut self.current {
            process.last_words = Some(words);
        }
    }

    /// Kills a process that hangs or misbehaves.
    pub fn give_up_on(&mut self, why: &str) {
        if let Some(process) = &mut self.current {
            process.last_words.get_or_insert_with(|| format!("it was ended, since {why}"));
            process.kill();
        }
    }

    /// Starts a process of another program beside the present one.
    pub fn stand_by(&self, program: &ChildProgram) -> Result<RunningChild<Out, In>, Fault> {
        RunningChild::start(&self.role, program, &self.reaper).map_err(StartFault::fault)
    }

    /// The same, of the program of the present one.
    pub fn stand_by_own(&self) -> Result<RunningChild<Out, In>, Fault> {
        self.stand_by(&self.program)
    }

    /// Has `successor` continue after a process that is over.
    pub fn promote(&mut self, mut successor: RunningChild<Out, In>) {
        successor.started = Instant::now();
        self.next = None;
        self.starts += 1;
        self.current = Some(successor);
    }

    /// Replaces the present process by `successor`, of `program`, which later starts use, too. Returns the replaced
    /// process.
    pub fn replace(
        &mut self,
        successor: RunningChild<Out, In>,
        program: ChildProgram,
    ) -> Option<RunningChild<Out, In>> {
        let replaced = self.current.replace(successor);
        replaced.iter().for_each(|process| self.count_life(process.started.elapsed()));
        let why = format!("was replaced by that of {program}");
        self.last_end = Some((why, Instant::now()));
        self.starts += 1;
        self.program = program;
        replaced
    }

    /// Uses `program` from the next start on.
    pub fn use_program(&mut self, program: ChildProgram) {
        self.program = program;
    }

    /// Whether the last process ended right after its start.
    pub fn is_hasty(&self) -> bool {
        self.is_hasty
    }

    /// Uses this program from the next start on.
    pub fn use_own_program(&mut self) {
        self.program = ChildProgram::own();
    }

    /// Whether the last process was killed, and did not end by itself.
    pub fn was_killed(&self) -> bool {
        self.was_killed
    }

    /// Drops a process that is over or unwanted, which is then reaped; returns how it ended.
    pub fn reap(&mut self) -> String {
        let Some(mut process) = self.current.take() else { return "was not running".to_owned() };
        self.count_life(process.started.elapsed());
        let how = process.end_text();
        self.was_killed = process.child.was_killed();
        self.last_end = Some((how.clone(), Instant::now()));
        how
    }

    fn count_life(&mut self, life: Duration) {
        if life >= SOUND_LIFE {
            self.pause.reset();
        }
        self.is_hasty = life < SHORT_LIFE;
    }

    /// Plans the next start; returns the pause until then.
    pub fn plan(&mut self) -> Duration {
        let pause = if self.is_hasty { self.pause.take() } else { Duration::ZERO };
        self.next = Some(Instant::now() + pause);
        pause
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_process_whose_program_does_not_run_is_started_from_the_own_program() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("program");
        std::fs::write(&path, "no program").expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("made executable");
        let (reaper, poller) = (Reaper::new().expect("a reaper"), Poller::new().expect("a poller"));
        // This program, which is one of tests, lists none and ends.
        let words = ["--list", "none"].map(OsString::from).to_vec();
        let role = ChildRole { name: "the process", words };
        let mut child: RestartingChild<(), ()> = RestartingChild::new(role, &reaper);
        child.use_program(ChildProgram::open(&path).expect("opened"));
        child.start(&poller, 1).expect("started");
        assert!(child.program.is_own());
        child.reap();
        reaper.await_all(Duration::from_secs(10));
    }
}
