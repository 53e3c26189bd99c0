//! The states of guests' threads: tracks them for a second, and prints how often they were seen running, waiting and
//! sleeping.
//!
//! `cargo run -p lasthop-sched-view --example watch PID...`, as root; each PID is a VMM, a DPDK program or a user-mode Linux.

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use lasthop_sched::Activity;
use lasthop_sched_view::guest_threads::{ProcessSnapshot, ThreadChoice};
use lasthop_sched_view::{KvmThreads, ViewWriter};
use rustix::time::{ClockId, clock_gettime};

const LOOKS: usize = 1000;
const PAUSE: Duration = Duration::from_millis(1);

fn main() -> Result<(), Box<dyn Error>> {
    let mut view = ViewWriter::open()?;
    view.attach()?;
    let mut out = std::io::stdout();
    let mut seen = Vec::new();
    for pid in std::env::args().skip(1) {
        let pid = pid.parse()?;
        let process = ProcessSnapshot::read(pid)?;
        let guest = KvmThreads::default().guest_threads(pid, &process, &ThreadChoice::Auto)?;
        writeln!(out, "{pid}: {:?}, {} threads", guest.kind, guest.threads.len())?;
        for thread in guest.threads {
            seen.push((view.track(thread)?, [0; 4]));
        }
    }
    for _ in 0..LOOKS {
        std::thread::sleep(PAUSE);
        let now = clock_gettime(ClockId::Monotonic);
        let now_ns = now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned();
        for (tracked, counts) in &mut seen {
            let activity = view.reader().thread(tracked.slot, now_ns).map(|state| state.activity);
            counts[match activity {
                Some(Activity::Running) => 0,
                Some(Activity::Runnable) => 1,
                Some(Activity::Blocked) => 2,
                None => 3,
            }] += 1;
        }
    }
    for (tracked, [running, runnable, blocked, unknown]) in seen {
        let tid = tracked.thread.tid;
        writeln!(out, "{tid}: running {running}, runnable {runnable}, blocked {blocked}, unknown {unknown}")?;
    }
    Ok(())
}
