//! Reaps zombies without a parent if the supervisor is the first process of a container.
//!
//! The process that holds a dead switch process's memory ends shortly after it (`dataplane/keeper.rs`). Its parent is
//! then the first process, which has to reap it, or it stays a zombie.

use rustix::process::{Pid, WaitOptions, waitpid};

use lasthop_runtime::procfs;

use crate::reaper::Reaper;

impl Reaper {
    /// Reaps orphans that have ended, if this is the first process. `own` are running children.
    pub fn reap_orphans(&self, own: &[Option<u32>]) {
        if std::process::id() != 1 {
            return;
        }
        let is_own = |pid: &u32| own.contains(&Some(*pid)) || self.is_to_reap(*pid);
        for pid in children().filter(|pid| !is_own(pid)) {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            // A process that still runs is checked again after the next restart.
            let _ = waitpid(pid, WaitOptions::NOHANG);
        }
    }
}

/// All children of this process, whichever of its threads started them.
fn children() -> impl Iterator<Item = u32> {
    let listed =
        procfs::threads("self").filter_map(|thread| procfs::text("self", &format!("task/{thread}/children")));
    let pids: Vec<u32> = listed
        .flat_map(|listed| listed.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    pids.into_iter()
}
