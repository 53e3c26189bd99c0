//! The view of threads that sleep, spin and wait for a CPU. This needs CAP_BPF and CAP_PERFMON.
//!
//! No test asserts a duration: each waits for the state that the view has to show, and hangs if that never comes.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use lasthop_sched::{Activity, Occupant, ThreadState};
use lasthop_sched_view::layout::WAKERS_MAX;
use lasthop_sched_view::{
    EventQueue, ThreadError, ThreadId, TrackError, TrackedThread, ViewReader, ViewWriter, WakeUps,
};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn attached() -> ViewWriter {
    let mut view = ViewWriter::open().unwrap();
    view.attach().unwrap();
    view
}

/// A CPU that this process may use, and another one if available.
fn cpus() -> [usize; 2] {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    let first = cpus.next().unwrap();
    [first, cpus.next().unwrap_or(first)]
}

fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).unwrap();
}

/// A thread that sleeps until it is asked to spin, and spins until it is asked to end.
struct Worker {
    id: ThreadId,
    tell: Sender<()>,
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Worker {
    fn on(cpu: usize) -> Self {
        let (tell, told): (_, Receiver<()>) = channel();
        let (report, reported) = channel();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            pin(cpu);
            report.send(ThreadId::current().unwrap()).unwrap();
            if told.recv().is_ok() {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            }
        });
        Self { id: reported.recv().unwrap(), tell, is_over, thread }
    }

    fn spin(&self) {
        self.tell.send(()).unwrap();
    }

    /// Returns once /proc has no such thread. Its last switch follows shortly.
    fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        drop(self.tell);
        self.thread.join().unwrap();
        while ThreadId::of(self.id.tid).is_ok() {
            std::thread::yield_now();
        }
    }
}

/// Waits until a thread is in a state.
fn see(view: &ViewReader, tracked: TrackedThread, is_it: impl Fn(ThreadState) -> bool) -> ThreadState {
    loop {
        if let Some(state) = view.thread(tracked.slot, now_ns()).filter(|state| is_it(*state)) {
            return state;
        }
        std::thread::yield_now();
    }
}

/// Waits until all tracked threads have ended.
fn sweep_all(view: &mut ViewWriter) {
    while view.tracked().next().is_some() {
        view.sweep();
        std::thread::yield_now();
    }
}

#[test]
#[ignore = "needs root"]
fn a_thread_sleeps_runs_and_ends() {
    let mut view = attached();
    let [cpu, _] = cpus();
    let worker = Worker::on(cpu);
    let tracked = view.track(worker.id).unwrap();
    // From /proc if it already sleeps; from the program if it went to sleep since.
    see(view.reader(), tracked, |state| state.activity == Activity::Blocked && usize::from(state.cpu) == cpu);
    worker.spin();
    see(view.reader(), tracked, |state| state.activity == Activity::Running && usize::from(state.cpu) == cpu);
    worker.end();
    sweep_all(&mut view);
    assert_eq!(view.reader().thread(tracked.slot, now_ns()), None);
}

#[test]
#[ignore = "needs root"]
fn of_two_threads_that_want_one_cpu_one_waits() {
    let mut view = attached();
    let [cpu, _] = cpus();
    let workers = [Worker::on(cpu), Worker::on(cpu)];
    let [first, second] = [&workers[0], &workers[1]].map(|worker| view.track(worker.id).unwrap());
    workers.iter().for_each(Worker::spin);
    let reader = view.reader();
    // In both orders: they take turns.
    for (runs, waits) in [(first, second), (second, first)] {
        loop {
            see(reader, waits, |state| state.activity == Activity::Runnable && usize::from(state.cpu) == cpu);
            let now_ns = now_ns();
            let other = reader.thread(runs.slot, now_ns).unwrap();
            let waiting = reader.cpu(cpu as u16, now_ns).unwrap().waiting;
            if other.activity == Activity::Running && waiting > 0 {
                break;
            }
            std::thread::yield_now();
        }
    }
    workers.into_iter().for_each(Worker::end);
}

#[test]
#[ignore = "needs root"]
fn a_cpu_has_the_thread_that_asks_there() {
    let view = attached();
    let mine = ThreadId::current().unwrap().tid;
    for cpu in cpus() {
        pin(cpu);
        // Right after attaching, the view may have an earlier thread of a CPU until the CPU's next switch.
        while view.reader().cpu(cpu as u16, now_ns()).unwrap().occupant != Occupant::Thread(mine) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
    assert_eq!(view.reader().cpu(u16::MAX, now_ns()), None);
}

#[test]
#[ignore = "needs root"]
fn a_thread_is_tracked_once_and_not_after_its_end() {
    let mut view = attached();
    let worker = Worker::on(cpus()[0]);
    let first = view.track(worker.id).unwrap();
    assert!(matches!(view.track(worker.id), Err(TrackError::Twice(_))));
    view.forget(worker.id.tid);
    let second = view.track(worker.id).unwrap();
    assert_ne!(first.slot, second.slot);
    see(view.reader(), second, |state| state.activity == Activity::Blocked);

    let ended = worker.id;
    worker.end();
    sweep_all(&mut view);
    assert!(matches!(view.track(ended), Err(TrackError::Thread(ThreadError::Gone(_)))));
    let later = ThreadId { start_ticks: 0, ..ThreadId::current().unwrap() };
    assert!(
        matches!(view.track(later), Err(TrackError::Thread(ThreadError::Gone(_)))),
        "another one of that number"
    );
    assert_eq!(view.tracked().count(), 0);
}

#[test]
#[ignore = "needs root"]
fn nothing_is_written_while_it_is_detached() {
    let mut view = attached();
    let worker = Worker::on(cpus()[0]);
    let tracked = view.track(worker.id).unwrap();
    see(view.reader(), tracked, |state| state.activity == Activity::Blocked);
    view.detach();
    assert!(!view.is_attached() && view.tracked().next().is_none());
    view.attach().unwrap();
    let again = view.track(worker.id).unwrap();
    see(view.reader(), again, |state| state.activity == Activity::Blocked);
    worker.end();
}

/// A slot's next thread is never mistaken for the earlier one, in any order of ends.
#[test]
#[ignore = "needs root"]
fn many_threads_come_and_go() {
    let mut view = attached();
    let cpus = cpus();
    for _ in 0..20 {
        let workers: Vec<Worker> = (0..8).map(|number| Worker::on(cpus[number % 2])).collect();
        let tracked: Vec<_> = workers.iter().map(|worker| view.track(worker.id).unwrap()).collect();
        workers.into_iter().for_each(Worker::end);
        // The last one may still be leaving its CPU.
        let seen = |tracked: &TrackedThread| view.reader().thread(tracked.slot, now_ns()).is_some();
        while tracked.iter().any(seen) {
            std::thread::yield_now();
        }
    }
    sweep_all(&mut view);
}

/// Waits until a queue has an event.
fn hear(queue: &EventQueue<BorrowedFd<'_>>) {
    while !queue.clear() {
        std::thread::yield_now();
    }
}

#[test]
#[ignore = "needs root"]
fn a_thread_that_goes_to_sleep_wakes_the_worker_that_asked_for_it() {
    let mut view = attached();
    let (to_thread, told): (_, Receiver<()>) = channel();
    let (to_here, heard) = channel();
    let sleeper = std::thread::spawn(move || {
        to_here.send(ThreadId::current().unwrap()).unwrap();
        while told.recv().is_ok() {
            to_here.send(ThreadId::current().unwrap()).unwrap();
        }
    });
    let tracked = view.track(heard.recv().unwrap()).unwrap();
    let [wake_ups, queues @ ..] = &view.wake_up_descriptors().collect::<Vec<_>>()[..] else { panic!("none") };
    let wake_ups = WakeUps::map(*wake_ups).unwrap();
    let queues: Vec<_> = queues.iter().map(|queue| EventQueue::map(*queue).unwrap()).collect();
    let sleeps = || see(view.reader(), tracked, |state| state.activity == Activity::Blocked);
    // The thread runs for a moment, and sleeps again.
    let turn = || {
        sleeps();
        to_thread.send(()).unwrap();
        heard.recv().unwrap();
        sleeps();
    };
    for worker in [3, 0, WAKERS_MAX - 1] {
        sleeps();
        wake_ups.ask(tracked.slot, worker);
        turn();
        hear(&queues[worker]);
        turn();
        assert!(!queues[worker].clear(), "a request is for one event");
    }
    wake_ups.ask(tracked.slot, WAKERS_MAX);
    turn();
    assert!(queues.iter().all(|queue| !queue.clear()), "no worker has that number");
    drop(to_thread);
    sleeper.join().unwrap();
}
