//! A place for two flows, in every order of the workers that deliver them.

use lasthop_sync_model::{FlowQueues, UNUSED_MS, bounded};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

const OPEN: (u16, u64) = (0, 0b1111);
const UNUSED_NS: u64 = UNUSED_MS << 20;

/// The first flow was moved to queue 3 long ago. One worker delivers two of its packets, another one moves the second flow to its place:
/// the second packet does not go elsewhere while the first is in the queue.
#[test]
fn no_flow_is_displaced_while_it_has_packets() {
    bounded().check(|| {
        let (flows, waiting) = (Arc::new(FlowQueues::default()), Arc::new(AtomicU64::new(0)));
        flows.note_sent(1, 3);
        assert!(flows.change(&flows.place(1, OPEN, 0), 0));
        flows.note_sent(3, 2);
        let other = {
            let (flows, waiting) = (Arc::clone(&flows), Arc::clone(&waiting));
            thread::spawn(move || {
                let place = flows.place(3, OPEN, UNUSED_NS);
                if place.displaced() == Some(3) && waiting.load(Ordering::Acquire) == 0 {
                    let _ = flows.change(&place, UNUSED_NS);
                }
            })
        };
        let first = flows.place(1, OPEN, UNUSED_NS).queue;
        if first == 3 {
            waiting.store(1, Ordering::Release);
        }
        let second = flows.place(1, OPEN, UNUSED_NS).queue;
        assert!(first != 3 || second == 3, "the second packet overtakes the first");
        other.join().unwrap();
    });
}
