//! Lasthop's processes in a cgroup of their own, and the CPU shares of the threads in it.
//!
//! **Purpose.** With the mode `group` all processes are in one group, which competes with others as a whole. With `steal` each
//! thread that moves packets has a share of its own, and idle ones lend half of theirs ([`lasthop_sched::steal_credit`]).
//!
//! **Contract.** Nothing is written but our own group, those below it and, with cgroup version 2, `cgroup.subtree_control`
//! of the group in which we were started. Only threads of our own processes are moved. The sum of the shares and the
//! group's own weight stay the same, so no tenant loses anything to a share that moves. The group is named by the run
//! directory: the next supervisor of the same directory uses or removes what a killed one left.
//!
//! **Not checked.** Names of threads, which their process chooses.
//!
//! **Threading.** A thread of its own makes all calls, since the kernel may take long to move a thread. It exists only
//! while there is, or was, a group.
//!
//! ```text
//!   supervisor ── Shares: mode, processes ──> Tender (thread "shares") ──> Hierarchy: where? ── Group: make, move, weigh, remove
//!        └──────────── report <─────────────────┘      └── threads: /proc/PID/task, once a second with "steal"
//! ```
#![forbid(unsafe_code)]

mod bounds;
mod group;
mod hierarchy;
mod tender;
mod threads;

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use log::warn;

use lasthop_api::sched::{SharesMode, SharesReport};

use bounds::END_PATIENCE;
use tender::{Tender, Wanted};

/// The longest part of a group's name that is the run directory's.
const NAME_BYTES_MAX: usize = 32;

/// The groups, for the supervisor.
#[derive(Debug)]
pub struct Shares {
    name: String,
    workers: u32,
    wanted: Wanted,
    /// `None` while there is nothing to do.
    thread: Option<Arc<Shared>>,
}

/// The state that the thread and the supervisor have in common.
#[derive(Debug, Default)]
struct Shared {
    wanted: Mutex<Wanted>,
    changed: Condvar,
    report: Mutex<SharesReport>,
    /// The thread has removed its groups.
    is_done: Mutex<bool>,
    done: Condvar,
}

impl Shares {
    /// The groups of the run directory `dir`. Those that an earlier supervisor left are used or removed.
    pub fn new(dir: &Path, mode: SharesMode, workers: usize) -> Self {
        let (name, workers) = (group_name(dir), u32::try_from(workers).unwrap_or(u32::MAX));
        let wanted = Wanted { mode, ..Wanted::default() };
        let mut shares = Self { name, workers, wanted, thread: None };
        let tender = shares.tender();
        if mode != SharesMode::None || tender.is_left() {
            shares.start(tender);
        }
        shares
    }

    /// The mode, if it is not the default.
    pub fn setting(&self) -> Option<SharesMode> {
        Some(self.wanted.mode).filter(|mode| *mode != SharesMode::None)
    }

    /// Changes the mode.
    pub fn set(&mut self, mode: SharesMode) {
        self.wanted.mode = mode;
        match &self.thread {
            Some(shared) => shared.tell(&self.wanted),
            None if mode == SharesMode::None => {}
            None => self.start(self.tender()),
        }
    }

    /// Sets the processes: those with threads that move packets, and others. All are children of this one.
    pub fn settle(&mut self, packets: &[Option<u32>], others: &[Option<u32>]) {
        let set = |processes: &[Option<u32>]| processes.iter().copied().flatten().collect::<BTreeSet<u32>>();
        let (packets, others) = (set(packets), set(others));
        if (&packets, &others) != (&self.wanted.packets, &self.wanted.others) {
            (self.wanted.packets, self.wanted.others) = (packets, others);
            self.thread.iter().for_each(|shared| shared.tell(&self.wanted));
        }
    }

    /// The present groups and shares.
    pub fn report(&self) -> SharesReport {
        match &self.thread {
            // The thread may not have heard of the mode yet.
            Some(shared) => SharesReport { mode: self.wanted.mode, ..locked(&shared.report).clone() },
            None => SharesReport { mode: self.wanted.mode, ..SharesReport::default() },
        }
    }

    /// Removes the groups once all other processes have ended; this one continues where it was started.
    pub fn end(&mut self) {
        let Some(shared) = self.thread.take() else { return };
        (self.wanted.mode, self.wanted.is_over) = (SharesMode::None, true);
        shared.tell(&self.wanted);
        let done = locked(&shared.is_done);
        let waited = shared.done.wait_timeout_while(done, END_PATIENCE, |is_done| !*is_done);
        if !*waited.unwrap_or_else(PoisonError::into_inner).0 {
            warn!(
                "the cgroup {} stays: the kernel does not remove it in time; the next start does",
                self.name
            );
        }
    }

    fn tender(&self) -> Tender {
        Tender::new(PathBuf::from("/proc"), self.name.clone(), self.workers)
    }

    fn start(&mut self, mut tender: Tender) {
        let shared = Arc::new(Shared { wanted: Mutex::new(self.wanted.clone()), ..Shared::default() });
        let serving = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("shares".to_owned());
        match thread.spawn(move || serving.serve(&mut tender)) {
            Ok(_) => self.thread = Some(shared),
            Err(error) => warn!("shares have no effect: their thread cannot be started: {error}"),
        }
    }
}

impl Drop for Shares {
    /// Also at a start that fails.
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn tell(&self, wanted: &Wanted) {
        locked(&self.wanted).clone_from(wanted);
        self.changed.notify_one();
    }

    fn serve(&self, tender: &mut Tender) {
        loop {
            let wanted = locked(&self.wanted).clone();
            let pause = tender.tend(&wanted, Instant::now());
            *locked(&self.report) = tender.report.clone();
            if wanted.is_over && pause.is_none() {
                *locked(&self.is_done) = true;
                return self.done.notify_one();
            }
            self.wait(&wanted, pause);
        }
    }

    /// Waits for a change, or for the pause.
    fn wait(&self, known: &Wanted, pause: Option<Duration>) {
        let wanted = locked(&self.wanted);
        let is_same = |wanted: &mut Wanted| wanted == known;
        match pause {
            Some(pause) => drop(self.changed.wait_timeout_while(wanted, pause, is_same)),
            None => drop(self.changed.wait_while(wanted, is_same)),
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A name for the group of a run directory: the end of its path, and a hash of all of it (FNV-1a).
fn group_name(dir: &Path) -> String {
    let path = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let hash = path.as_os_str().as_bytes().iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let end = path.file_name().map(|end| end.to_string_lossy().into_owned()).unwrap_or_default();
    let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
    let end: String = end.chars().map(plain).take(NAME_BYTES_MAX).collect();
    format!("lasthop-{end}-{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files of a host in a directory.
    pub(crate) struct FakeHost(tempfile::TempDir);

    impl FakeHost {
        pub(crate) fn new() -> Self {
            Self(tempfile::tempdir().expect("a directory"))
        }

        pub(crate) fn at(&self, path: &str) -> PathBuf {
            self.0.path().join(path)
        }

        pub(crate) fn proc(&self) -> PathBuf {
            self.at("proc")
        }

        pub(crate) fn file(&self, path: &str, text: &str) {
            let path = self.at(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(path, text).expect("written");
        }

        pub(crate) fn read(&self, path: &str) -> String {
            std::fs::read_to_string(self.at(path)).expect(path)
        }

        pub(crate) fn groups(&self, text: &str) {
            self.file("proc/self/cgroup", text);
        }

        /// Mounts, each with its root, place, kind and options.
        pub(crate) fn mounts(&self, mounts: &[(&str, &str, &str, &str)]) {
            let line = |(root, at, kind, options): &(&str, &str, &str, &str)| {
                let at = self.at(at).display().to_string().replace(' ', "\\040");
                format!("31 23 0:28 {root} {at} rw,relatime shared:4 - {kind} {kind} {options}\n")
            };
            self.file("proc/self/mountinfo", &mounts.iter().map(line).collect::<String>());
        }
    }

    #[test]
    fn each_run_directory_has_a_group_of_its_own() {
        let name = group_name(Path::new("/run/lasthop"));
        assert!(name.starts_with("lasthop-lasthop-") && name.len() == 32, "{name}");
        assert_ne!(name, group_name(Path::new("/tmp/lasthop")));
        let long = group_name(Path::new(&format!("/run/{}/\u{fc}.x", "y".repeat(300))));
        assert!(long.starts_with("lasthop---x-"), "{long}");
        assert!(group_name(Path::new(&format!("/{}", "y".repeat(255)))).len() < 64);
    }

    #[test]
    fn without_a_group_there_is_no_thread() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut shares = Shares::new(dir.path(), SharesMode::None, 2);
        assert!(shares.thread.is_none() && shares.setting().is_none());
        shares.settle(&[Some(1)], &[None]);
        assert_eq!(shares.report(), SharesReport::default());
        shares.end();
    }
}
