//! Tests every interleaving of two or three workers, and every visible order of their stores.

use lasthop_sync_model::{Bounded, CombiningGuard, CombiningLock, SleepFlag, bounded, full_fence, records};
use loom::sync::Arc;
use loom::thread;

/// Serves queued entries and finished pieces until there are no more.
fn serve(lock: &CombiningLock<Vec<u32>, u32>, first: Option<CombiningGuard<'_, Vec<u32>, u32>>) {
    let mut next = first;
    while let Some(mut guard) = next {
        while let Some(value) = guard.dequeue() {
            guard.push(value);
        }
        next = guard.release().then(|| lock.try_lock()).flatten();
    }
}

/// A worker with two packets. It serves queued packets, then its own; or it queues its own.
fn deliver(lock: &CombiningLock<Vec<u32>, u32>, packets: [u32; 2]) {
    for packet in packets {
        match lock.try_lock() {
            Some(mut guard) => {
                while let Some(value) = guard.dequeue() {
                    guard.push(value);
                }
                guard.push(packet);
                serve(lock, guard.release().then(|| lock.try_lock()).flatten());
            }
            None => {
                lock.enqueue(packet).unwrap();
                serve(lock, lock.try_lock_again());
            }
        }
    }
}

#[test]
fn queued_values_are_served_in_each_workers_order() {
    bounded().check(|| {
        let lock = Arc::new(CombiningLock::new(Vec::new(), 4));
        let other = Arc::clone(&lock);
        let thread = thread::spawn(move || deliver(&other, [1, 2]));
        deliver(&lock, [11, 12]);
        thread.join().unwrap();
        let served = lock.try_lock().unwrap().clone();
        let of = |from: u32| served.iter().copied().filter(|value| value / 10 == from).collect::<Vec<_>>();
        assert_eq!((of(0), of(1)), (vec![1, 2], vec![11, 12]), "nothing is stranded, order is kept");
    });
}

/// State under the lock for leases: the order of reservations, and the published ones.
#[derive(Default)]
struct Order {
    begun: std::collections::VecDeque<u8>,
    published: Vec<u8>,
}

fn publish(lock: &CombiningLock<Order, ()>, guard: &mut CombiningGuard<'_, Order, ()>) {
    while let Some(&worker) = guard.begun.front() {
        if !lock.publish_order().take_finished(worker) {
            break;
        }
        guard.begun.pop_front();
        guard.published.push(worker);
    }
    lock.publish_order().set_oldest(guard.begun.front().copied());
}

fn lease(lock: &CombiningLock<Order, ()>, worker: u8) {
    let Some(mut guard) = lock.try_lock() else { return };
    publish(lock, &mut guard);
    guard.begun.push_back(worker);
    publish(lock, &mut guard);
    settle(lock, guard.release().then(|| lock.try_lock()).flatten());
    // The copy: without the guard.
    lock.publish_order().finish(worker);
    settle(lock, lock.try_lock_again());
}

fn settle(lock: &CombiningLock<Order, ()>, first: Option<CombiningGuard<'_, Order, ()>>) {
    let mut next = first;
    while let Some(mut guard) = next {
        publish(lock, &mut guard);
        next = guard.release().then(|| lock.try_lock()).flatten();
    }
}

#[test]
fn finished_leases_are_published() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(5); // without a bound it takes a minute
    model.check(|| {
        let lock = Arc::new(CombiningLock::new(Order::default(), 2));
        let other = Arc::clone(&lock);
        let thread = thread::spawn(move || lease(&other, 1));
        lease(&lock, 0);
        thread.join().unwrap();
        let order = lock.try_lock().unwrap();
        assert!(order.begun.is_empty(), "a finished lease was left unpublished");
    });
}

#[test]
fn a_sleeper_is_woken_or_sees_the_returned_head() {
    bounded().check(|| {
        let home = Arc::new((Bounded::new(2), SleepFlag::default()));
        let away = Arc::clone(&home);
        let thread = thread::spawn(move || {
            away.0.push(7_u32).unwrap();
            full_fence();
            away.1.wake()
        });
        home.1.prepare_sleep();
        full_fence();
        let seen = home.0.pop();
        if seen.is_some() {
            home.1.clear();
        }
        let woken = thread.join().unwrap();
        assert!(seen.is_some() || woken, "it would sleep with a head returned");
    });
}

#[test]
fn two_pushers_and_a_popper() {
    bounded().check(|| {
        let queue = Arc::new(Bounded::new(2));
        let pushers: Vec<_> = (0..2_u32)
            .map(|value| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || queue.push(value).unwrap())
            })
            .collect();
        let mut popped: Vec<u32> = queue.pop().into_iter().collect();
        for pusher in pushers {
            pusher.join().unwrap();
        }
        popped.extend(std::iter::from_fn(|| queue.pop()));
        popped.sort_unstable();
        assert_eq!(popped, [0, 1]);
    });
}

#[test]
fn a_record_is_seen_whole_and_its_room_given_back() {
    bounded().check(|| {
        let (mut writer, mut reader) = records(8 * 8).unwrap();
        let thread = thread::spawn(move || {
            (1..=3_u8).filter(|value| writer.push([u64::from(*value); 2], &[*value; 3])).count()
        });
        let mut bytes = Vec::new();
        let mut seen = Vec::new();
        let mut take = |reader: &mut lasthop_sync_model::RecordReader| {
            while let Some(head) = reader.pop(&mut bytes) {
                let value = head[0] as u8;
                assert_eq!((head, &bytes[..]), ([u64::from(value); 2], &[value; 3][..]));
                seen.push(value);
            }
        };
        take(&mut reader);
        let pushed = thread.join().unwrap();
        take(&mut reader);
        assert_eq!(seen.len(), pushed, "nothing that was taken is lost");
        assert!(seen.is_sorted() && pushed >= 2);
    });
}
