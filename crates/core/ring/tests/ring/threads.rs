//! Both sides in threads of their own, sleeping whenever they may, with the real processor's store buffers and
//! reordering.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use crate::FORMATS;
use crate::fixture::{BUFFERS_AT, GUEST_ADDR, map, pair, pair_of};
use lasthop_ring::{DeviceRing, DriverRing};

const ENTRIES: u16 = 4;
const CHAINS: u32 = if cfg!(miri) { 40 } else { 200_000 };
/// Fails instead of hanging; not a limit of speed.
const HANG: Duration = Duration::from_secs(120);

/// An eventfd: several unread signals count as one.
fn bell() -> (SyncSender<()>, Receiver<()>) {
    sync_channel(1)
}

fn ring(bell: &SyncSender<()>) {
    let _ = bell.try_send(());
}

fn serve(mut device: DeviceRing, kicks: Receiver<()>, calls: SyncSender<()>) {
    let mut served = 0;
    while served < CHAINS {
        device.suppress_kicks();
        let pending = device.pending().unwrap();
        for ahead in 0..pending {
            device.complete(device.head(ahead).unwrap(), 0);
        }
        device.take(pending);
        device.publish();
        if device.needs_signal() {
            ring(&calls);
        }
        served += u32::from(pending);
        if pending == 0 && !device.arm_kicks().unwrap() {
            kicks.recv_timeout(HANG).expect("a kick was missed");
        }
    }
}

fn drive(mut driver: DriverRing, kicks: &SyncSender<()>, calls: &Receiver<()>) -> u32 {
    let (mut sent, mut returned) = (0, 0);
    while returned < CHAINS {
        driver.suppress_calls();
        let before = (sent, returned);
        while sent < CHAINS && driver.add(&[(GUEST_ADDR + BUFFERS_AT, 1)], &[], sent).is_some() {
            sent += 1;
        }
        driver.publish();
        if driver.needs_kick() {
            ring(kicks);
        }
        while let Some(used) = driver.take_used().unwrap() {
            assert_eq!(used.token, returned, "in order");
            returned += 1;
        }
        if before == (sent, returned) && !driver.arm_calls() {
            calls.recv_timeout(HANG).expect("a signal was missed");
        }
    }
    returned
}

#[test]
fn no_side_sleeps_over_work() {
    for (format, event_idx) in FORMATS.into_iter().flat_map(|format| [(format, false), (format, true)]) {
        let map = map();
        let (driver, device) = pair_of(format, &map, ENTRIES, event_idx, 0);
        let ((kick, kicks), (call, calls)) = (bell(), bell());
        std::thread::scope(|scope| {
            scope.spawn(move || serve(device, kicks, call));
            assert_eq!(drive(driver, &kick, &calls), CHAINS);
        });
    }
}

/// Enough rounds for a store buffer to hide a store if a fence is missing; how soon that happens depends on the
/// machine.
const ROUNDS: u32 = if cfg!(miri) { 20 } else { 100_000 };

/// The point at which both threads meet before each step of a round.
#[derive(Default)]
struct Meeting {
    arrived: AtomicU32,
    /// Whether one of the two threads failed.
    left: AtomicBool,
    /// Whether the publisher was asked to wake the other in this round.
    wakes: AtomicBool,
}

impl Meeting {
    /// Waits for the other thread by spinning, since both should leave at the same moment, or `late_turns` later.
    fn meet(&self, late_turns: u32) {
        let both = (self.arrived.fetch_add(1, Ordering::SeqCst) + 2) & !1;
        let mut turns = 0_u32;
        while self.arrived.load(Ordering::SeqCst) < both && !self.left.load(Ordering::SeqCst) {
            turns += 1;
            if turns.is_multiple_of(1000) {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
        (0..late_turns).for_each(|_| std::hint::spin_loop());
    }
}

/// One of the two threads. If it fails, the other one must not wait for it for ever.
struct Side<'a>(&'a Meeting);

impl Drop for Side<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.left.store(true, Ordering::SeqCst);
        }
    }
}

/// In each round one thread publishes and checks whether to wake, while the other arms and checks for work. At least
/// one of them must see the other. Then they swap roles, for the used ring.
fn publish_while_arming(event_idx: bool) {
    let map = map();
    let (mut driver, mut device) = pair(&map, ENTRIES, event_idx, 0);
    let meeting = Meeting::default();
    std::thread::scope(|scope| {
        scope.spawn(|| drive_rounds(&mut driver, &meeting));
        serve_rounds(&mut device, &meeting);
    });
}

fn drive_rounds(driver: &mut DriverRing, meeting: &Meeting) {
    let _side = Side(meeting);
    for round in 0..ROUNDS {
        driver.add(&[(GUEST_ADDR + BUFFERS_AT, 1)], &[], round).unwrap();
        driver.suppress_calls();
        meeting.meet(round % 5);
        driver.publish();
        meeting.wakes.store(driver.needs_kick(), Ordering::Relaxed);
        meeting.meet(0);
        meeting.meet(round % 5);
        let more = driver.arm_calls();
        meeting.meet(0);
        assert!(more || meeting.wakes.load(Ordering::Relaxed), "the signal of round {round} was missed");
        assert_eq!(driver.take_used().unwrap().unwrap().token, round);
    }
}

fn serve_rounds(device: &mut DeviceRing, meeting: &Meeting) {
    let _side = Side(meeting);
    for round in 0..ROUNDS {
        device.suppress_kicks();
        meeting.meet(round % 3);
        let more = device.arm_kicks_past(device.base());
        meeting.meet(0);
        assert!(more || meeting.wakes.load(Ordering::Relaxed), "the kick of round {round} was missed");
        let head = device.head(0).unwrap();
        device.take(1);
        device.complete(head, 0);
        meeting.meet(round % 3);
        device.publish();
        meeting.wakes.store(device.needs_signal(), Ordering::Relaxed);
        meeting.meet(0);
    }
}

#[test]
fn publishing_and_arming_at_once_is_seen_by_one_side() {
    publish_while_arming(true);
    publish_while_arming(false);
}
