//! Which threads of a process are a guest's CPUs: by their names, or by the user's choice. The process is read from
//! `/proc`.
//!
//! | guest | threads |
//! |---|---|
//! | QEMU | `CPU 0/KVM`, `CPU 0/TCG`; only with `-name NAME,debug-threads=on` ([`KvmThreads`](crate::KvmThreads) finds others) |
//! | Cloud Hypervisor, Firecracker, crosvm | `vcpu0`, `fc_vcpu 0`, `crosvm_vcpu0` |
//! | DPDK | `rte-worker-1`, `lcore-worker-1`, `dpdk-worker1`, and the first thread |
//! | user-mode Linux | the first thread, and the processes that it traces: they run the guest's programs |
//!
//! Only threads of the front end's process, and processes that it traces, are considered. So a guest that gives other
//! threads the names of vCPUs harms only its own packets.

use std::path::Path;
use std::str::FromStr;
use std::{fs, io};

use thiserror::Error;

use crate::thread::ThreadId;

/// The most threads of one guest: more vCPUs than most hosts have CPUs, but not all slots of the view.
pub const GUEST_THREADS_MAX: usize = 256;
/// Prefixes of the names of vCPUs, each followed by a number.
const VCPUS: [&str; 4] = ["CPU ", "vcpu", "fc_vcpu ", "crosvm_vcpu"];
/// Prefixes of the names of DPDK's threads; the first thread has the program's name.
const LCORES: [&str; 3] = ["rte-worker-", "lcore-worker-", "dpdk-worker"];
/// The end of the names of QEMU's vCPUs that it emulates itself.
const TCG: &str = "/TCG";
const QEMU: &str = "qemu-system-";

/// A process at one moment, as /proc shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessSnapshot {
    /// Its threads, the first one first.
    pub threads: Vec<NamedThread>,
    /// The first threads of traced children.
    pub traced: Vec<ThreadId>,
}

/// A thread with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedThread {
    /// The thread.
    pub id: ThreadId,
    /// Up to 15 bytes, which the process chooses.
    pub name: String,
}

/// The environment that a guest runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestKind {
    /// A VMM: a thread for each vCPU.
    Vmm,
    /// DPDK: threads that poll and do not sleep between packets.
    Dpdk,
    /// User-mode Linux: it runs if any of its threads does.
    UserMode,
    /// Chosen by the user.
    Chosen,
}

/// A guest's threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestThreads {
    /// The environment that it runs in.
    pub kind: GuestKind,
    /// Its threads; at least one.
    pub threads: Vec<ThreadId>,
    /// Whether they may be vCPUs of KVM, which halt-poll: only threads with names of other kinds are known not to be.
    pub may_halt_poll: bool,
    /// Why they are believed to be its threads.
    pub evidence: Evidence,
}

/// Why threads are believed to be a guest's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// Their names.
    Names,
    /// The guest's process traces them (ptrace(2)).
    Tracing,
    /// The user says so.
    Choice,
    /// KVM has run them.
    Kvm {
        /// Number of vCPUs that the process has, if this process may see that.
        vcpus: Option<usize>,
    },
}

/// Why a guest's threads are unknown. The remedy is part of the message.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UnknownThreads {
    /// QEMU does not name its threads by default.
    #[error(
        "QEMU does not name its vCPU threads, and none was seen in KVM: start it with -name NAME,debug-threads=on, or set vcpus"
    )]
    Unnamed,
    /// Another program, whose threads have no known names.
    #[error("no thread of process {0:?} has the name of a vCPU, and none was seen in KVM: set vcpus")]
    NoneNamed(String),
    /// The user's choice matches no thread.
    #[error("vcpus names no thread of the front end's process")]
    NoneChosen,
    /// The user's choice is a thread of another process.
    #[error("vcpus has the thread {0}, which is not one of the front end's process")]
    NotIts(u32),
    /// The guest has too many threads.
    #[error("the guest has {0} threads, at most {GUEST_THREADS_MAX} are tracked")]
    TooMany(usize),
    /// The user chose none.
    #[error("vcpus = \"none\"")]
    Unwanted,
}

/// The threads that the user wants to count as the guest's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ThreadChoice {
    /// Those with the names of vCPUs.
    #[default]
    Auto,
    /// None: the guest is treated as if there were no view.
    None,
    /// Those whose names begin with this.
    Named(String),
    /// Those of these numbers.
    Numbers(Vec<u32>),
}

/// A text that is no valid choice.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{0:?} chooses no threads: \"auto\", \"none\", \"name:BEGINNING\", or numbers with commas are possible, {GUEST_THREADS_MAX} at most"
)]
pub struct BadChoice(String);

impl FromStr for ThreadChoice {
    type Err = BadChoice;

    fn from_str(text: &str) -> Result<Self, BadChoice> {
        let bad = || BadChoice(text.to_owned());
        match text {
            "auto" => return Ok(Self::Auto),
            "none" => return Ok(Self::None),
            _ => {}
        }
        if let Some(beginning) = text.strip_prefix("name:") {
            return if beginning.is_empty() { Err(bad()) } else { Ok(Self::Named(beginning.to_owned())) };
        }
        let numbers = text.split(',').take(GUEST_THREADS_MAX + 1).map(|number| number.trim().parse());
        let numbers: Vec<u32> = numbers.collect::<Result<_, _>>().map_err(|_| bad())?;
        if numbers.len() > GUEST_THREADS_MAX || numbers.contains(&0) {
            Err(bad())
        } else {
            Ok(Self::Numbers(numbers))
        }
    }
}

impl GuestKind {
    /// The word for it in reports.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Vmm => "vmm",
            Self::Dpdk => "dpdk",
            Self::UserMode => "user-mode",
            Self::Chosen => "chosen",
        }
    }
}

impl Evidence {
    /// The word for it in reports.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Names => "names",
            Self::Tracing => "tracing",
            Self::Choice => "choice",
            Self::Kvm { .. } => "kvm",
        }
    }

    /// Number of vCPUs of the process, if that is known.
    #[must_use]
    pub const fn vcpus(self) -> Option<usize> {
        match self {
            Self::Kvm { vcpus } => vcpus,
            _ => None,
        }
    }
}

impl GuestThreads {
    /// The same, unless it is too much for the view.
    pub(crate) fn bounded(self) -> Result<Self, UnknownThreads> {
        match self.threads.len() {
            count if count > GUEST_THREADS_MAX => Err(UnknownThreads::TooMany(count)),
            _ => Ok(self),
        }
    }
}

impl ProcessSnapshot {
    /// The guest's threads, by their names or the user's choice.
    ///
    /// # Errors
    /// [`UnknownThreads`].
    pub fn guest_threads(&self, choice: &ThreadChoice) -> Result<GuestThreads, UnknownThreads> {
        let found = match choice {
            ThreadChoice::Auto => self.by_names()?,
            ThreadChoice::None => return Err(UnknownThreads::Unwanted),
            ThreadChoice::Named(beginning) => self.chosen(self.named(|name| name.starts_with(beginning)))?,
            ThreadChoice::Numbers(numbers) => self.chosen(self.numbered(numbers)?)?,
        };
        found.bounded()
    }

    fn by_names(&self) -> Result<GuestThreads, UnknownThreads> {
        let vcpus = self.vcpus();
        if !vcpus.is_empty() {
            let is_kvm = |name: &str| is_numbered(name, &VCPUS) && !name.ends_with(TCG);
            let may_halt_poll = !self.named(is_kvm).is_empty();
            let (kind, evidence) = (GuestKind::Vmm, Evidence::Names);
            return Ok(GuestThreads { kind, threads: vcpus, may_halt_poll, evidence });
        }
        let first = self.threads.first();
        let with_first =
            |others: Vec<ThreadId>| first.map(|first| first.id).into_iter().chain(others).collect();
        let lcores = self.named(|name| is_numbered(name, &LCORES));
        if !lcores.is_empty() {
            let (kind, threads) = (GuestKind::Dpdk, with_first(lcores));
            return Ok(GuestThreads { kind, threads, may_halt_poll: false, evidence: Evidence::Names });
        }
        if !self.traced.is_empty() {
            let (kind, threads) = (GuestKind::UserMode, with_first(self.traced.clone()));
            return Ok(GuestThreads { kind, threads, may_halt_poll: false, evidence: Evidence::Tracing });
        }
        let name = first.map(|first| first.name.clone()).unwrap_or_default();
        Err(if name.starts_with(QEMU) { UnknownThreads::Unnamed } else { UnknownThreads::NoneNamed(name) })
    }

    /// The threads with names of vCPUs, by their numbers.
    fn vcpus(&self) -> Vec<ThreadId> {
        let numbered = |thread: &NamedThread| Some((number_in(&thread.name, &VCPUS)?, thread.id));
        let mut vcpus: Vec<_> = self.threads.iter().filter_map(numbered).collect();
        vcpus.sort_by_key(|(number, _)| *number);
        vcpus.into_iter().map(|(_, id)| id).collect()
    }

    fn named(&self, is_it: impl Fn(&str) -> bool) -> Vec<ThreadId> {
        self.threads.iter().filter(|thread| is_it(&thread.name)).map(|thread| thread.id).collect()
    }

    fn numbered(&self, numbers: &[u32]) -> Result<Vec<ThreadId>, UnknownThreads> {
        let all = || self.threads.iter().map(|thread| thread.id).chain(self.traced.iter().copied());
        let find = |tid: &u32| all().find(|id| id.tid == *tid).ok_or(UnknownThreads::NotIts(*tid));
        numbers.iter().map(find).collect()
    }

    fn chosen(&self, threads: Vec<ThreadId>) -> Result<GuestThreads, UnknownThreads> {
        if threads.is_empty() {
            return Err(UnknownThreads::NoneChosen);
        }
        let (kind, evidence) = (GuestKind::Chosen, Evidence::Choice);
        Ok(GuestThreads { kind, threads, may_halt_poll: true, evidence })
    }
}

/// Whether a name is one of these prefixes, a number, and optionally a slash with more text.
fn is_numbered(name: &str, beginnings: &[&str]) -> bool {
    number_in(name, beginnings).is_some()
}

/// The number in such a name.
fn number_in(name: &str, beginnings: &[&str]) -> Option<u64> {
    let number = beginnings.iter().find_map(|beginning| name.strip_prefix(beginning))?;
    let digits = number.split_once('/').map_or(number, |(number, _)| number);
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// The most threads of a process that are read: a VMM has its vCPUs and some threads for each device.
const PROCESS_THREADS_MAX: usize = 4096;
/// The most listings of a process's threads: where threads come and go all the time, each listing differs.
const LISTINGS_MAX: usize = 4;

impl ProcessSnapshot {
    /// Reads the process `pid`, in the PID namespace of this process. Threads that end meanwhile are left out.
    ///
    /// # Errors
    /// NotFound if it does not exist. This includes 0, which SO_PEERCRED reports for a peer in another PID namespace.
    pub fn read(pid: u32) -> io::Result<Self> {
        let tids = settled(|| numbers_in(Path::new(&format!("/proc/{pid}/task"))))?;
        let named = |tid: &u32| {
            let name = fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")).ok()?;
            Some(NamedThread { id: ThreadId::of(*tid).ok()?, name: name.trim_end_matches('\n').to_owned() })
        };
        let threads = tids.iter().filter_map(named).collect();
        let children = tids.iter().flat_map(|tid| children_of(pid, *tid));
        let traced = children.filter(|child| is_traced_by(*child, pid)).take(GUEST_THREADS_MAX);
        Ok(Self { threads, traced: traced.filter_map(|child| ThreadId::of(child).ok()).collect() })
    }
}

/// Lists the threads of a process. A listing misses some if others end meanwhile, so it is repeated until it shows no
/// new one. The result may include threads that have ended.
fn settled(list: impl Fn() -> io::Result<Vec<u32>>) -> io::Result<Vec<u32>> {
    let mut tids = list()?;
    for _ in 1..LISTINGS_MAX {
        let known = tids.len();
        tids.extend(list()?);
        tids.sort_unstable();
        tids.dedup();
        if tids.len() == known {
            break;
        }
    }
    Ok(tids)
}

/// The entries of a directory that are numbers, sorted.
fn numbers_in(directory: &Path) -> io::Result<Vec<u32>> {
    let names = fs::read_dir(directory)?.take(PROCESS_THREADS_MAX).filter_map(Result::ok);
    let mut numbers: Vec<u32> = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Empty with a kernel without CONFIG_PROC_CHILDREN.
fn children_of(pid: u32, tid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/children")).unwrap_or_default();
    text.split_ascii_whitespace().take(PROCESS_THREADS_MAX).filter_map(|number| number.parse().ok()).collect()
}

fn is_traced_by(child: u32, pid: u32) -> bool {
    let text = fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
    let tracer = text.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    tracer.is_some_and(|tracer| tracer.trim() == pid.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn thread(tid: u32) -> ThreadId {
        ThreadId { tid, start_ticks: 7 }
    }

    fn process(names: &[&str], traced: &[u32]) -> ProcessSnapshot {
        let named = |(index, name): (usize, &&str)| NamedThread {
            id: thread(100 + index as u32),
            name: (*name).to_owned(),
        };
        ProcessSnapshot {
            threads: names.iter().enumerate().map(named).collect(),
            traced: traced.iter().copied().map(thread).collect(),
        }
    }

    fn found(process: &ProcessSnapshot) -> (GuestKind, Vec<u32>) {
        let guest = process.guest_threads(&ThreadChoice::Auto).unwrap();
        (guest.kind, guest.threads.into_iter().map(|thread| thread.tid).collect())
    }

    /// The names are those of QEMU 7.2, DPDK 22.11 and user-mode Linux 6.1.
    #[test]
    fn threads_of_known_guests_are_found_by_their_names() {
        let qemu = process(&["qemu-system-x86", "call_rcu", "CPU 0/TCG", "CPU 1/KVM"], &[]);
        assert_eq!(found(&qemu), (GuestKind::Vmm, vec![102, 103]));
        let late = process(&["qemu-system-x86", "CPU 10/KVM", "CPU 2/KVM", "CPU 0/KVM"], &[]);
        assert_eq!(found(&late).1, [103, 102, 101], "by their numbers");
        let cloud_hypervisor = process(&["cloud-hyperviso", "vmm", "vcpu0", "vcpu10", "vcpu_x"], &[]);
        assert_eq!(found(&cloud_hypervisor), (GuestKind::Vmm, vec![102, 103]));
        let dpdk = process(&["dpdk-testpmd", "eal-intr-thread", "rte_mp_handle", "rte-worker-1"], &[]);
        assert_eq!(found(&dpdk), (GuestKind::Dpdk, vec![100, 103]));
        assert_eq!(found(&process(&["linux"], &[300, 301])), (GuestKind::UserMode, vec![100, 300, 301]));
    }

    #[test]
    fn only_guests_of_other_kinds_are_known_not_to_halt_poll() {
        let may = |names: &[&str], traced: &[u32], choice: &str| {
            let threads = process(names, traced).guest_threads(&choice.parse().unwrap());
            threads.unwrap().may_halt_poll
        };
        for kvm in [&["qemu-system-x86", "CPU 0/TCG", "CPU 1/KVM"], &["vmm", "fc_vcpu 0", "vcpu1"]] {
            assert!(may(kvm, &[], "auto"), "{kvm:?}");
        }
        assert!(may(&["mine"], &[], "name:mine"), "the user's choice says nothing of it");
        assert!(!may(&["qemu-system-x86", "CPU 0/TCG"], &[], "auto"));
        assert!(!may(&["linux"], &[300], "auto") && !may(&["testpmd", "rte-worker-1"], &[], "auto"));
    }

    #[test]
    fn other_processes_get_a_remedy() {
        let error = |process: &ProcessSnapshot| process.guest_threads(&ThreadChoice::Auto).unwrap_err();
        assert_eq!(error(&process(&["qemu-system-x86", "qemu-system-x86"], &[])), UnknownThreads::Unnamed);
        let other = error(&process(&["other", "CPU /KVM", "vcpu", "CPU x"], &[]));
        assert_eq!(other, UnknownThreads::NoneNamed("other".to_owned()));
        assert_eq!(error(&process(&[], &[])), UnknownThreads::NoneNamed(String::new()));
    }

    #[test]
    fn the_user_s_choice_is_among_the_process_s_threads() {
        let process = process(&["mine", "io", "io"], &[300]);
        let choose = |text: &str| {
            let guest = process.guest_threads(&text.parse().unwrap())?;
            Ok(guest.threads.into_iter().map(|thread| thread.tid).collect::<Vec<_>>())
        };
        assert_eq!(choose("name:io"), Ok(vec![101, 102]));
        assert_eq!(choose("100, 300"), Ok(vec![100, 300]));
        assert_eq!(choose("100,1"), Err(UnknownThreads::NotIts(1)));
        assert_eq!(choose("name:vcpu"), Err(UnknownThreads::NoneChosen));
        assert_eq!(choose("none"), Err(UnknownThreads::Unwanted));
    }

    #[test]
    fn a_guest_cannot_take_all_slots() {
        let names: Vec<String> = (0..=GUEST_THREADS_MAX).map(|number| format!("vcpu{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let error = process(&names, &[]).guest_threads(&ThreadChoice::Auto).unwrap_err();
        assert_eq!(error, UnknownThreads::TooMany(GUEST_THREADS_MAX + 1));
    }

    #[test]
    fn choices_are_checked() {
        for bad in ["", "name:", "0", "1,,2", "-1", "Auto", "99999999999"] {
            assert!(bad.parse::<ThreadChoice>().is_err(), "{bad}");
        }
        let many = vec!["1"; GUEST_THREADS_MAX + 1].join(",");
        assert!(many.parse::<ThreadChoice>().is_err());
    }

    proptest! {
        #[test]
        fn any_names_give_threads_of_the_process_or_none(
            names in prop::collection::vec("(CPU |vcpu|rte-worker-)?[0-9/KVM]{0,6}", 0..20),
            traced in prop::collection::vec(1000..2000_u32, 0..4),
        ) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let process = process(&names, &traced);
            if let Ok(guest) = process.guest_threads(&ThreadChoice::Auto) {
                let all: Vec<ThreadId> = process.threads.iter().map(|thread| thread.id).chain(process.traced.clone()).collect();
                prop_assert!(!guest.threads.is_empty() && guest.threads.iter().all(|thread| all.contains(thread)));
            }
        }
    }

    #[test]
    fn a_thread_that_one_listing_leaves_out_is_found() {
        let listings = std::cell::RefCell::new(vec![vec![1, 2, 4], vec![1, 2, 3], vec![1, 2, 3]]);
        let tids = settled(|| Ok(listings.borrow_mut().remove(0))).unwrap();
        assert_eq!(tids, [1, 2, 3, 4]);
        assert!(listings.borrow().is_empty(), "until there is no other one");
        let count = std::cell::Cell::new(0);
        let changing = settled(|| Ok(vec![count.replace(count.get() + 1)])).unwrap();
        assert_eq!(changing.len(), LISTINGS_MAX);
    }

    #[test]
    fn the_threads_of_this_process_are_read_with_their_names() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (report, reported) = std::sync::mpsc::channel();
        let vcpu = std::thread::Builder::new().name("vcpu0".to_owned());
        let vcpu = vcpu.spawn(move || {
            report.send(ThreadId::current().unwrap()).unwrap();
            let _ = ended.recv();
        });
        let id = reported.recv().unwrap();
        let guest =
            ProcessSnapshot::read(std::process::id()).unwrap().guest_threads(&ThreadChoice::Auto).unwrap();
        assert_eq!((guest.kind, guest.threads), (GuestKind::Vmm, vec![id]));
        drop(end);
        vcpu.unwrap().join().unwrap();
    }

    #[test]
    fn a_peer_of_another_pid_namespace_is_no_process() {
        assert_eq!(ProcessSnapshot::read(0).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
