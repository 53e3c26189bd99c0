//! Waits for the end of a process that another supervisor started. It is no child of this process, so its pidfd reports
//! the end.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use lasthop_foreign::ForeignFd;
use log::error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, pidfd_send_signal};

use lasthop_runtime::fault::{Fault, Kind};
use lasthop_runtime::procfs::{self, Standing};

use crate::reaper::{Look, Looks, stuck_text};

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
