//! The measured effect of each attack on two other guests, next to the effect of two guests that behave: a table for
//! docs/hostile-guests.md. Run by `bench/hostile`.
//!
//! Each round has a separate switch for each side, in turns. Attackers and well-behaved neighbours have the lowest
//! priority, so that their own CPU time does not count, as on a host where guests have separate CPUs.

mod attacks;
mod cpu_shares;
mod senders;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lasthop_frontend::{Guest, GuestOptions};
use lasthop_wire::Offload;
use rustix::process::Signal;

use attacks::ATTACKS;
use cpu_shares::{CpuMeter, CpuShares};
use lasthop_rig::guests::frame;
use lasthop_rig::sys::unshare_descriptors;
use lasthop_rig::victims::{Times, Victims};
use lasthop_rig::{is_alive, signal};

/// Parts of one measurement, and the work of the victims in each.
const PARTS: usize = 8;
const KNOWN_PER_PART: usize = 100;
const NEW_PER_PART: usize = 20;
/// Default of HOSTILE_ROUNDS.
const ROUNDS: usize = 5;
/// The vnics of attackers.
const VNICS: [&str; 4] = ["bad0,queues=16", "bad1,queues=2", "bad2", "bad3"];
const NEIGHBOURS: [[u8; 6]; 2] = [[2, 0, 0, 0, 9, 1], [2, 0, 0, 0, 9, 2]];
/// Frames that each neighbour sends in a burst, and the pause between bursts.
const BURST: u32 = 16;
const BURST_PAUSE: Duration = Duration::from_millis(1);
/// The time for an attacker to attach before the supervisor is stopped.
const ATTACH_PAUSE: Duration = Duration::from_millis(200);
/// The bounds: factors of the median and of the 99th of 100, and the time of a command.
const MEDIAN_MAX: f64 = 2.0;
const P99_MAX: f64 = 5.0;
const COMMAND_MAX: Duration = Duration::from_millis(100);

/// An attack, which runs until it is stopped.
pub(crate) struct Attack {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&Ground<'_>),
    /// The supervisor is stopped during the attack, so there are no commands.
    pub(crate) is_supervisor_stopped: bool,
}

impl Attack {
    pub(crate) const fn new(name: &'static str, run: fn(&Ground<'_>)) -> Self {
        Self { name, run, is_supervisor_stopped: false }
    }
}

/// The place where an attack happens.
pub(crate) struct Ground<'a> {
    pub(crate) dir: &'a Path,
    pub(crate) is_over: &'a AtomicBool,
    /// Set when the attack has begun.
    pub(crate) has_begun: &'a AtomicBool,
    /// The CPU time that neighbours should take.
    appetite: CpuShares,
    meter: &'a CpuMeter,
}

impl Ground<'_> {
    pub(crate) fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    pub(crate) fn begin(&self) {
        self.has_begun.store(true, Ordering::Relaxed);
    }
}

/// Stops the work of other threads when dropped, also by a panic.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The measurement of one side in one round, or in all of them.
#[derive(Default)]
struct Sample {
    known: Times,
    new: Times,
    commands: Times,
    attach: Times,
    upgrade: Times,
    dropped: u64,
    deaths: u64,
    memory_kib: u64,
    /// In each round.
    cpu: Vec<CpuShares>,
}

impl Sample {
    fn add(&mut self, other: Self) {
        self.known.extend(other.known);
        self.new.extend(other.new);
        self.commands.extend(other.commands);
        self.attach.extend(other.attach);
        self.upgrade.extend(other.upgrade);
        self.dropped += other.dropped;
        self.deaths += other.deaths;
        self.memory_kib = self.memory_kib.max(other.memory_kib);
        self.cpu.extend(other.cpu);
    }

    /// CPU time in all rounds.
    fn mean_cpu(&self) -> CpuShares {
        let mean = |share: fn(&CpuShares) -> f64| {
            self.cpu.iter().map(share).sum::<f64>() / (self.cpu.len() as f64).max(1.0)
        };
        CpuShares { switch: mean(|cpu| cpu.switch), others: mean(|cpu| cpu.others) }
    }
}

fn lowest_priority() {
    rustix::process::setpriority_process(None, 19).expect("a lower priority");
}

/// Two guests that talk to each other: at a steady rate, and faster as long as they and the switch have taken less CPU
/// time than intended.
fn neighbours(ground: &Ground<'_>) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            lowest_priority();
            use_cpu(ground);
        });
        talk_beside(ground);
    });
}

/// Takes CPU time until the neighbours have the intended share.
fn use_cpu(ground: &Ground<'_>) {
    while ground.goes_on() && ground.appetite.others > 0.0 {
        if ground.meter.shares().others < ground.appetite.others {
            let start = Instant::now();
            while start.elapsed() < BURST_PAUSE {
                std::hint::spin_loop();
            }
        } else {
            std::thread::sleep(BURST_PAUSE);
        }
    }
}

fn talk_beside(ground: &Ground<'_>) {
    let guest = |number: usize| {
        let options = GuestOptions { mac: NEIGHBOURS[number], ..GuestOptions::default() };
        Guest::connect(ground.dir.join(format!("bad{number}.sock")), options).expect("attached")
    };
    let (mut guests, mut number, mut received) = ([guest(0), guest(1)], 0_u32, Vec::new());
    ground.begin();
    while ground.goes_on() {
        for (at, guest) in guests.iter_mut().enumerate() {
            guest.reclaim(0).expect("a sound ring");
            for _ in 0..BURST {
                number += 1;
                let sent = frame(NEIGHBOURS[1 - at], NEIGHBOURS[at], number, 1000);
                let _ = guest.send(0, &sent, Offload::default()).expect("connected");
            }
            guest.flush(0).expect("connected");
            while guest.recv(0, &mut received).expect("a sound ring").is_some() {}
            guest.wait(Some(Duration::ZERO)).expect("connected");
        }
        if ground.appetite.switch == 0.0 || ground.meter.shares().switch >= ground.appetite.switch {
            std::thread::sleep(BURST_PAUSE);
        }
    }
}

/// Memory and page tables of a process, in KiB.
fn memory_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let of_line = |line: &str| {
        let (key, value) = line.split_once(':')?;
        let is_counted = ["RssAnon", "RssShmem", "VmPTE"].contains(&key);
        value.trim().strip_suffix(" kB")?.parse::<u64>().ok().filter(|_| is_counted)
    };
    status.lines().filter_map(of_line).sum()
}

/// The memory of the switch on the host so far: its own processes, or threads named after its guests.
fn switch_memory_kib(victims: &Victims) -> u64 {
    memory_kib(victims.switch.pid()) + victims.switch.children().into_iter().map(memory_kib).sum::<u64>()
}

#[allow(clippy::print_stderr, reason = "a loss is to be explained")]
fn dropped(victims: &Victims) -> u64 {
    let of_port = |vnic: &str| {
        let drops = victims.switch.port(vnic)["rx_drops"].clone();
        if drops.as_object().is_some_and(|drops| !drops.is_empty()) {
            eprintln!("{vnic} lost: {drops}");
        }
        drops.as_object().into_iter().flatten().filter_map(|(_, count)| count.as_u64()).sum::<u64>()
    };
    of_port("one") + of_port("two")
}

/// Stops a process; continues it when dropped.
struct Stopped(u32);

impl Stopped {
    fn new(pid: u32) -> Self {
        signal(pid, Signal::STOP);
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal(self.0, Signal::CONT);
    }
}

/// The victims' times while `attack` runs, or neighbours that take as much CPU time as `appetite` says.
fn measure(attack: &Attack, appetite: CpuShares) -> Sample {
    let mut victims = Victims::beside(&VNICS);
    victims.talk(KNOWN_PER_PART);
    let apart = is_apart().then(|| Victims::beside(&VNICS));
    let dir = apart.as_ref().unwrap_or(&victims).switch.dir();
    let supervisor = victims.switch.pid();
    let process = victims.switch.switch_pid().expect("a switch process");
    let (is_over, has_begun) = (AtomicBool::new(false), AtomicBool::new(false));
    let before_kib = switch_memory_kib(&victims);
    let meter = CpuMeter::new(&victims);
    let mut sample = Sample::default();
    std::thread::scope(|scope| {
        let _ends = Ends(&is_over);
        let ground = Ground { dir: &dir, is_over: &is_over, has_begun: &has_begun, appetite, meter: &meter };
        scope.spawn(move || {
            lowest_priority();
            unshare_descriptors();
            (attack.run)(&ground);
        });
        while !has_begun.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let stopped = attack.is_supervisor_stopped.then(|| {
            // The supervisor accepts the attacker.
            std::thread::sleep(ATTACH_PAUSE);
            Stopped::new(supervisor)
        });
        meter.begin();
        for _ in 0..PARTS {
            sample.known.extend(victims.talk(KNOWN_PER_PART));
            sample.new.extend(victims.talk_anew(NEW_PER_PART));
            if stopped.is_none() {
                sample.commands.push(victims.operate());
            }
            let kib = switch_memory_kib(&victims);
            sample.memory_kib = sample.memory_kib.max(kib.saturating_sub(before_kib));
        }
        sample.cpu.push(meter.shares());
        drop(stopped);
        sample.attach.push(victims.attach_another());
        // Not by the kernel's list of the supervisor's children, which is incomplete while threads end.
        sample.deaths = [process, supervisor].into_iter().filter(|pid| !is_alive(*pid)).count() as u64;
        sample.upgrade.push(victims.upgrade());
    });
    victims.talk_anew(NEW_PER_PART);
    sample.dropped = dropped(&victims);
    sample
}

/// Ratios of the times beside an attack to those beside neighbours.
struct Factors {
    medians: [f64; 2],
    p99s: [f64; 2],
}

impl Factors {
    fn new(neighbours: &Sample, attacked: &Sample) -> Self {
        let ratio = |one: Duration, other: Duration| one.as_secs_f64() / other.as_secs_f64().max(1e-9);
        let pairs = [(&attacked.known, &neighbours.known), (&attacked.new, &neighbours.new)];
        Self {
            medians: pairs.map(|(attacked, behaved)| ratio(attacked.median(), behaved.median())),
            p99s: pairs.map(|(attacked, behaved)| ratio(attacked.p99(), behaved.p99())),
        }
    }

    fn are_kept(&self) -> bool {
        self.medians.iter().all(|factor| *factor <= MEDIAN_MAX)
            && self.p99s.iter().all(|factor| *factor <= P99_MAX)
    }
}

/// One line of the table, and whether the bounds hold: next to `quiet` neighbours, or next to those that take as much CPU time as
/// the attack.
fn row(name: &str, quiet: &Sample, alike: &Sample, attacked: &Sample) -> (String, bool) {
    let (to_quiet, to_alike) = (Factors::new(quiet, attacked), Factors::new(alike, attacked));
    let is_unharmed =
        attacked.dropped == 0 && attacked.deaths == 0 && attacked.commands.median() <= COMMAND_MAX;
    let verdict = match (is_unharmed, to_quiet.are_kept(), to_alike.are_kept()) {
        (true, true, _) => "",
        (true, _, true) => " by CPU time |",
        _ => " **missed** |",
    };
    let time = |time: Duration, factor: [f64; 2]| {
        format!("{:.0} ({:.1}, {:.1})", time.as_secs_f64() * 1e6, factor[0], factor[1])
    };
    let cpu = attacked.mean_cpu();
    let text = format!(
        "| {name} | {} | {} | {} | {} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {} | {} | {:.0} | {:.0} | {:.0} |{verdict}",
        time(attacked.known.median(), [to_quiet.medians[0], to_alike.medians[0]]),
        time(attacked.known.p99(), [to_quiet.p99s[0], to_alike.p99s[0]]),
        time(attacked.new.median(), [to_quiet.medians[1], to_alike.medians[1]]),
        time(attacked.new.p99(), [to_quiet.p99s[1], to_alike.p99s[1]]),
        attacked.known.worst().as_secs_f64() * 1e3,
        attacked.commands.median().as_secs_f64() * 1e3,
        attacked.commands.worst().as_secs_f64() * 1e3,
        attacked.attach.worst().as_secs_f64() * 1e3,
        attacked.upgrade.worst().as_secs_f64() * 1e3,
        attacked.dropped,
        attacked.deaths,
        attacked.memory_kib as f64 / 1024.0,
        100.0 * cpu.switch,
        100.0 * cpu.others,
    );
    (text, is_unharmed && (to_quiet.are_kept() || to_alike.are_kept()))
}

/// Whether attackers and neighbours are at a switch of their own, so that the victims notice only its CPU time.
fn is_apart() -> bool {
    std::env::var_os("HOSTILE_APART").is_some()
}

/// The words of an environment variable.
fn number_of(variable: &str, otherwise: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

#[test]
#[ignore = "measures for three minutes, in a release build: bench/hostile"]
#[allow(clippy::print_stdout, reason = "the table is what it is run for")]
fn figures_of_attacks_next_to_those_of_neighbours_that_behave() {
    let rounds = number_of("HOSTILE_ROUNDS", ROUNDS);
    let only = std::env::var("HOSTILE_ONLY").unwrap_or_default();
    println!(
        "| attack | known flow: median, µs (times) | p99 | new flow: median | p99 | worst, ms | command: median, ms | worst | attach: worst, ms | upgrade: worst, ms | lost | ended | MiB | CPU of the switch, % | of the attacker, % |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    let mut missed = Vec::new();
    let (start, mut all_quiet) = (Instant::now(), Sample::default());
    let behaved = Attack::new("none", neighbours);
    for attack in ATTACKS.iter().filter(|attack| attack.name.contains(&only)) {
        let name = attack.name;
        let (mut quiet, mut alike, mut attacked) = Default::default();
        for _ in 0..rounds {
            Sample::add(&mut quiet, measure(&behaved, CpuShares::default()));
            Sample::add(&mut attacked, measure(attack, CpuShares::default()));
            Sample::add(&mut alike, measure(&behaved, attacked.mean_cpu()));
        }
        let (line, is_kept) = row(name, &quiet, &alike, &attacked);
        println!("{line}");
        missed.extend((!is_kept).then_some(name));
        let (line, _) = row("as much CPU time by neighbours", &quiet, &alike, &alike);
        println!("{line}");
        all_quiet.add(quiet);
    }
    let (line, _) = row("none: two neighbours that behave", &all_quiet, &all_quiet, &all_quiet);
    println!("{line}\n\n{} s", start.elapsed().as_secs());
    assert!(missed.is_empty(), "the bounds are missed by: {missed:?}");
}

/// The socket of a vnic.
pub(crate) fn socket_of(dir: &Path, vnic: &str) -> PathBuf {
    dir.join(format!("{vnic}.sock"))
}
