//! `upgrade`: another program's switch process takes over from the one that runs, as it would from a dead one, but in order.
//!
//! ```text
//!   new program started ── has this state version? ──no──> refused, nothing was touched
//!                                  │ yes
//!   new one told of all switches and ports ── takes them? ──no──> refused, nothing was touched
//!   gets ready for all sessions: descriptors, memory                (again for those that change meanwhile)
//!                                  │ yes
//!   old switch rests: takes nothing more, finishes its work ──no──> it continues, refused
//!                                  │ yes
//!   new one continues with all guests ── guests waited for so long ──> answer
//!   old one killed
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Access, access};
use serde::Deserialize;
use serde_json::{Value, json};

use lasthop_api::fdb::StaticEntry;
use lasthop_api::orders::{Answer, Order, Report, Request, STATE_VERSION, SwitchPort};
use lasthop_api::switches::SwitchSpec;
use lasthop_api::vnic::{MemoryMax, VnicSpec};
use lasthop_children::{RunningChild, SliceBoost};
use lasthop_runtime::fault::{Fault, Kind};
use lasthop_runtime::log::say;
use lasthop_runtime::poller::Interest;
use lasthop_runtime::sandbox::Layer;

use super::Supervisor;
use super::question::{Asker, OrderPurpose, switch_down};
use super::sessions::SessionVersions;
use super::source::Source;

/// How long the new program may be silent while the old one serves guests, and the old one until it has come to rest: no guest waits,
/// and on a machine whose CPUs are all taken a program needs seconds to start.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long all that may take before the old one is told to rest, regardless of the new program's messages.
const ASKING_MAX: Duration = Duration::from_secs(60);
/// How long the new switch may say nothing while guests wait for it. To start another one takes longer than to let it go on, unless it hangs.
const TAKE_OVER_PATIENCE: Duration = Duration::from_secs(10);
/// How often a new process is told once more of sessions that changed while it was told. It is told of later changes when guests wait.
const TURNS_MAX: u32 = 4;
/// How long a new process may touch guests' memory beforehand; and once more while the old one comes to rest, which takes as long.
const TOUCH: Duration = Duration::from_millis(100);
const LAST_TOUCH: Duration = Duration::from_millis(1);
/// Why a new program that knows other switches and ports than there are is none.
const CHANGED: &str = "its vnics, ports or switches changed meanwhile; try again";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UpgradeParams {
    binary: Option<PathBuf>,
}

/// How far an upgrade is.
#[derive(Debug)]
pub(super) enum Upgrade {
    /// The new process is asked for its version; then it is told of switches and ports, and asked once more.
    Asking {
        successor: RunningChild<Request, Report>,
        program: PathBuf,
        asker: Asker,
        deadline: Deadline,
        /// The switches when it was started: options of the default one are among its own.
        born: Vec<SwitchSpec>,
        introduction: Option<Introduction>,
    },
    /// The old one comes to rest.
    Resting {
        successor: RunningChild<Request, Report>,
        program: PathBuf,
        asker: Asker,
        since: Instant,
        introduction: Introduction,
    },
    /// The new one takes over. The old one, which does nothing any more, comes to its end meanwhile: guests need not wait for that.
    TakingOver {
        program: PathBuf,
        asker: Asker,
        since: Instant,
        /// When it said something last, or got the guests.
        heard: Instant,
        refused: Vec<(u32, Fault)>,
    },
}

/// Until when a new program has to say something.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    asked: Instant,
    heard: Instant,
}

impl Deadline {
    fn new(now: Instant) -> Self {
        Self { asked: now, heard: now }
    }

    fn until(&self) -> Instant {
        (self.heard + PATIENCE).min(self.asked + ASKING_MAX)
    }
}

/// The facts that the new process gets before guests wait for it, and the ports that it will not have. The old one does not have those
/// either.
#[derive(Debug)]
pub(super) struct Introduction {
    told: SuccessorConfig,
    refused: Vec<(u32, Fault)>,
    /// Sessions that it got ready for.
    known: SessionVersions,
    /// How often it may still be told of sessions that changed since it was asked.
    turns_left: u32,
    keeps_flows: bool,
}

/// The skills of a new program, as far as not all programs of its state version have them.
struct Skills {
    prepares: bool,
    keeps_flows: bool,
    program: String,
    vnic_keys: Vec<String>,
}

/// The keys that vnics have had since before programs told which they know.
const LATER_KEYS: &[&str] = &["memory-max"];

impl Skills {
    /// Why it cannot have a vnic, if that has a key that the program does not know: it would end with the order that tells it of the vnic.
    fn lacks_for(&self, vnic: &VnicSpec) -> Option<String> {
        let is_known = |key: &str| match self.vnic_keys.is_empty() {
            true => !LATER_KEYS.contains(&key),
            false => self.vnic_keys.iter().any(|known| known == key),
        };
        let keys = vnic.keys_told();
        let key = keys.iter().find(|key| !is_known(key))?;
        let program = match self.program.as_str() {
            "" => "a lasthop of before it".to_owned(),
            version => format!("lasthop {version}"),
        };
        let remedy = match key.as_str() {
            "memory-max" => format!(
                "set the default first: lasthop vnic set {} memory-max={}",
                vnic.name,
                MemoryMax::default()
            ),
            _ => format!("make the vnic anew without {key}"),
        };
        Some(format!(
            "vnic {} has {key}, which that program, {program}, does not know; upgrade to a later one, or {remedy}",
            vnic.name
        ))
    }
}

/// The facts that a new process is told. They are out of date if any of them changes.
#[derive(Debug, PartialEq)]
struct SuccessorConfig {
    switches: Vec<SwitchSpec>,
    ports: Vec<(u32, SwitchPort)>,
    entries: Vec<StaticEntry>,
}

/// The subject of an order of an introduction.
enum About {
    Switch,
    Port(u32),
    Entry,
}

impl SuccessorConfig {
    /// The subject of the order with this number, from 1. None if no order has this number.
    fn about(&self, number: u64) -> Option<About> {
        let place = usize::try_from(number).ok()?.checked_sub(1)?;
        let switches = self.switches.iter().filter(|spec| !spec.name.is_default()).count();
        let Some(place) = place.checked_sub(switches) else { return Some(About::Switch) };
        match self.ports.get(place) {
            Some((port, _)) => Some(About::Port(*port)),
            None => (place - self.ports.len() < self.entries.len()).then_some(About::Entry),
        }
    }

    /// The orders that tell it, those of a port with its number.
    fn orders(&self) -> impl Iterator<Item = (Order, Option<u32>)> {
        // The default one is among the options of the process.
        let switches = self.switches.iter().filter(|spec| !spec.name.is_default());
        let switches = switches.map(|spec| (Order::AddSwitch(spec.clone()), None));
        let ports = self.ports.iter().map(|(number, port)| (Order::AddPort(port.clone()), Some(*number)));
        let entries = self.entries.iter().map(|entry| (Order::FdbAdd(entry.clone()), None));
        switches.chain(ports).chain(entries)
    }
}

impl Upgrade {
    fn until(&self) -> Instant {
        match self {
            Self::Asking { deadline, .. } => deadline.until(),
            Self::Resting { since, .. } => *since + PATIENCE,
            Self::TakingOver { heard, .. } => *heard + TAKE_OVER_PATIENCE,
        }
    }

    /// Whether the old switch has been told to rest.
    pub(super) fn is_handed_over(&self) -> bool {
        !matches!(self, Self::Asking { .. })
    }

    /// The new process, until it takes over.
    pub(super) fn successor(&mut self) -> Option<&mut RunningChild<Request, Report>> {
        match self {
            Self::Asking { successor, .. } | Self::Resting { successor, .. } => Some(successor),
            Self::TakingOver { .. } => None,
        }
    }

    /// When its channel has to be looked after without an event.
    pub(super) fn channel_due(&self) -> Option<Instant> {
        match self {
            Self::Asking { successor, .. } | Self::Resting { successor, .. } => successor.channel.due(),
            Self::TakingOver { .. } => None,
        }
    }

    fn into_parts(self) -> (PathBuf, Asker) {
        match self {
            Self::Asking { program, asker, .. }
            | Self::Resting { program, asker, .. }
            | Self::TakingOver { program, asker, .. } => (program, asker),
        }
    }

    /// The switch process said something: if guests wait for it to take them over, it is at work.
    pub(super) fn note_progress(&mut self) {
        if let Self::TakingOver { heard, .. } = self {
            *heard = Instant::now();
        }
    }

    /// Notes the privileges that the new process has given up, which it tells only once.
    fn note_sandbox(&mut self, layers: Vec<Layer>) {
        if let Some(successor) = self.successor() {
            successor.sandbox = Some(layers);
        }
    }
}

impl Supervisor {
    /// Begins an upgrade. The answer comes when it is done, or refused.
    pub(super) fn upgrade(&mut self, params: UpgradeParams, asker: &Asker) -> Result<(), Fault> {
        self.check_owner(asker)?;
        if self.upgrade.is_some() {
            return Err(Fault::refused("an upgrade is under way already; wait for its end"));
        }
        if !self.switch.process.is_up() {
            return Err(switch_down());
        }
        let program = params.binary.map_or_else(own_path, Ok)?;
        check_program(&program)?;
        let mut successor = self.switch.process.stand_by(&program)?;
        self.poller.add(&successor.channel, Source::Successor.into(), Interest::READ)?;
        let _ = successor.channel.send(&Request { id: 0, order: Order::Know }, None);
        let (deadline, asker, born) =
            (Deadline::new(Instant::now()), asker.clone(), self.switches.all.clone());
        self.upgrade =
            Some(Upgrade::Asking { successor, program, asker, deadline, born, introduction: None });
        Ok(())
    }

    /// A control group is trusted with networks, and not to run programs as the switch's user.
    fn check_owner(&self, asker: &Asker) -> Result<(), Fault> {
        if self.clients.is_owner(asker) {
            return Ok(());
        }
        Err(Fault::refused("an upgrade is for root and the user who started the switch; ask one of them"))
    }

    /// The time at which a step has taken too long.
    pub(super) fn upgrade_due(&self) -> Option<Instant> {
        self.upgrade.as_ref().map(Upgrade::until)
    }

    pub(super) fn upgrade_on_time(&mut self, now: Instant) {
        if self.upgrade_due().is_none_or(|due| due > now) {
            return;
        }
        let is_current = matches!(self.upgrade, Some(Upgrade::TakingOver { .. }));
        self.refuse_upgrade("there was no answer in time");
        if is_current {
            // It has the guests and is no longer wanted: its end gives them, and all ports, to the next one.
            self.switch.process.current().into_iter().for_each(RunningChild::kill);
        }
    }

    /// The new process has something to say before it takes over.
    pub(super) fn hear_successor(&mut self) {
        let Some(Upgrade::Asking { successor, .. } | Upgrade::Resting { successor, .. }) = &mut self.upgrade
        else {
            return;
        };
        let (reports, is_over) = successor.hear();
        if let Some(Upgrade::Asking { deadline, .. }) = &mut self.upgrade
            && !reports.is_empty()
        {
            deadline.heard = Instant::now();
        }
        for (report, _) in reports {
            match report {
                Report::Reply {
                    result: Ok(Answer::Knows { version, prepares, keeps_flows, program, vnic_keys, .. }),
                    ..
                } => {
                    let skills = Skills { prepares, keeps_flows, program, vnic_keys };
                    self.successor_knows(version, &skills);
                }
                Report::Reply { id, result: Err(fault) } => self.successor_refuses(id, fault),
                Report::Failed { why } => self.refuse_upgrade(&why),
                Report::Sandbox(layers) => {
                    self.upgrade.iter_mut().for_each(|upgrade| upgrade.note_sandbox(layers.clone()))
                }
                _ => {}
            }
        }
        if !matches!(is_over, Ok(false)) {
            self.successor_is_over();
        }
    }

    /// The new process has ended before it took over.
    pub(super) fn successor_gone(&mut self) {
        self.hear_successor();
        self.successor_is_over();
    }

    fn successor_is_over(&mut self) {
        let is_unheard = matches!(self.upgrade, Some(Upgrade::Asking { introduction: None, .. }));
        let later_option =
            self.settings.controller.filter(|controller| is_unheard && !controller.is_default());
        let why = match later_option {
            // Programs of before this option end when they are started with it.
            Some(controller) => format!(
                "it ended without an answer: it is no lasthop, or an older one, which does not know that the switch default may have \
                 controller={controller}; upgrade to a later one, or restart the switch with that one, and guests connect again"
            ),
            None => "it ended without an answer; is it a lasthop of this version or a later one?".to_owned(),
        };
        if self.upgrade.as_mut().is_some_and(|upgrade| upgrade.successor().is_some()) {
            self.refuse_upgrade(&why);
        }
    }

    fn successor_knows(&mut self, version: u64, skills: &Skills) {
        if !matches!(self.upgrade, Some(Upgrade::Asking { .. })) {
            // It was asked nothing more.
            return;
        }
        if version != STATE_VERSION {
            let why = format!("it has state version {version}, and this switch has {STATE_VERSION}");
            return self.refuse_upgrade(&why);
        }
        let vnics = self.ports.all.values().map(|port| port.as_told(&port.spec).vnic);
        if let Some(why) = vnics.into_iter().find_map(|vnic| skills.lacks_for(&vnic)) {
            return self.refuse_upgrade(&why);
        }
        let Some(Upgrade::Asking { mut successor, program, asker, deadline, born, introduction }) =
            self.upgrade.take()
        else {
            return;
        };
        let Some(mut introduction) = introduction else {
            let is_other = born != self.switches.all;
            // From here on: a thread that waits for a CPU has short slices from its next turn on.
            self.boost_slices(successor.pid());
            let introduction = Some(self.introduce(&mut successor, skills));
            self.upgrade = Some(Upgrade::Asking { successor, program, asker, deadline, born, introduction });
            if is_other {
                self.refuse_upgrade(CHANGED);
            }
            return;
        };
        if self.prepare_again(&mut successor, &mut introduction) {
            let introduction = Some(introduction);
            self.upgrade = Some(Upgrade::Asking { successor, program, asker, deadline, born, introduction });
            return;
        }
        self.boost_slices(successor.pid());
        if skills.prepares {
            // While the old one comes to rest.
            let for_us = LAST_TOUCH.as_micros() as u64;
            let _ = successor.channel.send(&Request { id: 0, order: Order::Touch { for_us } }, None);
        }
        self.upgrade =
            Some(Upgrade::Resting { successor, program, asker, since: Instant::now(), introduction });
        self.switch.order(Order::Rest, OrderPurpose::Rested, None);
    }

    /// The new process refuses an order. It may refuse the orders that a restarted switch process may refuse, too.
    fn successor_refuses(&mut self, order: u64, fault: Fault) {
        let Some(Upgrade::Asking { introduction: Some(introduction), .. }) = &mut self.upgrade else {
            return self.refuse_upgrade(&fault.message);
        };
        match introduction.told.about(order) {
            Some(About::Entry) => say!(Warning: "{fault}"),
            Some(About::Port(port)) if self.ports.all.get(&port).is_some_and(|port| !port.is_known()) => {
                introduction.refused.push((port, fault));
            }
            _ => self.refuse_upgrade(&fault.message),
        }
    }

    /// Has all three processes take short slices, if they do not.
    fn boost_slices(&mut self, successor: u32) {
        let current = self.switch.process.pid();
        self.slice_boost.get_or_insert_with(|| SliceBoost::begin(current.into_iter().chain([successor])));
    }

    /// Whether the new process is told of sessions once more, which are not as they were. Of memory that guests use it is told at least
    /// once, shortly before they wait.
    fn prepare_again(
        &self,
        successor: &mut RunningChild<Request, Report>,
        introduction: &mut Introduction,
    ) -> bool {
        let is_last = introduction.turns_left == 0;
        if is_last
            || !self.sessions.prepare(&self.ports, successor, &mut introduction.known)
                && introduction.turns_left < TURNS_MAX
        {
            return false;
        }
        introduction.turns_left -= 1;
        let orders = [Order::Touch { for_us: TOUCH.as_micros() as u64 }, Order::Know];
        orders.into_iter().for_each(|order| _ = successor.channel.send(&Request { id: 0, order }, None));
        true
    }

    /// Tells the new process of switches and ports, and if it `prepares` for sessions, of these: guests do not wait yet.
    fn introduce(&mut self, successor: &mut RunningChild<Request, Report>, skills: &Skills) -> Introduction {
        let told = self.to_be_told();
        for (id, (order, port)) in (1..).zip(told.orders()) {
            let book = port.and_then(|port| self.counters.next_book(port)).map(Into::into);
            let _ = successor.channel.send(&Request { id, order }, book);
        }
        let (mut known, mut turns_left) = (SessionVersions::new(), 0);
        if skills.prepares {
            self.sessions.prepare(&self.ports, successor, &mut known);
            turns_left = TURNS_MAX;
        }
        let _ = successor.channel.send(&Request { id: 0, order: Order::Know }, None);
        let keeps_flows = skills.keeps_flows;
        Introduction { told, refused: Vec::new(), known, turns_left, keeps_flows }
    }

    fn to_be_told(&self) -> SuccessorConfig {
        let ports = self.ports.all.iter().map(|(number, port)| (*number, port.as_told(&port.spec)));
        SuccessorConfig {
            switches: self.switches.all.clone(),
            ports: ports.collect(),
            entries: self.switches.static_entries.clone(),
        }
    }

    /// The old switch has come to rest, or will not.
    pub(super) fn rested(&mut self, result: Result<Answer, Fault>) {
        if self.stage.is_leaving() {
            return self.rested_to_leave(result.map(drop));
        }
        match (result, self.upgrade.take()) {
            (Ok(_), Some(Upgrade::Resting { successor, program, asker, since, introduction })) => {
                if introduction.told != self.to_be_told() {
                    self.upgrade = Some(Upgrade::Resting { successor, program, asker, since, introduction });
                    return self.refuse_upgrade(CHANGED);
                }
                self.succeed(successor, program.clone(), &introduction);
                let refused = introduction.refused;
                let heard = Instant::now();
                self.upgrade = Some(Upgrade::TakingOver { program, asker, since, heard, refused });
            }
            (Err(fault), upgrade) => {
                self.upgrade = upgrade;
                self.refuse_upgrade(&fault.message);
            }
            // It was given up in the meantime.
            (Ok(_), upgrade) => {
                self.upgrade = upgrade;
                self.switch.order(Order::Wake, OrderPurpose::Restored, None);
            }
        }
    }

    /// Has the new switch go on, which knows sessions as they were.
    fn succeed(
        &mut self,
        successor: RunningChild<Request, Report>,
        program: PathBuf,
        introduction: &Introduction,
    ) {
        let predecessor = self.switch.process.replace(successor, program);
        self.sessions.saved.values_mut().for_each(super::saved_session::SavedSession::begin_anew);
        self.fail_waiting();
        if !introduction.keeps_flows {
            // It would not record its changes to them. Not before: an upgrade that is refused leaves all as it was.
            self.datapaths.forget_flows(&mut self.store);
        }
        self.deposit_head();
        // Guests wait for this, and for nothing that comes after it: the old one stands still.
        self.tell_of_guests(&introduction.known);
        self.datapath_clients.end_all(&self.poller);
        // It is killed, and reaped when it has ended; its last messages do not count.
        predecessor.iter().for_each(|switch| self.poller.remove(&switch.channel));
        drop(predecessor);
        if let Some(switch) = self.switch.process.current() {
            // Fails only without memory; then the new one is not heard, and is replaced when its time is over.
            let _ = self.poller.modify(&switch.channel, Source::Switch.into(), Interest::READ);
        }
        self.counters.close_books(&mut self.store);
        self.ports.down(&self.sessions, &self.poller);
        let ports: Vec<u32> = self.ports.all.keys().copied().collect();
        ports.into_iter().for_each(|port| drop(self.ports.note_told(port)));
    }

    /// The new switch goes on with everything.
    pub(super) fn upgraded(&mut self) {
        // One that was asked for while a process started is not over with that start.
        let taking_over = self.upgrade.take_if(|upgrade| matches!(upgrade, Upgrade::TakingOver { .. }));
        self.slice_boost = None;
        let Some(Upgrade::TakingOver { program, asker, since, refused, .. }) = taking_over else { return };
        let pause_us = since.elapsed().as_micros() as u64;
        let pid = self.switch.process.pid();
        say!("the switch process is that of {} now; guests waited for {pause_us} us", program.display());
        self.taken(refused.into_iter().collect());
        self.controller.renew(program.clone());
        self.clients.answer(asker, Ok(json!({"program": program, "switch_pid": pid, "pause_us": pause_us})));
    }

    /// The new switch has all ports but those that it refused.
    fn taken(&mut self, mut refused: BTreeMap<u32, Fault>) {
        let ports: Vec<u32> = self.ports.all.keys().copied().collect();
        for port in ports {
            let result = refused.remove(&port).map_or(Ok(()), Err);
            if let Err(fault) = self.added(port, false, result) {
                say!(Warning: "{fault}");
            }
        }
    }

    /// Nothing comes of the upgrade; if the old switch is there, it goes on.
    pub(super) fn refuse_upgrade(&mut self, why: &str) {
        let Some(upgrade) = self.upgrade.take() else { return };
        // First: the predecessor's threads have to be there.
        self.slice_boost = None;
        self.counters.forget_next_books();
        match &upgrade {
            Upgrade::Asking { .. } => {}
            Upgrade::Resting { .. } => {
                // An answer that comes late is not the next upgrade's.
                self.switch.forget_rest();
                self.switch.order(Order::Wake, OrderPurpose::Restored, None);
            }
            Upgrade::TakingOver { .. } => self.switch.process.use_own_program(),
        }
        let (program, asker) = upgrade.into_parts();
        let why = format!("the switch process was not replaced by that of {}: {why}", program.display());
        say!(Warning: "{why}");
        self.clients.answer(asker, Err(Fault::new(Kind::Refused, why)));
    }

    /// The switch died while it was to be replaced.
    pub(super) fn upgrade_failed(&mut self) {
        let why = match &self.upgrade {
            Some(Upgrade::TakingOver { .. }) => "the new one died; one of the old program goes on",
            _ => "the old one died in the meantime, and was started again",
        };
        self.refuse_upgrade(why);
    }
}

/// The file that this program was started from; its replacement, if it was replaced.
fn own_path() -> Result<PathBuf, Fault> {
    let path = std::env::current_exe().map_err(|error| Fault::internal("find this program's file", error))?;
    let text = path.to_string_lossy();
    Ok(text.strip_suffix(" (deleted)").map_or_else(|| path.clone(), PathBuf::from))
}

fn check_program(program: &Path) -> Result<(), Fault> {
    if !program.is_absolute() {
        return Err(Fault::params(format!("the path \"{}\" must start with /", program.display())));
    }
    let is_file = program.is_file();
    access(program, Access::EXEC_OK).ok().filter(|()| is_file).ok_or_else(|| {
        Fault::params(format!("{} is not a program that can be run; name the new lasthop", program.display()))
    })
}

/// The answer to the method, as the command line shows it.
pub fn upgraded_text(answer: &Value) -> String {
    let pause_us = answer["pause_us"].as_u64().unwrap_or_default();
    let program = answer["program"].as_str().unwrap_or_default();
    format!(
        "the switch process is that of {program} now; guests waited for {:.1} ms",
        pause_us as f64 / 1000.0
    )
}
