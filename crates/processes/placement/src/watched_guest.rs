//! The threads of attached guests and of device ports, searched again and again.

use std::time::{Duration, Instant};

use lasthop_runtime::clock::Pause;
use lasthop_sched_view::guest_threads::{Evidence, GuestKind, GuestThreads, ProcessSnapshot, ThreadChoice};
use lasthop_sched_view::{FrontEndProcess, KvmThreads, ThreadId};

/// Pause between two searches for a guest's threads; doubles. A VMM makes its vCPUs after it connects.
const LOOK_MIN: Duration = Duration::from_millis(250);
/// The longest such pause. A search takes some 10 us for each thread of the front end.
const LOOK_MAX: Duration = Duration::from_secs(8);
/// Same for user-mode Linux, which has a process for each program of the guest. Until a new one is found, the guest
/// counts as not seen.
const LOOK_MAX_USER_MODE: Duration = Duration::from_secs(1);

/// Prefix of the names of the driver process's I/O threads (`driver/io.rs`), for which packets to a device wait.
const DRIVER_THREADS: &str = "io-";

/// An attached guest, by its front end and the user's choice; or a device port, by the driver process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachedGuest {
    /// `None`: it is in a PID namespace that is not visible.
    pub front_end: Option<FrontEndProcess>,
    /// The threads that the user wants to count.
    pub choice: ThreadChoice,
    /// Whether it is a device port.
    pub is_device: bool,
}

/// Its threads, as the last search found them.
#[derive(Debug)]
pub struct WatchedGuest {
    /// The guest.
    pub guest: AttachedGuest,
    /// The process as first seen, to tell it from a later one of the same number.
    process: Option<ThreadId>,
    /// Those of the process that KVM was seen to run.
    kvm: KvmThreads,
    /// Its threads, or why they are unknown.
    pub found: Result<GuestThreads, String>,
    /// The time of the next search.
    pub next: Instant,
    pause: Pause,
}

impl AttachedGuest {
    /// A guest by its front end; `vcpus` is the user's choice, as a list inside KEY=VALUE,KEY=VALUE.
    #[must_use]
    pub fn of(front_end: Option<FrontEndProcess>, vcpus: Option<&str>) -> Self {
        let choice = vcpus.map(|vcpus| vcpus.replace('+', ",").parse());
        let choice = choice.and_then(Result::ok).unwrap_or_default();
        Self { front_end, choice, is_device: false }
    }

    /// A device port; `driver` is the process that serves it.
    #[must_use]
    pub fn device(driver: Option<u32>) -> Self {
        let pid = driver.and_then(|pid| i32::try_from(pid).ok());
        let front_end = pid.map(|pid| FrontEndProcess { pid, user: None });
        Self { front_end, choice: ThreadChoice::Named(DRIVER_THREADS.to_owned()), is_device: true }
    }
}

impl WatchedGuest {
    /// A guest whose threads are searched from `now` on.
    #[must_use]
    pub fn new(guest: AttachedGuest, now: Instant) -> Self {
        let found = Err("the search for its threads has not begun".to_owned());
        let (kvm, pause) = (KvmThreads::default(), Pause::new(LOOK_MIN, LOOK_MAX));
        Self { guest, process: None, kvm, found, next: now, pause }
    }

    /// The environment that it runs in, in a word; `None` if its threads are unknown.
    #[must_use]
    pub fn kind_word(&self) -> Option<&'static str> {
        let found = self.found.as_ref().ok()?;
        Some(if self.guest.is_device { "device" } else { found.kind.word() })
    }

    /// Why these are believed to be its threads; `None` if they are unknown.
    #[must_use]
    pub fn evidence(&self) -> Option<Evidence> {
        let found = self.found.as_ref().ok()?;
        // The choice of threads of the driver process is not the user's.
        Some(if self.guest.is_device { Evidence::Names } else { found.evidence })
    }

    /// Its threads; none if they are unknown.
    pub fn threads(&self) -> impl Iterator<Item = ThreadId> {
        self.found.iter().flat_map(|found| found.threads.iter().copied())
    }

    /// Searches for its threads.
    pub fn look(&mut self, now: Instant) {
        self.found = self.find();
        let is_user_mode = self.found.as_ref().is_ok_and(|found| found.kind == GuestKind::UserMode);
        let pause = self.pause.take();
        self.next = now + if is_user_mode { pause.min(LOOK_MAX_USER_MODE) } else { pause };
    }

    fn find(&mut self) -> Result<GuestThreads, String> {
        let Some(front_end) = self.guest.front_end else {
            return Err("its front end is in a PID namespace that is not visible from here".to_owned());
        };
        let process = front_end.process()?;
        if *self.process.get_or_insert(process) != process {
            return Err(format!("its front end, process {}, has ended", front_end.pid));
        }
        let pid = front_end.pid.cast_unsigned();
        let snapshot = ProcessSnapshot::read(pid)
            .map_err(|error| format!("the threads of process {pid} cannot be read: {error}"))?;
        let found = self.kvm.guest_threads(pid, &snapshot, &self.guest.choice);
        let mut found = found.map_err(|error| error.to_string())?;
        found.may_halt_poll &= !self.guest.is_device && lasthop_sched_view::halt_polls();
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attached(front_end: Option<FrontEndProcess>) -> AttachedGuest {
        AttachedGuest { front_end, choice: ThreadChoice::Auto, is_device: false }
    }

    fn own_process() -> FrontEndProcess {
        let pid = i32::try_from(std::process::id()).expect("a pid");
        FrontEndProcess { pid, user: Some(rustix::process::geteuid().as_raw()) }
    }

    #[test]
    fn a_later_process_of_the_same_number_is_not_taken_for_the_front_end() {
        let mut guest = WatchedGuest::new(attached(Some(own_process())), Instant::now());
        let own = ThreadId::of(std::process::id()).expect("this one");
        guest.process = Some(ThreadId { start_ticks: own.start_ticks + 1, ..own });
        assert!(guest.find().expect_err("another one").contains("has ended"));
    }

    #[test]
    fn the_user_chooses_among_threads_of_the_front_end_alone() {
        let (front_end, own) = (Some(own_process()), ThreadId::current().expect("this one"));
        let find = |number| {
            let guest =
                AttachedGuest { front_end, choice: ThreadChoice::Numbers(vec![number]), is_device: false };
            WatchedGuest::new(guest, Instant::now()).find()
        };
        assert_eq!(find(own.tid).expect("this thread").threads, [own]);
        assert!(find(1).expect_err("of init").contains("not one of the front end's"));
    }

    #[test]
    fn a_guest_in_another_pid_namespace_is_not_seen_and_looks_get_rarer() {
        let now = Instant::now();
        let mut guest = WatchedGuest::new(attached(None), now);
        guest.look(now);
        assert!(guest.found.as_ref().expect_err("none").contains("PID namespace"));
        let first = guest.next;
        guest.look(first);
        assert_eq!((first - now, guest.next - first), (LOOK_MIN, 2 * LOOK_MIN));
    }

    #[test]
    fn a_device_port_is_seen_by_threads_of_the_driver_process() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("io-0".to_owned());
        let thread = thread.spawn(move || {
            tell.send(ThreadId::current().expect("this one")).expect("heard");
            let _ = ended.recv();
        });
        let id = told.recv().expect("its number");
        let mut device = WatchedGuest::new(AttachedGuest::device(Some(std::process::id())), Instant::now());
        device.look(Instant::now());
        let found = device.found.as_ref().expect("its threads");
        assert_eq!((&found.threads[..], device.kind_word()), (&[id][..], Some("device")));
        assert_eq!(device.evidence(), Some(Evidence::Names));
        let mut none = WatchedGuest::new(AttachedGuest::device(None), Instant::now());
        none.look(Instant::now());
        assert!(none.found.is_err(), "there is no driver process");
        drop(end);
        thread.expect("a thread").join().expect("it ended");
    }
}
