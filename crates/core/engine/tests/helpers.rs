//! Large frames that a worker and a helper copy in turns, with real threads.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use lasthop_engine::SchedulerView;
use lasthop_frontend::{Guest, GuestOptions};
use lasthop_module_api::PortId;
use lasthop_sched::{
    Activity, CpuPlace, CpuState, GuestVcpus, GuestView, Mode, Modes, Occupant, Policy, ThreadState,
};
use lasthop_wire::Offload;
use rustix::thread::{CpuSet, sched_setaffinity};
use support::{IdleView, TestSwitch, config, eventually, frame, receive};

/// Bytes of a frame here, and the number of frames that a sender posts at a time.
const LARGE: usize = 9000;
const TRAIN: u32 = 16;

fn options() -> GuestOptions {
    GuestOptions { tx_slot_bytes: 10_000, ..GuestOptions::default() }
}

/// Sends a train of frames from `one` to `other`, which gets each once and in order. Returns the next number.
fn exchange(one: &mut Guest, other: &mut Guest, first: u32) -> u32 {
    one.reclaim(0).unwrap();
    for number in first..first + TRAIN {
        assert!(one.send(0, &frame(2, 1, number, LARGE), Offload::default()).unwrap());
    }
    one.flush(0).unwrap();
    for number in first..first + TRAIN {
        assert_eq!(receive(other), frame(2, 1, number, LARGE));
    }
    first + TRAIN
}

/// Sends trains until `holds`.
fn exchange_until(what: &str, guests: &mut [Guest; 2], first: u32, mut holds: impl FnMut() -> bool) -> u32 {
    let [one, other] = guests;
    let mut next = first;
    eventually(what, || {
        next = exchange(one, other, next);
        holds()
    });
    next
}

fn guests(switch: &mut TestSwitch) -> [Guest; 2] {
    ["one", "other"].map(|name| switch.attach(config(name), options()).1)
}

#[test]
fn helpers_copy_while_the_policy_is_on() {
    for workers in [1, 2] {
        let mut switch = TestSwitch::with_helpers("dummy", workers, 2048, Arc::new(IdleView::default()));
        let mut guests = guests(&mut switch);
        let next = exchange_until("a helper copies", &mut guests, 0, || switch.shared_frames().1 > 0);
        assert!(
            switch.engine.stats().unwrap().workers.iter().any(|worker| worker.policies.offloads_shared > 0)
        );
        switch.engine.set_scheduler_view(Some(Arc::new(IdleView::default())), Modes::default()).unwrap();
        let shared = switch.shared_frames();
        (0..8).fold(next, |next, _| {
            let [one, other] = &mut guests;
            exchange(one, other, next)
        });
        assert_eq!(switch.shared_frames(), shared, "it is off");
        switch.assert_conserved();
    }
}

/// A view in which no CPU is idle.
#[derive(Debug)]
struct BusyView([CpuPlace; 2]);

impl SchedulerView for BusyView {
    fn guest(&self, _: PortId, _: u16) -> Option<GuestView> {
        None
    }

    fn cpu(&self, _: u16) -> Option<CpuState> {
        Some(CpuState { occupant: Occupant::Thread(u32::MAX), waiting: 0 })
    }

    fn places(&self) -> &[CpuPlace] {
        &self.0
    }
}

#[test]
fn no_helper_is_called_to_a_cpu_that_is_busy() {
    let view = Arc::new(BusyView(Default::default()));
    let mut switch = TestSwitch::with_helpers("dummy", 1, 2048, view);
    let mut guests = guests(&mut switch);
    let alone = || switch.engine.stats().unwrap().workers[0].policies.offloads_alone;
    exchange_until("a round without an idle CPU", &mut guests, 0, || alone() > 0);
    assert_eq!(switch.shared_frames(), (0, 0));
}

/// A view in which the guests' first threads are elsewhere than the one that reads the queue.
#[derive(Debug, Default)]
struct ReaderView(IdleView);

impl SchedulerView for ReaderView {
    fn guest(&self, _: PortId, _: u16) -> Option<GuestView> {
        None
    }

    fn cpu(&self, number: u16) -> Option<CpuState> {
        self.0.cpu(number)
    }

    fn guest_cpu(&self, _: PortId) -> Option<u16> {
        Some(0)
    }

    fn vcpus(&self, _: PortId) -> GuestVcpus {
        GuestVcpus { count: 2, is_ordered: false }
    }

    fn vcpu(&self, _: PortId, index: usize) -> Option<ThreadState> {
        Some(ThreadState { activity: Activity::Running, cpu: index as u16, for_ns: 0 })
    }

    fn last_vcpu(&self, _: PortId) -> Option<usize> {
        Some(1)
    }

    fn places(&self) -> &[CpuPlace] {
        self.0.places()
    }
}

#[test]
fn the_queue_s_vcpu_decides_which_helper_is_near() {
    let mut switch = TestSwitch::with_helpers("dummy", 1, 2048, Arc::new(ReaderView::default()));
    let mut guests = guests(&mut switch);
    let moved = || switch.engine.stats().unwrap().workers[0].policies.offloads_moved;
    let next = exchange_until("large frames", &mut guests, 0, || switch.shared_frames() != (0, 0));
    assert_eq!(moved(), 0, "the policy is off");
    let mut modes = Modes::default();
    [Policy::Offload, Policy::Movement].into_iter().for_each(|policy| modes.set(policy, Mode::On));
    switch.engine.set_scheduler_view(Some(Arc::new(ReaderView::default())), modes).unwrap();
    exchange_until("a copy near the reader", &mut guests, next, || moved() > 0);
    switch.assert_conserved();
}

#[test]
fn guests_leave_while_helpers_copy() {
    let mut switch = TestSwitch::with_helpers("dummy", 1, 2048, Arc::new(IdleView::default()));
    for _ in 0..20 {
        let one = switch.engine.add_port(config("one")).unwrap();
        let other = switch.engine.add_port(config("other")).unwrap();
        let mut guests = [one, other].map(|port| Guest::over(switch.serve(port), options()).unwrap());
        let [sender, receiver] = &mut guests;
        let next = exchange(sender, receiver, 0);
        for number in next..next + TRAIN {
            sender.send(0, &frame(2, 1, number, LARGE), Offload::default()).unwrap();
        }
        sender.flush(0).unwrap();
        drop(guests); // with frames under way
        switch.join_sessions();
        switch.assert_conserved();
        [one, other].into_iter().for_each(|port| switch.engine.remove_port(port).unwrap());
    }
}

/// A view in which the first CPU is idle unless a thread wants it, and the second one busy.
#[derive(Debug, Default)]
struct WantedView {
    places: [CpuPlace; 2],
    /// Whether the thread is to want the CPU behind a helper's next look.
    is_armed: AtomicBool,
    is_wanted: AtomicBool,
    thread: OnceLock<Thread>,
}

impl SchedulerView for WantedView {
    fn guest(&self, _: PortId, _: u16) -> Option<GuestView> {
        None
    }

    /// The thread runs or waits while it wants the CPU. So if a helper asks that runs there, it waits.
    fn cpu(&self, number: u16) -> Option<CpuState> {
        let occupant = if number == 0 { Occupant::Idle { for_ns: 0 } } else { Occupant::Thread(u32::MAX) };
        let waiting = u32::from(self.is_wanted.load(Ordering::SeqCst));
        let is_helper = std::thread::current().name().is_some_and(|name| name.starts_with("helper"));
        if is_helper && self.is_armed.swap(false, Ordering::SeqCst) {
            self.is_wanted.store(true, Ordering::SeqCst);
            self.thread.get().into_iter().for_each(Thread::unpark);
        }
        Some(CpuState { occupant, waiting })
    }

    fn places(&self) -> &[CpuPlace] {
        &self.places
    }
}

/// Wants the first CPU for a while whenever the view says so, until `ends`.
fn want_first_cpu(view: &WantedView, ends: &AtomicBool) {
    let mut first = CpuSet::new();
    first.set(0);
    sched_setaffinity(None, &first).unwrap();
    while !ends.load(Ordering::SeqCst) {
        std::thread::park();
        let since = Instant::now();
        while view.is_wanted.load(Ordering::SeqCst) && since.elapsed() < Duration::from_millis(1) {
            std::hint::spin_loop();
        }
        view.is_wanted.store(false, Ordering::SeqCst);
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "the times are for readers: a busy machine has any")]
fn a_helper_takes_no_frame_once_another_thread_waits_for_its_cpu() {
    let view = Arc::new(WantedView::default());
    let mut switch = TestSwitch::with_helpers("dummy", 1, 2048, Arc::clone(&view) as Arc<dyn SchedulerView>);
    let mut guests = guests(&mut switch);
    let mut next = exchange_until("a helper copies", &mut guests, 0, || switch.shared_frames().1 > 0);
    let returns = || {
        let (_, traces) = switch.engine.decisions().unwrap();
        let all: Vec<_> = traces.concat().into_iter().filter_map(|entry| entry.cpu_return).collect();
        all
    };
    assert_eq!(returns(), [], "nobody wanted its CPU");
    let (ends, busy) = (Arc::new(AtomicBool::new(false)), Arc::clone(&view));
    let of_thread = Arc::clone(&ends);
    let thread = std::thread::spawn(move || want_first_cpu(&busy, &of_thread));
    view.thread.set(thread.thread().clone()).unwrap();
    eventually("it gives its CPU back behind a frame", || {
        let [one, other] = &mut guests;
        view.is_armed.store(true, Ordering::SeqCst);
        next = exchange(one, other, next);
        eventually("the thread has left", || !view.is_wanted.load(Ordering::SeqCst));
        returns().iter().any(|back| back.frames > 0)
    });
    ends.store(true, Ordering::SeqCst);
    thread.thread().unpark();
    thread.join().unwrap();
    for back in returns() {
        assert!(back.frames <= 1, "{back:?}");
        println!("{back:?}");
    }
    switch.assert_conserved();
}
