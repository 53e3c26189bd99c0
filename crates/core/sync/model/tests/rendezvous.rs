//! The rendezvous behind all sleeping, in every order that the memory model allows. The file is that of the product;
//! loom replaces `std`.

extern crate loom as std;

#[expect(unreachable_pub)]
#[path = "../../../ring/src/rendezvous.rs"]
mod rendezvous;

use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use loom::sync::{Arc, Notify};
use rendezvous::arm_and_recheck;

const ITEMS: u32 = 2;

/// The memory that both sides share: entries behind an index, the request to be woken, and the wake-up.
struct Shared {
    entries: [AtomicU32; ITEMS as usize],
    published: AtomicU32,
    armed: AtomicBool,
    bell: Notify,
}

fn publish(shared: &Shared) {
    for item in 1..=ITEMS {
        shared.entries[item as usize - 1].store(item, Ordering::Relaxed);
        shared.published.store(item, Ordering::Release);
        fence(Ordering::SeqCst);
        if shared.armed.load(Ordering::Relaxed) {
            shared.bell.notify();
        }
    }
}

/// Sleeps whenever it may, and ends when it has received everything: loom reports a sleep without end.
fn serve(shared: &Shared) {
    let mut taken = 0;
    while taken < ITEMS {
        shared.armed.store(false, Ordering::Relaxed);
        while taken < shared.published.load(Ordering::Acquire) {
            taken += 1;
            assert_eq!(shared.entries[taken as usize - 1].load(Ordering::Relaxed), taken);
        }
        let arm = |taken: &mut u32| shared.armed.store(*taken < ITEMS, Ordering::Relaxed);
        let pending = |taken: &mut u32| shared.published.load(Ordering::Acquire) > *taken;
        if taken < ITEMS && !arm_and_recheck(&mut taken, arm, pending) {
            shared.bell.wait();
        }
    }
}

#[test]
fn nobody_sleeps_over_work_in_any_order() {
    // Interleavings with up to three preemptions: all of them take a minute, and find nothing more.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = Arc::new(Shared {
            entries: [AtomicU32::new(0), AtomicU32::new(0)],
            published: AtomicU32::new(0),
            armed: AtomicBool::new(false),
            bell: Notify::new(),
        });
        let publisher = loom::thread::spawn({
            let shared = Arc::clone(&shared);
            move || publish(&shared)
        });
        serve(&shared);
        publisher.join().expect("the publisher ends");
    });
}
