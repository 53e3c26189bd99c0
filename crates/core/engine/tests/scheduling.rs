//! Policies under a view with random content: each frame still arrives, once and in order.

mod support;

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lasthop_engine::{Gathering, SchedulerView, TRACE_ENTRIES_MAX};
use lasthop_frontend::GuestOptions;
use lasthop_module_api::PortId;
use lasthop_sched::{CpuState, GuestView, Mode, Modes, Occupant, Policy};
use support::{TestSwitch, TestWorkers, config, frame, receive, send};

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
        })
    }

    fn cpu(&self, _: u16) -> Option<CpuState> {
        let bits = self.next();
        (bits & 15 != 0)
            .then(|| CpuState { occupant: Occupant::Thread(1), waiting: u32::from(bits >> 8 & 1 == 0) })
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
    }
}
