//! Policies under a view with random content: each frame still arrives, once and in order.

mod support;

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lasthop_engine::{EngineSettings, Gathering, PolicyCounters, SchedulerView, TRACE_ENTRIES_MAX};
use lasthop_frontend::{ALL_FEATURES, Guest, GuestOptions};
use lasthop_module_api::PortId;
use lasthop_sched::{Activity, CpuState, GuestVcpus, GuestView, Mode, Modes, Occupant, Policy, ThreadState};
use lasthop_vhost::features as virtio;
use rustix::thread::{CpuSet, sched_getaffinity};
use support::{Hog, TestSwitch, TestWorkers, config, eventually, frame, named, receive, send};

/// Frames of each direction for each schedule.
const FRAMES: u32 = 300;
/// Fixed, so that each run uses the same schedules.
const SEEDS: [u64; 4] = [1, 0xdead_beef, 0x5eed, 77];

/// A view whose states are unrelated to the threads.
#[derive(Debug)]
struct RandomView {
    seed: u64,
    looks: AtomicU64,
}

impl RandomView {
    fn next(&self) -> u64 {
        let look = self.looks.fetch_add(1, Ordering::Relaxed);
        // States last for some reads, like those of threads.
        BuildHasherDefault::<DefaultHasher>::default().hash_one((self.seed, look / 8))
    }
}

impl SchedulerView for RandomView {
    fn guest(&self, _: PortId, _: u16) -> Option<GuestView> {
        let bits = self.next();
        let count = |shift: u32| u16::from(bits >> shift & 3 == 0);
        (bits & 15 != 0).then(|| GuestView {
            running: count(8),
            waiting_elsewhere: count(10),
            waiting_here: count(12),
            blocked: count(14),
            unknown: u16::from(bits >> 16 & 15 == 0),
            blocked_for_ns: bits >> 40,
            may_halt_poll: bits >> 20 & 7 == 0,
        })
    }

    fn cpu(&self, _: u16) -> Option<CpuState> {
        let bits = self.next();
        (bits & 15 != 0)
            .then(|| CpuState { occupant: Occupant::Thread(1), waiting: u32::from(bits >> 8 & 1 == 0) })
    }

    fn vcpus(&self, _: PortId) -> GuestVcpus {
        GuestVcpus { count: 2, is_ordered: self.next() & 1 == 0 }
    }

    fn vcpu(&self, _: PortId, _: usize) -> Option<ThreadState> {
        let bits = self.next();
        let activity = [Activity::Running, Activity::Runnable, Activity::Blocked][(bits >> 8) as usize % 3];
        (bits & 15 != 0).then_some(ThreadState { activity, cpu: (bits >> 16) as u16, for_ns: bits >> 40 })
    }

    fn last_vcpu(&self, _: PortId) -> Option<usize> {
        Some(self.next() as usize % 4).filter(|index| *index < 3)
    }
}

fn all_on() -> Modes {
    let mut modes = Modes::default();
    Policy::ALL.into_iter().for_each(|policy| modes.set(policy, Mode::On));
    modes
}

#[test]
fn frames_arrive_once_and_in_order_with_any_view() {
    for (seed, workers) in SEEDS.into_iter().zip([1, 2, 1, 2]) {
        let mut switch = TestSwitch::start("dummy", TestWorkers { workers, gathering: Gathering::ByLoad });
        let (_, mut one) = switch.attach(config("one"), GuestOptions::default());
        let (_, mut other) = switch.attach(config("other"), GuestOptions::default());
        let view = Arc::new(RandomView { seed, looks: AtomicU64::new(0) });
        switch.engine.set_scheduler_view(Some(Arc::clone(&view) as _), all_on()).unwrap();
        let mut number = 0;
        while number < FRAMES {
            // Trains of 1 to 8 frames, and an answer to each train.
            let train = 1 + (number % 8).min(FRAMES - number - 1);
            (number..number + train).for_each(|number| send(&mut one, &frame(2, 1, number, 64)));
            for number in number..number + train {
                assert_eq!(receive(&mut other), frame(2, 1, number, 64), "seed {seed}");
            }
            send(&mut other, &frame(1, 2, number, 64));
            assert_eq!(receive(&mut one), frame(1, 2, number, 64), "seed {seed}");
            number += train;
        }
        switch.assert_conserved();
        let (_, decisions) = switch.engine.decisions().unwrap();
        assert!(view.looks.load(Ordering::Relaxed) > 0 && decisions.iter().any(|all| !all.is_empty()));
        assert!(decisions.iter().all(|all| all.len() <= TRACE_ENTRIES_MAX));
        let (is_used, rows) = switch.engine.movement_rows().unwrap();
        assert!(is_used && rows.len() == 2, "{rows:?}");
        let landed =
            |counters: PolicyCounters| counters.landed_same + counters.landed_near + counters.landed_far;
        let stats = switch.engine.stats().unwrap();
        assert!(stats.workers.iter().map(|worker| landed(worker.policies)).sum::<u64>() > 0, "{rows:?}");
    }
}

/// A view in which each guest has one thread that runs, and an event whenever a test writes it.
#[derive(Debug)]
struct RunningView {
    event: OwnedFd,
    requests: AtomicU64,
}

impl SchedulerView for RunningView {
    fn guest(&self, _: PortId, _: u16) -> Option<GuestView> {
        Some(GuestView { running: 1, ..GuestView::default() })
    }

    fn wake_when_asleep(&self, _: PortId, _: usize) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// The descriptor is edge-triggered and never full.
    fn sleep_events(&self, _: usize) -> Option<BorrowedFd<'_>> {
        Some(self.event.as_fd())
    }

    fn cpu(&self, _: u16) -> Option<CpuState> {
        None
    }
}

fn only(policy: Policy) -> Modes {
    let mut modes = Modes::default();
    Policy::ALL.into_iter().for_each(|other| modes.set(other, Mode::Off));
    modes.set(policy, Mode::On);
    modes
}

/// A switch of one worker, two guests, and that view.
fn running(policy: Policy) -> (TestSwitch, Arc<RunningView>, [Guest; 2]) {
    let mut switch = TestSwitch::start("dummy", 1);
    let guests = ["one", "other"].map(|name| switch.attach(config(name), GuestOptions::default()).1);
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    let view = Arc::new(RunningView { event, requests: AtomicU64::new(0) });
    switch.engine.set_scheduler_view(Some(Arc::clone(&view) as _), only(policy)).unwrap();
    (switch, view, guests)
}

fn counters(switch: &TestSwitch) -> PolicyCounters {
    switch.engine.stats().unwrap().workers[0].policies
}

#[test]
fn an_event_wakes_the_worker() {
    let (switch, view, [mut one, mut other]) = running(Policy::TransmitTimer);
    let sleeps = counters(&switch).sleep_events;
    rustix::io::write(&view.event, &1_u64.to_ne_bytes()).unwrap();
    eventually("the event", || counters(&switch).sleep_events == sleeps + 1);
    eventually("a ring with a timer", || {
        send(&mut one, &frame(2, 1, 7, 64));
        assert_eq!(receive(&mut other), frame(2, 1, 7, 64));
        counters(&switch).transmits_timed > 0
    });
    assert!(view.requests.load(Ordering::Relaxed) > 0);
}

#[test]
fn a_ring_with_a_timer_stops_with_its_guest() {
    let (mut switch, _view, [mut one, mut other]) = running(Policy::TransmitTimer);
    eventually("a ring with a timer", || {
        send(&mut one, &frame(2, 1, 7, 64));
        assert_eq!(receive(&mut other), frame(2, 1, 7, 64));
        counters(&switch).transmits_timed > 0
    });
    drop((one, other));
    switch.join_sessions();
    assert_eq!(switch.engine.stats().unwrap().workers[0].active_rings, 0);
    switch.assert_conserved();
}

#[test]
fn signals_to_a_receiver_that_runs_are_delayed_and_none_is_lost() {
    let (switch, _view, [mut one, mut other]) = running(Policy::Notify);
    let mut number = 0;
    eventually("delayed signals", || {
        let first = number;
        number += 64;
        for number in first..number {
            send(&mut one, &frame(2, 1, number, 64));
            assert_eq!(receive(&mut other), frame(2, 1, number, 64));
        }
        counters(&switch).signals_delayed > 0
    });
    switch.assert_conserved();
}

#[test]
fn signals_to_a_receiver_without_event_index_are_not_delayed() {
    let mut switch = TestSwitch::start("dummy", 1);
    let (_, mut one) = switch.attach(config("one"), GuestOptions::default());
    let options = GuestOptions { features: ALL_FEATURES & !virtio::EVENT_IDX, ..GuestOptions::default() };
    let (_, mut other) = switch.attach(config("other"), options);
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    let view = Arc::new(RunningView { event, requests: AtomicU64::new(0) });
    switch.engine.set_scheduler_view(Some(view), only(Policy::Notify)).unwrap();
    for number in 0..300 {
        send(&mut one, &frame(2, 1, number, 64));
        assert_eq!(receive(&mut other), frame(2, 1, number, 64));
    }
    assert_eq!(counters(&switch).signals_delayed, 0, "its progress is unknown");
}

#[test]
fn after_a_sleep_the_ring_is_polled_from_which_the_last_answer_came() {
    const LOOK: Duration = Duration::from_millis(400);
    for workers in [1, 2] {
        let hysteresis_us = LOOK.as_micros() as u32;
        let settings = EngineSettings { workers, hysteresis_us, ..EngineSettings::default() };
        let mut switch = TestSwitch::with_settings(named("dummy"), &settings);
        let (_, mut one) = switch.attach(config("one"), GuestOptions::default());
        let (_, mut other) = switch.attach(config("other"), GuestOptions::default());
        let expected = || -> u64 {
            switch.engine.stats().unwrap().workers.iter().map(|worker| worker.answers_expected).sum()
        };
        let pass = |from: &mut Guest, to: &mut Guest| {
            send(from, &frame(2, 1, 0, 64));
            receive(to);
        };
        pass(&mut one, &mut other);
        assert_eq!(expected(), 0, "there was no answer before");
        eventually("an answer is expected", || {
            pass(&mut other, &mut one);
            std::thread::sleep(LOOK);
            pass(&mut one, &mut other);
            expected() > 0
        });
    }
}

#[test]
fn a_thread_polls_little_beside_one_that_computes_unless_it_may_poll_on_any_cpu() {
    let allowed = sched_getaffinity(None).unwrap();
    let cpu = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).expect("a CPU");
    let _hogs = [Hog::on(Some(cpu)), Hog::on(Some(cpu))];
    for polls_on_any_cpu in [false, true] {
        // It polls for long where it may, so that it offers its core.
        let settings = EngineSettings {
            cpus: vec![cpu],
            hysteresis_us: 1_000_000,
            polls_on_any_cpu,
            ..EngineSettings::default()
        };
        let mut switch = TestSwitch::with_settings(named("dummy"), &settings);
        let (_, mut one) = switch.attach(config("one"), GuestOptions::default());
        let (_, mut other) = switch.attach(config("other"), GuestOptions::default());
        let counts = || {
            let stats = switch.engine.stats().unwrap();
            let worker = stats.workers[0];
            assert!(worker.scarce > 0 || !worker.is_scarce);
            (worker.crowded, worker.scarce, worker.is_scarce)
        };
        let mut number = 0;
        eventually("the hogs take the core", || {
            send(&mut one, &frame(2, 1, number, 64));
            assert_eq!(receive(&mut other), frame(2, 1, number, 64));
            send(&mut other, &frame(1, 2, number, 64));
            assert_eq!(receive(&mut one), frame(1, 2, number, 64));
            number += 1;
            let (crowded, scarce, is_scarce) = counts();
            if polls_on_any_cpu { crowded > 2 } else { scarce > 0 && is_scarce }
        });
        assert_eq!(counts().1 > 0, !polls_on_any_cpu);
        switch.assert_conserved();
    }
}
