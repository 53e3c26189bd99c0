//! vCPU threads without telling names: those that KVM was seen to run.
//!
//! | of /proc/PID | says | readable for |
//! |---|---|---|
//! | guest time in `task/TID/stat` | the thread has run vCPUs for 10 ms or more | everybody |
//! | `task/TID/wchan` | it sleeps in KVM_RUN now: its vCPU is idle | its own user, CAP_SYS_PTRACE (ptrace(2): PTRACE_MODE_READ) |
//! | `fd` | the number of vCPUs | the same |
//!
//! Each of the first two is proof, and no process can forge it without running vCPUs. A vCPU that is idle and has run for
//! less than 10 ms is found by the second one alone; one that is about to run is found by a later look. So a thread that
//! was found once counts for as long as it lives. The last one tells how many are not found.
//!
//! `task/TID/syscall` would not do: KVM's own thread of the process (`kvm-nx-lpage-re`) has the registers of the vCPU
//! that caused its start, so it seems to be in KVM_RUN for ever. Besides, it takes the right to attach.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::guest_threads::{
    Evidence, GuestKind, GuestThreads, ProcessSnapshot, ThreadChoice, UnknownThreads,
};
use crate::thread::{ThreadId, ThreadStat};

/// The function of the kernel in which a thread waits for its vCPU to have work.
const IDLE_VCPU: &str = "kvm_vcpu_block";
/// The beginning of the names of vCPUs' descriptors, followed by a number.
const VCPU_DESCRIPTOR: &str = "anon_inode:kvm-vcpu:";
/// The most descriptors of a process that are looked at, in the order of their numbers: VMMs make vCPUs early. This takes
/// a millisecond.
const DESCRIPTORS_MAX: usize = 1024;

/// The threads of one process that KVM was seen to run.
#[derive(Debug)]
pub struct KvmThreads {
    proc: PathBuf,
    seen: HashSet<ThreadId>,
}

impl Default for KvmThreads {
    fn default() -> Self {
        Self::of(PathBuf::from("/proc"))
    }
}

impl KvmThreads {
    fn of(proc: PathBuf) -> Self {
        Self { proc, seen: HashSet::new() }
    }

    /// The guest's threads in the process `pid`: by their names or the user's choice, otherwise those that KVM was seen to
    /// run. All calls have to be about the same process.
    ///
    /// # Errors
    /// [`UnknownThreads`].
    pub fn guest_threads(
        &mut self,
        pid: u32,
        process: &ProcessSnapshot,
        choice: &ThreadChoice,
    ) -> Result<GuestThreads, UnknownThreads> {
        match process.guest_threads(choice) {
            Err(why @ (UnknownThreads::Unnamed | UnknownThreads::NoneNamed(_))) => {
                self.look(pid, process).ok_or(why)?.bounded()
            }
            named => named,
        }
    }

    fn look(&mut self, pid: u32, process: &ProcessSnapshot) -> Option<GuestThreads> {
        let directory = self.proc.join(pid.to_string());
        let is_vcpu = |id: &ThreadId| self.seen.contains(id) || was_in_kvm(&directory, *id);
        let mut threads: Vec<ThreadId> =
            process.threads.iter().map(|thread| thread.id).filter(is_vcpu).collect();
        // VMMs start them in the order of vCPUs. Numbers of threads may have wrapped meanwhile.
        threads.sort_by_key(|thread| (thread.start_ticks, thread.tid));
        self.seen = threads.iter().copied().collect();
        if threads.is_empty() {
            return None;
        }
        let evidence = Evidence::Kvm { vcpus: vcpus(&directory) };
        Some(GuestThreads { kind: GuestKind::Vmm, threads, may_halt_poll: true, evidence })
    }
}

/// Whether a thread has run a vCPU for a while, or waits for one at present.
fn was_in_kvm(process: &Path, thread: ThreadId) -> bool {
    let task = process.join("task").join(thread.tid.to_string());
    let stat = fs::read_to_string(task.join("stat")).ok();
    let stat = stat.and_then(|text| ThreadStat::parse(thread.tid, &text));
    // A later thread of the same number is another one.
    let Some(stat) = stat.filter(|stat| stat.id == thread) else { return false };
    stat.guest_ticks > 0 || fs::read_to_string(task.join("wchan")).is_ok_and(|name| name.trim() == IDLE_VCPU)
}

/// The number of vCPUs of a process, as far as this process may see that. A vCPU may have several descriptors.
fn vcpus(process: &Path) -> Option<usize> {
    let entries = fs::read_dir(process.join("fd")).ok()?.take(DESCRIPTORS_MAX).filter_map(Result::ok);
    let links = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
    let number = |link: PathBuf| link.to_str()?.strip_prefix(VCPU_DESCRIPTOR)?.parse().ok();
    let numbers: BTreeSet<u32> = links.filter_map(number).collect();
    Some(numbers.len()).filter(|count| *count > 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::guest_threads::{GUEST_THREADS_MAX, NamedThread};

    const PID: u32 = 100;

    /// A made-up /proc with one process.
    struct Proc(PathBuf);

    impl Proc {
        fn new(name: &str) -> Self {
            let proc = std::env::temp_dir().join(format!("lasthop-kvm-{name}-{}", std::process::id()));
            fs::create_dir_all(proc.join(format!("{PID}/fd"))).unwrap();
            Self(proc)
        }

        /// Writes a thread's files. `wchan`: `None` without the right to read it.
        fn thread(&self, tid: u32, start_ticks: u64, guest_ticks: u64, wchan: Option<&str>) {
            let task = self.0.join(format!("{PID}/task/{tid}"));
            fs::create_dir_all(&task).unwrap();
            let rest = "0 ".repeat(22 - 4);
            let last = "0 ".repeat(43 - 23);
            let stat = format!("{tid} (qemu) S {rest}{start_ticks} {last}{guest_ticks} 0\n");
            fs::write(task.join("stat"), stat).unwrap();
            fs::write(task.join("wchan"), wchan.unwrap_or("0")).unwrap();
        }

        fn descriptor(&self, number: u32, link: &str) {
            symlink(link, self.0.join(format!("{PID}/fd/{number}"))).unwrap();
        }

        /// A process with these threads, as numbers and starts.
        fn snapshot(&self, threads: &[(u32, u64)]) -> ProcessSnapshot {
            let named = |(tid, start_ticks): &(u32, u64)| NamedThread {
                id: ThreadId { tid: *tid, start_ticks: *start_ticks },
                name: "qemu-system-x86".to_owned(),
            };
            ProcessSnapshot { threads: threads.iter().map(named).collect(), traced: Vec::new() }
        }

        fn kvm(&self) -> KvmThreads {
            KvmThreads::of(self.0.clone())
        }
    }

    impl Drop for Proc {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn find(kvm: &mut KvmThreads, process: &ProcessSnapshot) -> Result<Vec<u32>, UnknownThreads> {
        let guest = kvm.guest_threads(PID, process, &ThreadChoice::Auto)?;
        assert!(guest.kind == GuestKind::Vmm && guest.may_halt_poll);
        Ok(guest.threads.iter().map(|thread| thread.tid).collect())
    }

    #[test]
    fn threads_that_kvm_runs_are_found_in_the_order_of_their_starts() {
        let proc = Proc::new("order");
        proc.thread(100, 5, 0, Some("poll_schedule_timeout"));
        proc.thread(101, 9, 3, Some("0"));
        proc.thread(30_000, 7, 0, Some("kvm_vcpu_block"));
        proc.thread(103, 8, 0, Some("futex_do_wait"));
        let process = proc.snapshot(&[(100, 5), (101, 9), (103, 8), (30_000, 7)]);
        assert_eq!(find(&mut proc.kvm(), &process), Ok(vec![30_000, 101]));
        let guest = proc.kvm().guest_threads(PID, &process, &ThreadChoice::Auto).unwrap();
        assert_eq!(guest.evidence, Evidence::Kvm { vcpus: None }, "no descriptor is seen");
        for (number, link) in [(3, "/dev/kvm"), (8, "anon_inode:kvm-vm"), (9, "anon_inode:kvm-vcpu:0")] {
            proc.descriptor(number, link);
        }
        for (number, vcpu) in [(10, 1), (11, 2), (12, 2)] {
            proc.descriptor(number, &format!("anon_inode:kvm-vcpu:{vcpu}"));
        }
        let guest = proc.kvm().guest_threads(PID, &process, &ThreadChoice::Auto).unwrap();
        assert_eq!((guest.evidence.word(), guest.evidence.vcpus()), ("kvm", Some(3)));
    }

    #[test]
    fn a_thread_that_was_found_counts_until_it_ends() {
        let proc = Proc::new("memory");
        let (mut kvm, process) = (proc.kvm(), proc.snapshot(&[(100, 5), (101, 7), (102, 8)]));
        proc.thread(100, 5, 0, None);
        proc.thread(101, 7, 0, Some("kvm_vcpu_block"));
        proc.thread(102, 8, 0, Some("0"));
        assert_eq!(find(&mut kvm, &process), Ok(vec![101]));
        proc.thread(101, 7, 0, Some("0"));
        proc.thread(102, 8, 1, None);
        assert_eq!(find(&mut kvm, &process), Ok(vec![101, 102]), "the first one runs at present");
        proc.thread(101, 900, 0, None);
        let later = proc.snapshot(&[(100, 5), (101, 900), (102, 8)]);
        assert_eq!(find(&mut kvm, &later), Ok(vec![102]), "another thread has its number");
        assert_eq!(kvm.seen.len(), 1);
    }

    #[test]
    fn a_thread_whose_number_belongs_to_another_one_is_not_found() {
        let proc = Proc::new("reused");
        proc.thread(101, 900, 50, Some("kvm_vcpu_block"));
        let found = find(&mut proc.kvm(), &proc.snapshot(&[(101, 7), (102, 8)]));
        assert_eq!(found, Err(UnknownThreads::Unnamed), "102 has ended");
    }

    #[test]
    fn names_and_the_user_s_choice_have_priority() {
        let proc = Proc::new("names");
        proc.thread(100, 5, 0, None);
        proc.thread(101, 7, 50, None);
        let mut process = proc.snapshot(&[(100, 5), (101, 7)]);
        let choose = |choice: &str, process: &ProcessSnapshot| {
            proc.kvm().guest_threads(PID, process, &choice.parse().unwrap())
        };
        assert_eq!(choose("none", &process), Err(UnknownThreads::Unwanted));
        assert_eq!(choose("name:vcpu", &process), Err(UnknownThreads::NoneChosen));
        assert_eq!(choose("100", &process).unwrap().evidence, Evidence::Choice);
        process.threads[0].name = "vcpu0".to_owned();
        let named = choose("auto", &process).unwrap();
        assert_eq!(
            (named.threads.as_slice(), named.evidence),
            (&[process.threads[0].id][..], Evidence::Names)
        );
    }

    #[test]
    fn a_guest_cannot_take_all_slots_and_a_process_without_kvm_gets_the_remedy() {
        let proc = Proc::new("bound");
        let threads: Vec<(u32, u64)> = (0..=GUEST_THREADS_MAX as u32).map(|tid| (200 + tid, 7)).collect();
        let process = proc.snapshot(&threads);
        threads.iter().for_each(|(tid, start)| proc.thread(*tid, *start, 0, None));
        let error = find(&mut proc.kvm(), &process).unwrap_err();
        assert!(error.to_string().contains("none was seen in KVM: start it with -name"), "{error}");
        threads.iter().for_each(|(tid, start)| proc.thread(*tid, *start, 1, None));
        assert_eq!(find(&mut proc.kvm(), &process), Err(UnknownThreads::TooMany(GUEST_THREADS_MAX + 1)));
    }
}
