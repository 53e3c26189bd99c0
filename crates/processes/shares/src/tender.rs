//! The steps of the thread, at a change and in each period: groups made and removed, members moved, weights decided and set.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use lasthop_api::sched::{ShareReport, SharesMode, SharesReport};
use lasthop_runtime::fault::Fault;
use lasthop_runtime::thread_sample::{SampledThread, threads_of};
use lasthop_sched::{ThreadLoad, ThreadShare, ThreadUse, steal_credit};
use log::{info, warn};

use crate::bounds::{NAMES_PERIOD, PERIOD, REMOVAL_PAUSE, REMOVALS_MAX, RETRY, SHARES_MAX};
use crate::group::{Group, Moved};
use crate::hierarchy::Hierarchy;
use crate::threads::is_below;

/// The mode that the supervisor wants, and its processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) mode: SharesMode,
    /// Processes with threads that move packets.
    pub(crate) packets: BTreeSet<u32>,
    /// The other ones.
    pub(crate) others: BTreeSet<u32>,
    /// The supervisor ends.
    pub(crate) is_over: bool,
}

/// A thread with a share.
#[derive(Debug)]
struct Member {
    share: ThreadShare,
    /// Directory of the share: the thread's name and number.
    dir: String,
    name: String,
    start_ticks: u64,
    used_ns: u64,
}

/// The groups and the state of their threads.
pub(crate) struct Tender {
    proc: PathBuf,
    name: String,
    workers: u32,
    group: Option<Group>,
    /// By number.
    members: BTreeMap<u32, Member>,
    /// Threads of these processes that move no packets, with their processes.
    others: BTreeSet<(u32, u32)>,
    /// When `others` was last empty: a new thread has its creator's name until it has set its own.
    looked_anew: Option<Instant>,
    last: Option<Instant>,
    removals: u32,
    pub(crate) report: SharesReport,
}

impl Tender {
    pub(crate) fn new(proc: PathBuf, name: String, workers: u32) -> Self {
        Self {
            proc,
            name,
            workers,
            group: None,
            members: BTreeMap::new(),
            others: BTreeSet::new(),
            looked_anew: None,
            last: None,
            removals: 0,
            report: SharesReport::default(),
        }
    }

    /// Whether there is a group of an earlier supervisor.
    pub(crate) fn is_left(&self) -> bool {
        Hierarchy::find(&self.proc, &self.name)
            .is_ok_and(|hierarchy| Group::new(&hierarchy, &self.name).exists())
    }

    /// Does what the mode takes now, and returns the pause to the next time; `None`: not before a change.
    pub(crate) fn tend(&mut self, wanted: &Wanted, now: Instant) -> Option<Duration> {
        if wanted.mode != self.report.mode {
            self.removals = 0;
        }
        self.report.mode = wanted.mode;
        if wanted.mode == SharesMode::None {
            return self.remove();
        }
        match self.keep(wanted, now) {
            Ok(()) => {
                self.report.why = None;
                (wanted.mode == SharesMode::Steal).then_some(PERIOD)
            }
            Err(fault) => {
                if self.report.why.as_ref() != Some(&fault.message) {
                    warn!("shares = \"{}\" is not in effect: {fault}", wanted.mode.as_str());
                }
                self.report.why = Some(fault.message);
                Some(RETRY)
            }
        }
    }

    /// Removes the groups, also those of an earlier supervisor. A process that still ends keeps its group for a moment.
    fn remove(&mut self) -> Option<Duration> {
        self.forget();
        (self.report.group, self.report.why) = (None, None);
        let group = self.group.take().or_else(|| {
            let hierarchy = Hierarchy::find(&self.proc, &self.name).ok()?;
            Some(Group::new(&hierarchy, &self.name))
        })?;
        self.removals += 1;
        self.report.why = group.remove().err().map(|fault| fault.message);
        let why = self.report.why.as_ref()?;
        if self.removals < REMOVALS_MAX {
            self.group = Some(group);
            return Some(REMOVAL_PAUSE);
        }
        warn!("the cgroup {} stays: {why}", group.dir.display());
        None
    }

    fn forget(&mut self) {
        self.members.clear();
        self.others.clear();
        self.last = None;
        self.report.threads.clear();
    }

    fn keep(&mut self, wanted: &Wanted, now: Instant) -> Result<(), Fault> {
        let group = self.made_group()?;
        for pid in wanted.packets.iter().chain(&wanted.others) {
            self.take_process(&group, *pid)?;
        }
        if wanted.mode == SharesMode::Steal {
            self.take_threads(&group, &wanted.packets, now)?;
            self.decide(&group, now)?;
        } else {
            self.forget();
        }
        self.remove_unused(&group)
    }

    /// The group, which is made if it does not exist, also if somebody has removed it.
    fn made_group(&mut self) -> Result<Group, Fault> {
        if let Some(group) = self.group.as_ref().filter(|group| group.exists()) {
            return Ok(group.clone());
        }
        self.forget();
        let group = Group::new(&Hierarchy::find(&self.proc, &self.name)?, &self.name);
        let weight = group.version.credit().saturating_mul(self.workers.max(1));
        let here = std::process::id();
        if let Err(fault) = group.make(weight, |pid| is_below(&self.proc, pid, here)) {
            // Half a group is of no use.
            let _ = group.remove();
            return Err(fault);
        }
        info!("Lasthop's processes are in the cgroup {}", group.dir.display());
        self.report.group = Some(group.dir.display().to_string());
        self.group = Some(group.clone());
        Ok(group)
    }

    /// Moves a process of ours that is elsewhere: it was started before there was a group.
    fn take_process(&self, group: &Group, pid: u32) -> Result<(), Fault> {
        let here = std::process::id();
        let groups = |pid: u32| std::fs::read_to_string(self.proc.join(format!("{pid}/cgroup"))).ok();
        // Its first thread is never in a share.
        if groups(pid) == groups(here) || !is_below(&self.proc, pid, here) {
            return Ok(());
        }
        group.take_ours(pid, |pid| is_below(&self.proc, pid, here))
    }

    /// Gives a share to each new thread that moves packets, and forgets those that have ended.
    fn take_threads(&mut self, group: &Group, processes: &BTreeSet<u32>, now: Instant) -> Result<(), Fault> {
        if self.looked_anew.is_none_or(|then| now.saturating_duration_since(then) >= NAMES_PERIOD) {
            self.others.clear();
            self.looked_anew = Some(now);
        }
        let mut present = BTreeSet::new();
        for pid in processes {
            present.extend(threads_of(&self.proc, *pid).map(|tid| (tid, *pid)));
        }
        self.others.retain(|other| present.contains(other));
        self.members.retain(|tid, _| present.range((*tid, 0)..=(*tid, u32::MAX)).next().is_some());
        for (tid, pid) in present {
            if self.members.contains_key(&tid) || self.others.contains(&(tid, pid)) {
                continue;
            }
            let Some(thread) = SampledThread::read(&self.proc, pid, tid) else { continue };
            // The first thread serves the supervisor.
            if tid == pid || !thread.moves_packets() || self.members.len() >= SHARES_MAX {
                self.others.insert((tid, pid));
                continue;
            }
            self.take_thread(group, (tid, pid), thread)?;
        }
        Ok(())
    }

    fn take_thread(
        &mut self,
        group: &Group,
        (tid, pid): (u32, u32),
        thread: SampledThread,
    ) -> Result<(), Fault> {
        let dir = format!("{}.{tid}", thread.name);
        let credit = group.version.credit();
        group.make_share(&dir, credit)?;
        if group.take_thread(&dir, tid)? == Moved::Gone {
            return Ok(());
        }
        let is_it = |found: SampledThread| found.start_ticks == thread.start_ticks;
        if !SampledThread::read(&self.proc, pid, tid).is_some_and(is_it) {
            // Its number may have become another's meanwhile.
            if !is_below(&self.proc, tid, std::process::id()) {
                group.return_thread(tid)?;
            }
            return Ok(());
        }
        let share = ThreadShare { credit, load: ThreadLoad::Some, weight: credit };
        let SampledThread { name, start_ticks, used_ns, .. } = thread;
        self.members.insert(tid, Member { share, dir, name, start_ticks, used_ns });
        Ok(())
    }

    /// Decides the weights by the last period, if one has passed, and sets those that change.
    fn decide(&mut self, group: &Group, now: Instant) -> Result<(), Fault> {
        let period = self.last.map(|last| now.saturating_duration_since(last));
        if period.is_some_and(|period| period < PERIOD / 2) {
            return Ok(());
        }
        self.last = Some(now);
        let Some(period) = period else { return Ok(()) };
        let period_ns = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
        for (tid, member) in &mut self.members {
            let thread = SampledThread::read(&self.proc, *tid, *tid);
            let Some(thread) = thread.filter(|thread| thread.start_ticks == member.start_ticks) else {
                continue;
            };
            let used_ns = thread.used_ns.saturating_sub(member.used_ns);
            member.used_ns = thread.used_ns;
            let is_runnable = thread.is_runnable;
            member.share.load = ThreadUse { period_ns, used_ns, is_runnable, does_io: true }.load();
        }
        let mut shares: Vec<ThreadShare> = self.members.values().map(|member| member.share).collect();
        if steal_credit(&mut shares) > 0 {
            self.report.periods_lent += 1;
        }
        for (member, share) in self.members.values_mut().zip(shares) {
            if member.share.weight != share.weight {
                group.set_weight(&member.dir, share.weight)?;
                self.report.weights_changed += 1;
            }
            member.share = share;
        }
        self.report.threads = self.members.iter().map(|(tid, member)| member.report(*tid)).collect();
        Ok(())
    }

    /// Removes shares of threads that have ended, and those of an earlier supervisor.
    fn remove_unused(&self, group: &Group) -> Result<(), Fault> {
        let used: BTreeSet<&str> = self.members.values().map(|member| &*member.dir).collect();
        for share in group.shares() {
            if !used.contains(&*share) {
                group.remove_share(&share)?;
            }
        }
        Ok(())
    }
}

impl Member {
    fn report(&self, tid: u32) -> ShareReport {
        let load = match self.share.load {
            ThreadLoad::Idle => "idle",
            ThreadLoad::Some => "some",
            ThreadLoad::Io => "io",
        };
        ShareReport {
            name: self.name.clone(),
            tid,
            credit: self.share.credit,
            weight: self.share.weight,
            load: load.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::FakeHost;

    /// A host with this process and a child of it, 70; 80 is another's.
    fn host() -> (FakeHost, u32) {
        let (host, here) = (FakeHost::new(), std::process::id());
        host.mounts(&[("/", "cpu", "cgroup", "rw,cpu")]);
        host.groups("1:cpu:/\n");
        host.file("cpu/tasks", "");
        for (pid, parent) in [(here, 1), (70, here), (80, 1)] {
            host.file(&format!("proc/{pid}/status"), &format!("Tgid:\t{pid}\nPPid:\t{parent}\n"));
            host.file(
                &format!("proc/{pid}/cgroup"),
                if pid == here { "1:cpu:/lasthop-x\n" } else { "1:cpu:/\n" },
            );
        }
        (host, here)
    }

    /// Sets a thread's name, state and CPU time.
    fn thread(host: &FakeHost, (pid, tid): (u32, u32), name: &str, state: char, ticks: u64) {
        let stat =
            format!("{tid} ({name}) {state} 0 0 0 0 0 0 0 0 0 0 {ticks} 0 0 0 0 0 0 0 {} 0\n", tid * 10);
        host.file(&format!("proc/{pid}/task/{tid}/stat"), &stat);
        // The thread's own directory, as for all threads of a host.
        host.file(&format!("proc/{tid}/task/{tid}/stat"), &stat);
    }

    fn wanted(mode: SharesMode) -> Wanted {
        Wanted { mode, packets: BTreeSet::from([70]), ..Wanted::default() }
    }

    fn weights(tender: &Tender) -> Vec<(&str, u32)> {
        tender.report.threads.iter().map(|thread| (&*thread.name, thread.weight)).collect()
    }

    #[test]
    fn an_idle_worker_lends_half_of_its_share_until_it_is_busy() {
        let (host, now) = (host().0, Instant::now());
        thread(&host, (70, 70), "worker9", 'R', 0);
        thread(&host, (70, 71), "worker0", 'S', 0);
        thread(&host, (70, 72), "worker1", 'S', 0);
        thread(&host, (70, 73), "vnic vm1", 'R', 0);
        let mut tender = Tender::new(host.proc(), "lasthop-x".to_owned(), 2);
        assert_eq!(tender.tend(&wanted(SharesMode::Steal), now), Some(PERIOD));
        assert_eq!(host.read("cpu/lasthop-x/cpu.shares"), "2048", "as much as the workers have");
        assert_eq!(host.read("cpu/lasthop-x/cgroup.procs"), "70");
        assert_eq!(host.read("cpu/lasthop-x/worker0.71/tasks"), "71");
        let period = |tender: &mut Tender, periods, ticks: [u64; 2]| {
            thread(&host, (70, 71), "worker0", 'S', ticks[0]);
            thread(&host, (70, 72), "worker1", 'S', ticks[1]);
            tender.tend(&wanted(SharesMode::Steal), now + PERIOD * periods);
        };
        period(&mut tender, 1, [50, 0]);
        assert_eq!(weights(&tender), [("worker0", 1536), ("worker1", 512)]);
        assert_eq!(host.read("cpu/lasthop-x/worker0.71/cpu.shares"), "1536");
        period(&mut tender, 2, [100, 90]);
        assert_eq!(weights(&tender), [("worker0", 1024), ("worker1", 1024)]);
        assert_eq!(host.read("cpu/lasthop-x/worker1.72/cpu.shares"), "1024");
        assert_eq!((tender.report.weights_changed, tender.report.periods_lent), (4, 1));
        assert_eq!(tender.report.threads.len(), 2, "neither the first thread nor a session");
    }

    #[test]
    fn a_thread_that_takes_its_name_late_gets_its_share() {
        let (host, now) = (host().0, Instant::now());
        thread(&host, (70, 71), "lasthop", 'R', 0);
        let mut tender = Tender::new(host.proc(), "lasthop-x".to_owned(), 1);
        tender.tend(&wanted(SharesMode::Steal), now);
        assert!(tender.members.is_empty());
        thread(&host, (70, 71), "worker0", 'S', 0);
        tender.tend(&wanted(SharesMode::Steal), now + NAMES_PERIOD);
        assert_eq!(host.read("cpu/lasthop-x/worker0.71/tasks"), "71");
    }

    #[test]
    fn a_process_that_names_its_threads_at_will_gets_a_bounded_number_of_groups() {
        let (host, _) = host();
        for tid in 1000..1200 {
            thread(&host, (70, tid), &format!("worker{}", tid % 1000), 'R', 0);
        }
        let mut tender = Tender::new(host.proc(), "lasthop-x".to_owned(), 1);
        tender.tend(&wanted(SharesMode::Steal), Instant::now());
        assert_eq!(tender.members.len(), SHARES_MAX);
        let group = tender.group.as_ref().expect("a group");
        assert_eq!(group.shares().len(), SHARES_MAX);
        assert_eq!(tender.report.why, None);
    }

    #[test]
    fn a_number_that_has_become_another_s_is_not_moved() {
        let (host, _) = host();
        let mut tender = Tender::new(host.proc(), "lasthop-x".to_owned(), 1);
        let wanted = Wanted { packets: BTreeSet::from([80]), ..wanted(SharesMode::Group) };
        assert_eq!(tender.tend(&wanted, Instant::now()), None, "nothing to do until a change");
        assert_eq!(host.read("cpu/lasthop-x/cgroup.procs"), std::process::id().to_string());
    }

    #[test]
    fn a_mode_without_effect_says_why_and_is_tried_again() {
        let host = FakeHost::new();
        host.groups("0::/\n");
        host.mounts(&[("/", "v2", "cgroup2", "rw")]);
        let mut tender = Tender::new(host.proc(), "lasthop-x".to_owned(), 1);
        assert_eq!(tender.tend(&wanted(SharesMode::Group), Instant::now()), Some(RETRY));
        assert!(tender.report.why.as_ref().expect("a reason").contains("Delegate=cpu"));
        assert_eq!(tender.tend(&wanted(SharesMode::None), Instant::now()), None);
        assert_eq!(tender.report, SharesReport::default());
    }

    #[test]
    fn a_group_that_cannot_be_removed_is_given_up_in_the_end() {
        let (host, _) = host();
        // A file in it stands for a process that does not end.
        host.file("cpu/lasthop-x/cgroup.procs", "");
        let mut tender = Tender::new(host.proc(), "lasthop-x".to_owned(), 1);
        assert!(tender.is_left());
        for _ in 1..REMOVALS_MAX {
            assert_eq!(tender.tend(&wanted(SharesMode::None), Instant::now()), Some(REMOVAL_PAUSE));
        }
        assert_eq!(tender.tend(&wanted(SharesMode::None), Instant::now()), None);
        assert!(tender.report.why.as_ref().expect("a reason").contains("cannot remove"));
    }
}
