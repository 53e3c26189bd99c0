//! How long do guests wait when the switch process is killed, and what do they lose?
//!
//! usage: restarts LASTHOP [COUNT [PERIOD_MS [WORKERS [upgrade]]]]
//!
//! Two guests of our own send each other numbered frames through `LASTHOP run`, as fast as they can, while its switch process
//! is killed by SIGKILL every PERIOD_MS, or replaced by `lasthop upgrade`. Prints a line of the table in docs/reliability.md: for each death the longest time
//! between two frames that a guest received, and over all of them what was lost, came twice, out of order or damaged.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a program that prints a table")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lasthop_guest::{Guest, GuestOptions};
use lasthop_wire::Offload;
use rustix::process::{Pid, Signal, kill_process};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const FRAME_BYTES: usize = 200;
const BURST: usize = 32;
/// Longest wait for the switch, and for frames after its death.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long guests listen when nobody sends any more.
const DRAIN: Duration = Duration::from_millis(500);

fn mac(guest: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, guest]
}

fn frame(to: u8, from: u8, number: u32) -> Vec<u8> {
    let mut frame = [&mac(to)[..], &mac(from), &[0x88, 0xb5], &number.to_be_bytes()].concat();
    frame.resize(FRAME_BYTES, number as u8);
    frame
}

/// What is told to and by a guest's thread.
#[derive(Default)]
struct Signals {
    is_quiet: AtomicBool,
    is_over: AtomicBool,
    heard: AtomicU64,
    /// Longest pause between two frames since this was last set to 0.
    gap_ns: AtomicU64,
}

#[derive(Clone, Copy, Default)]
struct Count {
    sent: u64,
    heard: u64,
    /// Numbers left out between two that came.
    lost: u64,
    twice_or_late: u64,
    damaged: u64,
}

struct Talker {
    signals: Arc<Signals>,
    thread: JoinHandle<Result<Count>>,
}

impl Talker {
    fn start(dir: &Path, me: u8, other: u8) -> Result<Self> {
        let socket = dir.join(format!("g{me}.sock"));
        let guest = Guest::connect(socket, GuestOptions { mac: mac(me), ..GuestOptions::default() })?;
        let signals = Arc::new(Signals::default());
        let told = Arc::clone(&signals);
        Ok(Self { signals, thread: std::thread::spawn(move || talk(guest, me, other, &told)) })
    }

    /// Waits for frames that came later than now.
    fn hear_more(&self) -> Result<()> {
        let before = self.signals.heard.load(Ordering::Relaxed);
        wait_for("frames", || self.signals.heard.load(Ordering::Relaxed) > before + BURST as u64)
    }
}

fn talk(mut guest: Guest, me: u8, other: u8, signals: &Signals) -> Result<Count> {
    let (mut count, mut last, mut bytes) = (Count::default(), 0, Vec::new());
    let mut heard_at = Instant::now();
    while !signals.is_over.load(Ordering::Relaxed) {
        guest.reclaim(0)?;
        for _ in 0..BURST {
            let is_quiet = signals.is_quiet.load(Ordering::Relaxed);
            if is_quiet || !guest.send(0, &frame(other, me, count.sent as u32 + 1), Offload::default())? {
                break;
            }
            count.sent += 1;
        }
        guest.flush(0)?;
        while guest.recv(0, &mut bytes)?.is_some() {
            let number = bytes.get(14..18).and_then(|n| Some(u32::from_be_bytes(n.try_into().ok()?)));
            let number = number.unwrap_or_default();
            count.damaged += u64::from(bytes != frame(me, other, number));
            count.twice_or_late += u64::from(number <= last);
            // Before the first one that came, the others were not there.
            count.lost += if last > 0 { u64::from(number.saturating_sub(last + 1)) } else { 0 };
            last = last.max(number);
            count.heard += 1;
            let gap_ns = heard_at.elapsed().as_nanos() as u64;
            signals.gap_ns.fetch_max(gap_ns, Ordering::Relaxed);
            heard_at = Instant::now();
        }
        signals.heard.store(count.heard, Ordering::Relaxed);
        guest.wait(Some(Duration::from_micros(100)))?;
    }
    Ok(count)
}

fn wait_for(what: &str, mut is_there: impl FnMut() -> bool) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !is_there() {
        if Instant::now() > end {
            return Err(format!("waited in vain for {what}").into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// `lasthop run` in a directory of its own; it ends with this.
struct Switch {
    child: Child,
    dir: PathBuf,
}

impl Switch {
    fn start(program: &str, workers: &str) -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("restarts-{}", std::process::id()));
        let mut command = Command::new(program);
        command.args(["run", "--workers", workers, "--vnic", "g1", "--vnic", "g2", "--dir"]).arg(&dir);
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let switch = Self { child, dir };
        wait_for("the switch", || switch.dir.join("g2.sock").exists())?;
        Ok(switch)
    }

    fn process(&self) -> Option<i32> {
        let pid = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        children.split_whitespace().next()?.parse().ok()
    }

    fn kill(&self) -> Result<()> {
        let process = self.process().and_then(Pid::from_raw).ok_or("there is no switch process")?;
        Ok(kill_process(process, Signal::KILL)?)
    }

    /// Replaces it by the same program's.
    fn upgrade(&self, program: &str) -> Result<()> {
        let done = Command::new(program).arg("upgrade").arg(program).arg("--dir").arg(&self.dir).output()?;
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        if done.status.success() { Ok(()) } else { Err(said.into()) }
    }

    fn fds(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).map_or(0, Iterator::count)
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Replaces the switch process so many times; each guest's gap after each.
fn measure(
    talkers: &[Talker],
    (count, period): (u32, Duration),
    replace: impl Fn() -> Result<()>,
) -> Result<Vec<u64>> {
    let mut gaps = Vec::new();
    for _ in 0..count {
        std::thread::sleep(period);
        talkers.iter().for_each(|talker| talker.signals.gap_ns.store(0, Ordering::Relaxed));
        replace()?;
        std::thread::sleep(Duration::from_millis(1));
        for talker in talkers {
            talker.hear_more()?;
        }
        gaps.extend(talkers.iter().map(|talker| talker.signals.gap_ns.load(Ordering::Relaxed)));
    }
    Ok(gaps)
}

fn end(talkers: Vec<Talker>) -> Result<Count> {
    talkers.iter().for_each(|talker| talker.signals.is_quiet.store(true, Ordering::Relaxed));
    std::thread::sleep(DRAIN);
    let mut all = Count::default();
    for talker in talkers {
        talker.signals.is_over.store(true, Ordering::Relaxed);
        let count = talker.thread.join().map_err(|_| "a guest panicked")??;
        all.sent += count.sent;
        all.lost += count.lost;
        all.twice_or_late += count.twice_or_late;
        all.damaged += count.damaged;
    }
    Ok(all)
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| words.get(at).map_or(Ok(default), |word| word.parse());
    let program = words.first().ok_or("usage: restarts LASTHOP [COUNT [PERIOD_MS [WORKERS [upgrade]]]]")?;
    let (count, period) = (number(1, 200)? as u32, Duration::from_millis(number(2, 500)?));
    let is_upgrade = words.get(4).is_some_and(|word| word == "upgrade");
    let switch = Switch::start(program, &number(3, 2)?.to_string())?;
    let talkers = vec![Talker::start(&switch.dir, 1, 2)?, Talker::start(&switch.dir, 2, 1)?];
    talkers.iter().try_for_each(Talker::hear_more)?;
    let before = switch.fds();
    let replace = || if is_upgrade { switch.upgrade(program) } else { switch.kill() };
    let mut gaps = measure(&talkers, (count, period), replace)?;
    let after = switch.fds();
    let Count { sent, lost, twice_or_late, damaged, .. } = end(talkers)?;
    gaps.sort_unstable();
    let ms = |share: usize| gaps[(gaps.len() - 1) * share / 100] as f64 / 1e6;
    println!(
        "count  gap median  p90  p99  max (ms)  frames sent  lost  each time  twice or late  damaged  descriptors"
    );
    println!(
        "{count}  {:.1}  {:.1}  {:.1}  {:.1}  {sent}  {}  {:.1}  {twice_or_late}  {damaged}  {before} -> {after}",
        ms(50),
        ms(90),
        ms(99),
        ms(100),
        lost,
        lost as f64 / f64::from(count),
    );
    Ok(())
}
