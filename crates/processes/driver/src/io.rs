//! I/O threads: poll active lanes, sleep when all are idle, and run tasks of the control side.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lasthop_ring::{AdaptivePoll, CoreYield};
use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{ClockId, clock_gettime};

use crate::event::{Report, Reporter};
use crate::lane::{Lane, LaneState, Moved};
use crate::watch::{Source, Watch};
use crate::{DriverError, DriverEvent, DriverSettings, QueueError, ThreadStats};

/// How often a busy thread polls for events: a lane that wakes meanwhile waits for at most this long.
const POLL_NS: u64 = 20_000;
/// Same for a thread that has polled in vain for this long, while it waits for other lanes.
const IDLE_POLL_NS: u64 = 2_000;
/// How long a control call waits for a thread, and how often: as long as the supervisor waits for a process. Waits are
/// counted instead of time, so that a pause of the whole process makes no thread count as silent.
const REPLY_WAIT: Duration = Duration::from_secs(1);
const REPLY_WAITS: u32 = 10;

/// A task that a thread runs between two visits.
type ThreadTask = Box<dyn FnOnce(&mut Io) + Send>;

/// An I/O thread as the control side knows it.
#[derive(Debug)]
pub(crate) struct IoThread {
    number: usize,
    tasks: Sender<ThreadTask>,
    bell: Arc<OwnedFd>,
    handle: Option<JoinHandle<()>>,
    /// Number of tasks that it was given, and that it has run.
    posted: Cell<u64>,
    done: Arc<AtomicU64>,
    /// The last task whose result is awaited no more; 0 if there is none.
    given_up: Cell<u64>,
    /// The last task that asks for a sign of life; 0 if there is none.
    probe: Cell<u64>,
}

impl IoThread {
    pub(crate) fn start(
        number: usize,
        settings: &DriverSettings,
        reporter: Reporter,
    ) -> std::io::Result<Self> {
        let bell = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        let (tasks, inbox) = channel();
        let io = Io::new(inbox, &bell, settings, reporter)?;
        let done = Arc::clone(&io.done);
        let named = std::thread::Builder::new().name(format!("io-{number}"));
        let handle = Some(named.spawn(move || io.run())?);
        let (posted, given_up, probe) = Default::default();
        Ok(Self { number, tasks, bell, handle, posted, done, given_up, probe })
    }

    /// Gives the thread a task; returns the task's number, from 1.
    pub(crate) fn post(&self, task: ThreadTask) -> u64 {
        self.posted.set(self.posted.get() + 1);
        // A thread that is gone answers nothing, which is noticed.
        let _ = self.tasks.send(task);
        // The write only fails if the eventfd is readable already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        self.posted.get()
    }

    fn has_done(&self, task: u64) -> bool {
        self.done.load(Ordering::Acquire) >= task
    }

    /// Whether it let a call wait in vain, and has not run the call's task since.
    pub(crate) fn is_silent(&self) -> bool {
        !self.has_done(self.given_up.get())
    }

    /// Asks for a sign of life, unless it owes one: then [`Self::has_answered`] turns true, and the reporter's bell rings.
    pub(crate) fn probe(&self) {
        if self.has_answered() {
            self.probe.set(self.post(Box::new(|io| io.is_probed = true)));
        }
    }

    /// Whether it owes no sign of life.
    pub(crate) fn has_answered(&self) -> bool {
        self.has_done(self.probe.get())
    }

    /// Has the thread run `task`, and returns its result. A silent thread is not waited for again.
    ///
    /// # Errors
    /// [`DriverError::NoAnswer`].
    pub(crate) fn ask<R: Send + 'static>(
        &self,
        task: impl FnOnce(&mut Io) -> R + Send + 'static,
    ) -> Result<R, DriverError> {
        if self.is_silent() {
            return Err(DriverError::NoAnswer(self.number));
        }
        let (reply, answer) = sync_channel(1);
        let number = self.post(Box::new(move |io| {
            let _ = reply.send(task(io));
        }));
        for _ in 0..REPLY_WAITS {
            match answer.recv_timeout(REPLY_WAIT) {
                Ok(result) => return Ok(result),
                Err(RecvTimeoutError::Timeout) => {}
                // The thread is gone.
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.given_up.set(number);
        Err(DriverError::NoAnswer(self.number))
    }
}

impl Drop for IoThread {
    fn drop(&mut self) {
        self.post(Box::new(|io| io.is_stopping = true));
        if let Some(handle) = self.handle.take() {
            // A thread that panicked has ended, too.
            let _ = handle.join();
        }
    }
}

/// The state of an I/O thread.
pub(crate) struct Io {
    lanes: Vec<(u32, Lane)>,
    watch: Watch,
    tasks: Receiver<ThreadTask>,
    reporter: Reporter,
    stats: ThreadStats,
    adaptive_poll: AdaptivePoll,
    started: Instant,
    polled_ns: u64,
    worked_ns: u64,
    core_yield: CoreYield,
    is_stopping: bool,
    /// Number of tasks that were run.
    done: Arc<AtomicU64>,
    /// Whether one of the present tasks asked for a sign of life.
    is_probed: bool,
}

impl Io {
    fn new(
        tasks: Receiver<ThreadTask>,
        bell: &OwnedFd,
        settings: &DriverSettings,
        reporter: Reporter,
    ) -> std::io::Result<Self> {
        let watch = Watch::new()?;
        watch.listen(bell.as_fd(), Source::Bell)?;
        Ok(Self {
            lanes: Vec::new(),
            watch,
            tasks,
            reporter,
            stats: ThreadStats::default(),
            adaptive_poll: AdaptivePoll::new(u64::from(settings.hysteresis_us) * 1000),
            started: Instant::now(),
            polled_ns: 0,
            worked_ns: 0,
            core_yield: CoreYield::new(settings.polls_on_any_cpu),
            is_stopping: false,
            done: Arc::default(),
            is_probed: false,
        })
    }

    fn now_ns(&self) -> u64 {
        ns_since(self.started)
    }

    /// Serves until it is told to stop.
    fn run(mut self) {
        while !self.is_stopping {
            let now = self.now_ns();
            let worked = self.round(now);
            if !self.lanes.iter().any(|(_, lane)| lane.is_active) {
                self.sleep();
                continue;
            }
            if worked {
                self.worked_ns = now;
            }
            let is_idle = now - self.worked_ns >= IDLE_POLL_NS && self.has_sleepers();
            if now - self.polled_ns >= if is_idle { IDLE_POLL_NS } else { POLL_NS } {
                self.polled_ns = now;
                self.stats.polls += 1;
                self.take_events(false);
                if worked {
                    self.leave_idle(now, self.look_ns(now));
                }
            }
            if !worked {
                self.wind_down(now);
            }
        }
    }

    /// Sleeps, since no lane is active.
    fn sleep(&mut self) {
        self.stats.sleeps += 1;
        self.take_events(true);
    }

    /// Whether a lane waits for an event.
    fn has_sleepers(&self) -> bool {
        self.lanes.iter().any(|(_, lane)| !lane.is_active)
    }

    /// Visits active lanes; returns whether one moved frames.
    fn round(&mut self, now: u64) -> bool {
        let mut worked = false;
        for (number, lane) in self.lanes.iter_mut().filter(|(_, lane)| lane.is_active) {
            self.stats.visits += 1;
            match lane.visit() {
                Ok(Moved { to_device: 0, to_switch: 0 }) => {}
                Ok(moved) => {
                    self.stats.batches += 1;
                    lane.worked_ns = now;
                    lane.note_busy(&self.watch);
                    worked = true;
                    enter(&mut self.adaptive_poll, *number, moved, now);
                }
                Err(error) => {
                    self.reporter.report(fall(lane, &error, &self.watch));
                    worked = true;
                }
            }
        }
        worked
    }

    /// Stops polling lanes that had no frames for the adaptive polling time. If another thread wants the core, stops
    /// for all lanes without frames.
    fn wind_down(&mut self, now: u64) {
        self.leave_idle(now, self.look_ns(now));
        if self.lanes.iter().any(|(_, lane)| lane.is_active) && self.is_crowded(now) {
            self.leave_idle(now, 0);
        }
    }

    /// How long to poll lanes without frames.
    fn look_ns(&self, now: u64) -> u64 {
        self.core_yield.look_ns(now, self.adaptive_poll.ns())
    }

    /// Yields the core now and then. Returns whether another thread took it.
    fn is_crowded(&mut self, now: u64) -> bool {
        if !self.core_yield.is_due(now) {
            return false;
        }
        let back = self.core_yield.offer(|| ns_since(self.started), std::thread::yield_now);
        self.stats.crowded += u64::from(back.was_taken);
        self.stats.scarce += u64::from(back.is_scarce);
        back.was_taken
    }

    fn leave_idle(&mut self, now: u64, look_ns: u64) {
        for (number, lane) in self.lanes.iter_mut().filter(|(_, lane)| lane.is_active) {
            if !is_idle(lane.worked_ns, now, look_ns) {
                continue;
            }
            if let Err(error) = lane.rest(&self.watch, *number) {
                let error = QueueError::Failed(
                    rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO),
                );
                self.reporter.report(fall(lane, &error, &self.watch));
            }
        }
    }

    fn take_events(&mut self, may_sleep: bool) {
        let events = self.watch.wait(may_sleep);
        let now = self.now_ns();
        for event in events {
            match event {
                Source::Bell => self.run_tasks(),
                Source::Device(number) | Source::DeviceFault(number) => {
                    if let Some(lane) = self.lane(number) {
                        lane.wake(now, matches!(event, Source::DeviceFault(_)));
                    }
                }
                // The rings are looked at again before a lane sleeps.
                Source::Call(number) => {
                    if let Some(lane) = self.lane(number) {
                        lane.activate(now);
                    }
                }
                Source::Session(number) => self.hung_up(number),
            }
        }
    }

    fn run_tasks(&mut self) {
        while let Ok(task) = self.tasks.try_recv() {
            task(self);
            self.done.fetch_add(1, Ordering::Release);
        }
        // Not by the task: it has to count as done when the control side looks.
        if std::mem::take(&mut self.is_probed) {
            self.reporter.ring();
        }
    }

    fn lane(&mut self, number: u32) -> Option<&mut Lane> {
        self.lanes.iter_mut().find(|(other, _)| *other == number).map(|(_, lane)| lane)
    }

    fn hung_up(&mut self, number: u32) {
        let Some((_, lane)) = self.lanes.iter_mut().find(|(other, _)| *other == number) else { return };
        if lane.state != LaneState::NoSwitch {
            lane.close(LaneState::NoSwitch, &self.watch);
            let event = DriverEvent::SwitchGone { port: lane.port, why: "the switch hung up".to_owned() };
            self.reporter.report(Report { generation: lane.generation, event });
        }
    }

    /// Starts to serve a lane; its first visit needs no event.
    ///
    /// # Errors
    /// Returns the lane if its descriptors cannot be registered.
    pub(crate) fn add(&mut self, number: u32, mut lane: Lane) -> Result<(), (Box<Lane>, std::io::Error)> {
        if let Err(error) = lane.enter(&self.watch, number) {
            lane.leave(&self.watch);
            return Err((Box::new(lane), error));
        }
        lane.activate(self.now_ns());
        self.lanes.push((number, lane));
        Ok(())
    }

    /// Stops serving a lane.
    pub(crate) fn remove(&mut self, number: u32) -> Option<Lane> {
        let at = self.lanes.iter().position(|(other, _)| *other == number)?;
        let (_, mut lane) = self.lanes.swap_remove(at);
        lane.leave(&self.watch);
        Some(lane)
    }

    /// A lane's counters and state.
    pub(crate) fn count(&mut self, number: u32) -> Option<(lasthop_device::DriverCounters, LaneState)> {
        self.lane(number).map(|lane| (lane.count(), lane.state))
    }

    /// The same of all lanes, by number.
    pub(crate) fn counts(&mut self) -> Vec<(u32, (lasthop_device::DriverCounters, LaneState))> {
        self.lanes.iter_mut().map(|(number, lane)| (*number, (lane.count(), lane.state))).collect()
    }

    /// The thread's counters.
    pub(crate) fn stats(&self) -> ThreadStats {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        let cpu_ns = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
        let thread_id = rustix::thread::gettid().as_raw_nonzero().get();
        ThreadStats { thread_id, cpu_ns, lanes: self.lanes.len(), ..self.stats }
    }
}

fn ns_since(start: Instant) -> u64 {
    start.elapsed().as_nanos() as u64
}

/// Whether a lane may sleep in a round that began at `now`: it moved frames, or woke, at `worked_ns`, was visited
/// since, and has had no frames for `look_ns`. A device signals its frames once, so a lane that just woke has to be
/// visited.
fn is_idle(worked_ns: u64, now: u64, look_ns: u64) -> bool {
    worked_ns < now && now - worked_ns >= look_ns
}

/// Enters the frames that a lane moved each way, in the order of its visits. Each direction is a source of its own,
/// since answers go the other way.
fn enter(adaptive_poll: &mut AdaptivePoll, lane: u32, moved: Moved, now: u64) {
    let source = 2 * lane as usize;
    if moved.to_device > 0 {
        adaptive_poll.found(source, now);
    }
    if moved.to_switch > 0 {
        adaptive_poll.found(source + 1, now);
    }
}

/// Closes the lane's side that an error concerns.
fn fall(lane: &mut Lane, error: &QueueError, watch: &Watch) -> Report {
    let (port, why) = (lane.port, error.to_string());
    let event = match error {
        QueueError::Vnic(_) => {
            lane.close(LaneState::NoSwitch, watch);
            DriverEvent::SwitchGone { port, why }
        }
        QueueError::RingStopped => {
            lane.close(LaneState::NoDevice, watch);
            DriverEvent::RingStopped { port, why }
        }
        _ => {
            lane.close(LaneState::NoDevice, watch);
            DriverEvent::DeviceGone { port, why }
        }
    };
    Report { generation: lane.generation, event }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::DevicePortId;
    use crate::event::reports;
    use crate::tests::{World, world};

    #[test]
    fn a_lane_is_visited_before_it_is_left_alone() {
        for look_ns in [0, 50] {
            assert!(!is_idle(1000, 1000, look_ns), "it had frames in this round, and may have more");
            assert!(!is_idle(1001, 1000, look_ns), "it woke after this round");
        }
        assert!(is_idle(999, 1000, 0) && !is_idle(999, 1000, 2) && is_idle(950, 1000, 50));
    }

    /// The frame comes after the visit and before the thread polls for events, in one turn.
    #[test]
    fn a_frame_that_comes_between_a_visit_and_the_poll_is_not_slept_over() {
        let World { pair, queue, wire, _vnic, .. } = world();
        let (session, _switch) = UnixStream::pair().unwrap();
        let lane = Lane::new((DevicePortId(1), 0), pair, Box::new(queue), session.into(), LaneState::Open);
        let (bell, (reporter, _reports)) = (eventfd(0, EventfdFlags::NONBLOCK).unwrap(), reports().unwrap());
        let mut io = Io::new(channel().1, &bell, &DriverSettings::default(), reporter).unwrap();
        io.add(0, lane).unwrap();
        let now = io.now_ns();
        assert!(!io.round(now), "nothing has come");
        wire.send(&[0; 100]).unwrap();
        io.take_events(false);
        io.leave_idle(now, 0);
        assert!(io.lanes[0].1.is_active, "the device's event is taken: no other one wakes the thread");
        let now = io.now_ns();
        assert!(io.round(now), "the frame");
    }
}
