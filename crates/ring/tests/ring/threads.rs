//! Both sides in threads of their own, sleeping whenever they may: real store buffers, real reordering.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use crate::fixture::{BUFFERS_AT, GUEST_ADDR, map, pair};
use lasthop_ring::{DeviceRing, DriverRing};

const ENTRIES: u16 = 4;
const CHAINS: u32 = 200_000;
/// Fails instead of hanging for ever; no bound on speed.
const HANG: Duration = Duration::from_secs(120);

/// An eventfd: signals that nobody waited for yet are one.
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
fn nobody_sleeps_over_work() {
    for event_idx in [false, true] {
        let map = map();
        let (driver, device) = pair(&map, ENTRIES, event_idx, 0);
        let ((kick, kicks), (call, calls)) = (bell(), bell());
        std::thread::scope(|scope| {
            scope.spawn(move || serve(device, kicks, call));
            assert_eq!(drive(driver, &kick, &calls), CHAINS);
        });
    }
}

/// Often enough for two store buffers to hide a store each, if the fences let them: seen within a tenth of it.
const ROUNDS: u32 = 200_000;

/// Where both threads meet before each step of a round.
#[derive(Default)]
struct Meeting {
    arrived: AtomicU32,
    /// Whether the publisher was asked to wake the other, in this round.
    wakes: AtomicBool,
}

impl Meeting {
    /// Waits for the other; by turning, since both are to leave at the same moment.
    fn meet(&self) {
        let both = (self.arrived.fetch_add(1, Ordering::SeqCst) + 2) & !1;
        let mut turns = 0_u32;
        while self.arrived.load(Ordering::SeqCst) < both {
            turns += 1;
            if turns.is_multiple_of(1000) {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }
}

/// Each round: one publishes and looks whether to wake, the other arms and looks whether there is work, both at once. At
/// least one of them must see the other. Then they change sides, for the used ring.
fn publish_while_arming(event_idx: bool) {
    let map = map();
    let (mut driver, mut device) = pair(&map, ENTRIES, event_idx, 0);
    let meeting = Meeting::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for token in 0..ROUNDS {
                driver.add(&[(GUEST_ADDR + BUFFERS_AT, 1)], &[], token).unwrap();
                driver.suppress_calls();
                meeting.meet();
                driver.publish();
                meeting.wakes.store(driver.needs_kick(), Ordering::Relaxed);
                meeting.meet();
                meeting.meet();
                let more = driver.arm_calls();
                meeting.meet();
                assert!(more || meeting.wakes.load(Ordering::Relaxed), "signal of round {token} missed");
                assert_eq!(driver.take_used().unwrap().unwrap().token, token);
            }
        });
        for round in 0..ROUNDS {
            device.suppress_kicks();
            meeting.meet();
            let more = device.arm_kicks_past(device.base());
            meeting.meet();
            assert!(more || meeting.wakes.load(Ordering::Relaxed), "kick of round {round} missed");
            let head = device.head(0).unwrap();
            device.take(1);
            device.complete(head, 0);
            meeting.meet();
            device.publish();
            meeting.wakes.store(device.needs_signal(), Ordering::Relaxed);
            meeting.meet();
        }
    });
}

#[test]
fn publishing_and_arming_at_once_is_seen_by_one_side() {
    publish_while_arming(true);
    publish_while_arming(false);
}
