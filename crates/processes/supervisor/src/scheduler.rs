//! The view of the host's scheduler: open while a guest is attached, and passed to the switch process.
//!
//! ```text
//!   first guest attaches ──> view opened, programs attached          last guest gone ──> view closed
//!   every guest          ──> SO_PEERCRED: its front end's process ──> /proc: threads of vCPUs ──> tracked
//!   every device port    ──> the driver process ──────────────────────> /proc: its I/O threads ──> tracked, while there is a guest
//!   switch process       <── descriptor, slots of each guest, policies; after each change, and to each new process that knows the order
//! ```
//!
//! The front end's process is the one that connected, or that listens. It is refused if its user differs from the
//! connection's, or if its number belongs to another process now. Only its threads, and children that it traces, are
//! tracked: see `lasthop_sched_view::guest_threads`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use lasthop_foreign::ForeignFd;
use lasthop_sched::Modes;
use lasthop_sched_view::guest_threads::{GuestKind, GuestThreads, ProcessSnapshot, ThreadChoice};
use lasthop_sched_view::layout::Slot;
use lasthop_sched_view::{FrontEndProcess, ThreadId, ViewWriter};
use log::warn;
use serde_json::Value;

use lasthop_api::orders::{Answer, Order};
use lasthop_api::report::StatsReport;
use lasthop_api::sched::{
    GuestReport, PolicyChange, PolicyModes, ResolvedChange, SchedReport, SeenGuest, ThreadReport, ViewMode,
    WorkerPolicies,
};
use lasthop_api::sched_part::SchedPart;
use lasthop_runtime::clock::{Pause, earlier};
use lasthop_runtime::fault::Fault;
use lasthop_shares::Shares;

use super::port::Port;
use super::port_table::PortTable;
use super::question::OrderPurpose;
use super::switch_process::SwitchProcess;

/// Pause between two searches for a guest's threads; doubles. A VMM makes its vCPUs after it connects.
const LOOK_MIN: Duration = Duration::from_millis(250);
/// The longest such pause. A search takes some 10 us for each thread of the front end.
const LOOK_MAX: Duration = Duration::from_secs(8);
/// Same for user-mode Linux, which has a process for each program of the guest. Until a new one is found, the guest
/// counts as not seen.
const LOOK_MAX_USER_MODE: Duration = Duration::from_secs(1);

/// Prefix of the names of the driver process's I/O threads (`driver/io.rs`), for which packets to a device wait.
const DRIVER_THREADS: &str = "io-";

/// An attached guest, by its front end and the user's choice; or a device port, by the driver process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Attached {
    front_end: Option<FrontEndProcess>,
    choice: ThreadChoice,
    is_device: bool,
}

/// Its threads.
#[derive(Debug)]
struct Watched {
    guest: Attached,
    /// The process as first seen, to tell it from a later one of the same number.
    process: Option<ThreadId>,
    threads: Result<GuestThreads, String>,
    next: Instant,
    pause: Pause,
}

/// The supervisor's knowledge of the host's scheduler.
#[derive(Debug, Default)]
pub(super) struct Scheduler {
    pub(super) setting: ViewMode,
    modes: Modes,
    /// The view, or why there is none; `None` without a guest.
    view: Option<Result<ViewWriter, String>>,
    guests: BTreeMap<u32, Watched>,
    /// Start number of the switch process that was asked whether it knows the order, and of one that does.
    asked: u64,
    knows: u64,
    /// Start number of the one that reports its decisions, of one that has a data movement table, and of one that hears of
    /// threads that go to sleep.
    traces: u64,
    tabulates: u64,
    hears: u64,
    /// The last reported guests; `None` if they have to be reported in any case.
    told: Option<Vec<SeenGuest>>,
    /// Whether the reason for a missing view was logged.
    is_said: bool,
}

impl Scheduler {
    pub(super) fn new(setting: ViewMode) -> Self {
        Self { setting, ..Self::default() }
    }

    /// When to search for threads.
    pub(super) fn due(&self) -> Option<Instant> {
        let is_open = matches!(self.view, Some(Ok(_)));
        self.guests.values().filter(|_| is_open).map(|guest| Some(guest.next)).fold(None, earlier)
    }

    /// The user's mode, if it is not the default.
    pub(super) fn setting(&self) -> Option<ViewMode> {
        Some(self.setting).filter(|setting| *setting != ViewMode::default())
    }

    /// Sets the attached guests.
    fn note_guests(&mut self, attached: BTreeMap<u32, Attached>, now: Instant) {
        self.guests.retain(|port, watched| attached.get(port) == Some(&watched.guest));
        for (port, guest) in attached {
            self.guests.entry(port).or_insert_with(|| Watched::new(guest, now));
        }
    }

    /// Opens the view with the first guest, and closes it with the last.
    fn open_or_close(&mut self) {
        if self.guests.is_empty() {
            if self.view.take().is_some_and(|view| view.is_ok()) {
                self.told = None;
            }
        } else if self.view.is_none() {
            let opened = ViewWriter::open().map_err(|error| error.to_string());
            let opened = opened.and_then(|mut view| {
                let attached = view.attach().map(|()| view);
                attached.map_err(|error| format!("the view of the scheduler cannot be started: {error}"))
            });
            if let (Err(why), false) = (&opened, self.is_said) {
                self.is_said = true;
                warn!("{why}; workers poll and yield by time, as with scheduler-view = \"off\"");
            }
            self.told = None;
            self.view = Some(opened);
        }
    }

    /// Searches for the threads of guests that are due, and has the view track exactly those.
    fn look_for_threads(&mut self, now: Instant) {
        let Some(Ok(view)) = &mut self.view else { return };
        let mut has_looked = false;
        for guest in self.guests.values_mut().filter(|guest| guest.next <= now) {
            guest.look(now);
            has_looked = true;
        }
        if !has_looked && self.told.is_some() {
            return;
        }
        let wanted: BTreeSet<(u32, u64)> = self.guests.values().flat_map(Watched::threads).map(key).collect();
        view.sweep();
        let others = view.tracked().filter(|tracked| !wanted.contains(&key(tracked.thread)));
        let others: Vec<u32> = others.map(|tracked| tracked.thread.tid).collect();
        others.into_iter().for_each(|tid| view.forget(tid));
        let known: BTreeSet<(u32, u64)> = view.tracked().map(|tracked| key(tracked.thread)).collect();
        for (tid, start_ticks) in wanted.difference(&known) {
            // If a thread has ended, or there is no room, its guest counts as not seen.
            let _ = view.track(ThreadId { tid: *tid, start_ticks: *start_ticks });
        }
    }

    /// The slots of each guest whose threads are all tracked.
    fn seen(&self, name: impl Fn(u32) -> Option<String>) -> Vec<SeenGuest> {
        let slots = self.slots();
        let seen = |(port, guest): (&u32, &Watched)| {
            let may_halt_poll = guest.threads.as_ref().is_ok_and(|found| found.may_halt_poll);
            let slots: Option<Vec<Slot>> =
                guest.threads().map(|thread| slots.get(&key(thread)).copied()).collect();
            let slots = slots.filter(|slots| !slots.is_empty())?;
            let slots = slots.into_iter().map(|slot| (slot.number(), slot.generation())).collect();
            let tids = guest.threads().map(|thread| thread.tid).collect();
            let is_ordered = matches!(guest.guest.choice, ThreadChoice::Numbers(_));
            Some(SeenGuest { port: name(*port)?, slots, may_halt_poll, tids, is_ordered })
        };
        self.guests.iter().filter_map(seen).collect()
    }

    fn slots(&self) -> BTreeMap<(u32, u64), Slot> {
        let Some(Ok(view)) = &self.view else { return BTreeMap::new() };
        view.tracked().map(|tracked| (key(tracked.thread), tracked.slot)).collect()
    }

    pub(super) fn report(&self, name: impl Fn(u32) -> Option<String>, stats: &StatsReport) -> SchedReport {
        let is_open = matches!(self.view, Some(Ok(_)));
        let why = match &self.view {
            Some(Err(why)) => Some(why.clone()),
            None if self.setting == ViewMode::Off => Some("scheduler-view = \"off\"".to_owned()),
            None => Some("no guest is attached".to_owned()),
            Some(Ok(_)) => None,
        };
        let guest = |(port, guest): (&u32, &Watched)| {
            let threads = guest.threads().map(|thread| self.thread_report(thread)).collect();
            Some(GuestReport {
                vnic: name(*port)?,
                pid: guest.guest.front_end.map(|front_end| front_end.pid),
                kind: guest.threads.as_ref().ok().map(|found| guest.kind_word(found.kind).to_owned()),
                why: guest.threads.as_ref().err().cloned(),
                threads,
            })
        };
        let guests = self.guests.iter().filter(|_| is_open).filter_map(guest).collect();
        let workers = stats.workers.iter();
        let workers = workers.map(|worker| WorkerPolicies {
            index: worker.index,
            helper_cpu: worker.helper_cpu,
            shared: worker.shared,
            counts: worker.policies,
        });
        SchedReport {
            setting: self.setting,
            is_open,
            why,
            lacks_rights: self.setting == ViewMode::Auto && !lasthop_sched_view::has_rights(),
            policies: SchedReport::policies(&self.modes, is_open),
            guests,
            workers: workers.collect(),
            queues: stats.queue_homes(),
            ..SchedReport::default()
        }
    }

    fn thread_report(&self, thread: ThreadId) -> ThreadReport {
        let slot = self.slots().get(&key(thread)).copied();
        let state = match (&self.view, slot) {
            (Some(Ok(view)), Some(slot)) => view.reader().thread(slot, 0),
            _ => None,
        };
        ThreadReport::new(thread.tid, state)
    }
}

impl Attached {
    fn of(port: &Port) -> Self {
        // The value is a list inside KEY=VALUE,KEY=VALUE.
        let vcpus = port.spec.vhost_user().and_then(|backend| backend.vcpus.as_ref());
        let choice = vcpus.map(|vcpus| vcpus.as_str().replace('+', ",").parse());
        let choice = choice.and_then(Result::ok).unwrap_or_default();
        Self { front_end: port.front_end(), choice, is_device: false }
    }

    /// A device port; `driver` is the process that serves it.
    fn device(driver: Option<u32>) -> Self {
        let pid = driver.and_then(|pid| i32::try_from(pid).ok());
        let front_end = pid.map(|pid| FrontEndProcess { pid, user: None });
        Self { front_end, choice: ThreadChoice::Named(DRIVER_THREADS.to_owned()), is_device: true }
    }
}

impl Watched {
    fn new(guest: Attached, now: Instant) -> Self {
        let threads = Err("the search for its threads has not begun".to_owned());
        Self { guest, process: None, threads, next: now, pause: Pause::new(LOOK_MIN, LOOK_MAX) }
    }

    fn kind_word(&self, kind: GuestKind) -> &'static str {
        if self.guest.is_device { "device" } else { kind.word() }
    }

    fn threads(&self) -> impl Iterator<Item = ThreadId> {
        self.threads.iter().flat_map(|found| found.threads.iter().copied())
    }

    fn look(&mut self, now: Instant) {
        self.threads = self.find();
        let is_user_mode = self.threads.as_ref().is_ok_and(|found| found.kind == GuestKind::UserMode);
        let pause = self.pause.take();
        self.next = now + if is_user_mode { pause.min(LOOK_MAX_USER_MODE) } else { pause };
    }

    fn find(&mut self) -> Result<GuestThreads, String> {
        let Some(front_end) = self.guest.front_end else {
            return Err("its front end is in a PID namespace that is not visible from here".to_owned());
        };
        let process = front_end.process()?;
        if *self.process.get_or_insert(process) != process {
            return Err(format!("its front end, process {}, has ended", front_end.pid));
        }
        let pid = front_end.pid.cast_unsigned();
        let snapshot = ProcessSnapshot::read(pid)
            .map_err(|error| format!("the threads of process {pid} cannot be read: {error}"))?;
        let mut found = snapshot.guest_threads(&self.guest.choice).map_err(|error| error.to_string())?;
        found.may_halt_poll &= !self.guest.is_device && lasthop_sched_view::halt_polls();
        Ok(found)
    }
}

impl Scheduler {
    /// Opens, closes and updates the view as guests come and go, and reports to the switch process if that `serves`.
    pub(super) fn settle(
        &mut self,
        ports: &PortTable,
        driver: Option<u32>,
        serves: bool,
        switch: &mut SwitchProcess,
        now: Instant,
    ) {
        if self.setting == ViewMode::Off {
            return;
        }
        let (devices, guests): (Vec<_>, Vec<_>) = ports
            .all
            .iter()
            .filter(|(_, port)| port.is_attached())
            .partition(|(_, port)| port.device().is_some());
        let mut attached: BTreeMap<u32, Attached> =
            guests.into_iter().map(|(number, port)| (*number, Attached::of(port))).collect();
        // Devices alone need no view.
        if !attached.is_empty() {
            attached.extend(devices.into_iter().map(|(number, _)| (*number, Attached::device(driver))));
        }
        self.note_guests(attached, now);
        self.open_or_close();
        self.look_for_threads(now);
        if serves && switch.process.is_up() {
            self.tell(ports, switch);
        }
    }

    /// Reports changes to the switch process if it knows the order; otherwise asks it.
    fn tell(&mut self, ports: &PortTable, switch: &mut SwitchProcess) {
        let starts = switch.process.starts();
        if self.knows != starts {
            // A process that never got any has none to forget.
            if self.asked != starts && matches!(self.view, Some(Ok(_))) {
                self.asked = starts;
                switch.order(Order::Know, OrderPurpose::SchedulerAsked(starts), None);
            }
            return;
        }
        let seen = self.seen(|number| ports.name_of(number));
        if self.told.as_ref() == Some(&seen) {
            return;
        }
        let view = match &self.view {
            Some(Ok(view)) => match descriptors(view, self.hears == starts) {
                Ok(descriptors) => descriptors,
                // No descriptor is left: retried at the next event.
                Err(_) => return,
            },
            _ => Vec::new(),
        };
        let places = self.view.iter().flatten().flat_map(ViewWriter::numbered_places).collect();
        let (policies, guests) = (PolicyModes::new(&self.modes), seen.clone());
        self.told = Some(seen);
        let order = Order::Scheduler { policies, guests, places };
        switch.order_with(order, view, OrderPurpose::SchedulerTold, None);
    }

    /// Whether the present switch process makes this report.
    pub(super) fn reports(&self, part: SchedPart, switch: &SwitchProcess) -> bool {
        let starts = if part == SchedPart::Table { self.tabulates } else { self.traces };
        starts == switch.process.starts()
    }

    /// Handles the answer of the switch process of this start about the order.
    pub(super) fn known(&mut self, starts: u64, answer: Result<Answer, Fault>) {
        if let Ok(Answer::Knows {
            sees_scheduler: true, hears_sleepers, traces_decisions, has_table, ..
        }) = answer
        {
            (self.knows, self.told) = (starts, None);
            self.tabulates = if has_table { starts } else { 0 };
            self.hears = if hears_sleepers { starts } else { 0 };
            self.traces = if traces_decisions { starts } else { 0 };
        }
    }

    /// Sets the mode of a policy, or of the shares.
    pub(super) fn set(&mut self, change: &PolicyChange, shares: &mut Shares) -> Result<Value, Fault> {
        match change.resolve()? {
            ResolvedChange::Policy(policy, mode) => {
                self.modes.set(policy, mode);
                self.told = None;
            }
            ResolvedChange::Shares(mode) => shares.set(mode),
        }
        Ok(Value::Bool(true))
    }
}

/// The view's descriptors for a switch process; those of events only if it `hears` them.
fn descriptors(view: &ViewWriter, hears: bool) -> std::io::Result<Vec<ForeignFd>> {
    let events = view.wake_up_descriptors().take(if hears { usize::MAX } else { 0 });
    std::iter::once(view.descriptor())
        .chain(events)
        .map(|fd| fd.try_clone_to_owned().map(ForeignFd::from))
        .collect()
}

fn key(thread: ThreadId) -> (u32, u64) {
    (thread.tid, thread.start_ticks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attached(front_end: Option<FrontEndProcess>) -> Attached {
        Attached { front_end, choice: ThreadChoice::Auto, is_device: false }
    }

    fn own_process() -> FrontEndProcess {
        let pid = i32::try_from(std::process::id()).expect("a pid");
        FrontEndProcess { pid, user: Some(rustix::process::geteuid().as_raw()) }
    }

    #[test]
    fn a_later_process_of_the_same_number_is_not_taken_for_the_front_end() {
        let mut guest = Watched::new(attached(Some(own_process())), Instant::now());
        let own = ThreadId::of(std::process::id()).expect("this one");
        guest.process = Some(ThreadId { start_ticks: own.start_ticks + 1, ..own });
        assert!(guest.find().expect_err("another one").contains("has ended"));
    }

    #[test]
    fn the_user_chooses_among_threads_of_the_front_end_alone() {
        let (front_end, own) = (Some(own_process()), ThreadId::current().expect("this one"));
        let find = |number| {
            let guest = Attached { front_end, choice: ThreadChoice::Numbers(vec![number]), is_device: false };
            Watched::new(guest, Instant::now()).find()
        };
        assert_eq!(find(own.tid).expect("this thread").threads, [own]);
        assert!(find(1).expect_err("of init").contains("not one of the front end's"));
    }

    #[test]
    fn a_guest_in_another_pid_namespace_is_not_seen_and_looks_get_rarer() {
        let now = Instant::now();
        let mut guest = Watched::new(attached(None), now);
        guest.look(now);
        assert!(guest.threads.as_ref().expect_err("none").contains("PID namespace"));
        let first = guest.next;
        guest.look(first);
        assert_eq!((first - now, guest.next - first), (LOOK_MIN, 2 * LOOK_MIN));
    }

    #[test]
    fn a_device_port_is_seen_by_threads_of_the_driver_process() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("io-0".to_owned());
        let thread = thread.spawn(move || {
            tell.send(ThreadId::current().expect("this one")).expect("heard");
            let _ = ended.recv();
        });
        let id = told.recv().expect("its number");
        let mut device = Watched::new(Attached::device(Some(std::process::id())), Instant::now());
        device.look(Instant::now());
        let found = device.threads.as_ref().expect("its threads");
        assert_eq!((&found.threads[..], device.kind_word(found.kind)), (&[id][..], "device"));
        let mut none = Watched::new(Attached::device(None), Instant::now());
        none.look(Instant::now());
        assert!(none.threads.is_err(), "there is no driver process");
        drop(end);
        thread.expect("a thread").join().expect("it ended");
    }

    #[test]
    fn guests_are_those_that_are_attached_now() {
        let (mut scheduler, now) = (Scheduler::new(ViewMode::Auto), Instant::now());
        let guest = |pid| attached(Some(FrontEndProcess { pid, user: Some(0) }));
        scheduler.note_guests(BTreeMap::from([(1, guest(7)), (2, attached(None))]), now);
        scheduler.guests.get_mut(&1).expect("there").process = Some(ThreadId { tid: 7, start_ticks: 3 });
        scheduler.note_guests(BTreeMap::from([(1, guest(7))]), now);
        assert!(scheduler.guests[&1].process.is_some() && scheduler.guests.len() == 1);
        scheduler.note_guests(BTreeMap::from([(1, guest(8))]), now);
        assert!(scheduler.guests[&1].process.is_none(), "another front end is looked at anew");
        scheduler.note_guests(BTreeMap::new(), now);
        scheduler.open_or_close();
        assert!(scheduler.guests.is_empty() && scheduler.view.is_none());
    }
}
