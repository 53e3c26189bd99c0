//! Threads that were given a part of their CPUs, and the way back.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use lasthop_api::cpus::CpuList;
use lasthop_api::placement::PlacedThreadReport;
use lasthop_runtime::thread_sample::SampledThread;
use lasthop_sched::{CpuPlace, GatheredThread};
use lasthop_sched_view::ThreadId;
use log::warn;
use rustix::io::Errno;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

use crate::crowd::{FoundThread, ThreadRole};
use crate::files::{read_file, replace_file};

/// A thread with less than its own CPUs.
#[derive(Clone, Debug)]
pub(crate) struct MovedThread {
    pub(crate) is_guest: bool,
    name: String,
    role: ThreadRole,
    domain: u16,
    cpus: KeptCpus,
}

/// The CPUs of a thread, as the file keeps them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KeptCpus {
    tid: u32,
    start_ticks: u64,
    /// Those that it was allowed before.
    own: CpuList,
    /// Those that it was given.
    given: CpuList,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct MovedThreads {
    proc: PathBuf,
    file: PathBuf,
    by_tid: BTreeMap<u32, MovedThread>,
    /// The threads that the file has.
    written: Vec<KeptCpus>,
    /// Threads that may not be moved: another user's, without CAP_SYS_NICE. They count as fixed.
    refused: BTreeSet<(u32, u64)>,
    pub(crate) moves: u64,
    /// Why a thread could not be moved, with the remedy.
    pub(crate) why: Option<String>,
}

impl MovedThreads {
    pub(crate) fn new(proc: PathBuf, file: PathBuf) -> Self {
        Self {
            proc,
            file,
            by_tid: BTreeMap::new(),
            written: Vec::new(),
            refused: BTreeSet::new(),
            moves: 0,
            why: None,
        }
    }

    /// Gives threads that an earlier supervisor left their CPUs back, where nobody else has changed them since.
    pub(crate) fn restore_left(&mut self) {
        let left = read_record(&self.file);
        for kept in left.iter().flatten() {
            self.give_back(kept);
        }
        if left.is_some() {
            let _ = std::fs::remove_file(&self.file);
        }
    }

    /// The CPUs that a thread is allowed by others than this; `None` if it has ended, or the kernel does not tell.
    pub(crate) fn allowed(&mut self, thread: &FoundThread) -> Option<CpuList> {
        let present = affinity(thread.id.tid)?;
        let moved = self.by_tid.get(&thread.id.tid).filter(|moved| moved.cpus.is_of(thread.id));
        match moved {
            Some(moved) if moved.cpus.has(&present) => Some(moved.cpus.own.clone()),
            // They were set by somebody else, or it is another thread by now.
            _ => {
                self.by_tid.remove(&thread.id.tid);
                Some(present)
            }
        }
    }

    /// A thread for the decision.
    pub(crate) fn gathered(&self, thread: &FoundThread, moves_guests: bool) -> GatheredThread {
        let moved = self.by_tid.get(&thread.id.tid).filter(|moved| moved.cpus.is_of(thread.id));
        let is_refused = self.refused.contains(&(thread.id.tid, thread.id.start_ticks));
        let may_move = moves_guests && !thread.has_heirs;
        GatheredThread {
            cpu: thread.cpu,
            is_fixed: is_refused || (!may_move && matches!(thread.role, ThreadRole::Guest(_))),
            is_busy: thread.is_busy,
            domain: moved.map(|moved| moved.domain),
        }
    }

    /// Moves threads to their domains, and gives those without one their CPUs back. Returns how many got another domain.
    pub(crate) fn apply(
        &mut self,
        threads: &[FoundThread],
        allowed: &[Option<CpuList>],
        domains: &[Option<u16>],
        places: &[CpuPlace],
    ) -> u64 {
        self.refused.retain(|(tid, _)| threads.iter().any(|thread| thread.id.tid == *tid));
        if self.refused.is_empty() {
            self.why = None;
        }
        let stays = |tid: &u32| {
            threads.iter().zip(domains).any(|(thread, domain)| thread.id.tid == *tid && domain.is_some())
        };
        let gone: Vec<u32> = self.by_tid.keys().filter(|tid| !stays(tid)).copied().collect();
        let mut changed = Vec::new();
        for ((thread, own), domain) in threads.iter().zip(allowed).zip(domains) {
            let (Some(own), Some(domain)) = (own, domain) else { continue };
            let is_in = |cpu: &&usize| places.get(**cpu).is_some_and(|place| place.llc == *domain);
            let cpus = KeptCpus {
                tid: thread.id.tid,
                start_ticks: thread.id.start_ticks,
                own: own.clone(),
                given: CpuList(own.0.iter().filter(is_in).copied().collect()),
            };
            if self.by_tid.get(&thread.id.tid).is_some_and(|moved| moved.cpus == cpus) {
                continue;
            }
            let is_guest = matches!(thread.role, ThreadRole::Guest(_));
            changed.push(MovedThread {
                is_guest,
                name: thread.name.clone(),
                role: thread.role,
                domain: *domain,
                cpus,
            });
        }
        // The file has a guest's thread before it is moved, and until it is back.
        let before: Vec<KeptCpus> = self
            .kept()
            .chain(changed.iter().filter(|moved| moved.is_guest).map(|moved| &moved.cpus))
            .cloned()
            .collect();
        if !self.write(before) {
            changed.retain(|moved| !moved.is_guest);
        }
        gone.into_iter().for_each(|tid| self.return_thread(tid));
        let mut moves = 0;
        for moved in changed {
            moves += u64::from(self.give(moved));
        }
        let after = self.kept().cloned().collect();
        self.write(after);
        self.moves += moves;
        moves
    }

    /// Gives the threads that `which` chooses their CPUs back.
    pub(crate) fn restore(&mut self, which: impl Fn(&MovedThread) -> bool) {
        let chosen: Vec<u32> =
            self.by_tid.iter().filter(|(_, moved)| which(moved)).map(|(tid, _)| *tid).collect();
        chosen.into_iter().for_each(|tid| self.return_thread(tid));
        self.why = None;
        let left = self.kept().cloned().collect();
        self.write(left);
    }

    pub(crate) fn report(&self, name: impl Fn(u32) -> Option<String>) -> Vec<PlacedThreadReport> {
        let report = |moved: &MovedThread| PlacedThreadReport {
            name: moved.name.clone(),
            tid: moved.cpus.tid,
            vnic: match moved.role {
                ThreadRole::Guest(port) => name(port),
                ThreadRole::Worker(_) | ThreadRole::Driver => None,
            },
            cpus: moved.cpus.given.to_string(),
            own_cpus: moved.cpus.own.to_string(),
        };
        self.by_tid.values().map(report).collect()
    }

    /// The contents of the file: guests' threads, since ours end with the supervisor.
    fn kept(&self) -> impl Iterator<Item = &KeptCpus> {
        self.by_tid.values().filter(|moved| moved.is_guest).map(|moved| &moved.cpus)
    }

    fn return_thread(&mut self, tid: u32) {
        if let Some(moved) = self.by_tid.remove(&tid) {
            self.give_back(&moved.cpus);
        }
    }

    /// Restores a thread's CPUs if it is still the same and has those that it was given.
    fn give_back(&self, kept: &KeptCpus) {
        if self.is_there(kept) && affinity(kept.tid).is_some_and(|present| kept.has(&present)) {
            let _ = set_affinity(kept.tid, &kept.own);
        }
    }

    /// Restricts a thread to its new CPUs. False if that was not possible.
    fn give(&mut self, moved: MovedThread) -> bool {
        let cpus = &moved.cpus;
        if !self.is_there(cpus) {
            return false;
        }
        match set_affinity(cpus.tid, &cpus.given) {
            Ok(()) if self.is_there(cpus) => {
                self.by_tid.insert(cpus.tid, moved);
                true
            }
            // Its number became another's in between.
            Ok(()) => {
                let _ = set_affinity(cpus.tid, &cpus.own);
                false
            }
            Err(Errno::SRCH) => false,
            Err(error) => {
                self.refused.insert((cpus.tid, cpus.start_ticks));
                let remedy = match error {
                    Errno::PERM => {
                        "; give the service CAP_SYS_NICE (docs/user/operating.md), or set placement=own"
                    }
                    _ => "",
                };
                self.why = Some(format!(
                    "thread {} ({}) cannot be moved to CPUs {}: {error}{remedy}",
                    cpus.tid, moved.name, cpus.given
                ));
                false
            }
        }
    }

    fn is_there(&self, kept: &KeptCpus) -> bool {
        let found = SampledThread::read(&self.proc, kept.tid, kept.tid);
        found.is_some_and(|found| found.start_ticks == kept.start_ticks)
    }

    /// Writes the file if it differs; false if that is not possible: then no guest's thread may be moved.
    fn write(&mut self, threads: Vec<KeptCpus>) -> bool {
        if threads == self.written {
            return true;
        }
        match write_record(&self.file, &threads) {
            Ok(()) => {
                self.written = threads;
                true
            }
            Err(error) => {
                let why = format!(
                    "guests' threads stay where they are, since {} cannot be written: {error}",
                    self.file.display()
                );
                if self.why.as_ref() != Some(&why) {
                    warn!(limited = true, file:% = self.file.display(); "placement: {why}");
                }
                self.why = Some(why);
                false
            }
        }
    }
}

impl KeptCpus {
    /// Whether a thread with these CPUs has those that it was given, or those of them that a cpuset or offline CPUs leave: the kernel
    /// takes away the others.
    fn has(&self, present: &CpuList) -> bool {
        !present.0.is_empty() && present.0.iter().all(|cpu| self.given.0.contains(cpu))
    }

    fn is_of(&self, id: ThreadId) -> bool {
        (self.tid, self.start_ticks) == (id.tid, id.start_ticks)
    }
}

/// The threads in a file; `None` if there is no such file.
fn read_record(file: &Path) -> Option<Vec<KeptCpus>> {
    let text = read_file(file)?;
    let threads = serde_json::from_str(&text);
    if threads.is_err() {
        warn!(
            "{} is damaged: guests' threads keep the CPUs that placement gave them; taskset -p changes that",
            file.display()
        );
    }
    Some(threads.unwrap_or_default())
}

/// Replaces the file in one step, or removes it if there is nothing to keep.
fn write_record(file: &Path, threads: &[KeptCpus]) -> std::io::Result<()> {
    if threads.is_empty() {
        return match std::fs::remove_file(file) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    }
    replace_file(file, &threads)
}

fn pid(tid: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(tid).ok()?)
}

/// The CPUs that a thread may use.
fn affinity(tid: u32) -> Option<CpuList> {
    let set = sched_getaffinity(Some(pid(tid)?)).ok()?;
    Some(CpuList((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()))
}

fn set_affinity(tid: u32, cpus: &CpuList) -> Result<(), Errno> {
    let mut set = CpuSet::new();
    cpus.0.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
    sched_setaffinity(Some(pid(tid).ok_or(Errno::SRCH)?), &set)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A thread that waits until this is dropped.
    struct WaitingThread {
        id: ThreadId,
        end: Option<mpsc::Sender<()>>,
        handle: Option<std::thread::JoinHandle<()>>,
    }

    impl WaitingThread {
        fn start() -> Self {
            let (end, ended) = mpsc::channel::<()>();
            let (tell, told) = mpsc::channel();
            let handle = std::thread::spawn(move || {
                tell.send(ThreadId::current().expect("this one")).expect("heard");
                let _ = ended.recv();
            });
            Self { id: told.recv().expect("its number"), end: Some(end), handle: Some(handle) }
        }

        fn found(&self, role: ThreadRole) -> FoundThread {
            FoundThread::of(self.id, role)
        }

        fn cpus(&self) -> CpuList {
            affinity(self.id.tid).expect("its CPUs")
        }
    }

    impl Drop for WaitingThread {
        fn drop(&mut self) {
            self.end = None;
            self.handle.take().map(std::thread::JoinHandle::join);
        }
    }

    /// Each CPU has a last-level cache of its own.
    fn places() -> Vec<CpuPlace> {
        (0..CpuSet::MAX_CPU as u16).map(|cpu| CpuPlace { group: cpu, llc: cpu, node: 0 }).collect()
    }

    fn moved(dir: &Path) -> MovedThreads {
        MovedThreads::new(PathBuf::from("/proc"), dir.join("placement"))
    }

    /// Sends each thread to the last-level cache of the last CPU, or nowhere.
    fn send(moved: &mut MovedThreads, threads: &[FoundThread], to_last: bool) -> u64 {
        let allowed: Vec<_> = threads.iter().map(|thread| moved.allowed(thread)).collect();
        let last = |own: &Option<CpuList>| own.as_ref().and_then(|own| own.0.last()).map(|cpu| *cpu as u16);
        let domains: Vec<_> = allowed.iter().map(|own| last(own).filter(|_| to_last)).collect();
        moved.apply(threads, &allowed, &domains, &places())
    }

    #[test]
    fn a_thread_gets_a_part_of_its_cpus_and_all_of_them_back() {
        let (dir, thread) = (tempfile::tempdir().expect("a directory"), WaitingThread::start());
        let (mut moved, own) = (moved(dir.path()), thread.cpus());
        assert!(own.0.len() > 1, "this test takes two CPUs");
        let found = [thread.found(ThreadRole::Worker(0))];
        assert_eq!((send(&mut moved, &found, true), send(&mut moved, &found, true)), (1, 0), "once");
        assert_eq!(thread.cpus().0, own.0[own.0.len() - 1..]);
        assert_eq!(moved.allowed(&found[0]), Some(own.clone()), "those of before are still its own");
        let report = moved.report(|_| None);
        assert_eq!((report.len(), &report[0].own_cpus), (1, &own.to_string()));
        assert!(!dir.path().join("placement").exists(), "our own threads end with us");
        assert_eq!(send(&mut moved, &found, false), 0);
        assert_eq!((thread.cpus(), moved.report(|_| None).len()), (own, 0));
    }

    #[test]
    fn a_change_by_somebody_else_wins() {
        let (dir, thread) = (tempfile::tempdir().expect("a directory"), WaitingThread::start());
        let (mut moved, own) = (moved(dir.path()), thread.cpus());
        let found = [thread.found(ThreadRole::Worker(0))];
        send(&mut moved, &found, true);
        let first = CpuList(own.0[..1].to_vec());
        set_affinity(thread.id.tid, &first).expect("set");
        assert_eq!(moved.allowed(&found[0]), Some(first.clone()));
        moved.restore(|_| true);
        assert_eq!(thread.cpus(), first, "nothing is given back");
        let kept = KeptCpus { tid: 1, start_ticks: 1, own: own.clone(), given: own.clone() };
        assert!(kept.has(&first), "a cpuset leaves a part");
        assert!(!kept.has(&CpuList(Vec::new())) && !KeptCpus { given: first, ..kept }.has(&own));
    }

    #[test]
    fn the_next_supervisor_gives_guests_their_cpus_back() {
        let (dir, guest) = (tempfile::tempdir().expect("a directory"), WaitingThread::start());
        let (own, found) = (guest.cpus(), [guest.found(ThreadRole::Guest(1))]);
        let mut killed = moved(dir.path());
        send(&mut killed, &found, true);
        assert_ne!(guest.cpus(), own);
        drop(killed);
        let file = dir.path().join("placement");
        let kept = read_record(&file).expect("a file");
        assert_eq!(kept[0].own, own);
        // Another thread of the same number is left alone.
        let later = KeptCpus { start_ticks: kept[0].start_ticks + 1, ..kept[0].clone() };
        write_record(&file, &[later]).expect("written");
        moved(dir.path()).restore_left();
        assert!(guest.cpus() != own && !file.exists());
        write_record(&file, &kept).expect("written");
        moved(dir.path()).restore_left();
        assert!(guest.cpus() == own && !file.exists());
        std::fs::write(&file, "[{").expect("written");
        moved(dir.path()).restore_left();
        assert!(!file.exists(), "a damaged file is removed");
    }

    #[test]
    fn without_a_file_no_guest_is_moved() {
        let (dir, guest) = (tempfile::tempdir().expect("a directory"), WaitingThread::start());
        let (own, found) = (guest.cpus(), [guest.found(ThreadRole::Guest(1))]);
        let mut moved = moved(&dir.path().join("missing"));
        assert_eq!(send(&mut moved, &found, true), 0);
        assert_eq!(guest.cpus(), own);
        assert!(moved.why.as_ref().expect("a reason").contains("cannot be written"));
    }

    #[test]
    fn a_thread_that_may_not_be_moved_counts_as_fixed() {
        let (dir, thread) = (tempfile::tempdir().expect("a directory"), WaitingThread::start());
        let mut moved = moved(dir.path());
        let found = [thread.found(ThreadRole::Guest(1))];
        moved.refused.insert((thread.id.tid, thread.id.start_ticks));
        assert!(moved.gathered(&found[0], true).is_fixed);
        moved.apply(&[], &[], &[], &places());
        assert!(!moved.gathered(&found[0], true).is_fixed, "it is forgotten when it has no packets");
        let mut heirs = found[0].clone();
        heirs.has_heirs = true;
        assert!(moved.gathered(&heirs, true).is_fixed);
    }

    #[test]
    fn a_thread_that_has_ended_is_forgotten() {
        let (dir, thread) = (tempfile::tempdir().expect("a directory"), WaitingThread::start());
        let mut moved = moved(dir.path());
        let found = [thread.found(ThreadRole::Worker(0))];
        send(&mut moved, &found, true);
        drop(thread);
        assert_eq!((moved.allowed(&found[0]), send(&mut moved, &found, true)), (None, 0));
        assert_eq!(moved.report(|_| None), []);
    }
}
