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
use std::time::Instant;

use lasthop_foreign::ForeignFd;
use lasthop_placement::{AttachedGuest, ThreadPlacement, WatchedGuest};
use lasthop_sched::{CpuPlace, Modes};
use lasthop_sched_view::guest_threads::{Evidence, ThreadChoice};
use lasthop_sched_view::layout::Slot;
use lasthop_sched_view::{ThreadId, ViewWriter};
use log::warn;
use serde_json::Value;

use lasthop_api::orders::{Answer, Order, SwitchProgram};
use lasthop_api::placement::CpuPlaceNumbers;
use lasthop_api::report::StatsReport;
use lasthop_api::sched::{
    GuestReport, PolicyChange, PolicyModes, ResolvedChange, SchedReport, SeenGuest, ThreadReport, ViewMode,
    WorkerPolicies,
};
use lasthop_api::sched_part::SchedPart;
use lasthop_runtime::clock::earlier;
use lasthop_runtime::fault::Fault;
use lasthop_shares::Shares;

use super::port::Port;
use super::port_table::PortTable;
use super::question::OrderPurpose;
use super::switch_process::SwitchProcess;

/// The supervisor's knowledge of the host's scheduler.
#[derive(Debug, Default)]
pub(super) struct Scheduler {
    pub(super) setting: ViewMode,
    modes: Modes,
    /// The view, or why there is none; `None` without a guest.
    view: Option<Result<ViewWriter, String>>,
    guests: BTreeMap<u32, WatchedGuest>,
    /// Start number of the switch process that was asked whether it knows the order, and of one that does.
    asked: u64,
    knows: u64,
    /// Start number of the one that reports its decisions, of one that has a data movement table, and of one that hears of
    /// threads that go to sleep.
    traces: u64,
    tabulates: u64,
    hears: u64,
    /// The last reported guests and caches; `None` if they have to be reported in any case.
    told: Option<(Vec<SeenGuest>, Vec<CpuPlaceNumbers>)>,
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
    fn note_guests(&mut self, attached: BTreeMap<u32, AttachedGuest>, now: Instant) {
        self.guests.retain(|port, watched| attached.get(port) == Some(&watched.guest));
        for (port, guest) in attached {
            self.guests.entry(port).or_insert_with(|| WatchedGuest::new(guest, now));
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
        let wanted: BTreeSet<(u32, u64)> =
            self.guests.values().flat_map(WatchedGuest::threads).map(key).collect();
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
        let seen = |(port, guest): (&u32, &WatchedGuest)| {
            let may_halt_poll = guest.found.as_ref().is_ok_and(|found| found.may_halt_poll);
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
        let guest = |(port, guest): (&u32, &WatchedGuest)| {
            let threads = guest.threads().map(|thread| self.thread_report(thread)).collect();
            Some(GuestReport {
                vnic: name(*port)?,
                pid: guest.guest.front_end.map(|front_end| front_end.pid),
                kind: guest.kind_word().map(str::to_owned),
                why: guest.found.as_ref().err().cloned(),
                found_by: guest.evidence().map(|evidence| evidence.word().to_owned()),
                vcpus: guest.evidence().and_then(Evidence::vcpus),
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

impl Scheduler {
    /// Opens, closes and updates the view as guests come and go, and reports to the switch process if that `serves`.
    pub(super) fn settle(
        &mut self,
        ports: &PortTable,
        driver: Option<u32>,
        serves: bool,
        switch: &mut SwitchProcess,
        places: &[CpuPlace],
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
        let mut attached: BTreeMap<u32, AttachedGuest> =
            guests.into_iter().map(|(number, port)| (*number, attached_guest(port))).collect();
        // Devices alone need no view.
        if !attached.is_empty() {
            attached.extend(devices.into_iter().map(|(number, _)| (*number, AttachedGuest::device(driver))));
        }
        self.note_guests(attached, now);
        self.open_or_close();
        self.look_for_threads(now);
        if serves && switch.process.is_up() {
            self.tell(ports, switch, places);
        }
    }

    /// Reports changes to the switch process if it knows the order; otherwise asks it.
    fn tell(&mut self, ports: &PortTable, switch: &mut SwitchProcess, places: &[CpuPlace]) {
        let starts = switch.process.starts();
        if self.knows != starts {
            // A process that never got any has none to forget.
            if self.asked != starts && matches!(self.view, Some(Ok(_))) {
                self.asked = starts;
                switch.order(Order::Know, OrderPurpose::SchedulerAsked(starts), None);
            }
            return;
        }
        let is_open = matches!(self.view, Some(Ok(_)));
        let places = places.iter().filter(|_| is_open).map(|place| place.numbers());
        let told = (self.seen(|number| ports.name_of(number)), places.collect());
        if self.told.as_ref() == Some(&told) {
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
        let (policies, (guests, places)) = (PolicyModes::new(&self.modes), told.clone());
        self.told = Some(told);
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
        if let Ok(Answer::Knows(SwitchProgram {
            sees_scheduler: true,
            hears_sleepers,
            traces_decisions,
            has_table,
            ..
        })) = answer
        {
            (self.knows, self.told) = (starts, None);
            self.tabulates = if has_table { starts } else { 0 };
            self.hears = if hears_sleepers { starts } else { 0 };
            self.traces = if traces_decisions { starts } else { 0 };
        }
    }

    /// Sets the mode of a policy, or of the shares.
    pub(super) fn set(
        &mut self,
        change: &PolicyChange,
        shares: &mut Shares,
        placement: &mut ThreadPlacement,
    ) -> Result<Value, Fault> {
        match change.resolve()? {
            ResolvedChange::Policy(policy, mode) => {
                self.modes.set(policy, mode);
                self.told = None;
            }
            ResolvedChange::Shares(mode) => shares.set(mode),
            ResolvedChange::Placement(mode) => placement.set(mode),
        }
        Ok(Value::Bool(true))
    }
}

/// The guest at a port.
pub(super) fn attached_guest(port: &Port) -> AttachedGuest {
    let vcpus = port.spec.vhost_user().and_then(|backend| backend.vcpus.as_ref());
    AttachedGuest::of(port.front_end(), vcpus.map(|vcpus| vcpus.as_str()))
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
    use std::time::Duration;

    use lasthop_sched_view::FrontEndProcess;

    use super::*;

    fn attached(front_end: Option<FrontEndProcess>) -> AttachedGuest {
        AttachedGuest::of(front_end, None)
    }

    #[test]
    fn guests_are_those_that_are_attached_now() {
        let (mut scheduler, now) = (Scheduler::new(ViewMode::Auto), Instant::now());
        let guest = |pid| attached(Some(FrontEndProcess { pid, user: Some(0) }));
        scheduler.note_guests(BTreeMap::from([(1, guest(7)), (2, attached(None))]), now);
        scheduler.guests.get_mut(&1).expect("there").next = now + Duration::from_secs(1);
        scheduler.note_guests(BTreeMap::from([(1, guest(7))]), now);
        assert!(scheduler.guests[&1].next > now && scheduler.guests.len() == 1);
        scheduler.note_guests(BTreeMap::from([(1, guest(8))]), now);
        assert!(scheduler.guests[&1].next == now, "another front end is looked at anew");
        scheduler.note_guests(BTreeMap::new(), now);
        scheduler.open_or_close();
        assert!(scheduler.guests.is_empty() && scheduler.view.is_none());
    }
}
