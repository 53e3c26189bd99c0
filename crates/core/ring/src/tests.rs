//! Every interleaving of two sides that publish, request wake-ups and go to sleep, one memory access a step: neither
//! sleeps while there is work. `tests/threads.rs` adds the processor's store buffers.

use std::sync::Arc;

use lasthop_guestmem::{Mapping, MemoryMap, Region};

use crate::{DeviceRing, DriverRing, RingAddresses, RingFormat, RingMemory};

const FORMATS: [RingFormat; 2] = [RingFormat::Split, RingFormat::Packed];
const ENTRIES: u16 = 4;
const ROUNDS: u16 = 3;
/// Longer schedules add no case: the publisher has `2 * ROUNDS` steps.
const SCHEDULE_BITS: u32 = if cfg!(miri) { 5 } else { 16 };

fn map() -> MemoryMap {
    let mapping = Arc::new(Mapping::anonymous(4096).unwrap());
    MemoryMap::new(vec![Region { guest_addr: 0, user_addr: 0, mapping }]).unwrap()
}

fn ring(format: RingFormat, map: &MemoryMap, event_idx: bool, position: u16) -> (DriverRing, DeviceRing) {
    let addresses = RingAddresses { descriptors: 0, available: 1024, used: 2048 };
    let memory = || RingMemory::of(format, map, u32::from(ENTRIES), addresses).unwrap();
    let driver = DriverRing::starting_at(memory(), event_idx, position);
    (driver, DeviceRing::new(memory(), position, event_idx))
}

/// The position in the sleeper's loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sleeper {
    Suppress,
    Work,
    Ask,
    Recheck,
    Asleep,
}

/// The loop of the engine and of guests, split into its memory accesses.
trait Loop {
    fn suppress(&mut self);
    /// Takes all available entries and returns their number.
    fn work(&mut self) -> u16;
    fn ask(&mut self);
    fn recheck(&mut self) -> bool;

    fn step(&mut self, state: Sleeper, woken: &mut bool, done: &mut u16) -> Sleeper {
        match state {
            Sleeper::Suppress => {
                self.suppress();
                Sleeper::Work
            }
            Sleeper::Work => {
                let taken = self.work();
                *done += taken;
                if taken > 0 { Sleeper::Work } else { Sleeper::Ask }
            }
            Sleeper::Ask => {
                self.ask();
                Sleeper::Recheck
            }
            Sleeper::Recheck if self.recheck() => Sleeper::Suppress,
            Sleeper::Asleep if std::mem::take(woken) => Sleeper::Suppress,
            Sleeper::Recheck | Sleeper::Asleep => Sleeper::Asleep,
        }
    }
}

impl Loop for DeviceRing {
    fn suppress(&mut self) {
        self.suppress_kicks();
    }

    fn work(&mut self) -> u16 {
        let pending = self.pending().unwrap();
        self.take(pending);
        pending
    }

    fn ask(&mut self) {
        self.ask_for_kick(self.base());
    }

    fn recheck(&mut self) -> bool {
        self.has_moved_past(self.base())
    }
}

/// A device that suppresses the kick for which it has armed the ring, before the next head.
struct Expecting(DeviceRing);

impl Loop for Expecting {
    fn suppress(&mut self) {
        self.0.suppress_next_kick();
    }

    fn work(&mut self) -> u16 {
        self.0.work()
    }

    fn ask(&mut self) {
        self.0.ask();
    }

    fn recheck(&mut self) -> bool {
        self.0.recheck()
    }
}

impl Loop for DriverRing {
    fn suppress(&mut self) {
        self.suppress_calls();
    }

    fn work(&mut self) -> u16 {
        let pending = self.used_pending().unwrap();
        for _ in 0..pending {
            self.take_used().unwrap().unwrap();
        }
        pending
    }

    fn ask(&mut self) {
        self.ask_for_call(0);
    }

    fn recheck(&mut self) -> bool {
        self.has_used(0)
    }
}

/// Runs `publish` (even steps) and `wants_wake` (odd steps) against the sleeper's loop, in the order of `schedule` and
/// then to the end. Returns how much work the sleeper did, and how often it was woken.
fn run<P, S: Loop>(
    schedule: u32,
    (publisher, sleeper): (&mut P, &mut S),
    publish: impl Fn(&mut P, u16),
    wants_wake: impl Fn(&mut P) -> bool,
) -> (u16, u32) {
    let (mut state, mut woken, mut done, mut wakes, mut step) = (Sleeper::Suppress, false, 0, 0, 0);
    for turn in 0..SCHEDULE_BITS + 32 {
        let sleeper_turn = turn < SCHEDULE_BITS && schedule >> turn & 1 == 1;
        if step == 2 * ROUNDS || sleeper_turn {
            state = sleeper.step(state, &mut woken, &mut done);
            continue;
        }
        if step % 2 == 0 {
            publish(publisher, step / 2);
        } else if wants_wake(publisher) {
            (woken, wakes) = (true, wakes + 1);
        }
        step += 1;
    }
    assert_eq!((state, woken), (Sleeper::Asleep, false), "the sleeper came to rest");
    (done, wakes)
}

fn every_schedule(mut each: impl FnMut(u32, bool, u16)) {
    for event_idx in [false, true] {
        for position in [0, 0_u16.wrapping_sub(2)] {
            (0..1 << SCHEDULE_BITS).for_each(|schedule| each(schedule, event_idx, position));
        }
    }
}

fn misses_no_kick<S: Loop>(format: RingFormat, device_of: impl Fn(DeviceRing) -> S) {
    let (map, mut spared) = (map(), 0);
    every_schedule(|schedule, event_idx, position| {
        let (mut driver, device) = ring(format, &map, event_idx, position);
        let (done, kicks) = run(
            schedule,
            (&mut driver, &mut device_of(device)),
            |driver, round| {
                driver.add(&[(0, 1)], &[], u32::from(round)).unwrap();
                driver.publish();
            },
            DriverRing::needs_kick,
        );
        assert_eq!(done, ROUNDS, "schedule {schedule:#b}, event_idx {event_idx}, position {position}");
        spared += u32::from(kicks < u32::from(ROUNDS));
    });
    assert!(spared > 0, "kicks are suppressed in some interleavings");
}

#[test]
fn no_kick_is_missed_in_any_interleaving() {
    for format in FORMATS {
        misses_no_kick(format, |device| device);
        misses_no_kick(format, Expecting);
    }
}

#[test]
fn a_kick_is_suppressed_before_the_head_for_which_it_was_armed() {
    let cases = [(false, 0), (true, 0), (true, u16::MAX)];
    for (format, (event_idx, position)) in
        FORMATS.into_iter().flat_map(|format| cases.map(|case| (format, case)))
    {
        let map = map();
        let (mut driver, mut device) = ring(format, &map, event_idx, position);
        let mut needs_kick = || {
            driver.add(&[(0, 1)], &[], 0).unwrap();
            driver.publish();
            driver.needs_kick()
        };
        assert!(needs_kick(), "the first head");
        device.work();
        assert!(!device.arm_kicks().unwrap());
        device.suppress_next_kick();
        assert_eq!([needs_kick(), needs_kick()], [false; 2], "event_idx {event_idx}, position {position}");
        device.work();
        assert!(!device.arm_kicks().unwrap());
        assert!(needs_kick(), "event_idx {event_idx}, position {position}");
    }
}

#[test]
fn no_signal_is_missed_in_any_interleaving() {
    FORMATS.into_iter().for_each(misses_no_signal);
}

fn misses_no_signal(format: RingFormat) {
    let (map, mut spared) = (map(), 0);
    every_schedule(|schedule, event_idx, position| {
        let (mut driver, mut device) = ring(format, &map, event_idx, position);
        for round in 0..ROUNDS {
            driver.add(&[(0, 1)], &[], u32::from(round)).unwrap();
        }
        driver.publish();
        assert_eq!(device.pending(), Ok(ROUNDS));
        let (done, signals) = run(
            schedule,
            (&mut device, &mut driver),
            |device, round| {
                device.complete(device.head(round).unwrap(), 0);
                device.publish();
            },
            DeviceRing::needs_signal,
        );
        assert_eq!(done, ROUNDS, "schedule {schedule:#b}, event_idx {event_idx}, position {position}");
        spared += u32::from(signals < u32::from(ROUNDS));
    });
    assert!(spared > 0, "signals are suppressed in some interleavings");
}

#[test]
fn arming_tells_of_work_that_is_there_already() {
    for (format, event_idx) in FORMATS.into_iter().flat_map(|format| [(format, false), (format, true)]) {
        let map = map();
        let (mut driver, mut device) = ring(format, &map, event_idx, 7);
        assert!(!device.arm_kicks_past(7) && !device.arm_kicks().unwrap() && !driver.arm_calls());
        driver.add(&[(0, 1)], &[], 0).unwrap();
        driver.publish();
        assert!(device.arm_kicks_past(7) && device.arm_kicks().unwrap() && !device.arm_kicks_past(8));
        device.complete(device.head(0).unwrap(), 0);
        device.publish();
        assert!(driver.arm_calls() && !driver.arm_calls_ahead(1));
    }
}

/// Completes one buffer. Returns whether the driver wants a signal.
fn fill(device: &mut DeviceRing, round: u16) -> bool {
    device.complete(device.head(round).unwrap(), 0);
    device.publish();
    device.needs_signal()
}

#[test]
fn a_driver_that_does_not_react_to_a_signal_is_noticed() {
    let cases = [(true, 0), (true, 7), (true, u16::MAX), (false, 7)];
    for (format, (event_idx, position)) in
        FORMATS.into_iter().flat_map(|format| cases.map(|case| (format, case)))
    {
        let map = map();
        let (mut driver, mut device) = ring(format, &map, event_idx, position);
        (0..3).for_each(|round| _ = driver.add(&[(0, 1)], &[], round).unwrap());
        driver.publish();
        assert_eq!(device.pending(), Ok(3));
        assert!(!device.is_unheeded(), "it was not signalled");
        assert!(fill(&mut device, 0), "the first publication always signals");
        driver.take_used().unwrap().unwrap();
        assert!(!driver.arm_calls() && !device.is_unheeded(), "it sleeps");
        assert!(fill(&mut device, 1));
        assert_eq!(device.is_unheeded(), event_idx, "it stands still");
        driver.take_used().unwrap().unwrap();
        assert!(!driver.arm_calls() && !device.is_unheeded(), "it sleeps again");
        assert!(fill(&mut device, 2));
        assert_eq!(device.is_unheeded(), event_idx, "it stands still");
        driver.add(&[(0, 1)], &[], 3).unwrap();
        driver.publish();
        assert!(!device.is_unheeded(), "it has posted another buffer");
    }
}
