//! The view's owner: loads the programs, and selects the tracked threads.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use lasthop_bpf::{Btf, Link, LoadError, Map, Program, WritableWords};
use lasthop_sched::{Activity, Occupant};
use rustix::time::{ClockId, clock_gettime};
use thiserror::Error;

use crate::layout::{
    BUCKETS, CPUS_MAX, LOOKUP_WORDS, QUEUE_BYTES, Slot, THREADS_MAX, VIEW_WORDS, WAKE_UP_WORDS, WAKERS_MAX,
    WAYS, is_free, thread_word,
};
use crate::offsets::{MigrateEvent, OffsetError, SwitchEvent, TaskEvent, TaskOffsets};
use crate::programs::{self, ProgramError, ViewMaps};
use crate::reader::ViewReader;
use crate::thread::{ThreadError, ThreadId, ThreadStat, is_in_host_pid_namespace};

const WORD_BYTES: u32 = 8;

/// Why there is no view. Each message has a remedy, or says that there is none.
#[derive(Debug, Error)]
pub enum ViewOpenError {
    /// The process lacks the rights.
    #[error(
        "the view of the scheduler needs the capabilities CAP_BPF and CAP_PERFMON: start lasthop run as root, or give it both"
    )]
    NotPermitted,
    /// The kernel has no BTF.
    #[error(
        "the view of the scheduler needs /sys/kernel/btf/vmlinux, that is a kernel with CONFIG_DEBUG_INFO_BTF: {0}"
    )]
    NoTypes(io::Error),
    /// The kernel differs from those that are known.
    #[error("the view of the scheduler is not made for this kernel (it needs Linux 5.18 or newer): {0}")]
    Kernel(#[from] OffsetError),
    /// The process is in another PID namespace than the host.
    #[error(
        "the view of the scheduler needs the PID namespace of the host: start lasthop run outside of the container, or share that namespace with it"
    )]
    PidNamespace,
    /// Anything else.
    #[error("the view of the scheduler cannot be had: {0}")]
    System(#[from] io::Error),
}

impl From<ProgramError> for ViewOpenError {
    fn from(error: ProgramError) -> Self {
        match error {
            ProgramError::Code(error) => Self::System(io::Error::other(error)),
            ProgramError::Load(LoadError::System(error)) => Self::of(error),
            ProgramError::Load(error) => Self::System(error.into()),
        }
    }
}

impl ViewOpenError {
    fn of(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::PermissionDenied { Self::NotPermitted } else { Self::System(error) }
    }
}

/// Why a thread is not tracked.
#[derive(Debug, Error)]
pub enum TrackError {
    /// It has ended, or its number belongs to another one.
    #[error(transparent)]
    Thread(#[from] ThreadError),
    /// All slots are taken.
    #[error("as many threads are tracked as can be, {THREADS_MAX} or fewer")]
    Full,
    /// It is tracked already.
    #[error("thread {0} is tracked already")]
    Twice(u32),
    /// Errors of bpf(2).
    #[error("the view of the scheduler cannot be changed: {0}")]
    System(#[from] io::Error),
}

/// A tracked thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrackedThread {
    /// The thread.
    pub thread: ThreadId,
    /// Its slot in the view.
    pub slot: Slot,
}

/// The programs that run for events.
#[derive(Debug)]
struct EventPrograms {
    switch: Program,
    wake_up: Program,
    wake_up_new: Program,
    migration: Program,
}

/// The view, and the programs that write it. They run while it is [attached](Self::attach), and end with this process,
/// however it ends.
#[derive(Debug)]
pub struct ViewWriter {
    maps: ViewMaps,
    view: ViewReader,
    lookup: WritableWords,
    events: EventPrograms,
    enter_cpu: Program,
    enter_thread: Program,
    links: Vec<Link>,
    /// By CPU number.
    tracked: HashMap<u32, TrackedThread>,
    /// Free slots.
    free: Vec<Slot>,
}

impl ViewWriter {
    /// Loads the programs. They do not run yet.
    ///
    /// # Errors
    /// [`ViewOpenError`].
    pub fn open() -> Result<Self, ViewOpenError> {
        if !is_in_host_pid_namespace() {
            return Err(ViewOpenError::PidNamespace);
        }
        let btf = Btf::kernel().map_err(ViewOpenError::NoTypes)?;
        let maps = new_maps().map_err(ViewOpenError::of)?;
        let task = TaskOffsets::of(&btf)?;
        let event = |name| TaskEvent::of(&btf, name);
        let events = EventPrograms {
            switch: programs::on_switch(&maps, &SwitchEvent::of(&btf)?, &task)?,
            wake_up: programs::on_wake_up(&maps, &event("sched_wakeup")?, &task)?,
            wake_up_new: programs::on_wake_up(&maps, &event("sched_wakeup_new")?, &task)?,
            migration: programs::on_migration(&maps, &MigrateEvent::of(&btf)?, &task)?,
        };
        Ok(Self {
            view: ViewReader::map(maps.view.as_fd())?,
            lookup: WritableWords::map(maps.lookup.as_fd(), LOOKUP_WORDS)?,
            enter_cpu: programs::enter_cpu(&maps)?,
            enter_thread: programs::enter_thread(&maps)?,
            maps,
            events,
            links: Vec::new(),
            tracked: HashMap::new(),
            free: (0..THREADS_MAX as u16).rev().filter_map(|number| Slot::new(number, 0)).collect(),
        })
    }

    /// The view's descriptor, for a [`ViewReader`] in another process. It does not allow changes of the view.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.maps.view.as_fd()
    }

    /// The descriptors by which another process asks for wake-ups: [`WakeUps`](crate::WakeUps), then the event queues of
    /// worker 0 and the following ones.
    pub fn wake_up_descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.maps.wake_ups.as_fd()).chain(self.maps.queues.iter().map(AsFd::as_fd))
    }

    /// The view, in this process.
    #[must_use]
    pub fn reader(&self) -> &ViewReader {
        &self.view
    }

    /// Whether the programs run.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        !self.links.is_empty()
    }

    /// Starts the programs for each event of the host's scheduler. Does nothing if they run already.
    ///
    /// # Errors
    /// Errors of bpf(2); then none of the programs runs.
    pub fn attach(&mut self) -> io::Result<()> {
        if self.is_attached() {
            return Ok(());
        }
        let events = &self.events;
        let programs = [&events.switch, &events.wake_up, &events.wake_up_new, &events.migration];
        let links = programs.map(Program::attach).into_iter().collect::<io::Result<Vec<_>>>()?;
        self.enter_cpus()?;
        self.links = links;
        Ok(())
    }

    /// Gives each CPU a state, even if it has no events.
    fn enter_cpus(&self) -> io::Result<()> {
        for cpu in 0..CPUS_MAX {
            match self.enter_cpu.run(Some(cpu), &[]) {
                Ok(_) => {}
                // Offline, or beyond the machine's possible CPUs.
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error()) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Stops the programs. Afterwards no thread is tracked.
    pub fn detach(&mut self) {
        self.links.clear();
        let tracked: Vec<u32> = self.tracked.keys().copied().collect();
        tracked.into_iter().for_each(|tid| self.forget(tid));
    }

    /// Tracks a thread until it ends or is forgotten.
    ///
    /// # Errors
    /// [`TrackError`]; then the thread is not tracked.
    pub fn track(&mut self, thread: ThreadId) -> Result<TrackedThread, TrackError> {
        self.sweep();
        if self.tracked.contains_key(&thread.tid) {
            return Err(TrackError::Twice(thread.tid));
        }
        let slot = self.free.pop().ok_or(TrackError::Full)?;
        let tracked = TrackedThread { thread, slot };
        self.tracked.insert(thread.tid, tracked);
        match self.begin(tracked) {
            Ok(()) => Ok(tracked),
            Err(error) => {
                self.forget(thread.tid);
                Err(error)
            }
        }
    }

    fn begin(&mut self, TrackedThread { thread, slot }: TrackedThread) -> Result<(), TrackError> {
        let earlier = self.view.word(slot).unwrap_or_default();
        let at = bucket(thread.tid).find(|at| self.lookup.load(*at) == Some(0)).ok_or(TrackError::Full)?;
        self.lookup.store(at, slot.lookup_word(thread.tid));
        // Checked only now: a thread that ended earlier would keep its slot, and a later one with its number would be
        // mistaken for it. One that ends after this frees the slot at its last switch.
        let stat = ThreadStat::read(thread.tid)?;
        if stat.id != thread {
            return Err(ThreadError::Gone(thread.tid).into());
        }
        let now_ns = monotonic_ns();
        let has_cpu =
            self.view.cpu(stat.cpu, now_ns).map(|cpu| cpu.occupant) == Some(Occupant::Thread(thread.tid));
        let awake = if has_cpu { Activity::Running } else { Activity::Runnable };
        let word = thread_word(slot, stat.sleeps.unwrap_or(awake), stat.cpu, now_ns);
        // Replaces the slot's word, unless a program has done so meanwhile.
        self.enter_thread.run(None, &[u64::from(slot.number()), earlier, word])?;
        Ok(())
    }

    /// Stops tracking a thread; its slot's state must not be read any more. Does nothing if it is not tracked.
    pub fn forget(&mut self, tid: u32) {
        let Some(TrackedThread { slot, .. }) = self.tracked.remove(&tid) else { return };
        // The program at the thread's last switch may have done that.
        for at in bucket(tid).filter(|at| self.lookup.load(*at) == Some(slot.lookup_word(tid))) {
            self.lookup.store(at, 0);
        }
        self.free.insert(0, slot.next());
    }

    /// Frees the slots of ended threads, and returns those threads.
    pub fn sweep(&mut self) -> Vec<ThreadId> {
        let is_gone = |tracked: &&TrackedThread| self.view.word(tracked.slot).is_none_or(is_free);
        let gone: Vec<ThreadId> =
            self.tracked.values().filter(is_gone).map(|tracked| tracked.thread).collect();
        gone.iter().for_each(|thread| self.forget(thread.tid));
        gone
    }

    /// The tracked threads, in no order; some may have ended.
    pub fn tracked(&self) -> impl Iterator<Item = TrackedThread> {
        self.tracked.values().copied()
    }
}

/// The words of the lookup that a thread can use.
fn bucket(tid: u32) -> std::ops::Range<usize> {
    let first = tid as usize % BUCKETS * WAYS;
    first..first + WAYS
}

fn new_maps() -> io::Result<ViewMaps> {
    let mut queues = Vec::with_capacity(WAKERS_MAX);
    for _ in 0..WAKERS_MAX {
        queues.push(Map::ring_buffer("lasthop_events", QUEUE_BYTES.max(rustix::param::page_size() as u32))?);
    }
    Ok(ViewMaps {
        view: Map::shared_read_only("lasthop_view", VIEW_WORDS as u32 * WORD_BYTES)?,
        lookup: Map::shared("lasthop_lookup", LOOKUP_WORDS as u32 * WORD_BYTES)?,
        wake_ups: Map::shared("lasthop_wakeups", WAKE_UP_WORDS as u32 * WORD_BYTES)?,
        queue_of_worker: Map::array_of_maps("lasthop_queues", &queues)?,
        queues: queues.try_into().map_err(|_| io::ErrorKind::InvalidInput)?,
    })
}

fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
