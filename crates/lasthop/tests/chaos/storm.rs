//! One run: actions, checkpoints, the end.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::action::{Action, garbage, half, has_standby, may_die, rogue};
use crate::crew::{Count, Member, Setting, vnic};
use crate::outsiders::{self, Outsiders};
use crate::watch::{Holding, guest_mappings};
use lasthop_rig::random::Random;
use lasthop_rig::rogue::Rogue;
use lasthop_rig::{Switch, eventually, is_alive, open_files, signal};

/// Actions between two checkpoints.
const CHECKPOINT_ACTIONS: u64 = 50;
/// Anonymous memory that the switch may gain after the first checkpoint, in KiB: allocators keep some.
const GROWTH_KIB_MAX: u64 = 16 * 1024;
/// The log line of a new switch process.
const RUNNING_AGAIN: &str = "the switch process is running again";
/// The log line of a stand-by, before its process id.
const STANDS_BY: &str = "a stand-by switch process is ready, as process ";
/// The shortest life of a switch process.
const PROOF: Duration = Duration::from_millis(300);
/// A vnic without a guest.
const NOBODY: &str = "nobody";

/// The settings of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) seconds: u64,
    pub(crate) seed: u64,
    pub(crate) guests: u8,
    pub(crate) workers: u8,
    /// Whether each action is shown.
    pub(crate) trace: bool,
}

/// The storm's state of a guest.
struct Place {
    member: Member,
    queues: u16,
    /// The port's counters minus the guest's at the last comparison; `None` after rings were reset.
    base: Option<(u64, u64)>,
    /// How often its vnic was removed.
    removals: u64,
    /// When a stopped process continues.
    until: Option<Instant>,
}

/// A switch, its guests, and the actions so far.
pub(crate) struct Storm {
    plan: Plan,
    /// They end before their switch.
    outsiders: Outsiders,
    switch: Switch,
    switch_pid: u32,
    places: Vec<Place>,
    /// The switch process's open files before the first guest.
    open_alone: BTreeMap<u32, String>,
    first: Option<Holding>,
    /// When the current switch process started.
    reborn: Instant,
    actions: BTreeMap<&'static str, u64>,
    compared: u64,
    /// Deaths of the switch process, and those after which the stand-by continued.
    deaths: usize,
    continued: usize,
    /// The last counts of guests and ports.
    counted: Vec<(Count, Value)>,
}

impl Drop for Storm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let bases: Vec<_> = self.places.iter().map(|place| place.base).collect();
            println!("chaos: failed with {:?}", self.plan);
            println!("last counts, then bases: {:?}\n{bases:?}", self.counted);
            println!("the switch process had open before the first guest: {:?}", self.open_alone);
            for (role, pid) in self.processes() {
                println!("open now in {role} {pid}: {:?}", open_files(pid));
            }
        }
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a counter")
}

/// Helpers copy frames whenever a CPU is idle, where the view of the scheduler can be opened.
const HELPERS: [&str; 6] =
    ["--scheduler-view", "auto", "--helper-cpus", "0-1", "--offload", "bytes=1536,idle=cpu,signals=frame"];

impl Storm {
    pub(crate) fn start(plan: Plan) -> Self {
        let vnics = (1..=plan.guests).map(|guest| format!("{},queues=2", vnic(guest)));
        let vnics: Vec<String> = vnics.chain([NOBODY.to_owned()]).collect();
        let workers = plan.workers.to_string();
        let standby = if has_standby(plan.seed) { "on" } else { "off" };
        let mut words = vec!["--workers", &workers, "--standby", standby];
        words.extend(HELPERS);
        words.extend(vnics.iter().flat_map(|vnic| ["--vnic", vnic]));
        let outside = outsiders::words();
        words.extend(outside.iter().map(String::as_str));
        let switch = Switch::start(&words);
        switch.ask(&["sched", "set", "offload=on"]).ok();
        let switch_pid = switch.switch_pid().expect("a switch process");
        let setting = Setting { guests: plan.guests, seed: plan.seed, run_dir: switch.dir() };
        let open_alone = open_files(switch_pid);
        let outsiders = Outsiders::start(&switch, plan.seed);
        let place = |guest| Place {
            member: Member::new(guest, setting.clone()),
            queues: 2,
            base: None,
            removals: 0,
            until: None,
        };
        let places = (1..=plan.guests).map(place).collect();
        let actions = BTreeMap::new();
        Self {
            plan,
            outsiders,
            switch,
            switch_pid,
            places,
            open_alone,
            first: None,
            reborn: Instant::now(),
            actions,
            compared: 0,
            deaths: 0,
            continued: 0,
            counted: Vec::new(),
        }
    }

    /// The running processes of the switch.
    fn processes(&self) -> impl Iterator<Item = (&'static str, u32)> {
        let roles = ["switch-process", "controller-process"];
        let children = roles.map(|role| Some((role, self.switch.child_pid(role)?)));
        std::iter::once(("supervisor", self.switch.pid())).chain(children.into_iter().flatten())
    }

    /// Runs everything; returns the summary.
    pub(crate) fn run(mut self, progress: &mut dyn FnMut(&str)) -> String {
        let mut random = Random::new(self.plan.seed);
        let end = Instant::now() + Duration::from_secs(self.plan.seconds);
        self.checkpoint();
        let mut done = 0;
        while Instant::now() < end {
            let (action, guest, pause) = Action::next(&mut random, self.plan.guests, may_die(self.plan.seed));
            let guest = self.victim(action, guest, done / CHECKPOINT_ACTIONS);
            if self.plan.trace {
                progress(&format!("{action:?} guest {guest}"));
            }
            self.act(action, guest);
            *self.actions.entry(action.name()).or_default() += 1;
            done += 1;
            std::thread::sleep(pause);
            self.look_after_guests();
            if done % CHECKPOINT_ACTIONS == 0 {
                let holding = self.checkpoint();
                let dropped: u64 = drops(self.counted.iter().map(|(_, port)| port)).values().sum();
                let traffic = self.traffic();
                progress(&format!("{done} actions, {traffic}, {dropped} dropped lately, {holding:?}"));
            }
        }
        self.end()
    }

    /// In every other stretch between checkpoints, only one guest gets actions that reset rings, so the others'
    /// counters can be compared.
    fn victim(&self, action: Action, guest: u8, stretch: u64) -> u8 {
        let only = 1 + (stretch / 2 % u64::from(self.plan.guests)) as u8;
        if stretch % 2 == 1 && action.forgets_rings() { only } else { guest }
    }

    fn look_after_guests(&mut self) {
        let now = Instant::now();
        for place in &mut self.places {
            if place.until.is_some_and(|until| until <= now) {
                place.until = None;
                place.member.go_on();
            }
            place.member.check_alive();
            place.member.listen();
            let (met, caused) = (place.member.hangups, place.removals);
            assert!(met <= caused, "a guest was hung up on {met} times, its vnic was removed {caused} times");
        }
        self.outsiders.check();
        assert_eq!(self.switch.switch_pid(), Some(self.switch_pid), "{}", self.switch.log());
    }

    fn act(&mut self, action: Action, guest: u8) {
        let place = &mut self.places[usize::from(guest) - 1];
        if action.forgets_rings() {
            place.base = None;
        }
        if let Some(order) = action.order() {
            place.until = None;
            place.member.order(order);
        }
        match action {
            Action::Kill => {
                place.until = None;
                place.member.kill();
            }
            Action::Stop(milliseconds) => {
                place.member.stop();
                place.until = Some(Instant::now() + Duration::from_millis(milliseconds));
            }
            Action::Port(queues) => {
                place.removals += 1;
                place.queues = queues;
                self.switch.ask(&["vnic", "del", &vnic(guest)]).ok();
                self.switch.ask(&["vnic", "add", &format!("{},queues={queues}", vnic(guest))]).ok();
            }
            Action::Link(milliseconds) => {
                self.switch.ask(&["vnic", "set", &vnic(guest), "link=down"]).ok();
                std::thread::sleep(Duration::from_millis(milliseconds));
                self.switch.ask(&["vnic", "set", &vnic(guest), "link=up"]).ok();
            }
            Action::Death => self.kill_switch(),
            Action::Move(queue, number) => self.relocate(guest, queue, number),
            Action::Look => self.look(guest),
            Action::Half => self.strangers(guest).into_iter().for_each(half),
            Action::Garbage(seed) => {
                self.strangers(guest).into_iter().for_each(|socket| garbage(socket, seed));
            }
            Action::Rogue(seed) => rogue(&Rogue::connect(&self.switch, NOBODY), seed),
            _ => {}
        }
    }

    /// Kills the switch process, and waits for the next one. Guests are not affected, unless it died amid one of their
    /// messages.
    fn kill_switch(&mut self) {
        if self.reborn.elapsed() < PROOF {
            return; // if it died early, the supervisor would blame its guests
        }
        // Other deaths find none, or one that is being prepared.
        if has_standby(self.plan.seed) && self.deaths.is_multiple_of(2) {
            eventually("a stand-by", || self.standby());
        }
        self.deaths += 1;
        let log = self.switch.log();
        let starts = log.matches(RUNNING_AGAIN).count();
        signal(self.switch_pid, Signal::KILL);
        eventually("the next switch process", || {
            (self.switch.log().matches(RUNNING_AGAIN).count() > starts).then_some(())
        });
        self.switch_pid = self.switch.switch_pid().expect("a switch process");
        self.reborn = Instant::now();
        self.first = None;
        let news = self.switch.log().split_off(log.len());
        self.continued += usize::from(news.contains(&format!("process {} continues", self.switch_pid)));
        for (guest, place) in (1..).zip(&mut self.places) {
            // The last counts are unknown.
            place.base = None;
            let lost = format!(
                "port {}: its guest could not be taken over and has to connect again: it was in the middle",
                vnic(guest)
            );
            place.removals += news.matches(&lost).count() as u64;
        }
        let given_up = news.matches("has to connect again").count();
        let explained = news.matches("has to connect again: it was in the middle of a message").count();
        assert_eq!(given_up, explained, "{news}");
    }

    /// The stand-by that is ready.
    fn standby(&self) -> Option<u32> {
        let log = self.switch.log();
        let (_, last) = log.rsplit_once(STANDS_BY)?;
        let pid = last.lines().next()?.parse().expect("a process id");
        (pid != self.switch_pid && is_alive(pid)).then_some(pid)
    }

    /// A connection to the vnic without a guest, and one to a guest's, which has to wait or is refused.
    fn strangers(&self, guest: u8) -> Vec<UnixStream> {
        let names = [NOBODY.to_owned(), vnic(guest)];
        names.iter().map(|name| self.switch.connect(&format!("{name}.sock"))).collect()
    }

    /// Moves a queue pair of a guest, which may be about to start or stop it.
    fn relocate(&self, guest: u8, queue: u16, number: u64) {
        let worker = (number % u64::from(self.plan.workers)).to_string();
        let moved = self.switch.ask(&["sched", "move", &format!("{}:{queue}", vnic(guest)), &worker]);
        let expected = ["has not started it", "being stopped", "slow receivers", "it has one queue"];
        assert!(moved.code == Some(0) || expected.iter().any(|why| moved.err.contains(why)), "{moved:?}");
    }

    fn look(&self, guest: u8) {
        self.switch.ask(&["stats", "--check"]).ok();
        self.switch.ask(&["fdb", "show"]).ok();
        self.switch.ask(&["vnic", "list"]).ok();
        let shown = self.switch.json(&["vnic", "show", &vnic(guest)]);
        assert_eq!(shown["queues"], self.places[usize::from(guest) - 1].queues, "{shown}");
    }

    /// Guests send nothing until all frames have arrived or were dropped; then both sides' counters are compared.
    fn checkpoint(&mut self) -> Holding {
        for place in &mut self.places {
            place.until = None;
            place.member.order("quiet");
        }
        let mut before = None;
        eventually("the end of all frames", || {
            let now = self.counts();
            let is_settled = now.iter().all(|(guest, port)| {
                guest.in_flight == 0 && number(&port["waiting"]) == 0 && port["state"] == "running"
            });
            // A port's counters are read after its guest's: frames that come in between, also from the controller process, do
            // not have the same effect twice.
            let found =
                is_settled.then(|| now.iter().map(|(guest, port)| offsets(guest, port)).collect::<Vec<_>>());
            let is_same = found.is_some() && found == before && self.agrees(&now);
            before = found;
            self.counted = now;
            is_same.then_some(())
        });
        for (place, (guest, port)) in self.places.iter_mut().zip(&self.counted) {
            self.compared += u64::from(place.base.is_some());
            place.base = Some(offsets(guest, port));
        }
        self.switch.ask(&["stats", "--check"]).ok();
        let holding = Holding::of(self.switch_pid);
        let first = *self.first.get_or_insert(holding);
        assert!(holding.own_kib <= first.own_kib + GROWTH_KIB_MAX, "{first:?}, now {holding:?}");
        self.places.iter_mut().for_each(|place| place.member.order("go"));
        holding
    }

    fn counts(&mut self) -> Vec<(Count, Value)> {
        let counts: Vec<_> = self.places.iter_mut().map(|place| place.member.count()).collect();
        let stats = self.switch.json(&["stats"]);
        let ports = stats["ports"].as_array().expect("ports");
        let port = |guest: usize| {
            let name = vnic(guest as u8 + 1);
            ports.iter().find(|port| port["name"] == name.as_str()).expect("its port").clone()
        };
        counts.into_iter().enumerate().map(|(guest, count)| (count, port(guest))).collect()
    }

    /// Whether switch and guests have the same counts since the last checkpoint, where no rings were reset.
    fn agrees(&self, now: &[(Count, Value)]) -> bool {
        self.places
            .iter()
            .zip(now)
            .all(|(place, (guest, port))| place.base.is_none_or(|base| base == offsets(guest, port)))
    }

    fn traffic(&self) -> String {
        let totals = self.places.iter().map(|place| place.member.total());
        let (sent, received, strayed) = totals.fold((0, 0, 0), |sum, total| {
            (sum.0 + total.sent, sum.1 + total.received, sum.2 + total.strayed)
        });
        format!("{sent} frames sent, {received} received whole ({strayed} flooded)")
    }

    fn end(mut self) -> String {
        self.checkpoint();
        self.look_after_guests();
        let drops = drops(self.counted.iter().map(|(_, port)| port));
        self.places.iter_mut().for_each(|place| place.member.order("quiet"));
        for place in &mut self.places {
            assert!(place.member.end().success(), "a guest found something wrong, see above");
        }
        let outsiders = self.outsiders.end();
        let pid = self.switch_pid;
        let before = self.open_alone.len();
        eventually("descriptors as before the first guest", || {
            // Those of the orders before the first guest may not have been closed then.
            (open_files(pid).len() <= before).then_some(())
        });
        eventually("no guest's memory", || (guest_mappings(pid) == 0).then_some(()));
        self.switch.ask(&["stats", "--check"]).ok();
        if has_standby(self.plan.seed) && self.deaths > 0 {
            let standby = eventually("a stand-by at the end", || self.standby());
            eventually("no guest's memory in the stand-by", || (guest_mappings(standby) == 0).then_some(()));
            assert!(self.continued > 0, "no stand-by continued: {}", self.switch.log());
        }
        let status = self.switch.end();
        assert!(status.success() && !self.switch.log().contains("panicked"), "{}", self.switch.log());
        assert!(!is_alive(pid) && !self.switch.dir().exists(), "something is left");
        format!(
            "{} actions {:?}; {}; {} times a guest's counters were compared with its port's; the stand-by continued {} times; \
             drops since vnics were last added {drops:?}; {outsiders}",
            self.actions.values().sum::<u64>(),
            self.actions,
            self.traffic(),
            self.compared,
            self.continued
        )
    }
}

/// Dropped packets by reason, over all of `ports`, since each was added.
fn drops<'a>(ports: impl Iterator<Item = &'a Value>) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for port in ports {
        for (reason, count) in port["rx_drops"].as_object().expect("drops") {
            *sums.entry(reason.clone()).or_default() += number(count);
        }
    }
    sums
}

/// A port's counts minus its guest's: from the guest, to the guest.
fn offsets(guest: &Count, port: &Value) -> (u64, u64) {
    (
        number(&port["rx_packets"]).wrapping_sub(guest.sent),
        number(&port["tx_packets"]).wrapping_sub(guest.received),
    )
}
